// Compiles src to dist and the decider to Lua, copies the files that live beside the code (.html, .lua, .sql), and writes shaper.schema.json and what users
// of the library get.
// Does nothing where nothing has changed since, and compiles again only what has.
import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { buildLibrary, LIBRARY } from './build-library.js'
import { compileDecider } from './decider.js'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const dist = join(root, 'dist')
const schema = join(root, 'shaper.schema.json')
/** What tsc knows of the last build; its time is that of the build. */
const state = join(root, 'node_modules/.cache/leaky-shaper/tsbuildinfo')
/** The declarations of all files. The packages have those that the library needs. */
const declarations = join(root, 'node_modules/.cache/leaky-shaper/types')
const RULES = [
  ...['package.json', 'package-lock.json', 'tsconfig.json', 'tsconfig.build.json', 'LICENSE'],
  ...['scripts/build.js', 'scripts/build-library.js', 'scripts/decider.js'],
]

await compileDecider(root)
const sources = filesIn(join(root, 'src'))
const isCode = path => path.endsWith('.ts')
const targets = new Set(sources.map(path => (isCode(path) ? path.replace(/\.ts$/, '.js') : path)))
const expected = [
  ...[...targets].map(path => join(dist, path)),
  ...sources.filter(isCode).map(path => join(declarations, path.replace(/\.ts$/, '.d.ts'))),
  ...LIBRARY.map(path => join(root, path)),
]
const isWhole = expected.every(path => changedAt(path) > 0)
const stale = filesIn(dist).filter(path => !targets.has(path) && !/^(types|src)[\\/]|^index\.cjs$/.test(path))
const inputs = [...sources.map(path => join(root, 'src', path)), ...RULES.map(path => join(root, path))]
const newest = Math.max(...inputs.map(changedAt))

if (!isWhole || stale.length > 0 || changedAt(schema) === 0 || changedAt(state) <= newest) await build()

async function build() {
  for (const path of stale) rmSync(join(dist, path))
  // Without it tsc writes all files anew.
  if (!isWhole) rmSync(state, { force: true })
  const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc')
  const options = ['-p', join(root, 'tsconfig.build.json'), '--incremental', '--tsBuildInfoFile', state]
  const { status } = spawnSync(process.execPath, [tsc, ...options], { stdio: 'inherit' })
  // Until all is done this was no build.
  if (changedAt(state) > 0) utimesSync(state, 0, 0)
  if (status !== 0) process.exit(1)
  for (const path of sources.filter(path => !isCode(path))) {
    mkdirSync(dirname(join(dist, path)), { recursive: true })
    copyFileSync(join(root, 'src', path), join(dist, path))
  }
  const { jsonSchema } = await import(pathToFileURL(join(dist, 'config/schema/schema.js')).href)
  writeFileSync(schema, `${JSON.stringify(jsonSchema(), null, 2)}\n`)
  await buildLibrary(root, declarations)
  utimesSync(state, new Date(), new Date())
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
