/** Logs as vendors document them: Envoy and Istio, HAProxy, IIS, CloudFront, and the journal of systemd. */
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { FORMATS, type FormatName } from '../../src/replay/formats/format-names.js'
import { bodyStart } from '../../src/replay/formats/line-prefix.js'
import { detectFormat } from '../../src/replay/formats/parsers/detect.js'
import { LONGEST_LINE } from '../../src/replay/input/line-scanner.js'
import { bytes, combined, logFile, readAll } from './logs.js'

/** The addresses, requests, agents and times read from a log of these lines. */
async function read(lines: readonly string[], options = {}) {
  const serviceTimes: number[] = []
  const onServiceTime = (ms: number): unknown => serviceTimes.push(ms)
  const { reading, seen } = await readAll(bytes(`${lines.join('\n')}\n`), { onServiceTime, ...options })
  return {
    formats: reading.formats,
    lines: reading.lines,
    bad: Object.fromEntries(reading.bad.reasons),
    origin: new Date(reading.origin * 1_000).toISOString(),
    requests: seen.map(({ address, method, target, agent, at }) => `${address} ${method} ${target} ${agent} ${at}`),
    serviceTimes,
  }
}

/** The parser of a log, after its last line. */
function parserAfter(lines: readonly string[]) {
  const parser = detectFormat(Buffer.from(`${lines.join('\n')}\n`), {})!
  for (const line of lines) parser.parse(Buffer.from(line), 0, Buffer.byteLength(line))
  return parser
}

const ENVOY = [
  '[2026-02-03T10:00:00.310Z] "POST /api/v1/locations?a=1 HTTP/2" 204 - 154 0 226 100 "10.0.35.28, 198.51.100.9" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"',
  '[2026-02-03T10:00:01.500Z] "GET / HTTP/1.1" 503 UF,URX 0 91 12 - "2001:db8::7" "a "quoted" agent" "1" "www.example.com" "10.0.2.1:80"',
  '[2026-02-03T10:00:01.500Z] "- - HTTP/1.1" 400 DPE 0 11 0 - "-" "-" "-" "-" "-"',
  '[2026-02-03T10:00:02.000Z] "GET /b HTTP/1.1" 200 - 0 91 12 - "-" "curl/8" "1" "www.example.com" "10.0.2.1:80"',
  '[2026-02-03T10:00:02.000Z] "GET /c HTTP/1.1" 200 - 0 91 12 - "192.0.2.1" "curl',
  '[yesterday] "GET / HTTP/1.1" 200 - 0 91 12 - "192.0.2.1" "curl/8" "1" "www.example.com" "10.0.2.1:80"',
  '[2026-02-03T10:00:03.000Z] "GET /d HTTP/1.1" 200 - 0 91 4 - "192.0.2.1" "curl/8" "1" "www.example.com" "10.0.2.1:80"',
  '[2026-02-03T10:00:04.000Z] "GET /e HTTP/1.1" 200 - 0 91 5 - "192.0.2.1" "curl/8" "1" "www.example.com" "10.0.2.1:80"',
]

const ISTIO = [
  '[2026-02-03T10:00:00.000Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "-" "curl/7.73.0-DEV" "84961386" "httpbin:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.6:41854 10.44.1.27:80 10.44.1.23:37652 outbound_.8000_._.httpbin.foo.svc.cluster.local default',
  '[2026-02-03T10:00:00.250Z] "GET /x HTTP/2" 503 UF upstream_reset_before_response_started{connection_failure} - "TLS error: 268435581" 0 95 44 - "198.51.100.7" "Go-http-client/2.0" "a" "httpbin:8000" "10.44.1.30:80" outbound|8000|| - 10.4.0.1:8000 10.44.1.23:37654 - default',
]

