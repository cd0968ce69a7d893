/** The file that keeps levels over restarts: what is in it, how it is replaced, and what a damaged one does. */
import { execFileSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { type Levels, LevelsFile, type SavedLevel, WRITE_EVERY } from '../../src/stores/memory/levels-file.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { runs } from '../runs.js'
import { until } from '../servers/redis.js'

const ONE: SavedLevel = { bucket: 'client', key: '192.0.2.7', level: 3.5, at: 1_000, rate: 0.005 }
const SOME: readonly SavedLevel[] = [
  ONE,
  { ...ONE, key: 'a "quoted"\n\u2028 kéy\u0000', level: 0.1 + 0.2, tier: 'gold' },
  { ...ONE, bucket: 'login', key: '', level: 0, blocked: 61_000 },
  { ...ONE, bucket: 'login', key: 'x', level: 2, blocked: Infinity, free: 4_000 },
]
/** ms since 1970, at 0 of the clock. */
const ORIGIN = 1_795_942_800_000

interface Kept {
  readonly levels: Levels
  readonly restored: SavedLevel[]
}

function keeping(now: () => number, saved: Iterable<SavedLevel | undefined> = []): Kept {
  const restored: SavedLevel[] = []
  return { restored, levels: { now, saved: () => saved, restore: each => restored.push(each) > 0 } }
}

function setUp(t: Test, start = 1_000) {
  const file = join(t.testdir(), 'levels.json')
  const clock = createVirtualClock({ start })
  const lines: string[] = []
  const log = {
    info: (_: object, text: string) => void lines.push(`info ${text}`),
    warn: (_: object, text: string) => void lines.push(`warn ${text}`),
  }
  let wall = ORIGIN
  const open = () => new LevelsFile({ file, clock, log, wallNow: () => wall + clock.now() })
  return {
    ...{ file, clock, lines, open },
    /** The clock of the machine is set. */
    step(ms: number) {
      wall += ms
    },
    async write(levels: Levels) {
      const kept = open()
      kept.begin(levels)
      await kept.close()
    },
    async read(now = () => clock.now()) {
      const { levels, restored } = keeping(now)
      await open().restore(levels)
      return restored
    },
  }
}

t.test('what is written comes back at the same moments, on another clock', async t => {
  const { file, clock, write, read, lines } = setUp(t)
  await write(keeping(() => clock.now(), [undefined, ...SOME, undefined]).levels)
  const document = JSON.parse(readFileSync(file, 'utf8'))
  t.same(document.levels[0], ['client', '192.0.2.7', 3.5, ORIGIN + 1_000, 0.005], 'it is JSON')
  t.equal(document.count, SOME.length)
  t.equal(statSync(file).mode & 0o777, 0o600, 'keys may be secrets')
  t.same(readdirSync(join(file, '..')), ['levels.json'], 'nothing else is left')
  clock.runUntil(6_000)
  // The clock of the next process begins elsewhere.
  const restored = await read(() => clock.now() - 7_000_000)
  const by = -7_000_000
  t.same(
    restored,
    SOME.map(each => ({
      ...each,
      level: each.level === 3.5 ? 3.5 : Math.ceil(each.level * 1e6) / 1e6,
      at: each.at + by,
      ...(each.blocked !== undefined && { blocked: each.blocked + by }),
      ...(each.free !== undefined && { free: each.free + by }),
    })),
  )
  t.same(lines, [`info levels are back from ${file}`])
})

t.test('a clock that goes back drains nothing and adds nothing, one that goes ahead drains', async t => {
  const { clock, write, read, step } = setUp(t, 100_000)
  await write(
    keeping(
      () => clock.now(),
      [
        { ...ONE, at: 40_000 },
        { ...ONE, at: 100_000, blocked: 160_000 },
      ],
    ).levels,
  )
  clock.runUntil(130_000)
  step(-3_600_000)
  t.match(await read(), [
    { level: 3.5, at: 70_000 },
    { level: 3.5, at: 130_000, blocked: 190_000 },
  ])
  step(3_600_000 + 20_000)
  t.match(await read(), [{ at: 20_000 }, { at: 80_000, blocked: 140_000 }])
})

t.test('it is written ten seconds after the last write, and in the end', async t => {
  const { file, clock, open } = setUp(t)
  const kept = open()
  kept.begin(keeping(() => clock.now(), [ONE]).levels)
  clock.runUntil(1_000 + WRITE_EVERY - 1)
  t.notOk(existsSync(file))
  clock.runUntil(1_000 + WRITE_EVERY)
  await until('it is written', () => existsSync(file))
  await until('the next write is planned', () => clock.next() < Infinity)
  t.equal(clock.next(), 1_000 + 2 * WRITE_EVERY)
  const [first] = [statSync(file).ino]
  await kept.close()
  t.not(statSync(file).ino, first, 'another file')
  t.equal(clock.next(), Infinity)
})

t.test('a file that is torn anywhere, or has one wrong byte, is put aside and restores nothing', async t => {
  const { file, clock, write, read, lines } = setUp(t)
  await write(keeping(() => clock.now(), SOME).levels)
  const whole = readFileSync(file)
  const aside = `${file}.damaged`
  for (let length = 1; length < whole.length; length += 1) {
    writeFileSync(file, whole.subarray(0, length))
    t.same(await read(), [], `${length} bytes`)
  }
  t.notOk(existsSync(file))
  t.same(readFileSync(aside), whole.subarray(0, -1))
  const wrong = [
    ...['{}\n', '[]', 'listen 80;\n', '\0'.repeat(200), `${whole}\n`, `${whole}${whole}`, 'x'.repeat(200_000)],
    ...[
      String(whole).replace('3.5', '-3.5'),
      String(whole).replace('3.5', '"3"'),
      String(whole).replace('3.5', '1e999'),
    ],
    ...[String(whole).replace('0.005', '0'), String(whole).replace('"count":4', '"count":3')],
    ...[String(whole).replace('"drained"', '"soon"'), String(whole).replace('"tier":', '"teir":')],
  ]
  for (const text of wrong) {
    writeFileSync(file, text)
    t.same(await read(), [], text.slice(0, 40))
    t.equal(readFileSync(aside, 'utf8'), text)
  }
  t.equal(lines.length, whole.length - 1 + wrong.length)
  t.equal(
    lines[0],
    `warn store.file: ${file} is not complete; all levels start at 0. It is now ${aside}, for you to look at or remove`,
  )
  t.equal(lines.filter(line => line.includes(' is damaged in line 2;')).length, 3 + 1)
})

t.test('a file of a newer version is put aside', async t => {
  const { file, clock, write, read, lines } = setUp(t)
  await write(keeping(() => clock.now(), SOME).levels)
  writeFileSync(file, readFileSync(file, 'utf8').replace('"shaperLevels":1', '"shaperLevels":2'))
  t.same(await read(), [])
  t.match(lines, [/levels\.json has the version 2, and this program reads only 1; all levels start at 0\. It is now /])
})

t.test('no file, and an empty one, are no levels', async t => {
  const { file, clock, write, read, lines } = setUp(t)
  t.same(await read(), [])
  writeFileSync(file, '')
  t.same(await read(), [])
  await write(keeping(() => clock.now()).levels)
  t.same(await read(), [])
  t.same(lines, [])
})

t.test('what a crash has left besides is no obstacle', async t => {
  const { file, clock, write, read } = setUp(t)
  writeFileSync(`${file}.new`, '{"shap', { mode: 0o644 })
  await write(keeping(() => clock.now(), [ONE]).levels)
  t.equal((await read()).length, 1)
  t.equal(statSync(file).mode & 0o777, 0o600)
})

t.test('a failure is told once, the file stays as it was, and the next success is told', async t => {
  const { file, clock, write, read, lines, open } = setUp(t)
  await write(keeping(() => clock.now(), [ONE]).levels)
  const kept = open()
  kept.begin(keeping(() => clock.now(), SOME).levels)
  // The new file cannot take its name.
  const moved = `${file}.moved`
  execFileSync('mv', [file, moved])
  mkdirSync(join(file, 'in-the-way'), { recursive: true })
  for (let write = 1; write <= 2; write += 1) {
    clock.runUntil(clock.next())
    await until('the next write is planned', () => clock.next() < Infinity)
  }
  t.equal(lines.length, 1)
  t.match(
    lines[0],
    /^warn store\.file: .*levels\.json cannot be written \(E\w+\); a restart finds the levels as they were/,
  )
  t.notOk(existsSync(`${file}.new`))
  execFileSync('rm', ['-r', file])
  execFileSync('mv', [moved, file])
  t.equal((await read()).length, 1)
  clock.runUntil(clock.next())
  await until('the next write is planned', () => clock.next() < Infinity)
  t.match(lines.at(-1), /^info .*levels\.json is written again$/)
  await kept.close()
  t.equal((await read()).length, SOME.length)
})

const isRoot = process.getuid?.() === 0

t.test('a full disk', { skip: isRoot ? false : 'only root mounts a small file system' }, async t => {
  const folder = join(t.testdir({ disk: {} }), 'disk')
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', folder])
  try {
    const file = join(folder, 'levels.json')
    const lines: string[] = []
    const log = { info: () => undefined, warn: (_: object, text: string) => void lines.push(text) }
    const clock = createVirtualClock()
    const write = async (saved: readonly SavedLevel[]) => {
      const kept = new LevelsFile({ file, clock, log })
      kept.begin(keeping(() => clock.now(), saved).levels)
      await kept.close()
    }
    await write([ONE])
    const before = readFileSync(file, 'utf8')
    await write(Array.from({ length: 5_000 }, (_, index) => ({ ...ONE, key: `key ${index}` })))
    t.equal(readFileSync(file, 'utf8'), before)
    t.same(readdirSync(folder), ['levels.json'], 'the rest of the failed write takes no place')
    t.match(lines, [/cannot be written \(ENOSPC\)/])
  } finally {
    // Its folder is removed before teardowns.
    execFileSync('umount', [folder])
  }
})

t.test('a file that cannot be read is told', { skip: isRoot ? 'root reads everything' : false }, async t => {
  const { file, clock, write, read, lines } = setUp(t)
  await write(keeping(() => clock.now(), [ONE]).levels)
  chmodSync(file, 0o200)
  t.same(await read(), [])
  t.match(lines, [/cannot be read \(EACCES\)/])
})

t.test('property: a million of them are written in slices, and come back', async t => {
  const { file, clock, open, read } = setUp(t)
  const count = runs(1_000_000)
  function* many(): Generator<SavedLevel | undefined> {
    for (let key = 0; key < count; key += 1) yield key % 2 === 0 ? undefined : { ...ONE, key: `192.0.${key}` }
  }
  const kept = open()
  kept.begin(keeping(() => clock.now(), { [Symbol.iterator]: many }).levels)
  clock.runUntil(clock.next())
  let turns = 0
  await until('it is written', () => {
    turns += 1
    return existsSync(file)
  })
  t.ok(turns > 3, `the event loop went on meanwhile: ${turns}`)
  t.equal((await read()).length, count / 2)
})

t.test('the memory store: levels, slots and blocks, to the millisecond', async t => {
  const { clock, write, open } = setUp(t, 50_000)
  const of = (key: string) => [
    { limits: { name: 'client', rate: 0.005, capacity: 4, blockFor: 60_000 }, key, group: '' },
  ]
  const stack = of('k')
  const ask = { cost: 1, maxWait: Infinity, claim: false }
  const before = createMemoryStore({ clock })
  for (let count = 1; count <= 4; count += 1) t.match(before.admit({ ...ask, stack }), { admitted: true })
  t.match(before.claim({ stack, cost: 1, since: 0 }), { granted: true })
  before.admit({ ...ask, stack: of('blocked'), cost: 4 })
  t.match(before.admit({ ...ask, stack: of('blocked') }), { admitted: false, reason: 'overflow' })
  await write(before.levels)
  // A hundred ms later, by a clock that has started anew.
  clock.runUntil(50_100)
  const after = createMemoryStore({ clock: { now: () => clock.now() - 50_000 } })
  await open().restore(after.levels)
  t.equal(after.size, 2)
  const early = after.claim({ stack, cost: 1, since: 0 }) as { freeAt: readonly number[] }
  t.match(early, { granted: false })
  t.ok(Math.abs(early.freeAt[0]! - 200) < 0.01, 'the slot of the former process keeps its distance')
  clock.runUntil(50_200.01)
  t.match(after.claim({ stack, cost: 1, since: 0 }), { granted: true })
  const { levels } = after.admit({ ...ask, stack })
  t.ok(Math.abs(levels[0]! - 4) < 1e-3, 'one has drained in 200 ms')
  t.match(after.admit({ ...ask, stack: of('blocked') }), { admitted: false, reason: 'blocked' })
  clock.runUntil(110_000.01)
  t.match(after.admit({ ...ask, stack: of('blocked') }), { admitted: true })
})
