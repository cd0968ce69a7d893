/** The request parser: against llhttp with random requests, in any pieces, and case by case. */

import { METHODS } from 'node:http'
import * as fc from 'fast-check'
import t from 'tap'
import { runs } from '../../runs.js'
import { llhttpRequests, type ReadRequests } from './llhttp.js'
import { parsedRequests } from './parsed-requests.js'

const latin1 = (text: string): Buffer => Buffer.from(text, 'latin1')

const often = <T>(weight: number, usual: fc.Arbitrary<T>, rare: fc.Arbitrary<T>): fc.Arbitrary<T> =>
  fc.oneof({ weight, arbitrary: usual }, rare)

const crlf = often(80, fc.constant('\r\n'), fc.constantFrom('\n', '\r', '\r\r\n', '\r\n ', '\n\r', ''))
const method = often(
  6,
  fc.constantFrom('GET', 'POST', 'HEAD', 'OPTIONS', 'M-SEARCH', 'QUERY', 'PATCH'),
  fc.constantFrom('CONNECT', 'get', 'FROB', 'GETX', 'PRI', 'DESCRIBE', 'SOURCE', '', 'G T', 'PO\0ST'),
)
const urlPart = fc.constantFrom(
  ...['/', '//', '?', '#', '@', ':', '*', '.', 'a', '%2e', '[', ']', ';', '=', '&', '"', '<', '\\', '^', '`', '{', '|'],
  ...['~', "'", '!', 'x:1', 'host', '../', '\x7f', '\xe9', '\t', '\x01'],
)
const url = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom('/', '/a?b', '*', 'http://h/', 'HTTPS://h:1?q', 'h:443', '/#x', '') },
  fc
    .tuple(fc.constantFrom('/', 'http://', 'h', '*', ''), fc.array(urlPart, { maxLength: 5 }))
    .map(([start, parts]) => start + parts.join('')),
)
const spaces = often(12, fc.constant(' '), fc.constantFrom('  ', '\t', '', '   '))
const version = often(
  12,
  fc.constantFrom('HTTP/1.1', 'HTTP/1.1', 'HTTP/1.0'),
  fc.constantFrom(
    ...['HTTP/2.0', 'http/1.1', 'HTTP/1.2', 'HTTP/1,1', 'HTTP/0.9', 'HTTP/1.10', 'HTTP/01.1', 'RTSP/1.0', 'ICE/1.0'],
    ...['HTTP/1.1 ', 'HTTP/1.1 x', 'HTTP/3', ''],
  ),
)
const value = fc.oneof(
  fc.constantFrom('a', '', ' b ', '\tc', 'x\u00e9y', '0', '5', '3, 3', 'chunked', 'Chunked', 'close', 'keep-alive'),
  fc.constantFrom(
    ...['gzip, chunked', 'chunked, chunked', 'chunked, identity', 'identity', ',chunked', 'chunked,', 'x chunked'],
    ...['a\0b', 'a\x01b', 'a\x7fb', '+5', '0x5', '-1', '5 5', '5,', '99999999999999999999', '00000000000000000003'],
  ),
  fc.constantFrom(
    'upgrade',
    'Upgrade, close',
    'close, upgrade',
    'websocket',
    'h2c',
    'timeout=5',
    'a:b',
    ':',
    'TE, close',
  ),
  fc.constantFrom(
    'keep-alive, close',
    'close,keep-alive',
    'closed',
    ' close ',
    'x, keep-alive',
    '100-continue',
    'close x',
    '\xa0chunked',
    'chunked\x85',
    '\xa0keep-alive',
  ),
)
const name = fc.constantFrom(
  ...['A', 'Content-Length', 'content-length', 'Transfer-Encoding', 'Connection', 'Keep-Alive', 'Upgrade', 'Trailer'],
  ...['', ' A', 'A ', 'A\t', 'A(', 'é', 'Host', 'Proxy-Connection', 'Expect', 'Content-Length ', 'Content_Length'],
)
const colon = often(30, fc.constantFrom(': ', ':', ':\t'), fc.constantFrom(' : ', '', ':\x0b'))
const field = fc.tuple(name, colon, value, crlf).map(parts => parts.join(''))
const sound = fc.constantFrom(
  ...['Content-Length: 0\r\n', 'Content-Length: 3\r\n', 'Transfer-Encoding: chunked\r\n', 'Host: h\r\n', ''],
  ...['Connection: keep-alive\r\n', 'Connection: Upgrade\r\nUpgrade: websocket\r\n'],
)
const size = fc.constantFrom(
  ...['3', '0', '003', 'A', 'a', 'x', '', ' 3', '3 ', '3;a=b', '3;a', '3;a="b;c"', '3;', '3;a=', '3;a="b', '3; a'],
  ...['-3', '0x3', '3\t', '3;a="\\""', '3;a=b;c', '3;=b', '3;a b', 'fffffffffffffffff', '0000000000000000003'],
)
const chunk = fc.tuple(size, crlf, fc.constantFrom('abc', 'abcdefghij', 'ab', ''), crlf).map(parts => parts.join(''))
const good = fc.constantFrom('3\r\nabc\r\n', '1\r\nz\r\n', 'A\r\n0123456789\r\n')
const content = fc.oneof(
  fc.constantFrom('', 'abc', 'abcd', '0\r\n\r\n', '0\r\nT: u\r\n\r\n', '0\r\nContent-Length: 3\r\n\r\n'),
  fc
    .tuple(fc.array(often(6, good, chunk), { maxLength: 3 }), fc.array(field, { maxLength: 1 }))
    .map(([chunks, trailers]) => `${chunks.join('')}0\r\n${trailers.join('')}\r\n`),
)
const line = fc.tuple(method, spaces, url, spaces, version, crlf).map(parts => parts.join(''))
const plain = fc.constantFrom('GET / HTTP/1.1\r\n', 'POST /x HTTP/1.1\r\n', 'POST / HTTP/1.0\r\n')
const request = fc
  .tuple(often(3, plain, line), fc.array(often(3, sound, field), { maxLength: 4 }), crlf, content)
  .map(([first, fields, blank, rest]) => first + fields.join('') + blank + rest)