t.test('Envoy: its default format, with the client that X-Forwarded-For names', async t => {
  const { requests, ...rest } = await read(ENVOY)
  t.match(rest, { formats: ['envoy'], origin: '2026-02-03T10:00:00.000Z', serviceTimes: [226, 12, 4, 5] })
  t.same(rest.bad, { 'no address': 2, 'cut off': 1, 'no time': 1 })
  t.same(requests, [
    '10.0.35.28 POST /api/v1/locations?a=1 nsq2http 310',
    '2001:db8::7 GET / a "quoted" agent 1500',
    '192.0.2.1 GET /d curl/8 3000',
    '192.0.2.1 GET /e curl/8 4000',
  ])
  const parser = parserAfter(ENVOY.slice(0, 1))
  t.same([parser.host(), parser.header('user-agent'), parser.has('host')], ['locations', 'nsq2http', true])
  t.same([parser.header('x-api-key'), parser.has('x-api-key')], [undefined, false])
})

t.test('Envoy in Istio: without X-Forwarded-For the client is the address of the connection', async t => {
  const { requests, bad, formats } = await read(ISTIO)
  t.same([formats, bad], [['envoy'], {}])
  t.same(requests, ['10.44.1.23:37652 GET /status/418 curl/7.73.0-DEV 0', '198.51.100.7 GET /x Go-http-client/2.0 250'])
  t.equal(parserAfter(ISTIO).host(), 'httpbin:8000')
})

t.test('Envoy in JSON: times are those of the beginning, and durations ms', async t => {
  const istio = {
    start_time: '2026-02-03T10:00:00.500Z',
    method: 'GET',
    path: '/a',
    protocol: 'HTTP/1.1',
    response_code: 200,
    response_flags: '-',
    duration: 250,
    x_forwarded_for: null,
    user_agent: 'curl/8',
    authority: 'www.example.com',
    downstream_remote_address: '192.0.2.1:41854',
  }
  const gateway = {
    start_time: '2026-02-03T10:00:01.500Z',
    method: 'PUT',
    'x-envoy-origin-path': '/b',
    duration: '40',
    'x-forwarded-for': '198.51.100.7,10.0.0.1',
    'user-agent': 'Go-http-client/2.0',
    ':authority': 'api.example.com',
    downstream_remote_address: '10.0.0.1:55812',
  }
  for (const format of [undefined, 'envoy', 'json'] as const) {
    const given = format === undefined ? {} : { format }
    const first = await read([JSON.stringify(istio), JSON.stringify({ ...istio, x_forwarded_for: '-' })], given)
    t.same(first.requests, Array(2).fill('192.0.2.1:41854 GET /a curl/8 500'))
    t.same([first.formats, first.serviceTimes], [['json'], [250, 250]])
    const second = await read([JSON.stringify(gateway)], given)
    t.same(second.requests, ['198.51.100.7 PUT /b Go-http-client/2.0 500'])
  }
  t.equal(parserAfter([JSON.stringify(gateway)]).host(), 'api.example.com')
})

