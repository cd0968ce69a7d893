/** The response parser: against llhttp with random messages, in any pieces, and case by case. */

import * as fc from 'fast-check'
import t from 'tap'
import { ProtocolError } from '../../../src/proxy/http/fields.js'
import { ResponseParser } from '../../../src/proxy/upstream/response-parser.js'
import { runs } from '../../runs.js'
import { llhttpResponses, type Read } from './llhttp.js'

/** Lets our parser read the responses to requests with these methods, in pieces of the given sizes. */
function ours(
  bytes: Buffer,
  methods: readonly string[],
  sizes: readonly number[] = [],
): Read & { persistent: boolean } {
  const events: string[] = []
  let body = ''
  let answered = 0
  const parser = new ResponseParser({
    interim: (status, fields) => void events.push(`head ${status} ${JSON.stringify(fields)}`),
    head: ({ status, fields }) => void events.push(`head ${status} ${JSON.stringify(fields)}`),
    body: (buffer, from, to) => {
      body += buffer.toString('latin1', from, to)
    },
    end: trailers => {
      events.push(`body ${JSON.stringify(body)} ${JSON.stringify(trailers)}`)
      body = ''
      answered += 1
      if (answered < methods.length) parser.expect(methods[answered]!)
    },
  })
  parser.expect(methods[0]!)
  let error: string | undefined
  try {
    for (let at = 0, place = 0; at < bytes.length; place += 1) {
      const size = sizes.length === 0 ? bytes.length : sizes[place % sizes.length]!
      // As in the product: the buffer is longer than what was read, and holds remains of earlier reads.
      const input = Buffer.alloc(size + 8, '\r\n')
      const end = bytes.copy(input, 0, at, at + size)
      parser.read(input, end)
      at += size
    }
    if (!parser.ended()) error = 'incomplete'
  } catch (thrown) {
    if (!(thrown instanceof ProtocolError)) throw thrown
    error = thrown.message
  }
  return { events, error, persistent: parser.persistent }
}

const latin1 = (text: string): Buffer => Buffer.from(text, 'latin1')

const crlf = fc.oneof({ weight: 60, arbitrary: fc.constant('\r\n') }, fc.constantFrom('\n', '\r', '\r\r\n', '\r\n '))
const value = fc.oneof(
  fc.constantFrom('a', '', ' b ', '\tc', 'x\u00e9y', '0', '5', '3, 3', 'chunked', 'Chunked', 'close', 'keep-alive'),
  fc.constantFrom(
    'gzip, chunked',
    'chunked, chunked',
    'a\0b',
    'a\x01b',
    'a\x7fb',
    '+5',
    '0x5',
    '-1',
    '99999999999999999999',
  ),
  fc.constantFrom('upgrade', 'timeout=5', 'a:b', ':'),
)
const name = fc.constantFrom(
  ...['A', 'Content-Length', 'content-length', 'Transfer-Encoding', 'Connection', 'Keep-Alive', 'Upgrade', 'Trailer'],
  ...['', ' A', 'A ', 'A\t', 'A(', 'é', 'Set-Cookie', 'Proxy-Connection'],
)
const colon = fc.oneof({ weight: 30, arbitrary: fc.constantFrom(': ', ':', ':\t') }, fc.constantFrom(' : ', ''))
const field = fc.tuple(name, colon, value, crlf).map(parts => parts.join(''))
const sound = fc.constantFrom(
  ...['Content-Length: 0\r\n', 'Content-Length: 3\r\n', 'Transfer-Encoding: chunked\r\n', 'B: c\r\n', ''],
)
const version = fc.oneof(
  { weight: 20, arbitrary: fc.constant('HTTP/1.1') },
  fc.constantFrom('HTTP/1.0', 'HTTP/2.0', 'http/1.1', 'HTTP/1.2', 'HTTP/1,1', 'HTTP/0.9', ''),
)
const status = fc.oneof(
  { weight: 20, arbitrary: fc.constantFrom('200', '204', '304', '100', '103', '404') },
  fc.constantFrom('20', '2000', '099', '101', 'abc', ''),
)
const reason = fc.constantFrom(' OK', '', ' ', ' Not Found', ' \u00e9', '\tOK', ' a\x01')
const size = fc.constantFrom(
  '3',
  '0',
  '003',
  'A',
  'a',
  'x',
  '',
  ' 3',
  '3 ',
  '3;a=b',
  '3;a',
  '3;a="b;c"',
  '3;',
  '3;a=',
  '3;a="b',
  '3; a',
  '-3',
  '0x3',
  '3\t',
)
const chunk = fc.tuple(size, crlf, fc.constantFrom('abc', 'abcdefghij', 'ab', ''), crlf).map(parts => parts.join(''))
const good = fc.constantFrom('3\r\nabc\r\n', '1\r\nz\r\n', 'A\r\n0123456789\r\n')
const content = fc.oneof(
  fc.constantFrom('', 'abc', 'abcd', '0\r\n\r\n', '0\r\nT: u\r\n\r\n', '0\r\nContent-Length: 3\r\n\r\n'),
  fc
    .tuple(
      fc.array(fc.oneof({ weight: 6, arbitrary: good }, chunk), { maxLength: 3 }),
      fc.array(field, { maxLength: 1 }),
    )
    .map(([chunks, trailers]) => `${chunks.join('')}0\r\n${trailers.join('')}\r\n`),
)
const message = fc
  .tuple(version, fc.constantFrom(' ', '  ', '\t'), status, reason, crlf)
  .chain(([proto, space, code, why, end]) =>
    fc
      .tuple(fc.array(fc.oneof({ weight: 3, arbitrary: sound }, field), { maxLength: 4 }), crlf, content)
      .map(
        ([fields, blank, rest]) =>
          `${proto}${space === '  ' ? ' ' : space}${code}${why}${end}${fields.join('')}${blank}${rest}`,
      ),
  )
