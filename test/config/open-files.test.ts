import t from 'tap'
import { openFileLimit } from '../../src/config/derived/open-files.js'
import { loadConfig } from '../../src/config/load.js'
import { openFileWarnings } from '../../src/config/warnings/open-files.js'
import { least, parse } from './sample.js'

const lines = (file: object, allowed?: number, workers?: number): string[] =>
  openFileWarnings(parse({ ...least(), ...file }), allowed, workers).map(({ path, message }) => `${path}: ${message}`)

/** How many files a configuration needs. */
function needed(file: object): number {
  const [, figure] =
    /up to (\d+) open files/.exec(lines({ limits: { maxConnections: 1_000 }, ...file }, 1)[0] ?? '') ?? []
  return Number(figure)
}

t.test('limits that need more files than may be open: the figure and the remedy', async t => {
  t.same(lines({}, 20_000), [
    'limits.maxConnections: 20000 needs up to 40320 open files, and this process may open 20000: raise that with "ulimit -n 40320", or lower this to 9840',
  ])
  t.same(lines({}, 40_320), [])
  t.same(lines({}, Infinity), [])
  t.same(lines({}, undefined), [], 'where the limit cannot be read there is no warning')
  t.match(lines({}, 300), [/ulimit -n 40320"$/], 'no number of clients would fit')
})

t.test('what it says to lower it to is enough', async t => {
  for (const connections of [1, 50, 700, undefined]) {
    const upstream = { url: 'echo:', ...(connections && { connections }) }
    for (const allowed of [322, 1_024, 1_500]) {
      const [line] = lines({ upstream }, allowed)
      const lower = Number(/lower this to (\d+)/.exec(line!)![1])
      t.same(lines({ upstream, limits: { maxConnections: lower } }, allowed), [], `${connections} ${allowed}`)
      t.equal(lines({ upstream, limits: { maxConnections: lower + 1 } }, allowed).length, 1)
    }
  }
})

t.test('each worker needs files for its part only', async t => {
  const limits = { maxConnections: 20_000 }
  t.same(lines({ limits }, 10_320, 4), [])
  t.match(lines({ limits }, 10_319, 4), [
    /: 20000 needs up to 10320 open files in each worker, and each worker may open 10319: .*lower this to 19996$/,
  ])
  t.same(lines({ limits: { maxConnections: 19_996 } }, 10_319, 4), [], 'what it says to lower it to is enough')
  t.equal(lines({ limits: { maxConnections: 19_997 } }, 10_319, 4).length, 1)
  t.same(lines({ limits, upstream: { url: 'echo:', connections: 8 } }, 5_322, 4), [], 'connections are divided, too')
})

t.test('connections to upstreams: as many as each may have, and no more than there are clients', async t => {
  t.equal(needed({}), 2_320)
  t.equal(needed({ upstream: { url: 'echo:', connections: 5 } }), 1_325)
  t.equal(needed({ upstream: { url: 'echo:', connections: 5_000 } }), 2_320)
  t.equal(needed({ upstream: { url: 'echo:', maxInFlight: 7 } }), 1_327)
  const off = [{ mode: 'off', match: { path: '/a' } }, {}]
  t.equal(needed({ upstream: { url: 'echo:', maxInFlight: 7 }, routes: off }), 2_320, 'off routes have no bound')
  t.equal(needed({ upstream: { url: 'echo:', maxInFlight: 7 }, dryRun: true }), 2_320)
  t.equal(needed({ upstream: { url: 'echo:', connections: 7 }, routes: off }), 1_327)
  const own = [{ match: { path: '/a' }, upstream: { url: 'http://a', connections: 3 } }, {}]
  t.equal(needed({ upstream: { url: 'echo:', connections: 5 }, routes: own }), 1_328)
})

t.test('the default of connections is as many as the open files allow, and a configured number stays', async t => {
  const text = (limits?: object): string => JSON.stringify({ ...least(), ...(limits && { limits }) })
  const cwd = t.testdir({ 'shaper.config.json': text(), 'set.json': text({ maxConnections: 20_000 }) })
  const connections = (openFiles?: number, workers?: string, file = 'shaper.config.json'): number => {
    const { settings } = loadConfig({ file, flags: {}, env: {}, cwd, openFiles, workers })
    const warned = openFileWarnings(settings, openFiles, Number(workers ?? 1)).length
    t.equal(warned, file === 'set.json' || openFiles === 200 ? 1 : 0)
    return settings.limits.maxConnections
  }
  t.equal(connections(20_000), 9_840)
  t.equal(connections(1_024), 352)
  t.equal(connections(40_320), 20_000)
  t.equal(connections(undefined), 20_000)
  t.equal(connections(5_000, '4'), 9_360)
  t.equal(connections(200), 1, 'there is a warning where not even one fits')
  t.equal(connections(20_000, undefined, 'set.json'), 20_000)
})

t.test('how many files this process may open, from /proc and from a report', async t => {
  const networkLeftOut = (): unknown => Reflect.get(process.report, 'excludeNetwork')
  const before = networkLeftOut()
  const reported = openFileLimit('/nowhere')
  t.equal(networkLeftOut(), before, 'the setting of reports is as it was')
  if (process.platform !== 'win32') t.type(reported, 'number')
  t.equal(openFileLimit(), reported)
  const told = (limit: string): number | undefined => {
    const name = 'limits'
    return openFileLimit(
      `${t.testdir({ [name]: `Max processes  9 9\nMax open files            ${limit}  files\n` })}/${name}`,
    )
  }
  t.equal(told('1024                 4096'), 1_024)
  t.equal(told('unlimited            unlimited'), Infinity)
})