const HAPROXY = [
  'Feb  3 10:00:00 localhost haproxy[14389]: 10.0.1.2:33317 [03/Feb/2026:10:00:00.655] http-in static/srv1 10/5/30/69/124 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu|} {} "GET /index.html?a=1 HTTP/1.1"',
  'Feb  3 10:00:01 localhost haproxy[14389]: 2001:db8::7:51432 [03/Feb/2026:10:00:01.000] https-in~ app/<NOSRV> -1/-1/-1/-1/+3 503 +212 - - SC-- 2/2/0/0/+3 0/12 "GET https://www.example.com/x HTTP/2.0"',
  'Feb  3 10:00:02 localhost haproxy[14389]: 10.0.1.2:33318 [03/Feb/2026:10:00:02.655] http-in http-in/<NOSRV> -1/-1/-1/-1/7 400 187 - - PR-- 2/2/0/0/0 0/0 "<BADREQ>"',
  'Feb  3 10:00:02 localhost haproxy[14389]: 10.0.1.2:33318 [03/Feb/2026:10:00:02.655] https-in/1: SSL handshake failure',
  'Feb  3 10:00:02 localhost haproxy[14389]: 10.0.1.2:33319 [03/Feb/2026:10:00:03.000] http-in~ app/a 0/0/1/20/21 200 10 - - ---- 1/1/0/0/0 0/0 {} "GET /long',
  'Feb  3 10:00:02 localhost haproxy[14389]: 10.0.1.2:33319 [31/Feb/2026:10:00:03.000] http-in app/a 0/0/1/20/21 200 10 - - ---- 1/1/0/0/0 0/0 "GET / HTTP/1.1"',
  'Feb  3 10:00:02 localhost haproxy[14389]: Server app/a is DOWN, reason: Layer4 timeout',
  'Feb  3 10:00:04 localhost haproxy[14389]: 192.0.2.1:1 [03/Feb/2026:10:00:04] fe be/s 0/0/1/20/21 200 10 - - ---- 1/1/0/0/0 0/0 "GET /h HTTP/1.1" 0/0000000000000000/0/0/0 www.example.com/TLSv1.3/TLS_AES_256_GCM_SHA384',
  ...['/i', '/j'].map(
    path =>
      `Feb  3 10:00:02 localhost haproxy[14389]: 192.0.2.1:1 [03/Feb/2026:10:00:05] fe be/s 0/0/1/4/5 200 10 - - ---- 1/1/1/1/0 0/0 "GET ${path} HTTP/1.1"`,
  ),
]

t.test('HAProxy: the time of the beginning, and the time of the server', async t => {
  const { requests, ...rest } = await read(HAPROXY)
  t.match(rest, { formats: ['haproxy'], origin: '2026-02-03T10:00:00.000Z', serviceTimes: [109, 3, 21, 5, 5] })
  t.same(rest.bad, { 'not an HTTP request': 2, 'cut off': 1, 'no time': 2 })
  t.same(requests, [
    ...['10.0.1.2 GET /index.html?a=1  655', '2001:db8::7 GET /x  1000', '192.0.2.1 GET /h  4000'],
    ...['192.0.2.1 GET /i  5000', '192.0.2.1 GET /j  5000'],
  ])
  t.equal(parserAfter(HAPROXY.slice(1, 2).map(line => line.slice(42))).host(), 'www.example.com')
  const bare = await read(HAPROXY.map(line => line.slice(42)))
  t.same(bare.requests, requests, 'without the prefix of syslog, too')
})

const IIS = [
  '#Software: Microsoft Internet Information Services 10.0',
  '#Version: 1.0',
  '#Date: 2026-02-03 10:00:00',
  '#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken',
  '2026-02-03 10:00:01 10.0.0.5 GET /app/default.aspx id=7 443 - 192.0.2.1 Mozilla/5.0+(Windows+NT+10.0;+Win64;+x64) - 200 0 0 250',
  '2026-02-03 10:00:02 10.0.0.5 POST /app/save - 443 EXAMPLE\\jane 2001:db8::7 - https://www.example.com/ 401 2 5 2001',
  '2026-02-03 10:00:03 10.0.0.5 GET /again - 443 - 192.0.2.1 curl/8 - 200 0 0 0',
  '2026-02-03 10:00:02 10.0.0.5 GET / - 443 - 192.0.2.1 curl/8 - 200 0 0',
  '2026-02-30 10:00:02 10.0.0.5 GET / - 443 - 192.0.2.1 curl/8 - 200 0 0 1',
  '2026-02-03 10:00:02 10.0.0.5 GET / - 443 - - curl/8 - 200 0 0 1',
  '2026-02-03 10:00:02 10.0.0.5 - - - 443 - 192.0.2.1 curl/8 - 400 0 0 1',
  '#Software: Microsoft Internet Information Services 10.0',
  '#Fields: date time c-ip cs-method cs-uri-stem cs-host cs(X-Api-Key) X-Forwarded-For',
  '2026-02-03 10:00:05 10.0.0.9 GET /late www.example.com k+1 198.51.100.7,+10.0.0.1',
]

