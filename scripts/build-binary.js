/**
 * Writes build/bin/shaper: the program and Node as one file, for the platform of the Node that runs this. `npm run build` comes first.
 *
 * Node's own way (single executable applications): the program is bundled to one file, Node makes a blob of it, and postject puts the
 * blob into a copy of Node.
 */
import { execFileSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { inject } from 'postject'
import { bundled } from './build-library.js'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const source = join(root, 'src')
const folder = join(root, 'build/bin')
const [script, blob, config] = ['shaper.cjs', 'shaper.blob', 'sea.json'].map(name => join(folder, name))
const binary = join(folder, process.platform === 'win32' ? 'shaper.exe' : 'shaper')
/** Node looks for the blob where this text is in it. */
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2'

/**
 * Node gives a child of `cluster`, and shaper its successor, the path of the main script. That is the executable itself, which would
 * take the path for a command.
 */
const ENTRY = `
process.argv[1] = process.execPath
if (process.argv[2] === process.execPath) process.argv.splice(2, 1)
async function run() {
  if (process.argv[2] === 'start') await import('./cli/serving/hang-up.js')
  await (await import('./cli/main.js')).main(process.argv)
}
void run()
`

if (!readFileSync(process.execPath).includes(FUSE))
  throw new Error(`${process.execPath} cannot become an executable of its own; use Node from https://nodejs.org/dist`)
mkdirSync(folder, { recursive: true })
const entry = { contents: ENTRY.replaceAll('.js', '.ts'), resolveDir: source }
// jsonc-parser can be bundled as an ES module only. The client of PostgreSQL asks for its native form only if that is wanted.
const packages = { mainFields: ['module', 'main'], external: ['pg-native'] }
writeFileSync(script, await bundled({ stdin: entry }, packages))
writeFileSync(
  config,
  JSON.stringify({ main: script, output: blob, disableExperimentalSEAWarning: true, useCodeCache: true }),
)
execFileSync(process.execPath, ['--experimental-sea-config', config])
// One that runs goes on.
rmSync(binary, { force: true })
copyFileSync(process.execPath, binary)
chmodSync(binary, 0o755)
// macOS runs no program whose signature does not fit.
const isMac = process.platform === 'darwin'
if (isMac) execFileSync('codesign', ['--remove-signature', binary])
await inject(binary, 'NODE_SEA_BLOB', readFileSync(blob), {
  sentinelFuse: FUSE,
  ...(isMac && { machoSegmentName: 'NODE_SEA' }),
})
if (isMac) execFileSync('codesign', ['--sign', '-', binary])
process.stdout.write(`${binary}\n`)
