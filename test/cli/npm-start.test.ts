/** `npm start`, as in a terminal. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { request } from 'undici'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { until } from '../servers/redis.js'
import { ROOT } from './command.js'

// They are independent, and mostly wait.
t.jobs = 3

t.test('npm start passes on SIGTERM: nothing is left running', { buffered: true }, async t => {
  // As in its configuration, but for the port.
  const { group: npm, url, stderr } = await npmStart(t, '--listen', '0.0.0.0:0')
  await (await request(url)).body.dump()
  t.notMatch(stderr(), /"level":(?!30)/, 'the first command of README warns of nothing')
  npm.kill('SIGTERM')
  await once(npm, 'exit')
  await until('the port is free', () =>
    request(url).then(
      () => false,
      (error: NodeJS.ErrnoException) => error.code === 'ECONNREFUSED',
    ),
  )
  await until('no process is left', () => {
    try {
      return !process.kill(-npm.pid!, 0)
    } catch {
      return true
    }
  })
})

t.test(
  'Ctrl-C in npm start counts as one signal, although npm passes on a second: queued requests are answered',
  { buffered: true },
  async t => {
    const { group, url, untilCome } = await npmStart(t, '--rate', '2/s', '--capacity', '10', '--admin', '127.0.0.1:0')
    const waiting = Array.from({ length: 4 }, () => answered(url))
    await untilCome(4)
    process.kill(-group.pid!, 'SIGINT')
    t.same(await Promise.all(waiting), [200, 200, 200, 200])
    t.same(await once(group, 'exit'), [0, null])
  },
)

t.test('long: Ctrl-C again in npm start ends it at once', { buffered: true }, async t => {
  const flags = ['--rate', '1/m', '--capacity', '10', '--admin', '127.0.0.1:0']
  const { group, url, stderr, untilCome } = await npmStart(t, ...flags)
  const waiting = Array.from({ length: 3 }, () => answered(url))
  await untilCome(3)
  await Promise.race(waiting)
  process.kill(-group.pid!, 'SIGINT')
  await until('the first is heard', () => /shutting down/.test(stderr()))
  // What npm passes on comes within 200 ms; after that it is a signal of its own.
  await sleep(300)
  process.kill(-group.pid!, 'SIGINT')
  await once(group, 'exit')
  t.same((await Promise.all(waiting)).sort(), [200, undefined, undefined], 'two still waited')
})

/** `npm start` in a group of its own, as in a terminal. */
async function npmStart(
  t: Test,
  ...flags: string[]
): Promise<{ group: ChildProcess; url: string; stderr: () => string; untilCome(count: number): Promise<void> }> {
  const args = ['start', '--', '--listen', '127.0.0.1:0', ...flags]
  const group = spawn('npm', args, { cwd: ROOT, detached: true, stdio: 'pipe' })
  t.teardown(() => {
    try {
      process.kill(-group.pid!, 'SIGKILL')
    } catch {
      // Nothing is left.
    }
  })
  let output = ''
  group.stdout.on('data', (chunk: Buffer) => {
    output += chunk
  })
  let errors = ''
  group.stderr.on('data', (chunk: Buffer) => {
    errors += chunk
  })
  await until('it listens', () => / -> echo:/.test(output))
  /** With an admin server. Requests that are on their way to a listener that closes are lost. */
  const untilCome = (count: number): Promise<void> =>
    until(`${count} have come`, async () => {
      const { body } = await request(`${/"url":"(http[^"]+)"/.exec(errors)![1]}/buckets`)
      return ((await body.json()) as Snapshot).buckets[0]!.offered === count
    })
  return { group, url: /(http\S+) ->/.exec(output)![1]!, stderr: () => errors, untilCome }
}

/** The status of an answer; undefined: there was none. */
async function answered(url: string): Promise<number | undefined> {
  try {
    const { statusCode, body } = await request(url)
    await body.dump()
    return statusCode
  } catch {
    return undefined
  }
}
