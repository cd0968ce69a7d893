/** The package as users get it: packed, installed elsewhere, imported, required, compiled against. Needs an up-to-date dist. */
import { execFile } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { ROOT } from './cli/command.js'

const execute = promisify(execFile)

/** Runs a program in a directory; what it writes. */
async function run(cwd: string, command: string, ...args: string[]): Promise<string> {
  const env = { ...process.env, NODE_OPTIONS: '', NODE_V8_COVERAGE: '', npm_config_update_notifier: 'false' }
  return (await execute(command, args, { cwd, env, maxBuffer: 1e7 })).stdout
}

/** Compiles the project in a directory. Returns the output. */
function compile(directory: string): Promise<string> {
  const tsc = join(ROOT, 'node_modules/typescript/bin/tsc')
  return run(directory, process.execPath, tsc, '-p', '.').catch((error: { stdout: string }) => error.stdout)
}

const NAMES = [
  'ClosedError',
  'ExpiredError',
  'LeakyBucket',
  'OverflowError',
  'StoreError',
  'createShaper',
  'profileBuckets',
  'profiles',
  'shape',
]

const PROGRAM = `
import { createServer } from 'node:http'
import { Agent, fetch } from 'undici'
import {
  type Admitted, createShaper, LeakyBucket, OverflowError, type OutboundShaper, type ShaperStatus, shape, type Store,
} from 'leaky-shaper'

const shaper: OutboundShaper = createShaper({ rate: '100/s', capacity: 10, maxWait: '10s' })
const admitted: Admitted = await shaper.admit('key', { cost: 2, signal: AbortSignal.timeout(10_000) })
const length: number = await shaper.run('key', async () => 'text'.length)
const double = shaper.wrap((value: number) => Promise.resolve(value * 2), { key: value => String(value) })
const doubled: number = await double(2)
const status: ShaperStatus = shaper.status()
shaper.on('released', ({ key, waitMs }) => void [key.length, waitMs.toFixed()])
// @ts-expect-error: an unknown event
shaper.on('releasd', () => undefined)
// @ts-expect-error: a rate is needed
export const withoutRate = () => createShaper({ capacity: 10 })
export const withStore = (store: Store) => createShaper({ rate: 5, capacity: 5, store })
const server = createServer((_, res) => void res.end('ok')).listen(0, '127.0.0.1', async () => {
  const interceptor = shape({ rate: '50/s', capacity: 100, key: 'origin', retry: { status: [429], max: 3 } })
  const dispatcher = new Agent().compose(interceptor)
  const { port } = server.address() as { port: number }
  const answer = await fetch(\`http://127.0.0.1:\${port}/\`, { dispatcher })
  console.log(await answer.text(), admitted.waitMs, length, doubled, status.queued, interceptor.shaper.status().queued)
  console.log(new LeakyBucket({ rate: '1/s', capacity: 1 }).level, new OverflowError('overflow', '', 5).code)
  await dispatcher.close()
  server.close()
})
`

/** undici 8 needs a newer Node: only its types are used. */
const CONSUMER = `
import { Agent } from 'undici'
import type { Dispatcher as Dispatcher8 } from 'undici-8'
import { createShaper, LeakyBucket, type OutboundShaper, shape } from 'leaky-shaper'

const shaper: OutboundShaper = createShaper({ rate: '100/s', capacity: 10 })
const interceptor = shape({ rate: '50/s', capacity: 100, key: ({ path }) => path })
export const seven = () => new Agent().compose(interceptor)
export const eight = (dispatcher: Dispatcher8) => dispatcher.compose(interceptor)
export const keyed = (key: (options: Dispatcher8.DispatchOptions) => string) => shape({ rate: 5, capacity: 5, key })
// @ts-expect-error: a rate is needed
export const withoutRate = () => createShaper({ capacity: 10 })
void shaper.run('key', () => new LeakyBucket({ rate: '1/s', capacity: 1 }).level).then(level => console.log(level))
`

/** What projects set, and what their source is called. */
const RESOLUTIONS = [
  { name: 'node10', module: 'commonjs', file: 'main.ts' },
  { name: 'node16', module: 'node16', file: 'main.mts' },
  { name: 'nodenext', module: 'nodenext', file: 'main.cts' },
  { name: 'bundler', module: 'esnext', file: 'main.mts' },
]

