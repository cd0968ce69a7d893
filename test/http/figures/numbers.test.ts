import * as zlib from 'node:zlib'
import fc from 'fast-check'
import t from 'tap'
import { findInAnswer, type Numbers } from '../../../src/http/figures/answer-numbers.js'
import { EventNumbers } from '../../../src/http/figures/event-numbers.js'
import { JsonNumbers } from '../../../src/http/figures/json-numbers.js'
import { formatJsonPath, type JsonPath, parseJsonPath } from '../../../src/http/figures/json-path.js'
import { runs } from '../../runs.js'

/** What JSON.parse finds. */
function expected(text: string, path: JsonPath): unknown {
  let value: unknown = JSON.parse(text)
  for (const step of path) {
    const fits = typeof step === 'number' ? Array.isArray(value) : isObject(value)
    value = fits && Object.hasOwn(value as object, step) ? (value as Record<string, unknown>)[step] : undefined
  }
  return value
}

function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Reads a text cut at these places, counted in bytes. */
function readCut(reader: Pick<JsonNumbers, 'read'>, bytes: Buffer, cuts: readonly number[]): void {
  const places = [...new Set(cuts.map(cut => cut % (bytes.length + 1)))].sort((a, b) => a - b)
  let from = 0
  for (const to of [...places, bytes.length]) {
    // Each piece lies elsewhere in a buffer that others write to later.
    const room = Buffer.alloc(to - from + 2, 0x22)
    bytes.copy(room, 1, from, to)
    reader.read(room, 1, 1 + to - from)
    room.fill(0x7b)
    from = to
  }
}

const NAMES = ['usage', 'total', 'a', 'ü"\\\n', '\u{1f600}', '']

/** Names that hide others behind escapes. */
const name = fc.constantFrom(...NAMES, 'usage2', '\\', '__proto__x', '"}')

/** JSON as texts, with members of one name, white space, and escapes. */
const { json } = fc.letrec<{ json: string; member: string }>(tie => ({
  json: fc.oneof(
    { maxDepth: 5 },
    fc.oneof(fc.double({ noNaN: true, noDefaultInfinity: true }), fc.integer()).map(String),
    fc.constantFrom('true', 'null', '1e3', '-0.5E-2', '"{[\\"5"', '"\\\\"', '""'),
    fc.string({ unit: 'binary' }).map(text => JSON.stringify(text)),
    fc.array(tie('json'), { maxLength: 4 }).map(items => `[ ${items.join(' ,')}]`),
    fc.array(tie('member'), { maxLength: 5 }).map(members => `{${members.join(',\n')} }`),
  ),
  member: fc
    .tuple(name, tie('json'), fc.boolean())
    .map(([key, value, isEscaped]) => `${isEscaped ? escapedText(key) : JSON.stringify(key)} :\t${value}`),
}))

/** Every character as an escape. */
function escapedText(text: string): string {
  return `"${[...Array(text.length).keys()].map(at => `\\u${text.charCodeAt(at).toString(16).padStart(4, '0')}`).join('')}"`
}

const path = fc.array(fc.oneof(fc.constantFrom(...NAMES), fc.nat(3)), { minLength: 1, maxLength: 3 })

t.test('property: finds what JSON.parse finds, wherever the bytes are cut', async () => {
  fc.assert(
    fc.property(json, fc.array(path, { minLength: 1, maxLength: 4 }), fc.array(fc.nat()), (text, paths, cuts) => {
      const numbers = new JsonNumbers(paths, 10_000)
      const bytes = Buffer.from(`${text} `)
      readCut(numbers, bytes, cuts)
      if (!numbers.isWhole) throw new Error(`not whole: ${text}`)
      const found = paths.map((_, index) => numbers.found[index] ?? numbers.texts[index])
      const wanted = paths.map(each => expected(bytes.toString(), each))
      for (const [index, value] of wanted.entries()) {
        const known = typeof value === 'number' || typeof value === 'string' ? value : undefined
        if (!Object.is(found[index], known)) throw new Error(`${found} instead of ${wanted}`)
      }
    }),
    { numRuns: runs(3_000) },
  )
})

