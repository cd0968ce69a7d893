/** Every example in README.md and docs/ is run, and links and figures hold. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { parseConfig } from '../src/config/load.js'
import { createVirtualClock } from '../src/core/clock.js'
import { LeakyBucket } from '../src/index.js'
import { ROOT, shaper, shaperHere } from './cli/command.js'
import { blocks, burstOf, runExample } from './docs-code.js'
import { startRedis } from './servers/redis.js'

const pages = ['README.md', ...readdirSync(`${ROOT}/docs`).map(name => `docs/${name}`)].filter(name =>
  name.endsWith('.md'),
)

/** All their commands are run by tests of their own. */
const RUN_ELSEWHERE = ['docs/tutorial.md', 'docs/when-something-is-wrong.md']

/** A newcomer's first commands warn of nothing. */
const BEGINNINGS = ['README.md', 'docs/guide.md']

/** The last configuration with a key above a command. */
function fileBefore(page: string, command: string, key: 'store' | 'egress'): string {
  const text = readFileSync(`${ROOT}/${page}`, 'utf8')
  const above = text.slice(0, text.indexOf(`\n${command}`))
  return [...above.matchAll(/^```json\n([\s\S]*?)^```$/gm)]
    .map(match => match[1]!)
    .findLast(block => block.includes(`"${key}"`))!
}

t.jobs = 3

for (const page of pages) {
  t.test(`${page}: configurations are valid`, async t => {
    for (const block of blocks(page, 'json')) {
      const flags = { egress: block.includes('"egress"') }
      t.doesNotThrow(() => parseConfig(block, { env: {}, flags }), block)
    }
  })

  if (RUN_ELSEWHERE.includes(page)) continue
  t.test(`${page}: commands are valid`, async t => {
    const commands = blocks(page, 'sh').flatMap(block => block.match(/^(?:shaper|node bin\/shaper\.js) .*$/gm) ?? [])
    for (const command of commands) {
      const args = command
        .replace(/^(?:shaper|node bin\/shaper\.js) /, '')
        .split(/\s+#/)[0]!
        .trim()
        .split(/\s+/)
      if (args[0] !== 'start' && args[0] !== 'check') continue
      const key = args.includes('--workers') ? 'store' : args.includes('--egress') ? 'egress' : undefined
      const cwd = key === undefined ? ROOT : t.testdir({ 'shaper.config.json': fileBefore(page, command, key) })
      const { code, stderr } = await shaperHere(['check', ...args.slice(1)], { cwd })
      t.equal(code, 0, `${command}: ${stderr}`)
      if (BEGINNINGS.includes(page) && args[0] === 'start') t.notMatch(stderr, /warning: trustProxy/, command)
    }
  })
}

/** The text that a page promises. A second may have begun some ms ago. */
function asOnABusyMachine(text: string): RegExp {
  const literal = text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
  return new RegExp(literal.replace(/\bin 1 s\b/, 'in (1 s|\\d{3} ms)'))
}

// Each is a process, and most of them wait.
t.test('long: the library: every example runs, ends and prints what its comments say', { buffered: true }, async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  t.jobs = 3
  for (const page of ['docs/outbound.md', 'docs/migrating.md']) {
    const examples = blocks(page, 'ts')
    t.ok(examples.length >= 2, page)
    for (const [index, block] of examples.entries()) {
      t.test(`${page}, example ${index + 1}`, { buffered: true }, async t => {
        const { code, output } = await runExample(block.replaceAll('redis://127.0.0.1:6379', redis.url))
        t.equal(code, 0, `${block}\n${output}`)
        for (const promised of promisedBy(block)) t.match(output, asOnABusyMachine(promised))
      })
    }
  }
})

/** What an example is said to print: the comments behind `console.log`, and the lines of a comment below one. */
function promisedBy(example: string): string[] {
  return [...example.matchAll(/^.*console\.log.*\)(?: |\n)\/\/ (.*)$/gm)]
    .map(([, text]) => text!)
    .filter(text => !text.endsWith('or a little less'))
}