const requests = fc
  .array(
    fc
      .tuple(often(9, fc.constant(''), fc.constantFrom('\r\n', '\r\n\r\n', '\n', '\r', ' ', '\0')), request)
      .map(parts => parts.join('')),
    { minLength: 1, maxLength: 3 },
  )
  .map(parts => parts.join(''))

/** More by hand, after a change to the parser: SHAPER_RUNS=200. */
const RUNS = runs(5_000)

/** @throws if llhttp refuses what we accept, or reads it as something else */
function compare(text: string): ReadRequests {
  const mine = parsedRequests(latin1(text))
  const methods = mine.events.flatMap(event => /^head (\S+) /.exec(event)?.[1] ?? [])
  const unknown = methods.find(each => !METHODS.includes(each))
  if (unknown !== undefined) {
    // The same with a method that llhttp knows.
    const known = text
      .split('\n')
      .map(line => (line.startsWith(`${unknown} `) ? line.replace(unknown, 'LOCK') : line))
      .join('\n')
    if (known !== text) compare(known)
    return mine
  }
  const theirs = llhttpRequests(latin1(text))
  // Bytes behind the last request are read by nobody.
  const ended = mine.kept.at(-1) === false
  const refuses = mine.error === undefined && !ended && theirs.error !== undefined
  // Also what came before an error has been acted upon.
  const told = theirs.events.slice(0, mine.events.length)
  // We end a connection more often: `close` counts, whatever stands beside it.
  const keepsMore = mine.kept.some((kept, at) => kept && !theirs.kept[at])
  if (refuses || keepsMore || JSON.stringify(told) !== JSON.stringify(mine.events)) {
    throw new Error(`${JSON.stringify(text)}\nllhttp: ${JSON.stringify(theirs)}\nwe: ${JSON.stringify(mine)}`)
  }
  return mine
}

t.test('property: what our parser accepts llhttp accepts, with the same meaning', async t => {
  let accepted = 0
  fc.assert(
    fc.property(requests, text => {
      if (compare(text).error === undefined) accepted += 1
    }),
    { numRuns: RUNS },
  )
  t.ok(accepted > RUNS / 20, `${accepted} of ${RUNS} were accepted`)
})

const POST = 'POST / HTTP/1.1\r\nHost: h\r\n'
const CHUNKED = `${POST}Transfer-Encoding: chunked\r\n\r\n`
const BEHIND = 'GET /behind HTTP/1.1\r\nHost: h\r\n\r\n'
const TWO_WAYS = `Content-Length: 6\r\n\r\n0\r\n\r\nG${BEHIND}`

