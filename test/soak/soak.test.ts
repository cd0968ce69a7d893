import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const PROGRAM = fileURLToPath(new URL('main.js', import.meta.url))

t.test('after some seconds of rude traffic all counts match, and nothing is left over', async t => {
  const child = spawn(process.execPath, [PROGRAM, '--seconds', '8', '--json'], {
    env: { ...process.env, NODE_V8_COVERAGE: '' },
  })
  let output = ''
  let errors = ''
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk
  })
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk
  })
  const [code] = await once(child, 'close')
  t.equal(errors, '')
  const { reasons, ...figures } = JSON.parse(output) as { reasons: string[] } & Record<string, number>
  t.same(reasons, [])
  t.equal(code, 0)
  // There was enough traffic.
  for (const outcome of ['forwarded', 'rejected', 'cancelled', 'failed', 'refused']) {
    t.ok(figures[outcome]! > 0, `${figures[outcome]} ${outcome}`)
  }
  t.ok(figures.reloads! > 0)
  t.ok(figures.kindsOfActions! > 15)
})