t.test('README: check warns of none of its configurations', async t => {
  for (const block of blocks('README.md', 'json')) {
    const { code, stderr } = await shaperHere(['check', '--json'], { cwd: t.testdir({ 'shaper.config.json': block }) })
    t.equal(code, 0, stderr)
    t.equal(stderr, '', block)
  }
})

t.test('README: the burst of curls comes out one every 200 ms', { buffered: true }, async t => {
  const burst = blocks('README.md', 'sh').find(block => block.includes('curl'))!
  const { child, url, finished } = shaper(['start', '--listen', '127.0.0.1:0'])
  const target = new URL(await url).host
  const curls = spawn('bash', ['-c', burst.replace('localhost:8080', target)])
  let output = ''
  curls.stdout.on('data', (chunk: Buffer) => {
    output += chunk
  })
  await once(curls, 'close')
  const answers = [...output.matchAll(/^(\d+) after ([\d.]+) s$/gm)].map(([, status, seconds]) => ({
    status: Number(status),
    seconds: Number(seconds),
  }))
  t.equal(answers.length, 12)
  child.kill('SIGTERM')
  const { code, stderr } = await finished
  t.equal(code, 0)
  // Where the machine is so busy that the burst takes longer than a release, there is room for one more. When each came is
  // known from the log to within some 100 ms then.
  const { count, spread } = burstOf(stderr)
  t.equal(count, 12)
  const released = Math.floor((spread + 100) / 200)
  const refused = answers.filter(({ status }) => status === 429).length
  t.ok(refused <= 2 && refused >= 2 - released, `${refused} refused, ${released} released meanwhile`)
  const held = answers.filter(({ status }) => status === 200).map(({ seconds }) => seconds)
  t.equal(held.length, 12 - refused)
  const last = Math.max(...held) + spread / 1_000
  t.ok(last > 1.6 && last < 3 + spread / 1_000, `the last was held for ${last} s after the first came`)
})

t.test('docs/outbound.md: the comments of the meter are right', async t => {
  const example = blocks('docs/outbound.md', 'ts').find(block => block.includes('bucket.fillup'))
  const clock = createVirtualClock()
  const bucket = new LeakyBucket({ rate: '1/s', capacity: 10, clock })
  const told = [...example!.matchAll(/^bucket\.(\w+)\((\d*)\) \/\/ (.*)$/gm)]
  t.equal(told.length, 4)
  for (const [, verb, argument, comment] of told) {
    const call = bucket[verb as 'tryAdd'].bind(bucket)
    const result = argument === '' ? call() : call(Number(argument))
    const written = JSON.stringify(result).replaceAll('"', '').replaceAll(',', ', ').replaceAll(':', ': ')
    t.ok(comment!.startsWith(written.replace(/^\{(.*)\}$/, '{ $1 }')), `${verb}: ${written}`)
  }
})

t.test('README compares with nginx by figures of docs/benchmarks.md, in 8 kB', async t => {
  const text = readFileSync(`${ROOT}/README.md`, 'utf8')
  const measured = new Set(readFileSync(`${ROOT}/docs/benchmarks.md`, 'utf8').match(/\d+(\.\d+)?/g))
  const [, rows] = /^\| \| shaper \| nginx.*\n.*\n((?:\|.*\n)+)/m.exec(text)!
  const figures = [...rows!.matchAll(/^\|[^|]*\|(.*)\|$/gm)].flatMap(
    ([, cells]) => cells!.replaceAll(/(\d),(?=\d{3})/g, '$1').match(/\d+(\.\d+)?/g) ?? [],
  )
  t.ok(figures.length >= 12)
  for (const figure of figures) t.ok(measured.has(figure), figure)
  t.ok(Buffer.byteLength(text) <= 8_000)
})

t.test('a decision has at most 6 kB', async t => {
  for (const name of readdirSync(`${ROOT}/docs/decisions`)) {
    t.ok(statSync(`${ROOT}/docs/decisions/${name}`).size <= 6_000, name)
  }
})