/** Requests with a byte in a place where parsers have differed. */
const PLACES: readonly ((byte: string) => string)[] = [
  x => `${x}GET / HTTP/1.1\r\n\r\n`,
  x => `GET${x}/ HTTP/1.1\r\n\r\n`,
  x => `GET ${x} HTTP/1.1\r\n\r\n`,
  x => `GET /${x} HTTP/1.1\r\n\r\n`,
  x => `GET /${x}HTTP/1.1\r\n\r\n`,
  x => `GET http://a${x}b/ HTTP/1.1\r\n\r\n`,
  x => `GET h${x}//h HTTP/1.1\r\n\r\n`,
  x => `GET / HTTP/1.1${x}\r\n\r\n`,
  x => `GET / HTTP/1.1\r\n${x}\r\n`,
  x => `GET / HTTP/1.1\r\nA${x}B: c\r\n\r\n`,
  x => `GET / HTTP/1.1\r\nA: ${x}b\r\n\r\n`,
  x => `GET / HTTP/1.0\r\nConnection:${x}keep-alive\r\n\r\n`,
  x => `GET / HTTP/1.0\r\nConnection: x${x}keep-alive\r\n\r\n${BEHIND}`,
  x => `GET / HTTP/1.1\r\nConnection: close${x}b\r\n\r\n${BEHIND}`,
  x => `${POST}Content-Length:${x}3\r\n\r\nabc${BEHIND}`,
  x => `${POST}Content-Length: 3${x}3\r\n\r\nabc${BEHIND}`,
  x => `${POST}Content-Length${x}: 3\r\n\r\nabc${BEHIND}`,
  x => `${POST}Transfer-Encoding:${x}chunked\r\n${TWO_WAYS}`,
  x => `${POST}Transfer-Encoding:${x}chunked\r\n\r\n0\r\n\r\n${BEHIND}`,
  x => `${POST}Transfer-Encoding: chunked${x}\r\n\r\n0\r\n\r\n${BEHIND}`,
  x => `${POST}Transfer-Encoding: chunked${x}identity\r\n\r\n0\r\n\r\n${BEHIND}`,
  x => `${POST}Transfer-Encoding${x}: chunked\r\n${TWO_WAYS}`,
  x => `${POST}${x}Transfer-Encoding: chunked\r\n${TWO_WAYS}`,
  x => `${POST}A: b${x}Transfer-Encoding: chunked\r\n${TWO_WAYS}`,
  x => `${POST}Transfer${x}Encoding: chunked\r\n${TWO_WAYS}`,
  x => `${CHUNKED}${x}3\r\nabc\r\n0\r\n\r\n${BEHIND}`,
  x => `${CHUNKED}3${x}\r\nabc\r\n0\r\n\r\n${BEHIND}`,
  x => `${CHUNKED}0${x}3\r\nabc\r\n0\r\n\r\n${BEHIND}`,
  x => `${CHUNKED}3;a${x}b\r\nabc\r\n0\r\n\r\n${BEHIND}`,
  x => `${CHUNKED}3;a="${x}"\r\nabc\r\n0\r\n\r\n${BEHIND}`,
  x => `${CHUNKED}3\r\nabc${x}\r\n0\r\n\r\n${BEHIND}`,
  x => `${CHUNKED}3\r\nabc\r\n0${x}\r\n\r\n${BEHIND}`,
  x => `${CHUNKED}3\r\nabc\r\n0\r\n${x}\r\n${BEHIND}`,
  x => `${CHUNKED}3\r\nabc\r\n0\r\nA${x}: b\r\n\r\n${BEHIND}`,
]

t.test('long: any byte in a place where parsers differ: the same as llhttp, or refused', async t => {
  let accepted = 0
  for (const place of PLACES) {
    for (let byte = 0; byte < 256; byte += 1) {
      if (compare(place(String.fromCharCode(byte))).error === undefined) accepted += 1
    }
  }
  t.ok(accepted > 1_000, `${accepted} of ${256 * PLACES.length} were accepted`)
})

t.test('property: the pieces in which bytes come make no difference', async t => {
  fc.assert(
    fc.property(requests, fc.array(fc.integer({ min: 1, max: 7 }), { minLength: 1 }), (text, sizes) => {
      const whole = parsedRequests(latin1(text))
      const pieces = parsedRequests(latin1(text), sizes)
      const meaning = ({ events, kept, error }: ReadRequests) => JSON.stringify([events, kept, error === undefined])
      if (meaning(whole) !== meaning(pieces)) {
        throw new Error(`whole: ${JSON.stringify(whole)}\npieces: ${JSON.stringify(pieces)}`)
      }
    }),
    { numRuns: RUNS },
  )
  t.pass(`${RUNS} requests`)
})