t.test('a beginning of a document shows what has been found by then, and no broken document is whole', async t => {
  fc.assert(
    fc.property(json, fc.nat(), (text, cut) => {
      const bytes = Buffer.from(text)
      const numbers = new JsonNumbers([['usage', 'total']])
      numbers.read(bytes, 0, cut % bytes.length)
      if (/^[[{"]/.test(text) && numbers.isWhole) throw new Error('a beginning is whole')
    }),
  )
  for (const text of ['{"a":1}}', '{"a":1]', '[1}', '{"a" 1}', '{a:1}', '{"a":1} {"a":2}', ']', '{"a":,}']) {
    const numbers = new JsonNumbers([['a'], [0]])
    numbers.read(Buffer.from(text), 0, text.length)
    t.equal(numbers.isWhole, false, text)
    t.same(numbers.found, [undefined, undefined], text)
  }
})

t.test('what is kept is bounded, whatever comes', async t => {
  const numbers = new JsonNumbers([['usage', 'total']])
  const feed = (text: string, times: number): void => {
    const bytes = Buffer.from(text)
    for (let time = 0; time < times; time += 1) numbers.read(bytes, 0, bytes.length)
  }
  const before = process.memoryUsage().heapUsed
  feed('{"', 1)
  feed('x'.repeat(65_536), 200)
  feed('":', 1)
  feed('['.repeat(65_536), 20)
  feed(']'.repeat(65_536), 20)
  feed(',"usage":{"total":', 1)
  feed('1'.repeat(65_536), 200)
  t.ok(process.memoryUsage().heapUsed - before < 8 * 1024 * 1024)
  feed('}}', 1)
  t.same([numbers.isWhole, numbers.found], [true, [undefined]], 'a number too long to be one is none')
})

t.test('texts are found in whole documents only, up to a length, and where they are wanted', async t => {
  const read = (text: string, longest?: number) => {
    const numbers = new JsonNumbers([['a'], ['b', 1]], longest)
    readCut(numbers, Buffer.from(text), [])
    return [...numbers.texts]
  }
  t.same(read('{"a":"x","b":["y","z"]}', 5), ['x', 'z'])
  t.same(read('{"a":"12345","b":[0,"123456"]}', 5), ['12345', undefined])
  t.same(read('{"a":"x","a":1}', 5), [undefined, undefined], 'the last member counts')
  t.same(read('{"a":"x"', 5), [])
  t.same(read('{"a":"x"}}', 5), [])
  t.same(read('{"a":"x"}'), [undefined, undefined], 'not wanted')
  const numbers = new JsonNumbers([['a']], 5)
  const piece = Buffer.from('x'.repeat(64_000))
  readCut(numbers, Buffer.from('{"a":"'), [])
  const before = process.memoryUsage().heapUsed
  for (let count = 0; count < 1_000; count += 1) numbers.read(piece, 0, piece.length)
  t.ok(process.memoryUsage().heapUsed - before < 10e6, 'a long one is not kept')
})

t.test('paths', async t => {
  for (const text of ['usage.total_tokens', 'choices[0].index', '[1][20]', 'x-ratelimit', 'ünder.$ref']) {
    t.equal(formatJsonPath(parseJsonPath(text)!), text)
  }
  t.same(parseJsonPath('a[2].b'), ['a', 2, 'b'])
  for (const text of [
    '',
    '.a',
    'a.',
    'a..b',
    'a[',
    'a[-1]',
    'a[0]b',
    'a b',
    'a+b',
    'a*2',
    '$.a.(b)',
    'a/4',
    'x'.repeat(201),
  ]) {
    t.equal(parseJsonPath(text), undefined, text)
  }
})

/** Data of an event, and line ends in each of their forms. */
const event = fc.record({
  before: fc.constantFrom('', 'event: delta\n', ': comment\r\n', 'id:5\r', 'data2: {"usage":{"total":99}}\n', 'dat\n'),
  total: fc.option(fc.integer({ min: 0, max: 1e6 })),
  space: fc.constantFrom('', ' '),
  lineEnd: fc.constantFrom('\n', '\r\n', '\r'),
  isSplit: fc.boolean(),
})

t.test('property: the last event that has a number counts, wherever the bytes are cut', async () => {
  fc.assert(
    fc.property(fc.array(event), fc.constantFrom('', 'data: [DONE]\n\n'), fc.array(fc.nat()), (events, done, cuts) => {
      const text = events.map(({ before, total, space, lineEnd, isSplit }) => {
        const [head, tail] = ['{"text":"é\\n","usage":', `${total === null ? 'null' : `{"total":${total}}`}}`]
        const data = isSplit ? `data:${space}${head}${lineEnd}data:${space}${tail}` : `data:${space}${head}${tail}`
        return before + data + lineEnd + lineEnd
      })
      const reader = new EventNumbers([['usage', 'total'], ['usage']])
      readCut(reader, Buffer.from(text.join('') + done), cuts)
      const [found] = reader.end()
      const last = events.map(({ total }) => total).findLast(total => total !== null)
      if (found !== last) throw new Error(`${found} instead of ${last} of ${text.join('')}`)
    }),
    { numRuns: runs(2_000) },
  )
})

t.test('an event at the end without an empty line counts if its data are whole', async t => {
  for (const [text, found] of [
    ['data: {"n":1}\n\ndata: {"n":2}', 2],
    ['data: {"n":1}\n\ndata: {"n":2', 1],
    ['data: {"n":1}\n\ndata: {"n":2} x\n\n', 1],
    ['data\ndata:\n\n', undefined],
  ] as const) {
    const reader = new EventNumbers([['n']])
    reader.read(Buffer.from(text), 0, text.length)
    t.equal(reader.end()[0], found, text)
  }
})

t.test('a document counts when it ends if it is whole, as an event does', async t => {
  for (const [text, found] of [
    ['{"n":1}', 1],
    ['{"n":1} ', 1],
    ['{"n":1', undefined],
    ['{"n":1} x', undefined],
  ] as const) {
    const reader = new JsonNumbers([['n']])
    reader.read(Buffer.from(text), 0, text.length)
    t.equal(reader.end()[0], found, text)
  }
})

const PATHS: JsonPath[] = [['usage', 'total']]
const ANSWER = JSON.stringify({ text: 'grüße'.repeat(5_000), usage: { total: 512 } })

function inAnswer(type: string, coding: string | undefined, body: Buffer): Promise<Numbers | 'nobody reads it'> {
  const fields: Record<string, string | undefined> = { 'content-type': type, 'content-encoding': coding }
  const reader = findInAnswer(name => fields[name], PATHS)
  if (reader === undefined) return Promise.resolve('nobody reads it')
  for (let at = 0; at < body.length; at += 1_000) reader.read(body, at, Math.min(body.length, at + 1_000))
  return new Promise(resolve => reader.end(resolve))
}

t.test('answers are read by their type, and inflated by their coding', async t => {
  const plain = Buffer.from(ANSWER)
  const codings: Record<string, (bytes: Buffer) => Buffer> = {
    gzip: zlib.gzipSync,
    'x-gzip': zlib.gzipSync,
    deflate: zlib.deflateSync,
    Deflate: zlib.deflateRawSync,
    br: zlib.brotliCompressSync,
    identity: bytes => bytes,
  }
  const { zstdCompressSync } = zlib as { zstdCompressSync?: (bytes: Buffer) => Buffer }
  if (zstdCompressSync !== undefined) codings.zstd = zstdCompressSync
  for (const [coding, code] of Object.entries(codings)) {
    t.same(await inAnswer('application/json; charset=utf-8', coding, code(plain)), [512], coding)
  }
  t.same(await inAnswer('application/problem+json', undefined, plain), [512])
  t.same(await inAnswer('Text/Event-Stream', undefined, Buffer.from(`data: ${ANSWER}\n\n`)), [512])
  t.same(await inAnswer('text/event-stream', 'gzip', zlib.gzipSync(`data: ${ANSWER}\n\n`)), [512])
  for (const type of ['text/plain', 'application/jsonx', ''])
    t.equal(await inAnswer(type, undefined, plain), 'nobody reads it')
})

t.test('an answer ends once, also if bytes come after the end of what is compressed', async t => {
  const more = Buffer.from('\n')
  const codings = { br: zlib.brotliCompressSync, deflate: zlib.deflateSync, gzip: zlib.gzipSync }
  for (const [coding, code] of Object.entries(codings)) {
    const reader = findInAnswer(name => (name === 'content-type' ? 'application/json' : coding), PATHS)!
    const bytes = code(Buffer.from(ANSWER))
    reader.read(bytes, 0, bytes.length)
    // Until zlib has told the end, which comes from its thread.
    for (let turn = 0; turn < 50; turn += 1) await new Promise(setImmediate)
    const tail = coding === 'gzip' ? Buffer.alloc(1) : more
    reader.read(tail, 0, tail.length)
    for (let turn = 0; turn < 50; turn += 1) await new Promise(setImmediate)
    t.same(await new Promise(resolve => reader.end(resolve)), [512], coding)
  }
})

t.test('nothing is found in what is not what it says, is cut, or is a bomb', async t => {
  const whole = zlib.gzipSync(ANSWER)
  t.same(await inAnswer('application/json', 'gzip', Buffer.from(ANSWER)), [], 'not gzip')
  t.same(await inAnswer('application/json', 'gzip', whole.subarray(0, -20)), [], 'cut')
  t.same(await inAnswer('application/json', 'gzip', Buffer.alloc(0)), [], 'empty')
  t.same(await inAnswer('application/json', 'gzip, br', whole), [], 'an unknown coding')
  t.same(await inAnswer('application/json', undefined, Buffer.from(ANSWER.slice(0, -1))), [], 'cut JSON')
  const bomb = Buffer.concat([
    zlib.gzipSync(Buffer.alloc(17 * 1024 * 1024, 0x20)),
    zlib.gzipSync('{"usage":{"total":1}}'),
  ])
  const before = process.memoryUsage().rss
  t.same(await inAnswer('application/json', 'gzip', bomb), [], 'inflated beyond the bound')
  t.ok(process.memoryUsage().rss - before < 32 * 1024 * 1024)
})

t.test('pieces that come faster than they are inflated are not kept without bound', async t => {
  const reader = findInAnswer(name => (name === 'content-type' ? 'application/json' : 'gzip'), PATHS)!
  const noise = zlib.gzipSync(Buffer.from(Array.from({ length: 4_000_000 }, () => Math.floor(Math.random() * 256))))
  for (let at = 0; at < noise.length; at += 65_536) reader.read(noise, at, Math.min(noise.length, at + 65_536))
  t.same(await new Promise(resolve => reader.end(resolve)), [])
  reader.drop()
})