t.test('W3C extended, as IIS writes it: columns by #Fields, time-taken in ms', async t => {
  const { requests, ...rest } = await read(IIS)
  t.match(rest, { formats: ['w3c'], lines: 14, origin: '2026-02-03T10:00:01.000Z', serviceTimes: [250, 2_001, 0] })
  t.same(rest.bad, { 'other columns': 1, 'no time': 1, 'no address': 1, 'no request': 1 })
  t.same(requests, [
    '2001:db8::7 POST /app/save  -1001',
    '192.0.2.1 GET /app/default.aspx?id=7 Mozilla/5.0 (Windows NT 10.0; Win64; x64) -250',
    '192.0.2.1 GET /again curl/8 2000',
    '10.0.0.9 GET /late  4000',
  ])
  const parser = parserAfter(IIS)
  t.same([parser.host(), parser.header('x-api-key'), parser.has('x-api-key')], ['www.example.com', 'k 1', true])
  t.same([parser.header('user-agent'), parser.has('user-agent')], [undefined, false])
  const named = await read(IIS.slice(12), { fields: { ip: 'X-Forwarded-For' } })
  t.same(named.requests, ['198.51.100.7 GET /late  0'], '--field names a column')
})

t.test('W3C extended: a date from the directive, quotes, and seconds with a fraction', async t => {
  const { requests, bad } = await read([
    '#Version: 1.0',
    '#Date: 03-Feb-2026 00:00:00',
    '#Date: 2026-02-03 00:00:00',
    '#Fields: time c-ip cs-method cs-uri time-taken cs(User-Agent) x-comment',
    '00:34:23.500 192.0.2.1 GET /foo/bar.html 0.25 "a ""b"" agent" "says ""hi"""',
    '00:34:24.500 192.0.2.1 GET /foo/bar.html 1.5 "" -',
    '00:34:24.500 192.0.2.1 GET /foo/bar.html 1.5 "never closed -',
  ])
  t.same(bad, { 'other columns': 1 })
  t.same(requests, ['192.0.2.1 GET /foo/bar.html  0', '192.0.2.1 GET /foo/bar.html a "b" agent 250'])
  await t.rejects(
    read(['2026-02-03 10:00:05 10.0.0.9 GET /late'], { format: 'w3c' }),
    /: 1 of 1 lines \(100 %\) are bad; the first is line 1, no #Fields before it: 2026-02-03/,
  )
})

const CLOUDFRONT = [
  '#Version: 1.0',
  '#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len sc-range-start sc-range-end',
  '2026-02-03\t10:00:04\tLAX1\t2390282\t192.0.2.202\tGET\td111111abcdef8.cloudfront.net\t/soundtrack/happy.mp3\t304\twww.unknownsingers.com\tMozilla/4.0%20(compatible;%20MSIE%207.0)\ta=b&c=d\tzip=98101\tHit\tMRVMF7KydIvxMWfJIglgwHQwZsbG2IhRJ07sn9AkKUFSHS9EXAMPLE==\twww.example.com\thttp\t-\t0.125\t-\t-\t-\tHit\tHTTP/1.1\t-\t-\t11040\t0.001\tHit\taudio/mpeg\t2390000\t-\t-',
  '2026-02-03\t10:00:04\tSEA19-C1\t900\t2001:db8::7\tGET\td111111abcdef8.cloudfront.net\t/x\t200\t-\t100%25%20%ZZ\t-\t-\tMiss\tk6WGMNkEzR5BEM_SaF47gjtX9zBDO2m349OY2an0QPEaUum1ZOLrow==\t-\thttps\t23\t2\t-\tTLSv1.3\tTLS_AES_128_GCM_SHA256\tMiss\tHTTP/2.0\t-\t-\t11040\t0.001\tMiss\ttext/html\t78\t-\t-',
  '2026-02-03\t10:00:05\tSEA19-C1\t900',
]

