/** Every example in README.md and docs/ is run. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { gunzipSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { parseConfig } from '../src/config/load.js'
import { createVirtualClock } from '../src/core/clock.js'
import { LeakyBucket } from '../src/index.js'
import { spread } from '../src/replay/input/spread-in-second.js'
import { ROOT, shaper } from './cli/command.js'
import { runExample } from './docs-code.js'
import { startRedis } from './servers/redis.js'

const pages = ['README.md', ...readdirSync(`${ROOT}/docs`).map(name => `docs/${name}`)].filter(name =>
  name.endsWith('.md'),
)

function blocks(page: string, language: string): string[] {
  const text = readFileSync(`${ROOT}/${page}`, 'utf8')
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\n([\\s\\S]*?)^\`\`\`$`, 'gm'))].map(match => match[1]!)
}

/** The last configuration with a store above a command. */
function sharedBefore(page: string, command: string): string {
  const text = readFileSync(`${ROOT}/${page}`, 'utf8')
  const above = text.slice(0, text.indexOf(command))
  return [...above.matchAll(/^```json\n([\s\S]*?)^```$/gm)]
    .map(match => match[1]!)
    .findLast(block => block.includes('"store"'))!
}

for (const page of pages) {
  t.test(`${page}: configurations are valid`, async t => {
    for (const block of blocks(page, 'json')) {
      t.doesNotThrow(() => parseConfig(block, { env: {} }), block)
    }
  })

  t.test(`${page}: commands are valid`, async t => {
    const commands = blocks(page, 'sh').flatMap(block => block.match(/^(?:shaper|node bin\/shaper\.js) .*$/gm) ?? [])
    for (const command of commands) {
      const args = command
        .replace(/^(?:shaper|node bin\/shaper\.js) /, '')
        .split(/\s+#/)[0]!
        .trim()
        .split(/\s+/)
      if (args[0] !== 'start' && args[0] !== 'check') continue
      const cwd = args.includes('--workers') ? t.testdir({ 'shaper.config.json': sharedBefore(page, command) }) : ROOT
      const { code, stderr } = await shaper(['check', ...args.slice(1)], { cwd }).finished
      t.equal(code, 0, `${command}: ${stderr}`)
      if (page === 'README.md' && args[0] === 'start') t.notMatch(stderr, /warning: trustProxy/, command)
    }
  })
}

t.test('docs/outbound.md: every example runs, ends by itself and writes what it says', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.kill())
  for (const block of blocks('docs/outbound.md', 'ts')) {
    const { code, output } = await runExample(block.replaceAll('redis://127.0.0.1:6379', redis.url))
    t.equal(code, 0, `${block}\n${output}`)
    for (const [, told] of block.matchAll(/^.*console\.log.* \/\/ (.*)$/gm)) t.ok(output.includes(told!), told!)
  }
})

t.test('replays of README.md and docs/replay.md run, on a log and configurations', async t => {
  const limits = (rate: string) => JSON.stringify({ buckets: { client: { key: 'ip', rate, capacity: 5 } } })
  const log = gunzipSync(readFileSync(`${ROOT}/test/fixtures/apache-access.log.gz`))
  const cwd = t.testdir({
    'access.log': log,
    'access.log.1.gz': gzipSync(log),
    'shaper.config.json': limits('1/s'),
    'before.json': limits('1/s'),
    'after.json': limits('2/s'),
  })
  for (const name of ['monday.json', 'friday.json']) {
    const { stdout } = await shaper(['replay', 'access.log', '--json'], { cwd }).finished
    writeFileSync(`${cwd}/${name}`, stdout)
  }
  const lines = ['README.md', 'docs/replay.md'].flatMap(page =>
    blocks(page, 'sh').flatMap(block => block.match(/^.*shaper replay .*$/gm) ?? []),
  )
  t.ok(lines.length > 10)
  let output = ''
  for (const line of lines) {
    const command = line.replace('shaper', `"${process.execPath}" "${ROOT}/bin/shaper.js"`)
    const child = spawn('bash', ['-o', 'pipefail', '-c', command], { cwd, stdio: ['ignore', 'pipe', 'inherit'] })
    child.stdout.on('data', (chunk: Buffer) => {
      output += chunk
    })
    const [code] = await once(child, 'close')
    t.equal(code, 0, line)
  }
  const { stdout } = await shaper(['replay', 'access.log', '--rate', '1/s', '--capacity', '5'], { cwd }).finished
  const text = readFileSync(`${ROOT}/docs/replay.md`, 'utf8')
  const shown = [...text.matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)]
    .filter(([, language]) => language === '')
    .flatMap(([, , block]) => block!.split('\n').filter(Boolean))
  t.equal(shown.length, 8)
  for (const line of shown) t.ok(stdout.includes(line) || output.includes(line), line)
})

t.test('docs/replay.md: the rule of spreading is the one in use', async t => {
  const [code] = blocks('docs/replay.md', 'js')
  const documented = new Function(`${code}; return spread`)() as typeof spread
  for (let at = 0; at < 100; at += 1) {
    const [second, n] = [1_431_857_103 + at * 977, 1 + (at % 7)]
    t.equal(documented(at, second, at % n, n), second * 1_000 + spread(at, second, at % n, n))
  }
})

t.test('README: the burst of curls comes out one every 200 ms', async t => {
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
  t.equal(answers.filter(({ status }) => status === 429).length, 2)
  const held = answers.filter(({ status }) => status === 200).map(({ seconds }) => seconds)
  t.equal(held.length, 10)
  t.ok(Math.max(...held) > 1.6 && Math.max(...held) < 3, `the last was held for ${Math.max(...held)} s`)
  child.kill('SIGTERM')
  t.equal((await finished).code, 0)
})

t.test('README: the library example says what it does', async t => {
  const [example] = blocks('README.md', 'ts')
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

t.test('compose.yaml has a valid configuration for its instances', async t => {
  const text = readFileSync(`${ROOT}/compose.yaml`, 'utf8')
  const [, block = ''] = /^ {4}content: \|\n((?: {6}.*\n|\n)+)/m.exec(text) ?? []
  const { store, listen, routes } = parseConfig(block.replace(/^ {6}/gm, ''), { env: {} })
  t.match(store, { type: 'redis', url: 'redis://redis:6379' })
  t.equal(listen.host, '0.0.0.0')
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
