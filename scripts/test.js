// Runs the tests: `npm test` without the long ones, `npm run test:all` all of them, with coverage. `node scripts/test.js TIER...`
// runs some tiers whole, after `npm run build:test`; `--quick` leaves their long files out.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EXTENDED, TIERS } from '../test/tiers.js'

/** A file that takes longer has hung, in s. The longest takes a minute, and on a machine with other work several times as long. */
const TIMEOUT = 300

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const coverage = join(root, 'build/coverage')
const args = process.argv.slice(2)
const all = args.includes('--all')
const names = args.filter(arg => !arg.startsWith('--'))
const unknown = names.filter(name => !TIERS.some(tier => tier.name === name))
if (unknown.length > 0) {
  process.stderr.write(`no such tier: ${unknown.join(', ')}; there are ${TIERS.map(({ name }) => name).join(', ')}\n`)
  process.exit(2)
}
const quick = args.includes('--quick') || (!all && names.length === 0)

const files = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
  .filter(path => path.endsWith('.test.ts'))
  .sort()
const env = { ...process.env, TAP_TIMEOUT: `${TIMEOUT}` }
if (all) {
  rmSync(coverage, { recursive: true, force: true })
  env.NODE_V8_COVERAGE = coverage
}
const failed = []
for (const { name, jobs, holds } of TIERS) {
  if (names.length > 0 && !names.includes(name)) continue
  const chosen = files.filter(path => tierOf(path) === name && !(quick && (name === 'system' || EXTENDED.has(path))))
  if (chosen.length > 0) await runTier(name, `${holds}, ${chosen.length} files`, chosen, jobs)
}
if (all) {
  const report = ['report', `--temp-directory=${coverage}`, '--skip-full']
  spawnSync(join(root, 'node_modules/.bin/c8'), report, { cwd: root, stdio: 'inherit' })
}
if (failed.length > 0) process.stderr.write(`failed: ${failed.join(', ')}\n`)
process.exitCode = failed.length > 0 ? 1 : 0

async function runTier(name, title, chosen, jobs) {
  process.stdout.write(`\n# ${name}: ${title}\n`)
  const startedAt = performance.now()
  const waiting = [...chosen]
  const times = []
  const work = async () => {
    for (let path = waiting.shift(); path !== undefined; path = waiting.shift()) {
      const begin = performance.now()
      if (!(await runFile(path))) failed.push(path)
      times.push([seconds(begin), path])
    }
  }
  await Promise.all(Array.from({ length: jobs }, work))
  const longest = times.sort(([one], [other]) => other - one).slice(0, 3)
  const shown = longest.map(([time, path]) => `${path.replace('.test.ts', '')} ${time}`).join(', ')
  process.stdout.write(`# ${name}: ${seconds(startedAt)} s; longest: ${shown}\n`)
}

/** Runs a test file by itself, without a runner's loader, which would cost more than most files. */
async function runFile(path) {
  const script = join('build/test', path.replace(/\.ts$/, '.js'))
  const results = join(root, script.replace(/\.js$/, '.tap'))
  const output = openSync(results, 'w')
  const child = spawn(process.execPath, ['--enable-source-maps', script], {
    cwd: root,
    env,
    stdio: ['ignore', output, output],
    // tap itself says first what hangs.
    timeout: (TIMEOUT + 10) * 1_000,
    killSignal: 'SIGKILL',
  })
  const [code, signal] = await once(child, 'exit')
  closeSync(output)
  const lines = readFileSync(results, 'utf8').split('\n')
  const planned = lines.some(line => /^1\.\.\d/.test(line))
  const good = code === 0 && planned
  const reason = code !== 0 ? `exit ${code ?? signal}` : 'it ended before its tests did'
  const shown = lines.filter(line =>
    good ? /# (SKIP|TODO)/.test(line) : !/^\s*(ok \d|TAP version|# Subtest|\d+\.\.\d|$)/.test(line),
  )
  if (!good) process.stdout.write(`\nnot ok ${script}: ${reason}; all of it: ${results}\n`)
  if (shown.length > 0) process.stdout.write(`${shown.join('\n')}\n`)
  return good
}

/** In s, since then. */
function seconds(begin) {
  return ((performance.now() - begin) / 1_000).toFixed(1)
}

/** The tier with the longest path that is a prefix of the file. */
function tierOf(path) {
  const lengthIn = ({ paths }) =>
    Math.max(0, ...paths.filter(start => path.startsWith(start)).map(start => start.length))
  const best = TIERS.reduce((longest, tier) => (lengthIn(tier) > lengthIn(longest) ? tier : longest))
  if (lengthIn(best) === 0) throw new Error(`test/${path} is in no tier; name it in test/tiers.js`)
  return best.name
}