const ACCEPTED: readonly [string, string, readonly string[], readonly boolean[]][] = [
  ['a path', 'GET /a?b HTTP/1.1\r\nHost: h\r\n\r\n', ['head GET /a?b 1.1 ["Host","h"]', 'body ""'], [true]],
  ['HTTP/1.0', 'GET / HTTP/1.0\r\n\r\n', ['head GET / 1.0 []', 'body ""'], [false]],
  [
    'HTTP/1.0 that is kept',
    'GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n',
    ['head GET / 1.0 ["Connection","Keep-Alive"]', 'body ""'],
    [true],
  ],
  [
    'close beside keep-alive',
    'GET / HTTP/1.1\r\nConnection: close, keep-alive\r\n\r\n',
    ['head GET / 1.1 ["Connection","close, keep-alive"]', 'body ""'],
    [false],
  ],
  ['an absolute target', 'GET http://h:1/x HTTP/1.1\r\n\r\n', ['head GET http://h:1/x 1.1 []', 'body ""'], [true]],
  ['any method', 'VERSION-CONTROL / HTTP/1.1\r\n\r\n', ['head VERSION-CONTROL / 1.1 []', 'body ""'], [true]],
  ['an asterisk', 'OPTIONS * HTTP/1.1\r\n\r\n', ['head OPTIONS * 1.1 []', 'body ""'], [true]],
  ['two spaces', 'GET  /  HTTP/1.1\r\n\r\n', ['head GET / 1.1 []', 'body ""'], [true]],
  ['empty lines before it', '\r\n\r\nGET / HTTP/1.1\r\n\r\n', ['head GET / 1.1 []', 'body ""'], [true]],
  [
    'a length',
    'PUT / HTTP/1.1\r\nContent-Length: 003\r\n\r\nabc',
    ['head PUT / 1.1 ["Content-Length","003"]', 'body "abc"'],
    [true],
  ],
  [
    'chunks with extensions and trailers',
    'PUT / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;a;b="c;d"\r\nab\r\n1\r\nc\r\n0\r\nT: u\r\n\r\n',
    ['head PUT / 1.1 ["Transfer-Encoding","Chunked"]', 'body "abc"'],
    [true],
  ],
  [
    'several, with an empty line between them',
    'PUT / HTTP/1.1\r\nContent-Length: 1\r\n\r\na\r\nGET /b HTTP/1.1\r\n\r\n',
    ['head PUT / 1.1 ["Content-Length","1"]', 'body "a"', 'head GET /b 1.1 []', 'body ""'],
    [true, true],
  ],
  [
    'spaces and tabs around a value',
    'GET / HTTP/1.1\r\nA: \t b c \t \r\nB:\r\n\r\n',
    ['head GET / 1.1 ["A","b c","B",""]', 'body ""'],
    [true],
  ],
]

for (const [title, text, events, kept] of ACCEPTED) {
  t.test(`${title}: accepted`, async t => {
    for (const sizes of [[], [1]]) {
      const found = parsedRequests(latin1(text), sizes)
      t.same(found.events, events)
      t.same(found.kept, kept)
      t.equal(found.error, undefined)
    }
  })
}

const PROXY = 'this looks like the PROXY protocol, and "proxyProtocol" does not list this peer'