const messages = fc
  .array(
    fc
      .tuple(fc.oneof({ weight: 9, arbitrary: fc.constant('') }, fc.constantFrom('\r\n', '\r\n\r\n', '\n')), message)
      .map(parts => parts.join('')),
    { minLength: 1, maxLength: 3 },
  )
  .map(parts => parts.join(''))
const methods = fc.array(fc.constantFrom('GET', 'GET', 'HEAD'), { minLength: 3, maxLength: 3 })

/** Without spaces behind the size of a chunk, which llhttp refuses. */
const unpadded = (text: string): string => text.replace(/^([0-9a-f]+)[ \t]+(?=[\r;])/gim, '$1')

/** More by hand, after a change to the parser: SHAPER_RUNS=200. */
const RUNS = runs(5_000)

t.test('property: what our parser accepts llhttp accepts, with the same meaning', async t => {
  let accepted = 0
  fc.assert(
    fc.property(messages, methods, (text, asked) => {
      // One response at a time, as on a connection without pipelining.
      const mine = ours(latin1(text), asked.slice(0, 1))
      if (mine.error !== undefined) return
      accepted += 1
      const wanted = JSON.stringify(mine.events)
      const agrees = ({ error, events }: ReturnType<typeof llhttpResponses>): boolean =>
        (error === undefined || !mine.persistent) && JSON.stringify(events.slice(0, mine.events.length)) === wanted
      const theirs = llhttpResponses(latin1(text), asked.slice(0, 1))
      if (agrees(theirs) || agrees(llhttpResponses(latin1(unpadded(text)), asked.slice(0, 1)))) return
      throw new Error(`llhttp: ${theirs.error}; ${theirs.events.join('; ')}\nwe: ${mine.events.join('; ')}`)
    }),
    { numRuns: RUNS },
  )
  t.ok(accepted > RUNS / 20, `${accepted} of ${RUNS} were accepted`)
})

t.test('property: the pieces in which bytes come make no difference', async t => {
  fc.assert(
    fc.property(messages, methods, fc.array(fc.integer({ min: 1, max: 7 }), { minLength: 1 }), (text, asked, sizes) => {
      const whole = ours(latin1(text), asked.slice(0, 1))
      const pieces = ours(latin1(text), asked.slice(0, 1), sizes)
      // With surplus bytes a later piece may be an error where the same bytes at once only end the connection.
      if (JSON.stringify(whole.events) !== JSON.stringify(pieces.events)) {
        throw new Error(`whole: ${whole.events.join('; ')}\npieces: ${pieces.events.join('; ')}`)
      }
      if (whole.error !== undefined && whole.persistent !== pieces.persistent) return
      // A piece may show an error that is found later, and called otherwise, in the whole.
      if ((whole.error === undefined) !== (pieces.error === undefined) && whole.persistent) {
        throw new Error(`whole: ${whole.error}\npieces: ${pieces.error}`)
      }
    }),
    { numRuns: RUNS },
  )
  t.pass(`${RUNS} messages`)
})