t.test('CloudFront: tabs, seconds, and files packed by gzip', async t => {
  const expected = [
    '2001:db8::7 GET /x 100%25%20%ZZ -2000',
    '192.0.2.202 GET /soundtrack/happy.mp3?a=b&c=d Mozilla/4.0 (compatible; MSIE 7.0) -125',
  ]
  const { requests, ...rest } = await read(CLOUDFRONT)
  t.match(rest, { formats: ['cloudfront'], origin: '2026-02-03T10:00:04.000Z', serviceTimes: [125, 2_000] })
  t.same(rest.bad, { 'other columns': 1 })
  t.same(requests, expected)
  const parser = parserAfter(CLOUDFRONT.slice(0, 3))
  t.equal(parser.host(), 'www.example.com', 'what the client asked for')
  t.equal(parser.header('cookie'), 'zip=98101')
  // `zcat` of several files has their directives in the middle.
  const packed = Buffer.concat([gzipSync(CLOUDFRONT.join('\r\n')), gzipSync('\r\n'), gzipSync(CLOUDFRONT.join('\n'))])
  const { seen, reading } = await readAll([logFile(t, packed, 'E1.2026-02-03-10.gz')])
  t.same([seen.length, reading.formats], [4, ['cloudfront']])
})

/** What `journalctl -o export` writes. */
function exported(messages: readonly string[]): Buffer {
  return Buffer.concat(
    messages.flatMap((message, at) => {
      const isText = ![...message].some(character => character < ' ')
      const size = Buffer.alloc(8)
      size.writeBigUInt64LE(BigInt(Buffer.byteLength(message)))
      return [
        Buffer.from(`__CURSOR=s=1;i=${at}\n__REALTIME_TIMESTAMP=1770112800000000\n_TRANSPORT=stdout\n`),
        // A field before it that looks like lines of a log, with a length that has newlines in it.
        Buffer.from('_CMDLINE\n'),
        Buffer.from([10, 10, 0, 0, 0, 0, 0, 0]),
        Buffer.from('MESSAGE=no\n'.padEnd(10 * 256 + 10, 'MESSAGE=no\n')),
        Buffer.from(isText ? `\nMESSAGE=${message}\n` : '\nMESSAGE\n'),
        ...(isText ? [] : [size, Buffer.from(`${message}\n`)]),
        Buffer.from('SYSLOG_IDENTIFIER=nginx\nMESSAGE_ID=1\nEMPTY=\n\n'),
      ]
    }),
  )
}

/** A stream in pieces of so many bytes. Each is overwritten after the next, as those of files are. */
async function* inPieces(whole: Buffer, size: number): AsyncGenerator<Buffer> {
  let before = Buffer.alloc(0)
  for (let at = 0; at < whole.length; at += size) {
    const piece = Buffer.from(whole.subarray(at, at + size))
    yield piece
    before.fill(0x78)
    before = piece
  }
}

