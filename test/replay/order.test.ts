import { gzipSync } from 'node:zlib'
import t from 'tap'
import { timeInSecond } from '../../src/replay/input/reorder.js'
import { bytes, combined, FIXTURE, fixtureText, logFile, readAll } from './logs.js'

const START = 1_431_857_103

t.test('files are sorted stably, however late a line is', async t => {
  const seconds = [0, 5, 3, 3, 200, 100, 3, 199, 10_000, 1]
  const lines = seconds.map((second, at) => combined(START + second, `192.0.2.${at}`))
  const { seen, reading } = await readAll([logFile(t, lines.join(''))])
  const expected = seconds
    .map((second, at) => ({ second, at }))
    .sort((a, b) => a.second - b.second || a.at - b.at)
    .map(({ second, at }) => ({ at: second * 1_000, address: `192.0.2.${at}` }))
  t.same(
    seen.map(({ at, address }) => ({ at, address })),
    expected,
  )
  t.equal(reading.late, 0)
})

t.test('a stream is sorted within a minute, and later lines count at the edge of the window', async t => {
  const lines = [0, 100, 41, 40, 39, 7].map((second, at) => combined(START + second, `192.0.2.${at}`))
  const { seen, reading } = await readAll(bytes(lines.join(''), combined(START + 101, '192.0.2.9').repeat(200)))
  t.same(
    seen.slice(0, 6).map(({ at, address }) => `${at} ${address}`),
    ['0 192.0.2.0', '40000 192.0.2.3', '40000 192.0.2.4', '40000 192.0.2.5', '41000 192.0.2.2', '100000 192.0.2.1'],
  )
  t.equal(reading.late, 2)
})

t.test('whole seconds are spread evenly in file order, and exact times stay as they are', async t => {
  const line = (at: string) => `{"time":"${at}","ip":"192.0.2.1","method":"GET","path":"/"}\n`
  const text = line('2015-05-17T10:05:03Z').repeat(4) + line('2015-05-17T10:05:03.125Z')
  const { seen } = await readAll(bytes(text), { seed: 7 })
  const expected = [0, 1, 2, 3].map(k => timeInSecond(7, START, k, 4))
  t.same(
    seen.map(({ at }) => at),
    [...expected, 125].sort((a, b) => a - b),
  )
  for (const [k, at] of expected.entries()) t.ok(at >= k * 250 && at < (k + 1) * 250, `${k}: ${at}`)
})

t.test('spreading fills the second evenly', async t => {
  const offsets = Array.from({ length: 10_000 }, (_, second) => timeInSecond(1, START + second, 0, 1))
  const mean = offsets.reduce((sum, at) => sum + at, 0) / offsets.length
  t.ok(Math.abs(mean - 500) < 10, `mean ${mean}`)
  for (let tenth = 0; tenth < 10; tenth += 1) {
    const count = offsets.filter(at => Math.floor(at / 100) === tenth).length
    t.ok(count > 850 && count < 1_150, `${tenth}: ${count}`)
  }
})

t.test('durations are subtracted after spreading, and the result is sorted again', async t => {
  const line = (second: number, took: string, path: string) =>
    combined(START + second, '192.0.2.1', `"-" "curl/8" ${took}`, `GET ${path} HTTP/1.1`)
  const text = line(10, '0.001', '/a') + line(10, '9.000', '/b') + line(12, '11.500', '/c') + line(90, '85.000', '/d')
  const { seen } = await readAll([logFile(t, text)], { seed: 1 })
  const of = (second: number, k: number, n: number, took: number) =>
    second * 1_000 + timeInSecond(1, START + 10 + second, k, n) - took
  const expected = [
    { target: '/a', at: of(0, 0, 2, 1) },
    { target: '/b', at: of(0, 1, 2, 9_000) },
    { target: '/c', at: of(2, 0, 1, 11_500) },
    { target: '/d', at: of(80, 0, 1, 85_000) },
  ].sort((a, b) => a.at - b.at)
  t.same(
    seen.map(({ target }) => target),
    expected.map(({ target }) => target),
  )
  for (const [at, each] of expected.entries()) t.ok(Math.abs(seen[at]!.at - each.at) < 1e-6, each.target)
})

t.test('several logs are read as one, in any order, rotated or parallel', async t => {
  const lines = Array.from({ length: 400 }, (_, at) => combined(START + at, `192.0.2.${at % 200}`))
  const dir = t.testdir({
    'access.log': lines.slice(200).join(''),
    'access.log.1.gz': gzipSync(lines.slice(0, 200).join('')),
    even: lines.filter((_, at) => at % 2 === 0).join(''),
    odd: lines.filter((_, at) => at % 2 === 1).join(''),
  })
  const whole = (await readAll(bytes(lines.join('')))).seen
  t.equal(whole.length, 400)
  t.same((await readAll([`${dir}/access.log`, `${dir}/access.log.1.gz`])).seen, whole)
  t.same((await readAll([`${dir}/odd`, `${dir}/even`])).seen, whole)
})

