/** The packages as users get them: packed, and installed in projects of their own. */
import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { Test } from 'tap'
import { ROOT } from './cli/command.js'

const execute = promisify(execFile)

/** The values that both packages export. */
export const NAMES = [
  ...['ClearedError', 'ClosedError', 'ExpiredError', 'LeakyBucket', 'OverflowError', 'StoreError', 'TimeoutError'],
  ...['createShaper', 'createTestClock', 'profileBuckets', 'profiles', 'retryAfterOf', 'shape'],
]

export const QUIET = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']

/** What projects set, and what their source is called. */
export const RESOLUTIONS = [
  { name: 'node10', module: 'commonjs', file: 'main.ts' },
  { name: 'node16', module: 'node16', file: 'main.mts' },
  { name: 'node16', module: 'node16', file: 'main.cts' },
  { name: 'nodenext', module: 'nodenext', file: 'main.cts' },
  { name: 'bundler', module: 'esnext', file: 'main.mts' },
]

/** A directory with an empty project and room for packages. Not in the repository, whose packages would be found from there. */
export function emptyDirectory(t: Test): string {
  const directory = mkdtempSync(join(realpathSync(tmpdir()), 'shaper-package-'))
  t.teardown(() => rmSync(directory, { recursive: true, force: true }))
  for (const name of ['packed', 'project']) mkdirSync(join(directory, name))
  writeFileSync(join(directory, 'project/package.json'), '{ "name": "project", "private": true }')
  return directory
}

/** Runs a program in a directory; what it writes. */
export async function run(cwd: string, command: string, ...args: string[]): Promise<string> {
  return runWith({}, cwd, command, ...args)
}

/** With more variables in its environment. */
export async function runWith(
  variables: NodeJS.ProcessEnv,
  cwd: string,
  ...[command, ...args]: string[]
): Promise<string> {
  const env = { ...process.env, NODE_OPTIONS: '', NODE_V8_COVERAGE: '', npm_config_update_notifier: 'false' }
  return (await execute(command!, args, { cwd, env: { ...env, ...variables }, maxBuffer: 1e7 })).stdout
}

/** The files that Node loads of packages other than the one imported, as V8 saw them. */
export async function loadedFiles(cwd: string, name: string, code: string): Promise<{ own: number; others: string[] }> {
  const coverage = mkdtempSync(join(tmpdir(), 'shaper-loaded-'))
  const type = code.startsWith('import') ? 'module' : 'commonjs'
  await runWith({ NODE_V8_COVERAGE: coverage }, cwd, process.execPath, `--input-type=${type}`, '-e', code)
  const [file] = readdirSync(coverage)
  const { result } = JSON.parse(readFileSync(join(coverage, file!), 'utf8')) as { result: { url: string }[] }
  rmSync(coverage, { recursive: true })
  const paths = result.flatMap(({ url }) => (url.startsWith('file:') ? [fileURLToPath(url)] : []))
  const isOwn = (path: string) => !path.includes('/node_modules/') || path.includes(`/node_modules/${name}/`)
  return { own: paths.filter(isOwn).length, others: paths.filter(path => !isOwn(path)) }
}

export interface Packed {
  readonly tarball: string
  readonly paths: readonly string[]
  /** All files, in bytes. */
  readonly unpackedSize: number
}

/** Packs what has been built. */
export async function pack(source: string, destination: string): Promise<Packed> {
  const output = await run(source, 'npm', 'pack', '--ignore-scripts', '--json', '--pack-destination', destination)
  const [{ filename, files, unpackedSize }] = JSON.parse(output) as [
    { filename: string; files: { path: string }[]; unpackedSize: number },
  ]
  return { tarball: join(destination, filename), paths: files.map(({ path }) => path), unpackedSize }
}

/** Compiles one source in a directory, with the strictest options and those given. Returns the complaints. */
export function compile(directory: string, file: string, options: object): Promise<string> {
  const strict = { strict: true, exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true }
  const compilerOptions = { ...strict, target: 'es2023', types: ['node'], ...options }
  writeFileSync(join(directory, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: [file] }))
  const tsc = join(ROOT, 'node_modules/typescript/bin/tsc')
  return run(directory, process.execPath, tsc, '-p', '.').catch((error: { stdout: string }) => error.stdout)
}

/** A program for the types of undici 7 and of undici 8. undici 8 needs a newer Node: only its types are used. */
export function consumerOf(name: string): string {
  return `
import { Agent } from 'undici'
import type { Dispatcher as Dispatcher8 } from 'undici-8'
import { createShaper, LeakyBucket, type OutboundShaper, shape } from '${name}'

const shaper: OutboundShaper = createShaper({ rate: '100/s', capacity: 10 })
const interceptor = shape({ rate: '50/s', capacity: 100, key: ({ path }) => path })
export const seven = () => new Agent().compose(interceptor)
export const eight = (dispatcher: Dispatcher8) => dispatcher.compose(interceptor)
export const keyed = (key: (options: Dispatcher8.DispatchOptions) => string) => shape({ rate: 5, capacity: 5, key })
// @ts-expect-error: no rate
export const withoutRate = () => createShaper({ rate: {} })
// @ts-expect-error: an unknown event
shaper.on('releasd', () => undefined)
void shaper.run('key', () => new LeakyBucket({ rate: '1/s', capacity: 1 }).level).then(level => console.log(level))
`
}
