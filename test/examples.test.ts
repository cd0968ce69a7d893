/** Every example in examples/ runs as its README says. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { ROOT, shaper } from './cli/command.js'

const examples = readdirSync(`${ROOT}/examples`, { withFileTypes: true })
  .filter(entry => entry.isDirectory())
  .map(({ name }) => name)

t.test('the index names each example', async t => {
  const index = readFileSync(`${ROOT}/examples/README.md`, 'utf8')
  t.same(
    [...index.matchAll(/^\| \[([\w-]+)\]/gm)].map(([, name]) => name),
    ['fragile-service', 'outside-api', 'login-meter', 'library'],
  )
  t.same([...examples].sort(), ['fragile-service', 'library', 'login-meter', 'outside-api'])
})

for (const name of examples.filter(name => existsSync(`${ROOT}/examples/${name}/shaper.config.json`))) {
  t.test(`${name}: each burst is answered as its README says`, async t => {
    const readme = readFileSync(`${ROOT}/examples/${name}/README.md`, 'utf8')
    const [, program] = /^node (examples\/\S+) &$/m.exec(readme)!
    const upstream = spawn(process.execPath, [`${ROOT}/${program}`, '0'], { stdio: ['ignore', 'pipe', 'inherit'] })
    const [address] = (await once(upstream.stdout, 'data')) as [Buffer]
    const upstreamUrl = address.toString().trim()
    const config = `${ROOT}/examples/${name}/shaper.config.json`
    const proxy = shaper(['start', '-c', config, '--listen', '127.0.0.1:0', '--upstream', upstreamUrl])
    t.teardown(() => stop(upstream, proxy.child))
    const ports = { 9000: new URL(upstreamUrl).port, 8080: new URL(await proxy.url).port }

    const bursts = [...readme.matchAll(/^node (examples\/burst\.js .*)\n```\n\n```\n([^`]*)in [\d.]+ s\n```$/gm)]
    t.ok(bursts.length > 1)
    for (const [, command, counts] of bursts) {
      const args = command!.replace(/:(9000|8080)\//, (_, port: '9000' | '8080') => `:${ports[port]}/`).split(' ')
      const output = await run(args)
      // On a busy machine a burst is no burst: some of it finds room that the README's does not.
      const slack = command!.includes(':9000/') ? 5 : 0
      const [got, wanted] = [countsOf(output), countsOf(counts!)]
      for (const status of new Set([...got.keys(), ...wanted.keys()])) {
        const difference = Math.abs((got.get(status) ?? 0) - (wanted.get(status) ?? 0))
        t.ok(difference <= slack, `${command}: ${status}: ${output}`)
      }
    }
  })
}

t.test('library: ten calls of each customer are sent in order, and two do not fit', async t => {
  const lines = (await run(['examples/library/customers.js'])).trim().split('\n')
  for (const customer of ['ann', 'bob']) {
    const ofOne = lines.filter(line => line.startsWith(`${customer}: `))
    const times = ofOne.flatMap(line => /sent after (\d+) ms/.exec(line)?.[1] ?? []).map(Number)
    // A stall of 50 ms makes room for one more.
    t.ok(times.length >= 10 && times.length <= 11, `${times.length} sent`)
    t.equal(ofOne.filter(line => line.includes('refused')).length, 12 - times.length)
    // The first may be told late, so each counts from the start of the program. Times are rounded.
    t.ok(
      times.every((time, place) => time >= place * 50 - 1),
      `${customer}: ${times.join(' ')}`,
    )
  }
})

/** How many answers had each status. */
function countsOf(output: string): Map<string, number> {
  return new Map([...output.matchAll(/^(\d{3}): (\d+)$/gm)].map(([, status, count]) => [status!, Number(count)]))
}

/** What the program writes. */
async function run(args: readonly string[]): Promise<string> {
  const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] })
  let output = ''
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk
  })
  await once(child, 'close')
  return output
}

/** Ends what this test has started. */
async function stop(...children: ChildProcess[]): Promise<void> {
  for (const child of children) child.kill('SIGKILL')
  await Promise.all(children.map(child => child.exitCode ?? child.signalCode ?? once(child, 'exit')))
}