t.test('logs that overlap by more than a day are put together, and a log in the wrong order is sorted', async t => {
  const lines = Array.from({ length: 400 }, (_, at) => combined(START + at * 3_000, `192.0.2.${at % 200}`))
  const dir = t.testdir({
    even: lines.filter((_, at) => at % 2 === 0).join(''),
    odd: lines.filter((_, at) => at % 2 === 1).join(''),
    turned: lines.slice(200).join('') + lines.slice(0, 200).join(''),
  })
  const order = ({ seen }: Awaited<ReturnType<typeof readAll>>) => seen.map(({ address }) => address)
  const whole = await readAll(bytes(lines.join('')))
  const both = await readAll([`${dir}/odd`, `${dir}/even`])
  t.same(both.seen, whole.seen)
  t.equal(both.reading.late, 0)
  t.same(order(await readAll([`${dir}/turned`])), order(whole))
})

t.test('standard input in the wrong order is refused: its requests would be a burst that never was', async t => {
  const lines = Array.from({ length: 400 }, (_, at) => combined(START + at * 3_000, `192.0.2.${at % 200}`))
  await t.rejects(readAll(bytes(lines.slice(200).join(''), lines.slice(0, 200).join(''))), {
    message:
      /^standard input is not in the order of time: 200 of 400 requests are late by up to \d+ min; name the files/,
  })
})

t.test('a few times that are far off are errors, and do not sort everything', async t => {
  const lines = Array.from({ length: 400 }, (_, at) => combined(START + at))
  const { reading } = await readAll([logFile(t, [...lines, combined(START - 900_000), combined(START + 401)].join(''))])
  t.equal(reading.late, 1)
})

t.test('request times count in a log after a log without them', async t => {
  const took = combined(START + 200, '192.0.2.2', '"-" "curl/8" 5.000')
  const dir = t.testdir({ first: combined(START), second: took })
  const { seen } = await readAll([`${dir}/first`, `${dir}/second`])
  t.same(
    seen.map(({ at }) => at),
    [0, 195_000],
  )
})

t.test('the size of the pieces does not change the lines', async t => {
  const text = Buffer.from(fixtureText().slice(0, 60_000).replaceAll('\n', '\r\n'))
  const pieces = (size: number) =>
    Array.from({ length: Math.ceil(text.length / size) }, (_, at) => text.subarray(at * size, (at + 1) * size))
  const whole = await readAll(bytes(text))
  t.ok(whole.seen.length > 200)
  for (const size of [7, 100, 4_096]) t.same((await readAll(bytes(...pieces(size)))).seen, whole.seen, `${size} bytes`)
})

t.test('a line that is too long is bad, and the next one is good', async t => {
  const text = combined(START) + combined(START, '192.0.2.1', `"-" "${'x'.repeat(400_000)}"`) + combined(START + 1)
  const { seen, reading } = await readAll(bytes(...(text.match(/.{1,9999}\n?/gs) ?? [])))
  t.equal(seen.length, 2)
  t.same([...reading.bad.reasons], [['too long', 1]])
  const atOnce = await readAll(bytes(text))
  t.same([...atOnce.reading.bad.reasons], [['too long', 1]], 'also in one piece')
})

t.test('gzip data that is cut off or damaged is read as far as possible', async t => {
  const packed = gzipSync(fixtureText())
  const { seen, reading } = await readAll([logFile(t, packed.subarray(0, packed.length >> 1), 'cut.gz')])
  t.ok(seen.length > 3_000 && seen.length < 7_000, `${seen.length} requests`)
  t.match(reading.errors[0]?.message, /cut off: its gzip data ends too early/)
  const broken = Buffer.from(packed)
  broken.fill(0, packed.length >> 1, (packed.length >> 1) + 100)
  const damaged = await readAll([logFile(t, broken, 'broken.gz')])
  t.match(damaged.reading.errors[0]?.message, /damaged gzip data/)
  t.ok(damaged.seen.length > 1_000)
  const twice = await readAll([
    logFile(t, Buffer.concat([gzipSync(combined(START)), gzipSync(combined(START + 1))]), 'two.gz'),
  ])
  t.equal(twice.seen.length, 2, 'members one after the other')
})

t.test('a log that cannot be read is reported, and the others are read', async t => {
  const { seen, reading } = await readAll([FIXTURE, '/nowhere/access.log', '/tmp'])
  t.equal(seen.length, 10_000)
  t.match(reading.errors.map(({ message }) => message).join('\n'), /does not exist[\s\S]*is a directory/)
})