const ACCEPTED: readonly [string, string, string, readonly string[]][] = [
  [
    'sized',
    'GET',
    'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab',
    ['head 200 ["Content-Length","2"]', 'body "ab" []'],
  ],
  ['no reason', 'GET', 'HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n', ['head 200 ["Content-Length","0"]', 'body "" []']],
  ['until the end', 'GET', 'HTTP/1.1 200 OK\r\n\r\nab', ['head 200 []', 'body "ab" []']],
  [
    'HEAD with a length',
    'HEAD',
    'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n',
    ['head 200 ["Content-Length","9"]', 'body "" []'],
  ],
  [
    '304 with a length',
    'GET',
    'HTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n',
    ['head 304 ["Content-Length","9"]', 'body "" []'],
  ],
  [
    'chunks and trailers',
    'GET',
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nT: u\r\n\r\n',
    ['head 200 ["Transfer-Encoding","chunked"]', 'body "abc" ["T","u"]'],
  ],
  [
    'chunk extensions',
    'GET',
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b;c;d="e;f"\r\nab\r\n0;x\r\n\r\n',
    ['head 200 ["Transfer-Encoding","chunked"]', 'body "ab" []'],
  ],
  [
    'chunk sizes padded with spaces',
    'GET',
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2    \r\nab\r\n1 \t;x\r\nc\r\n0  \r\n\r\n',
    ['head 200 ["Transfer-Encoding","chunked"]', 'body "abc" []'],
  ],
  ['an empty line before it', 'GET', '\r\nHTTP/1.1 204 X\r\n\r\n', ['head 204 []', 'body "" []']],
  [
    'any number of 1xx',
    'GET',
    `${'HTTP/1.1 100 Continue\r\n\r\n'.repeat(40)}HTTP/1.1 204 X\r\n\r\n`,
    [...Array<string>(40).fill('head 100 []'), 'head 204 []', 'body "" []'],
  ],
]

for (const [title, method, text, events] of ACCEPTED) {
  t.test(`${title}: accepted`, async t => {
    for (const size of [undefined, 1]) {
      const { events: found, error } = ours(latin1(text), [method], size === undefined ? [] : [size])
      t.same(found, events)
      t.equal(error, undefined)
    }
  })
}

const REFUSED: readonly [string, string, string][] = [
  ['two lengths', 'Content-Length: 2\r\nContent-Length: 2', 'a bad Content-Length'],
  ['a list of lengths', 'Content-Length: 2, 2', 'a bad Content-Length'],
  ['a signed length', 'Content-Length: +2', 'a bad Content-Length'],
  ['length and chunks', 'Content-Length: 2\r\nTransfer-Encoding: chunked', 'both Content-Length and Transfer-Encoding'],
  ['another coding', 'Transfer-Encoding: gzip, chunked', 'an unknown transfer coding (gzip, chunked)'],
  ['two codings', 'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked', 'an unknown transfer coding (chunked)'],
  ['a folded line', 'A: b\r\n c', 'a header line without a valid name'],
  ['a space before the colon', 'A : b', 'a header line without a valid name'],
  ['a bare line feed', 'A: b\nContent-Length: 2', 'a control character or a bare line end in the headers'],
  ['a zero byte', 'A: b\0', 'a control character or a bare line end in the headers'],
  ['too many headers', `A: ${'x'.repeat(65_536)}`, 'headers that are too large'],
]

for (const [title, fields, message] of REFUSED) {
  t.test(`${title}: refused`, async t => {
    const bytes = latin1(`HTTP/1.1 200 OK\r\n${fields}\r\n\r\nab`)
    for (const sizes of [[], [1], [1_000]]) t.match(ours(bytes, ['GET'], sizes), { error: message })
  })
}

t.test('bytes after the response end the connection', async t => {
  const text = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab'
  t.equal(ours(latin1(text), ['GET']).persistent, true)
  t.equal(ours(latin1(`${text}HTTP/1.1 200 OK\r\n\r\n`), ['GET']).persistent, false)
  t.match(ours(latin1(`${text}H`), ['GET'], [text.length]), { error: 'more bytes than the response has' })
})

const ENDS: readonly [string, boolean][] = [
  ['HTTP/1.1 200 OK\r\n', true],
  ['HTTP/1.1 200 OK\r\nConnection: close\r\n', false],
  ['HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: keep-alive\r\n', false],
  ['HTTP/1.0 200 OK\r\n', false],
  ['HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n', true],
  ['HTTP/1.0 200 OK\r\nConnection: keep-alive, close\r\n', false],
]

t.test('whether a connection can be used again', async t => {
  for (const [head, persistent] of ENDS) {
    t.equal(ours(latin1(`${head}Content-Length: 0\r\n\r\n`), ['GET']).persistent, persistent, head)
  }
})

t.test('a head that comes byte by byte costs linear work', async t => {
  // Quadratic work over 60,000 pieces would be 1,800,000,000 characters.
  const bytes = latin1(`HTTP/1.1 200 OK\r\nA: ${'x'.repeat(60_000)}\r\nContent-Length: 0\r\n\r\n`)
  const { events, error } = ours(bytes, ['GET'], [1])
  t.equal(error, undefined)
  t.equal(events.length, 2)
})
