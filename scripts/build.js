// Checks the types of src, bundles it to dist, compiles the decider to Lua, copies the files that are read beside the code (.html, .lua,
// .sql), and writes shaper.schema.json and what users of the library get. Does nothing where nothing has changed since.
//
// dist has few files instead of four hundred, and zod is in them: `shaper start` reaches its first request after 0.4 s of processor time
// instead of 0.64. What a command does not need is in files of its own still, and is not read.
import { spawnSync } from 'node:child_process'
import {
  copyFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build as bundle } from 'esbuild'
import { buildLibrary, LIBRARY } from './build-library.js'
import { compileDecider } from './decider.js'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const dist = join(root, 'dist')
const schema = join(root, 'shaper.schema.json')
/** What tsc knows of the last build; its time is that of the build. */
const state = join(root, 'node_modules/.cache/leaky-shaper/tsbuildinfo')
/** The declarations of all files. The packages have those that the library needs. */
const declarations = join(root, 'node_modules/.cache/leaky-shaper/types')
/** What is imported or started by its name: the command, what it loads first, the library, the threads; and what tests and benchmarks watch. */
const ENTRIES = [
  ...['cli/main.ts', 'cli/serving/hang-up.ts', 'index.ts', 'config/schema/schema.ts'],
  ...['pacing/pacing-thread.js', 'proxy/limits/load-thread.ts'],
  ...['proxy/exchange/exchange.ts', 'proxy/exchange/armed-request.ts'],
  ...['proxy/upstream/http1-pool.ts', 'proxy/upstream/http1-connection.ts'],
]
const RULES = [
  ...['package.json', 'package-lock.json', 'tsconfig.json', 'tsconfig.build.json', 'LICENSE'],
  ...['scripts/build.js', 'scripts/build-library.js', 'scripts/decider.js'],
]

await compileDecider(root)
const sources = filesIn(join(root, 'src'))
/** Also scripts that pages read. */
const assets = sources.filter(path => !path.endsWith('.ts') && !path.startsWith('pacing/'))
const entries = ENTRIES.map(path => path.replace(/\.ts$/, '.js'))
const expected = [
  ...[...assets, ...entries].map(path => join(dist, path)),
  ...sources.filter(path => path.endsWith('.ts')).map(path => join(declarations, path.replace(/\.ts$/, '.d.ts'))),
  ...LIBRARY.map(path => join(root, path)),
]
const inputs = [...sources.map(path => join(root, 'src', path)), ...RULES.map(path => join(root, path))]
const newest = Math.max(...inputs.map(changedAt))
const isWhole = expected.every(path => changedAt(path) > 0)

if (!isWhole || changedAt(schema) === 0 || changedAt(state) <= newest) await build()

async function build() {
  // Without it tsc writes all files anew.
  if (!isWhole) rmSync(state, { force: true })
  const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc')
  const options = ['-p', join(root, 'tsconfig.build.json'), '--incremental', '--tsBuildInfoFile', state]
  const { status } = spawnSync(process.execPath, [tsc, ...options], { stdio: 'inherit' })
  // Until all is done this was no build.
  if (changedAt(state) > 0) utimesSync(state, 0, 0)
  if (status !== 0) process.exit(1)
  rmSync(dist, { recursive: true, force: true })
  for (const path of assets) {
    mkdirSync(dirname(join(dist, path)), { recursive: true })
    copyFileSync(join(root, 'src', path), join(dist, path))
  }
  await bundleProgram()
  copyFileSync(join(root, 'node_modules/zod/LICENSE'), join(dist, 'zod.LICENSE'))
  const { jsonSchema } = await import(pathToFileURL(join(dist, 'config/schema/schema.js')).href)
  writeFileSync(schema, `${JSON.stringify(jsonSchema(), null, 2)}\n`)
  await buildLibrary(root, declarations)
  utimesSync(state, new Date(), new Date())
}

/** The entries keep their places. What several of them use is in files at the top. */
async function bundleProgram() {
  const { dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
  await bundle({
    absWorkingDir: root,
    entryPoints: ENTRIES.map(path => `src/${path}`),
    outdir: 'dist',
    outbase: 'src',
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    external: [...Object.keys(dependencies), 'node:*'],
    plugins: [{ name: 'places', setup: ({ onLoad }) => onLoad({ filter: /\.ts$/ }, placed) }],
    logLevel: 'warning',
  })
  const lost = entries.find(
    path => path !== 'index.js' && /\bimport\.meta\.url/.test(readFileSync(join(dist, path), 'utf8')),
  )
  if (lost !== undefined)
    throw new Error(`dist/${lost} would look for files in a wrong place; give what reads them to a module of its own`)
}

/** A source that reads files beside it finds them from the top of dist. */
function placed({ path }) {
  const text = readFileSync(path, 'utf8')
  if (!text.includes('import.meta.url')) return undefined
  const place = `./${relative(join(root, 'src'), path)}`
  return { contents: text.replaceAll('import.meta.url', `new URL('${place}', import.meta.url).href`), loader: 'ts' }
}

/** Paths from the folder; none where it is not there. */
function filesIn(folder) {
  if (changedAt(folder) === 0) return []
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true })
  return entries.filter(entry => entry.isFile()).map(entry => relative(folder, join(entry.parentPath, entry.name)))
}

/** ms; 0: it is not there. */
function changedAt(path) {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0
}
