// Runs the tests. `npm test`: the everyday files without their long tests, and with a tenth of the runs of each property. `npm run
// test:all`: the rest, that is the long files, the long tests, and each property with all of its runs (with SHAPER_DEEP=1 ten times as many). `node scripts/test.js PATH...` runs the
// files under these paths whole, after `npm run build:test`; `--coverage` measures what they cover.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, mkdirSync, openSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ALONE, REST, SHARED } from '../test/tiers.js'

/** A file that takes longer has hung, in s. On a machine with other work the longest takes several times as long as alone. */
const TIMEOUT = process.env.SHAPER_DEEP === '1' ? 3_000 : 600
/** How many files share a process. */
const FILES_EACH = 10
/** How the names of tests begin which take long; and of those that `npm test` does not run in full. */
const LONG = '/^long: /'
const LEFT_OUT = '/^(long|property): /'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const results = join(root, 'build/results')
const coverage = join(root, 'build/coverage')
const timesPath = join(root, 'build/test-times.json')
const args = process.argv.slice(2)
const wanted = args.filter(arg => !arg.startsWith('--')).map(path => path.replace(/^test\//, ''))
const mode = args.includes('--all') ? 'rest' : wanted.length > 0 || args.includes('--coverage') ? 'whole' : 'everyday'
/** Most files wait for sockets part of their time. The long ones are busy, and start several processes each. */
const JOBS = Math.ceil(availableParallelism() * (mode === 'everyday' ? 1.5 : 1))

const under = (path, starts) => starts.some(start => path.startsWith(start))
const files = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
  .filter(path => path.endsWith('.test.ts'))
  .sort()
for (const start of [...ALONE, ...REST, ...SHARED, ...wanted])
  if (!files.some(path => path.startsWith(start))) stop(`no test file begins with test/${start}`)
const chosen = files.filter(path =>
  mode === 'everyday' ? !under(path, REST) : wanted.length === 0 || under(path, wanted),
)
const tasks = mode === 'rest' ? tasksOfRest() : tasksOf(chosen)

rmSync(results, { recursive: true, force: true })
mkdirSync(results, { recursive: true })
if (args.includes('--coverage')) rmSync(coverage, { recursive: true, force: true })
const times = readTimes()
const failed = []
const startedAt = performance.now()
const alone = tasks.filter(({ paths }) => under(paths[0], ALONE))
const pooled = tasks.filter(task => !alone.includes(task)).sort((one, other) => weight(other) - weight(one))
await runAll(`${pooled.flatMap(({ paths }) => paths).length} files, ${JOBS} processes at a time`, pooled, JOBS)
await runAll(`${alone.length} files about real time, one at a time`, alone, 1)
process.stdout.write(`# all: ${seconds(startedAt)} s\n`)
writeFileSync(timesPath, JSON.stringify(times))
if (args.includes('--coverage')) {
  const report = ['report', `--temp-directory=${coverage}`, '--skip-full']
  spawnSync(join(root, 'node_modules/.bin/c8'), report, { cwd: root, stdio: 'inherit' })
}
if (failed.length > 0) process.stderr.write(`failed: ${failed.join(', ')}\n`)
process.exitCode = failed.length > 0 ? 1 : 0

/** Files that may share a process do, `FILES_EACH` at a time. */
function tasksOf(paths, only) {
  const shared = paths.filter(path => under(path, SHARED) && !setsRoot(path))
  const count = Math.ceil(shared.length / FILES_EACH)
  const groups = Array.from({ length: count }, (_, index) => shared.filter((_, at) => at % count === index))
  const single = paths.filter(path => !shared.includes(path)).map(path => [path])
  return [...groups, ...single].map(group => ({ paths: group, only }))
}

/** What `npm test` left out: the files of REST, and in all others the long tests and the properties. */
function tasksOfRest() {
  const others = files.filter(path => !under(path, REST) && leavesOut(path))
  return [...tasksOf(files.filter(path => under(path, REST))), ...tasksOf(others, LEFT_OUT)]
}

/** Whether `runs` counts the runs of some of its tests, or some are long. */
function leavesOut(path) {
  return /\/runs\.js'|odelled\(|['`]long: /.test(sourceOf(path))
}

/** Whether a file sets what all tests of its process would share. */
function setsRoot(path) {
  return /^t\.(jobs|teardown|before|after|beforeEach|afterEach|setTimeout)\b/m.test(sourceOf(path))
}

function sourceOf(path) {
  return readFileSync(join(root, 'test', path), 'utf8')
}

async function runAll(title, waiting, jobs) {
  if (waiting.length === 0) return
  process.stdout.write(`# ${title}\n`)
  const longest = []
  const work = async () => {
    for (let task = waiting.shift(); task !== undefined; task = waiting.shift()) {
      const begin = performance.now()
      if (!(await run(task))) failed.push(...task.paths)
      const time = seconds(begin)
      times[nameOf(task)] = Number(time)
      longest.push([time, nameOf(task)])
    }
  }
  const begin = performance.now()
  await Promise.all(Array.from({ length: jobs }, work))
  const shown = longest.sort(([one], [other]) => other - one).slice(0, 5)
  process.stdout.write(`# ${seconds(begin)} s; longest: ${shown.map(([time, name]) => `${name} ${time}`).join(', ')}\n`)
}

/** Runs files in a process of their own, without a runner's loader, which would cost more than most files. */
async function run(task) {
  const log = join(results, `${nameOf(task).replaceAll(/[^\w-]+/g, '-')}.tap`)
  const output = openSync(log, 'w')
  const timeout = TIMEOUT + 10 * (task.paths.length - 1)
  const scripts = task.paths.map(path => join('build/test', path.replace(/\.ts$/, '.js')))
  const child = spawn(process.execPath, ['--enable-source-maps', 'scripts/test-files.js', ...scripts], {
    cwd: root,
    env: {
      ...process.env,
      TAP_TIMEOUT: `${timeout}`,
      ...(mode === 'everyday' && { SHAPER_RUNS: '0.1', TAP_GREP: LONG, TAP_INVERT: '1' }),
      ...(task.only !== undefined && { TAP_GREP: task.only }),
      ...(args.includes('--coverage') && { NODE_V8_COVERAGE: coverage }),
    },
    stdio: ['ignore', output, output],
    // tap itself says first what hangs.
    timeout: (timeout + 10) * 1_000,
    killSignal: 'SIGKILL',
  })
  const [code, signal] = await once(child, 'exit')
  closeSync(output)
  const lines = readFileSync(log, 'utf8').split('\n')
  const planned = lines.some(line => /^1\.\.\d/.test(line))
  const good = code === 0 && planned
  const reason = code !== 0 ? `exit ${code ?? signal}` : 'it ended before its tests did'
  const shown = lines.filter(line =>
    good ? /# (SKIP(?! filter)|TODO)/.test(line) : !/^\s*(ok \d|TAP version|# Subtest|\d+\.\.\d|$)/.test(line),
  )
  if (!good) process.stdout.write(`\nnot ok ${task.paths.join(', ')}: ${reason}; all of it: ${log}\n`)
  if (shown.length > 0) process.stdout.write(`${shown.join('\n')}\n`)
  return good
}

/** The first file, and how many more. */
function nameOf({ paths: [first, ...more], only = '' }) {
  return `${only && 'left out: '}${first.replace('.test.ts', '')}${more.length > 0 ? ` + ${more.length}` : ''}`
}

/** The longest begin first, so that none is left at the end: by the last run, else by the size of the files. */
function weight(task) {
  const size = path => statSync(join(root, 'test', path)).size / 4_000
  return times[nameOf(task)] ?? task.paths.map(size).reduce((sum, each) => sum + each)
}

function readTimes() {
  try {
    return JSON.parse(readFileSync(timesPath, 'utf8'))
  } catch {
    return {}
  }
}

/** In s, since then. */
function seconds(begin) {
  return ((performance.now() - begin) / 1_000).toFixed(1)
}

function stop(message) {
  process.stderr.write(`${message}\n`)
  process.exit(2)
}
