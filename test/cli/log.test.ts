/** The log never holds anybody up, and its lines are whole. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { Agent, request } from 'undici'
import { ROOT } from './command.js'

/** A dry run before an upstream that is not there: two lines for each request. */
function start(t: { teardown(run: () => unknown): void }) {
  const child = spawn(
    process.execPath,
    [
      `${ROOT}/bin/shaper.js`,
      'start',
      '--upstream',
      'http://127.0.0.1:1',
      '--rate',
      '100000/s',
      '--listen',
      '127.0.0.1:0',
      '--dry-run',
    ],
    { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, NODE_V8_COVERAGE: '' } },
  )
  t.teardown(() => child.kill('SIGKILL'))
  return child
}

t.test('a reader of the log that reads nothing: requests go on, and so does the end', async t => {
  const child = start(t)
  child.stderr.pause()
  const [chunk] = (await once(child.stdout, 'data')) as [Buffer]
  const url = /(http\S+) ->/.exec(chunk.toString())![1]!
  const agent = new Agent({ connections: 16 })
  t.teardown(() => agent.close())
  const path = `/${'x'.repeat(400)}`
  // Each writes two lines, and a pipe holds 64 kB.
  for (let round = 0; round < 40; round += 1) {
    const answers = await Promise.all(
      Array.from({ length: 25 }, async () => {
        const { statusCode, body } = await request(url + path, { dispatcher: agent })
        await body.dump()
        return statusCode
      }),
    )
    t.equal(answers.filter(status => status === 502).length, 25)
  }
  child.kill('SIGTERM')
  const ended = await Promise.race([once(child, 'exit'), sleep(8_000)])
  t.same(ended, [0, null])
})

t.test('a slow reader gets whole lines', async t => {
  const child = start(t)
  let text = ''
  child.stderr.on('data', (chunk: Buffer) => {
    text += chunk
    child.stderr.pause()
    setTimeout(() => child.stderr.resume(), 5)
  })
  const [chunk] = (await once(child.stdout, 'data')) as [Buffer]
  const url = /(http\S+) ->/.exec(chunk.toString())![1]!
  const agent = new Agent({ connections: 16 })
  t.teardown(() => agent.close())
  for (let round = 0; round < 20; round += 1) {
    await Promise.all(
      Array.from({ length: 25 }, async () => {
        const { body } = await request(`${url}/${'y'.repeat(400)}`, { dispatcher: agent })
        await body.dump()
      }),
    )
  }
  child.kill('SIGTERM')
  await once(child, 'close')
  const lines = text.trimEnd().split('\n')
  t.equal(lines.filter(line => line.includes('"msg":"request"')).length, 500)
  for (const line of lines) JSON.parse(line)
})