t.test('the journal of systemd, exported: the messages are the log, whatever its pieces', async t => {
  const lines = ['192.0.2.1', '192.0.2.2', '2001:db8::7'].map((address, at) =>
    combined(1_770_112_800 + at, address, `"-" "agent ${'x'.repeat(100 * at)}"`).trimEnd(),
  )
  const messages = [lines[0]!, 'nginx: reloading\nnow', `${lines[1]!}\tend`, lines[2]!]
  const whole = exported(messages)
  for (const size of [1, 7, 64, 1_000, 1 << 20]) {
    const { reading, seen } = await readAll(['-'], { stdin: inPieces(whole, size) })
    t.same(
      seen.map(({ address, at }) => `${address} ${at}`),
      ['192.0.2.1 0', '192.0.2.2 1000', '2001:db8::7 2000'],
    )
    t.same(Object.fromEntries(reading.bad.reasons), { 'no time': 1 }, `pieces of ${size} bytes`)
    t.match(reading.bad.examples, [{ line: 2, text: 'nginx: reloading now' }])
    t.same(reading.formats, ['combined'])
  }
  const cut = await readAll(bytes(whole.subarray(0, -40)))
  t.equal(cut.seen.length, 3, 'the last entry may be incomplete')
  const haproxy = await readAll(bytes(exported(HAPROXY.map(line => line.slice(42)))))
  t.same([haproxy.reading.formats, haproxy.seen.length], [['haproxy'], 5])
})

t.test('the journal of systemd as JSON, and as lines with remarks', async t => {
  const line = combined(1_770_112_800).trimEnd()
  const entry = (MESSAGE: unknown) => JSON.stringify({ __CURSOR: 's=1', __REALTIME_TIMESTAMP: '1', MESSAGE })
  const { requests, bad, formats } = await read([
    entry('nginx: started'),
    entry(line),
    entry([...Buffer.from(`${line}\x1b`)]),
    entry(null),
    entry(line),
    'no entry',
  ])
  t.same([formats, requests.length, bad], [['combined'], 3, { 'no time': 2 }])
  const short = await read([
    '-- Journal begins at Tue 2026-02-03 09:00:00 UTC, ends at Tue 2026-02-03 10:00:00 UTC. --',
    `Feb 03 10:00:00 web nginx[12]: ${line}`,
    '-- Boot 3a9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e --',
    `Feb 03 10:00:00 web nginx[12]: ${line}`,
  ])
  t.same([short.requests.length, short.bad, short.lines], [2, {}, 4])
})

const PROXY_MANAGER = [
  '[03/Feb/2026:10:00:00 +0000] - 200 200 - GET https www.example.com "/a?b=\\x22c" [Client 192.0.2.1] [Length 512] [Gzip -] [Sent-to 10.0.0.4] "curl/8" "-"',
  '[03/Feb/2026:10:00:01 +0000] HIT - 304 - M-SEARCH http - "*" [Client 2001:db8::7] [Length 0] [Gzip 1.20] [Sent-to a b] "-" "http://a/ - GET"',
  '[03/Feb/2026:10:00:02 +0000] 301 - GET http www.example.com "/" [Client 192.0.2.2] [Length 166] [Gzip -] "curl/8" "-"',
  '[03/Feb/2026:10:00:03 +0000] 400 - - http localhost "-" [Client 192.0.2.2] [Length 154] [Gzip -] "-" "-"',
  '[03/Feb/2026:10:00:03 +0000] 301 - GET http www.example.com "/" [Client -] [Length 166] [Gzip -] "curl/8" "-"',
  '[03/Feb/2026:10:00:03 +0000] - 200 200 - GET https www.example.com "/',
]

t.test('R2: Nginx Proxy Manager: hosts that are proxied, and others', async t => {
  const { requests, bad, formats } = await read(PROXY_MANAGER)
  t.same(formats, ['npm'])
  t.same(requests, [
    '192.0.2.1 GET /a?b=\\x22c curl/8 0',
    '2001:db8::7 M-SEARCH *  1000',
    '192.0.2.2 GET / curl/8 2000',
  ])
  t.same(bad, { 'not an HTTP request': 1, 'no address': 1, 'cut off': 1 })
  const parser = parserAfter(PROXY_MANAGER.slice(0, 1))
  t.same([parser.host(), parser.has('host'), parser.header('user-agent')], ['www.example.com', true, 'curl/8'])
})

