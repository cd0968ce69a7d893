/** docs/tutorial.md is done, step by step, in one directory. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, readFileSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import t, { type Test } from 'tap'
import { ROOT } from './cli/command.js'
import { burstOf, type LoggedRequest, requestsOf } from './docs-code.js'
import { freePort } from './servers/free-port.js'
import { until } from './servers/redis.js'

interface Block {
  readonly language: string
  readonly text: string
}

/** What ended by itself, or was stopped. */
interface Step {
  readonly command: string
  readonly output: string
}

const SERVER = /^(node upstream\.mjs|shaper start .*)\n$/

/** What a step shows soon after what is before it: a busy machine may need a second look. */
const SOON: readonly (readonly [part: string, shows: RegExp])[] = [
  ['shaper top', /^client +5\/s/m],
  ['tail -n 1', /"changes":\["buckets\.user\.rate: 5\/s -> 10\/s"\],"msg":"reloaded"/],
  ['--capacity 5', /^35 requests of 3 clients/m],
]
const LOOKS = 10

async function isListening(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1')
  return new Promise(resolve => {
    socket.on('connect', () => resolve(true)).on('error', () => resolve(false))
  }).finally(() => socket.destroy()) as Promise<boolean>
}

/** The longest wait of each client, of those with few requests first. */
function longestWaits(requests: readonly LoggedRequest[]): number[] {
  const byKey = new Map<string, number[]>()
  for (const { key = '', waitMs } of requests) byKey.set(key, [...(byKey.get(key) ?? []), waitMs])
  return [...byKey.values()].sort((one, other) => one.length - other.length).map(waits => Math.max(...waits))
}

/**
 * Gaps of 200 ms. On a busy machine an arrival may be late, and the next is in time again. So most are even. All together are not
 * shorter than they have to be, counted from an arrival of the first half that was in time.
 */
function areEven(t: Test, gaps: readonly number[]): void {
  const median = [...gaps].sort((one, other) => one - other)[Math.floor(gaps.length / 2)]!
  t.ok(median > 150 && median < 250, `${gaps}`)
  const missing = gaps.map((_, start) => gaps.slice(start).reduce((short, gap) => short + 200 - gap, 0))
  t.ok(Math.min(...missing.slice(0, gaps.length / 2)) < 100, `${gaps}`)
}

t.test('the tutorial', { timeout: 240_000 }, async t => {
  const ports: Record<string, number> = { 8080: await freePort(), 9000: await freePort(), 9090: await freePort() }
  const program = `#!/bin/sh\nexec "${process.execPath}" "${ROOT}/bin/shaper.js" "$@"\n`
  const cwd = t.testdir({ bin: { shaper: program } })
  chmodSync(`${cwd}/bin/shaper`, 0o755)
  const page = readFileSync(`${ROOT}/docs/tutorial.md`, 'utf8')
  const withPorts = (text: string): string => text.replaceAll(/\b(8080|9000|9090)\b/g, port => String(ports[port]))
  const all = [...page.matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm)].map(
    ([, language, text]): Block => ({ language: language!, text: withPorts(text!) }),
  )
  const env = { ...process.env, NODE_V8_COVERAGE: '', PATH: `${cwd}/bin:${process.env.PATH}` }
  const bash = (command: string): ChildProcessWithoutNullStreams => {
    const child = spawn('bash', ['-e', '-c', command], { cwd, env })
    t.teardown(() => child.kill('SIGKILL'))
    return child
  }
  const steps: Step[] = []
  let upstream = ''
  let log = ''
  let shaper: ChildProcessWithoutNullStreams | undefined
  const serve = async (command: string): Promise<void> => {
    if (shaper !== undefined) {
      shaper.kill('SIGINT')
      t.same(await once(shaper, 'exit'), [0, null], 'Ctrl-C')
    }
    const child = bash(`exec ${command}`)
    const isUpstream = command.startsWith('node')
    if (isUpstream) child.stdout.on('data', chunk => (upstream += chunk))
    else shaper = child
    log = ''
    child.stderr.on('data', chunk => (log += chunk))
    const port = ports[isUpstream ? 9000 : 8080]!
    await until(`${command} listens\n${log}`, () => isListening(port))
  }
  const run = async (command: string): Promise<string> => {
    const child = bash(command)
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', chunk => (output += chunk))
    const [code] = await once(child, 'close')
    t.equal(code, 0, `${command}\n${output}`)
    return output
  }
  const look = async (command: string): Promise<string> => {
    const shows = SOON.find(([part]) => command.includes(part))?.[1]
    let output = await run(command)
    for (let count = 1; count < LOOKS && shows?.test(output) === false; count += 1) output = await run(command)
    if (shows !== undefined) t.match(output, shows, command)
    return output
  }
  let gaps: number[] = []
  for (const { language, text } of all) {
    if (language === 'js') writeFileSync(`${cwd}/upstream.mjs`, text)
    if (language === 'json') writeFileSync(`${cwd}/shaper.config.json`, text)
    if (language !== 'sh') continue
    if (SERVER.test(text)) await serve(text.trim())
    else {
      upstream = ''
      const output = await look(text)
      steps.push({ command: text, output })
      if (!text.includes('%{http_code} after') || text.includes('ann')) continue
      gaps = [...upstream.matchAll(/^\+(\d+) ms/gm)].map(([, gap]) => Number(gap))
      const statuses = [...output.matchAll(/^(\d+) after/gm)].map(([, status]) => status)
      t.equal(statuses.length, 12)
      // Where the machine is so busy that the burst takes longer than a release, there is room for one more. When each came is
      // known from the log to within some 100 ms then.
      const passed = statuses.filter(status => status === '200').length
      await until('the log has them', async () => burstOf(log).count === 12)
      const released = Math.floor((burstOf(log).spread + 100) / 200)
      t.ok(passed >= 10 && passed <= 10 + released, `${passed} passed, ${released} of them released meanwhile`)
      t.equal(gaps.length, passed)
    }
  }
  // The first gap is the time since the burst before.
  areEven(t, gaps.slice(1))
  const outputOf = (part: string): string => steps.find(({ command }) => command.includes(part))!.output
  t.match(outputOf('shaper check'), /"user" \(5\/s, capacity 10\): the longest wait is 1\.8 s/)
  const waits = [...outputOf('bob %{http_code}').matchAll(/^(ann|bob) 200 after ([\d.]+) s$/gm)]
  t.equal(waits.length, 11)
  // What curl tells is also how busy the machine is. The log starts with the eleven.
  const [bob, ann] = longestWaits(requestsOf(readFileSync(`${cwd}/shaper.log`, 'utf8')).slice(0, 11))
  t.ok(bob! < ann! / 2, `${bob} ms and ${ann} ms`)
  t.match(outputOf('--capacity 5'), /^rejected +[1-9]/m)
  t.match(outputOf('--target'), /^the smallest that meets the target: rate [\d.]+\/s, capacity \d+/m)
  shaper!.kill('SIGINT')
  await once(shaper!, 'exit')
})