const REFUSED: readonly [string, string, string, number?][] = [
  ['HTTP/0.9', 'GET /\r\n\r\n', 'only HTTP/1.0 and HTTP/1.1 are supported', 505],
  ['HTTP/2.0', 'GET / HTTP/2.0\r\n\r\n', 'only HTTP/1.0 and HTTP/1.1 are supported', 505],
  ['another protocol', 'GET / RTSP/1.0\r\n\r\n', 'not a request line of HTTP/1'],
  ['a method in small letters', 'GeT / HTTP/1.1\r\n\r\n', 'the method is not in capitals'],
  ['a method that is no token', 'G@T / HTTP/1.1\r\n\r\n', 'not a request line of HTTP/1'],
  ['the PROXY protocol', 'PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n\r\n', PROXY],
  ['the PROXY protocol, version 2', '\r\n\r\n\0\r\nQUIT\n\x21\x11', PROXY],
  ['TLS', '\x16\x03\x01\x02\0', 'this looks like TLS, and this address is for plain HTTP'],
  ['CONNECT', 'CONNECT h:1 HTTP/1.1\r\n\r\n', 'CONNECT is not supported', 405],
  ['a malformed CONNECT', 'CONNECT h:1 HTTP/1.1\r\nA : b\r\n\r\n', 'a header line without a valid name'],
  ['an authority', 'GET h:1 HTTP/1.1\r\n\r\n', 'not a request line of HTTP/1'],
  [
    'a byte above 127 in the target',
    'GET /\xe9 HTTP/1.1\r\n\r\n',
    'the target has bytes above 127; they have to be percent-encoded',
  ],
  ['a line feed before it', '\nGET / HTTP/1.1\r\n\r\n', 'not a request line of HTTP/1'],
  ['half a line end before it', '\rGET / HTTP/1.1\r\n\r\n', 'not a request line of HTTP/1'],
  ['two lengths', `${POST}Content-Length: 1\r\nContent-Length: 1\r\n\r\na`, 'a bad Content-Length'],
  ['a list of lengths', `${POST}Content-Length: 1, 1\r\n\r\na`, 'a bad Content-Length'],
  [
    'length and chunks',
    `${POST}Transfer-Encoding: chunked\r\n${TWO_WAYS}`,
    'both Content-Length and Transfer-Encoding',
  ],
  ['chunks of HTTP/1.0', 'GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n', 'a Transfer-Encoding in HTTP/1.0'],
  ['chunked twice', `${POST}Transfer-Encoding: chunked, chunked\r\n\r\n`, 'chunked is not the last coding'],
  ['another coding', `${POST}Transfer-Encoding: gzip, chunked\r\n\r\n`, 'an unknown coding'],
  ['a no-break space before the coding', `${POST}Transfer-Encoding: \xa0chunked\r\n\r\n`, 'an unknown coding'],
  ['a tab behind the coding', `${POST}Transfer-Encoding: chunked \t \r\n\r\n`, 'a tab behind the framing of the body'],
  ['a tab behind the length', `${POST}Content-Length: 1\t\r\n\r\na`, 'a tab behind the framing of the body'],
  ['a folded line', 'GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n', 'a header line without a valid name'],
  ['a bare line feed', 'GET / HTTP/1.1\nA: b\r\n\r\n', 'a control character or a bare line end in the headers'],
  [
    'a bare line feed at the end',
    'GET / HTTP/1.1\r\nA: b\n\n',
    'a control character or a bare line end in the headers',
  ],
  ['a zero byte', 'GET / HTTP/1.1\r\nA: \0', 'a control character or a bare line end in the headers'],
  ['a head that is too long', `GET /${'x'.repeat(20_000)}`, 'headers that are too large', 431],
  ['too many fields', `GET / HTTP/1.1\r\n${'a:\r\n'.repeat(2_001)}\r\n`, 'there are more than 2000 header fields', 431],
  ['a trailer section that is too long', `${CHUNKED}0\r\nA: ${'x'.repeat(20_000)}`, 'headers that are too large', 431],
  [
    'a chunk extension that is too long',
    `${CHUNKED}1;${'x'.repeat(20_000)}`,
    'chunk extensions that are too large',
    413,
  ],
  ['a length in the trailers', `${CHUNKED}0\r\nContent-Length: 1\r\n\r\n`, 'a trailer that describes the framing'],
  ['close in the trailers', `${CHUNKED}0\r\nConnection: close\r\n\r\n`, 'a trailer that describes the framing'],
  ['a chunk that is too long', `${CHUNKED}1\r\nab\r\n0\r\n\r\n`, 'a malformed chunk'],
]

for (const [title, text, error, status] of REFUSED) {
  t.test(`${title}: refused`, async t => {
    for (const sizes of [[], [1], [1_000]]) {
      t.match(parsedRequests(latin1(text), sizes), {
        error,
        ...(error !== 'an unknown coding' && { status: status ?? 400 }),
      })
    }
  })
}

t.test('a head that comes byte by byte costs linear work', async t => {
  const bytes = latin1(`GET / HTTP/1.1\r\nA: ${'x'.repeat(16_000)}\r\n\r\n`)
  const { events, error } = parsedRequests(bytes, [1])
  t.equal(error, undefined)
  t.equal(events.length, 2)
})

t.test('many short requests in one buffer cost linear work', async t => {
  const count = 100_000
  const { events } = parsedRequests(latin1('GET / HTTP/1.1\r\n\r\n'.repeat(count)))
  t.equal(events.length, 2 * count)
})

t.test('spaces within a list cost linear work', async t => {
  for (const name of ['Connection', 'Transfer-Encoding']) {
    const text = `GET / HTTP/1.1\r\n${name}: a${' '.repeat(16_000)}b\r\n\r\n`
    const start = process.cpuUsage().user
    for (let count = 0; count < 20; count += 1) parsedRequests(latin1(text))
    const cpu = (process.cpuUsage().user - start) / 1_000
    // With work that grows by the square it would be two seconds.
    t.ok(cpu < 500, `${name}: ${cpu.toFixed(0)} ms of CPU`)
  }
})