t.test('packed and installed', { timeout: 180_000 }, async t => {
  const directory = t.testdir({ packed: {}, project: { 'package.json': '{ "name": "project", "private": true }' } })
  const project = join(directory, 'project')
  const packed = await run(
    ROOT,
    'npm',
    'pack',
    '--ignore-scripts',
    '--json',
    '--pack-destination',
    `${directory}/packed`,
  )
  const [{ filename, files }] = JSON.parse(packed) as [{ filename: string; files: { path: string }[] }]

  await t.test('has the needed files, and nothing else', async t => {
    const allowed =
      /^(LICENSE|README\.md|package\.json|shaper\.schema\.json|bin\/shaper\.js|docs\/([\w-]+\.md|alerts\.yml|grafana-dashboard\.json|shaper\.service)|dist\/[\w/-]+(\.js|\.d\.ts|\.lua|\.sql|\.html|\.css))$/
    const paths = files.map(({ path }) => path)
    t.same(
      paths.filter(path => !allowed.test(path)),
      [],
    )
    for (const path of [
      'dist/index.js',
      'dist/index.d.ts',
      'dist/pacing/pacing-thread.js',
      'dist/stores/redis/scripts/decide.lua',
    ]) {
      t.ok(paths.includes(path), path)
    }
  })

  const quiet = ['--ignore-scripts', '--prefer-offline', '--no-audit', '--no-fund', '--loglevel=error']
  const others = ['undici@7', 'undici-8@npm:undici@8', '@types/node@20']
  await run(project, 'npm', 'install', ...quiet, join(directory, 'packed', filename), ...others)

  await t.test('the command', async t => {
    t.match(await run(project, 'npx', '--no-install', 'shaper', '--version'), /^\d+\.\d+\.\d+\s*$/)
    t.match(
      await run(project, 'npx', '--no-install', 'shaper', 'check', '--rate', '5/s', '--upstream', 'http://a'),
      /5\/s/,
    )
  })

  await t.test('import and require', async t => {
    const show = 'console.log(Object.keys(library).sort().join())'
    writeFileSync(join(project, 'imports.mjs'), `import * as library from 'leaky-shaper'\n${show}`)
    writeFileSync(
      join(project, 'requires.cjs'),
      `const { __esModule, default: _, ...library } = require('leaky-shaper')\n${show}
const shaper = library.createShaper({ rate: '100/s', capacity: 10 })
shaper.admit().then(() => shaper.run(() => console.log('ran')))`,
    )
    t.equal((await run(project, process.execPath, 'imports.mjs')).trim(), NAMES.join())
    t.equal((await run(project, process.execPath, 'requires.cjs')).trim(), `${NAMES.join()}\nran`)
  })

  await t.test('TypeScript in its strictest mode', async t => {
    const source = join(project, 'source')
    mkdirSync(source)
    writeFileSync(join(source, 'main.mts'), PROGRAM)
    const strict = { strict: true, exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true }
    const compilerOptions = { ...strict, target: 'es2023', module: 'nodenext', types: ['node'], skipLibCheck: false }
    writeFileSync(join(source, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['main.mts'] }))
    t.equal(await compile(source), '')
    t.equal(await run(source, process.execPath, 'main.mjs'), 'ok 0 4 4 0 0\n0 SHAPER_OVERFLOW\n')
  })

  for (const { name, module, file } of RESOLUTIONS) {
    await t.test(`TypeScript with moduleResolution ${name}, with the types of undici 7 and of undici 8`, async t => {
      const source = join(project, name)
      mkdirSync(source)
      writeFileSync(join(source, file), CONSUMER)
      const strict = { strict: true, exactOptionalPropertyTypes: true, skipLibCheck: true }
      const compilerOptions = { ...strict, target: 'es2023', module, moduleResolution: name, types: ['node'] }
      writeFileSync(join(source, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: [file] }))
      t.equal(await compile(source), '')
      t.equal(await run(source, process.execPath, file.replace('ts', 'js')), '0\n')
    })
  }
})
