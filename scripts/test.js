// Runs the tests: `npm test` without the long ones, `npm run test:all` all of them, with coverage. `node scripts/test.js TIER...`
// runs some tiers whole, after `npm run build:test`.
import { spawnSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EXTENDED, TIERS } from '../test/tiers.js'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const tap = join(root, 'node_modules/.bin/tap')
const args = process.argv.slice(2)
const all = args.includes('--all')
const names = args.filter(arg => !arg.startsWith('--'))
const unknown = names.filter(name => !TIERS.some(tier => tier.name === name))
if (unknown.length > 0) {
  process.stderr.write(`no such tier: ${unknown.join(', ')}; there are ${TIERS.map(({ name }) => name).join(', ')}\n`)
  process.exit(2)
}

const files = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
  .filter(path => path.endsWith('.test.ts'))
  .sort()
const failed = []
for (const { name, jobs, holds } of TIERS) {
  if (names.length > 0 && !names.includes(name)) continue
  const whole = all || names.length > 0
  const chosen = files.filter(path => tierOf(path) === name && (whole || !(name === 'system' || EXTENDED.has(path))))
  if (chosen.length === 0) continue
  const startedAt = performance.now()
  process.stdout.write(`\n# ${name}: ${holds}, ${chosen.length} files\n`)
  const built = chosen.map(path => `build/test/${path.replace(/\.ts$/, '.js')}`)
  const options = ['--reporter=terse', `--jobs=${jobs}`, ...(all ? [] : ['--disable-coverage'])]
  const { status } = spawnSync(tap, ['run', ...options, ...built], { cwd: root, stdio: 'inherit' })
  process.stdout.write(`# ${name}: ${((performance.now() - startedAt) / 1_000).toFixed(1)} s\n`)
  if (status !== 0) failed.push(name)
}
if (failed.length > 0) process.stderr.write(`failed: ${failed.join(', ')}\n`)
process.exit(failed.length > 0 ? 1 : 0)

/** The tier with the longest path that the file begins with. */
function tierOf(path) {
  const lengthIn = ({ paths }) =>
    Math.max(0, ...paths.filter(start => path.startsWith(start)).map(start => start.length))
  const best = TIERS.reduce((longest, tier) => (lengthIn(tier) > lengthIn(longest) ? tier : longest))
  if (lengthIn(best) === 0) throw new Error(`test/${path} is in no tier; name it in test/tiers.js`)
  return best.name
}