t.test('docs/semantics.md promises no more of the bound than docs/benchmarks.md shows', async t => {
  const rows = (page: string): string[][] =>
    [...readFileSync(`${ROOT}/${page}`, 'utf8').matchAll(/^\| (\d+\/s) \|(.*)\|$/gm)].map(([, rate, rest]) => [
      rate!,
      ...rest!.split('|').map(cell => cell.trim()),
    ])
  // The first table with rows of a rate is that of the last full run.
  const measured = rows('docs/benchmarks.md')
    .slice(0, 5)
    .map(([rate, , , ...worst]) => [rate, ...worst.map(above => String(Math.max(0, Math.ceil(Number(above)))))])
  t.same(rows('docs/semantics.md'), measured)
  t.same(
    measured.map(([rate]) => rate),
    ['1/s', '10/s', '100/s', '1000/s', '5000/s'],
  )
})

t.test('links between documents lead to a file and a heading', async t => {
  const top = readdirSync(ROOT).filter(name => name.endsWith('.md'))
  const below = ['docs', 'deploy', 'examples'].flatMap(folder =>
    readdirSync(`${ROOT}/${folder}`, { recursive: true, encoding: 'utf8' })
      .filter(name => name.endsWith('.md'))
      .map(name => `${folder}/${name}`),
  )
  for (const page of [...top, ...below]) {
    const text = readFileSync(`${ROOT}/${page}`, 'utf8')
    for (const [, link] of text.replaceAll(/^```.*\n[\s\S]*?^```$/gm, '').matchAll(/\]\((?!https?:)([^)\s]+)\)/g)) {
      const [path, heading] = link!.split('#')
      const file = path === '' ? `${ROOT}/${page}` : join(dirname(`${ROOT}/${page}`), path!)
      const found = existsSync(file) && (heading === undefined || headingsOf(file).includes(heading))
      t.ok(found, `${page}: ${link}`)
    }
  }
})

/** The anchors of a page's headings, as GitHub makes them. */
function headingsOf(file: string): string[] {
  const text = readFileSync(file, 'utf8').replaceAll(/^```.*\n[\s\S]*?^```$/gm, '')
  return [...text.matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
    heading!
      .toLowerCase()
      .replaceAll(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  )
}

t.test('compose.yaml has a valid configuration for its instances', async t => {
  const text = readFileSync(`${ROOT}/compose.yaml`, 'utf8')
  const [, block = ''] = /^ {4}content: \|\n((?: {6}.*\n|\n)+)/m.exec(text) ?? []
  const { store, listen, routes } = parseConfig(block.replace(/^ {6}/gm, ''), { env: {} })
  t.match(store, { type: 'redis', url: 'redis://redis:6379' })
  t.match(listen, [{ host: '0.0.0.0' }])
  t.equal(routes[0]!.upstream.url, 'http://upstream:9000')
  for (const service of ['shaper', 'redis', 'upstream']) t.match(text, new RegExp(`^  ${service}:$`, 'm'))
})

t.test('docs/configuration.md names every key', async t => {
  const page = readFileSync(`${ROOT}/docs/configuration.md`, 'utf8')
  const schema = JSON.parse(readFileSync(`${ROOT}/shaper.schema.json`, 'utf8')) as Schema
  const coming = ['admin', 'pauseOn', 'retry', 'learn']
  for (const key of keysOf(schema)) {
    if (!coming.includes(key)) t.ok(new RegExp(`[\`"]${key.replace('$', '\\$')}[\`"]`).test(page), key)
  }
})

interface Schema {
  properties?: Record<string, Schema>
  items?: Schema
  additionalProperties?: Schema | boolean
  anyOf?: Schema[]
}

/** Every key but those of what is still to come. */
function keysOf(schema: Schema, path = ''): string[] {
  if (/^\.admin|\.(pauseOn|retry)$/.test(path)) return []
  const { properties = {}, items, additionalProperties, anyOf = [] } = schema
  return [
    ...Object.entries(properties).flatMap(([key, inner]) => [key, ...keysOf(inner, `${path}.${key}`)]),
    ...(items === undefined ? [] : keysOf(items, path)),
    ...(typeof additionalProperties === 'object' ? keysOf(additionalProperties, path) : []),
    ...anyOf.flatMap(inner => keysOf(inner, path)),
  ]
}