t.test('R2: the files of Docker, with a line that was cut', async t => {
  const line = combined(1_770_112_800).trimEnd()
  const entry = (log: string) => JSON.stringify({ log, stream: 'stdout', time: '2026-02-03T10:00:00.123Z' })
  const { requests, bad, formats } = await read([
    entry(`${line}\r\n`),
    entry('starting\n'),
    entry(line.slice(0, 40)),
    entry(`${line.slice(40)}\n`),
  ])
  t.same([formats, requests.length, bad], [['combined'], 2, { 'no address': 1 }])
})

t.test('the format that most lines have is taken', async t => {
  const { formats, bad } = await read(['{"msg":"starting"}', ...Array(5).fill(combined(1_770_112_800).trimEnd())])
  t.same([formats, bad], [['combined'], { 'no address': 1 }])
})

t.test('every format can be named, and detection finds the same', async t => {
  const logs: Partial<Record<FormatName, readonly string[]>> = {
    cloudfront: CLOUDFRONT,
    envoy: ENVOY,
    haproxy: HAPROXY,
    npm: PROXY_MANAGER,
    w3c: IIS,
  }
  for (const [format, lines] of Object.entries(logs)) {
    const [detected, named] = [await read(lines), await read(lines, { format })]
    t.same(detected, named, format)
    t.same(named.formats, [format])
    t.ok(named.requests.length > 1)
  }
})

t.test('long: parsers take time linear in the length of a line', t => {
  /** Lines of about this length that make naive patterns go back and forth. */
  const hostile = (length: number): string[] => {
    const fill = (text: string): string => text.repeat(Math.ceil(length / text.length))
    return [
      ...[
        ' ',
        '"',
        '\\',
        '" "',
        '""',
        '{',
        '{} ',
        '[',
        '1:',
        ': ',
        '1/',
        'a ',
        'a\t',
        '%20',
        '1',
        '.',
        '- ',
        '<1>',
        ' 1.1',
      ].map(fill),
      ...ENVOY.slice(0, 1).flatMap(line => ['" "', '"', 'a', ' '].map(text => line.replace('nsq2http', fill(text)))),
      ...ISTIO.slice(1).flatMap(line => ['" "', 'a" 1 ', ' '].map(text => line.replace('TLS error', fill(text)))),
      ...HAPROXY.slice(0, 1).flatMap(line => ['{', '} {', '"', ' '].map(text => line.replace('1wt.eu', fill(text)))),
      ...['"a ""b ', '" "', ' ', '+'].map(text => IIS[4]!.replace('Mozilla', fill(text))),
      `#Fields: a${fill(' ')}x`,
      ...['\\"', ':-', '":"\\x', '\\xC3'].map(text => `{"a${fill(text)}`),
      ...['[1]', '[03/Feb/2026:10:00:00 +0000]', '1.2.3.4 ', 'a:1 '].map(text => `192.0.2.1 - ${fill(text)}`),
      ...['\\"', ' 0.250x', ' "'].map(text => `${combined(0).trimEnd()} ${fill(text)}`),
      `{"time":"${fill(' ')}`,
    ]
  }
  const directives = Buffer.from(IIS.join('\n'))
  const slow: string[] = []
  const check = (what: string, line: Buffer, read: () => unknown): void => {
    const began = process.cpuUsage()
    read()
    const ms = process.cpuUsage(began).user / 1_000
    if (ms > 1_000) slow.push(`${what} takes ${Math.round(ms)} ms for ${line.subarray(0, 40)}`)
  }
  // A line as long as lines may be takes some ms of CPU. It would take 10 s and more if anything were quadratic.
  for (const text of hostile(LONGEST_LINE)) {
    const line = Buffer.from(text)
    for (const format of Object.keys(FORMATS) as FormatName[]) {
      const parser = detectFormat(directives, { format })!
      check(format, line, () => parser.parse(line, 0, line.length))
    }
    check('detection', line, () => detectFormat(line, {}))
    check('a prefix', line, () => bodyStart(line, 0, line.length))
  }
  t.same(slow, [])
  t.end()
})
