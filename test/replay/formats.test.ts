import t from 'tap'
import { CommonLogParser } from '../../src/replay/formats/parsers/common-log.js'
import { JsonParser } from '../../src/replay/formats/parsers/json-lines.js'
import { readTimestamp } from '../../src/replay/formats/timestamp.js'
import { bytes, logFile, readAll } from './logs.js'

/** The addresses, requests, agents and times read from a log of these lines. */
async function read(lines: string[], options = {}) {
  const { reading, seen } = await readAll(bytes(lines.map(line => `${line}\n`).join('')), options)
  return {
    formats: reading.formats,
    bad: Object.fromEntries(reading.bad.reasons),
    examples: reading.bad.examples,
    origin: reading.origin,
    notes: reading.notes,
    requests: seen.map(({ address, method, target, agent, at }) => `${address} ${method} ${target} ${agent} ${at}`),
  }
}

t.test('the common and combined formats, with oddities of real logs', async t => {
  t.match(await read(['127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326']), {
    formats: ['common'],
    origin: Date.UTC(2000, 9, 10, 20, 55, 36) / 1_000,
    requests: ['127.0.0.1 GET /a.gif  0'],
  })
  const combined = await read([
    '2001:db8::7 - - [17/May/2015:10:05:03 +0000] "GET /a?b=%20c HTTP/2.0" 200 - "-" "Mozilla/5.0 \\"quoted\\" end"',
    'host.example.com - "odd user" [17/May/2015:10:05:04 +0000] "POST / HTTP/1.1" 499 0 "http://a/\\x22b" "-"',
    '192.0.2.1 - - [17/May/2015:10:05:05 +0000] "GET /old" 200 5 "-" "a"',
    '192.0.2.1 - - [17/May/2015:10:05:05 +0000] "\\x16\\x03\\x01\\x02" 400 0 "-" "-"',
    '192.0.2.1 - - [17/May/2015:10:05:05 +0000] "-" 408 0 "-" "-"',
    '192.0.2.1 - - [17/May/2015:10:05:06 +0000] "GET / HTTP/1.1" 200 5 "-" "clipped by Apa',
    '192.0.2.1 - - [17/May/2015:10:05:06 +0000] "GET / HT',
    '192.0.2.1 - - [17/Mai/2015:10:05:06 +0000] "GET / HTTP/1.1" 200 5 "-" "a"',
    '192.0.2.1 - - [17/May/2015:10:05:7x +0000] "GET / HTTP/1.1" 200 5 "-" "a"',
    '- - - [17/May/2015:10:05:06 +0000] "GET / HTTP/1.1" 200 5 "-" "a"',
    '192.0.2.1 - - [17/May/2015:10:05:06 +0000] "GET / HTTP/1.1" - 5 "-" "left"',
    '192.0.2.1 - - [17/May/2015:10:05:07 +0000] "GET / HTTP/1.1" 2000 5 "-" "a"',
    ...['b', 'c', 'd'].map(agent => `192.0.2.1 - - [17/May/2015:10:05:08 +0000] "GET / HTTP/1.1" 200 5 "-" "${agent}"`),
    '',
    '\u001b[2J garbage',
  ])
  t.same(combined.formats, ['combined'])
  t.same(combined.requests, [
    '2001:db8::7 GET /a?b=%20c Mozilla/5.0 \\"quoted\\" end 0',
    'host.example.com POST / - 1000',
    '192.0.2.1 GET /old a 2000',
    '192.0.2.1 GET / clipped by Apa 3000',
    '192.0.2.1 GET / left 3000',
    ...['b', 'c', 'd'].map(agent => `192.0.2.1 GET / ${agent} 5000`),
  ])
  t.same(combined.bad, {
    'not an HTTP request': 2,
    'cut off': 1,
    'no time': 3,
    'no address': 1,
    'no status': 1,
  })
  t.equal(combined.examples.length, 5, 'the first five are shown')
  const { examples } = await read([
    '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5',
    `\u001b[2J\u009b ${'x'.repeat(500)}`,
  ])
  t.equal(examples[0]!.line, 2)
  t.match(examples[0]!.text, /^\?\[2J\? x+~$/)
  t.equal(examples[0]!.text.length, 120)
})

t.test('dates and times that do not exist are no times', async t => {
  for (const text of [
    '31/Feb/2015:10:05:03 +0000',
    '29/Feb/2015:10:05:03 +0000',
    '00/May/2015:10:05:03 +0000',
    '17/May/2015:24:00:00 +0000',
    '17/May/2015:10:60:00 +0000',
    '17/May/2015:10:05:61 +0000',
    '17/May/2015:10:05:03 +9900',
    '2015-02-30T10:05:03Z',
    '2015-13-01T10:05:03Z',
    '2015-04-31 10:05:03',
    '0099-04-30 10:05:03',
  ]) {
    t.equal(readTimestamp(text), undefined, text)
  }
  t.match(readTimestamp('29/Feb/2016:10:05:03 +0000'), { second: Date.UTC(2016, 1, 29, 10, 5, 3) / 1_000 })
  t.match(readTimestamp('31/Dec/2016:23:59:60 +0000'), { second: Date.UTC(2017, 0, 1) / 1_000 }, 'a leap second')
  const line = (time: string) => `192.0.2.1 - - [${time} +0000] "GET / HTTP/1.1" 200 5 "-" "curl/8"`
  const { requests, bad } = await read([
    line('28/Feb/2015:23:59:58'),
    line('28/Feb/2015:23:59:59'),
    line('28/Feb/2015:23:59:65'),
    line('31/Feb/2015:00:00:00'),
  ])
  t.equal(requests.length, 2)
  t.same(bad, { 'no time': 2 })
})

t.test('R3: the request time of nginx is subtracted, also that of ingress-nginx, and no other number', async t => {
  const line = (tail: string, second: string) =>
    `192.0.2.1 - - [17/May/2015:10:05:${second} +0000] "GET / HTTP/1.1" 200 5 "-" "curl/8" ${tail}`
  const arrivals = async (tail: string) => (await read([line(tail, '03'), line(tail, '04')])).requests
  for (const tail of [
    ...['0.250', 'rt=0.250 uct="0.001"', '"0.250" "0.1"', '"-" request_time=0.250', 'uct="0.001" rt="0.250"'],
    '563 0.250 [default-web-80] [] 10.0.0.4:8080 512 0.100 200 8f0e',
    '"10.0.0.4:8080" "a \\"9.000 b" 0.250',
  ]) {
    t.same(await arrivals(tail), ['192.0.2.1 GET / curl/8 -250', '192.0.2.1 GET / curl/8 750'], tail)
  }
  // A length, a ratio of compression, and a header of the client.
  for (const tail of ['250 "1.2.3.4"', '"2.50"', '"a 0.250 b"', 'uct=0.250', '10.0.0.4:8080', '1.2.3']) {
    t.same(await arrivals(tail), ['192.0.2.1 GET / curl/8 0', '192.0.2.1 GET / curl/8 1000'], tail)
  }
})

t.test('R1: a virtual host is before the client; no name or other address takes its place in silence', async t => {
  const line = (front: string) => `${front} - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "-"`
  for (const [front, address] of [
    ['www.example.com 192.0.2.1', '192.0.2.1'],
    ['www.example.com:443 2001:db8::7', '2001:db8::7'],
    ['- 192.0.2.1', '192.0.2.1'],
    ['_ 192.0.2.1, 198.51.100.2', '192.0.2.1'],
    ['127.0.1.1:80 192.0.2.1', '192.0.2.1'],
    ['www.example.com - 192.0.2.1', '192.0.2.1'],
    ['www.example.com:443 localhost', 'localhost'],
    ['www.example.com dsl-7.example.net', 'dsl-7.example.net'],
    ['192.0.2.1 - [192.0.2.1]', '192.0.2.1'],
  ] as const) {
    const { requests, bad, notes } = await read([line(front)])
    t.same([requests, bad], [[`${address} GET / - 0`], {}], front)
    t.same(notes.length, /[a-z]/.test(address) && !address.includes(':') ? 1 : 0, front)
  }
  t.match((await read([line('192.0.2.1 198.51.100.2')])).notes, [
    /: 1 lines have two addresses before the time, .*first/,
  ])
  t.match((await read([line('web-1'), line('web-1')])).notes, [
    /: most clients are names such as "web-1", not addresses; /,
  ])
  const json = (ip: string) => JSON.stringify({ ts: 1_431_857_103, ip, method: 'GET', path: '/' })
  t.match((await read([json('web-1\u001b[2J')])).notes, [/: most clients are names such as "web-1\?\[2J", not/])
  t.same((await read([json('192.0.2.1:80'), json('web-1')])).notes, [])
  const parser = new CommonLogParser('vhost')
  const text = Buffer.from(line('www.example.com:443 192.0.2.1'))
  parser.parse(text, 0, text.length)
  t.same([parser.host(), parser.has('host'), parser.has('user-agent')], ['www.example.com', true, true])
  const named = Buffer.from(line('www.example.com'))
  t.equal(parser.parse(named, 0, named.length), 'no address', 'its other lines have one')
})

t.test('R4: any method counts that a request may have', async t => {
  const line = (request: string) => `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "${request}" 200 5 "-" "-"`
  for (const request of ['M-SEARCH * HTTP/1.1', 'RPC_IN_DATA /rpc HTTP/1.1', 'VERSION-CONTROL /a', 'get / HTTP/1.1']) {
    const [method, target] = request.split(' ')
    t.same((await read([line(request)])).requests, [`192.0.2.1 ${method} ${target} - 0`])
  }
  for (const request of ['t3 12.1.2', 'SSH-2.0-Go x', '- http://a/', '\\x16\\x03 /a', 'GET', ' / HTTP/1.1', '"']) {
    t.same((await read([line('GET / HTTP/1.1'), line(request)])).requests.length, 1, request)
  }
})

t.test(
  'R5, R6: a mark of the byte order, blanks before a line, and names of users with spaces and brackets',
  async t => {
    const line = (user: string) => `192.0.2.1 - ${user} [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "-"`
    const users = ['jane doe', '"jane doe"', 'jane [doe]', '[17/May/2014:10:05:03 +0000]', '[1]', 'CN=a [b] c -']
    for (const start of ['', '\ufeff', '\t ']) {
      const { requests, bad } = await read(users.map(user => `${start}${line(user)}`))
      t.same([requests, bad], [users.map(() => '192.0.2.1 GET / - 0'), {}])
      const json = await read([`${start}{"ts":1431857103,"ip":"192.0.2.1","method":"GET","path":"/"}`])
      t.same(json.requests, ['192.0.2.1 GET /  0'])
      const w3c = await read([
        `${start}#Fields: date time c-ip cs-method cs-uri-stem`,
        '2015-05-17 10:05:03 192.0.2.1 GET /',
      ])
      t.same(w3c.requests, ['192.0.2.1 GET /  0'])
    }
  },
)

t.test('R7: JSON as nginx writes it without escape=json', async t => {
  const { requests, bad } = await read([
    '{"msec":1431857103.250,"remote_addr":"192.0.2.1","request":"GET /\\x22a HTTP/1.1","http_user_agent":"\\xC3\\xA3 \\\\x41 \\x5Cx :-,"}',
    '{"msec":1431857104.250,"remote_addr":"192.0.2.1","request":"GET / HTTP/1.1","request_time":-,"upstream_response_time": ,"x":-}',
    '{"msec":1431857105.250,"remote_addr":"192.0.2.1","request":"GET / HTTP/1.1","http_user_agent":"cut \\xC3',
  ])
  t.same(requests, ['192.0.2.1 GET /"a ã \\x41 \\x :-, 250', '192.0.2.1 GET /  1250'])
  t.same(bad, { 'not JSON': 1 })
})

t.test('R8: a duration is taken off by its unit; without one the times stay, and a note asks', async t => {
  const time = '2015-05-17T10:05:03.500Z'
  const arrival = async (more: object, fields = {}) => {
    const line = JSON.stringify({ timestamp: time, client_ip: '192.0.2.1', method: 'GET', path: '/', ...more })
    const { requests, notes } = await read([line], { fields })
    return [Number(requests[0]!.split(' ').at(-1)), ...notes.map(note => /"\w+"/.exec(note)?.[0])]
  }
  for (const more of [
    ...[
      { latency_ms: 250 },
      { durationMs: '250' },
      { request_time_us: 250_000 },
      { 'response-time': 9, elapsed_ns: 25e7 },
    ],
    ...[{ duration_s: 0.25 }, { request_time_seconds: 0.25 }, { took_msec: 250 }, { time_taken_millis: 250 }],
    ...[{ request_time: 0.25 }, { request_time: '0.250' }, { responseTime: 250 }, { Duration: 25e7 }],
    ...[{ latency: '250ms' }, { latency: 250_000_000, latency_human: '250ms' }, { duration: 9, duration_ms: 250 }],
    { request: { method: 'GET', uri: '/' }, method: undefined, duration: 0.25 },
  ]) {
    t.same(await arrival(more), [250], JSON.stringify(more))
  }
  for (const more of [{ duration: 250 }, { duration: 0.25 }, { latency: 250 }, { elapsed: '250' }]) {
    t.same(await arrival(more), [500, JSON.stringify(Object.keys(more)[0])], 'told')
    t.same(await arrival(more, { unit: 'us' }), [500 - Number(Object.values(more)[0]) / 1_000])
  }
  t.same(await arrival({ duration: 0.25 }, { duration: 'duration' }), [250], 'seconds, where the field is named')
  t.same(await arrival({ timing: { latency_ms: 250 } }, { duration: 'timing.latency_ms' }), [250])
  t.same(await arrival({ durations: 9, time_ms: 9, upstream_time_ms: 9 }), [500])
  const w3c = ['#Fields: date time c-ip cs-method cs-uri-stem time-taken', '2015-05-17 10:05:03 192.0.2.1 GET / 2000']
  t.same((await read(w3c)).requests, ['192.0.2.1 GET /  -2000'])
  t.same((await read(w3c, { fields: { unit: 'us' } })).requests, ['192.0.2.1 GET /  -2'])
})

t.test('request_time in whole numbers is asked about: it may be ms or us', async t => {
  const line = (took: unknown) =>
    JSON.stringify({ msec: '1431857104.250', remote_addr: '192.0.2.1', request: 'GET /b HTTP/1.1', request_time: took })
  const notesOf = async (times: unknown[], fields = {}) =>
    (await readAll([logFile(t, times.map(took => `${line(took)}\n`).join(''))], { fields })).reading.notes
  t.match(await notesOf([250, 3_000, 12]), [/"request_time" counts as seconds, .* whole numbers up to 3000/])
  t.match(await notesOf(['250']), [/whole numbers up to 250/])
  for (const times of [[3_000, 0.25], ['3000.000'], [1, 2, 3]]) t.same(await notesOf(times), [], String(times))
  t.same(await notesOf([250, 3_000], { unit: 'ms' }), [])
  await t.rejects(read([line(250), line(3_000)]), {
    message: /not in the order of time.*"request_time" counts as seconds/s,
  })
})

t.test('AWS ALB: the three times are subtracted, and -1 counts as 0', async t => {
  const { formats, requests, bad, origin } = await read([
    'https 2018-07-02T22:23:00.186641Z app/my-lb/50dc 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/path?q=1 HTTP/1.1" "curl/7.46.0" ECDHE-RSA TLSv1.2 arn:aws "Root=1-58337281" "www.example.com" "arn:x" 1 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-"',
    'h2 2018-07-02T22:23:01.186641Z app/my-lb/50dc 2001:db8::1:2817 10.0.1.252:48160 -1 -1 -1 502 - 34 366 "POST https://10.0.2.105:773 HTTP/2.0" "a \\"b\\"" - - arn:aws "Root" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward" "-" "-" "-" "-" "-" "-"',
    'http 2018-07-02T22:23:01.186641Z app/my-lb/50dc 192.0.2.1:1 - -1 -1 -1 400 - 0 0 "- http://my-lb:80- -" "-" - - - "-" "-" "-" - 2018-07-02T22:22:48.364000Z "-" "-" "-" "-" "-" "-" "-"',
    'http 2018-07-02T22:23:01.186641Z app/my-lb',
  ])
  t.same(formats, ['alb'])
  t.equal(origin, Date.UTC(2018, 6, 2, 22, 23, 0) / 1_000)
  t.equal(requests.length, 2)
  t.match(requests[0], /^192\.168\.131\.39 GET \/path\?q=1 curl\/7\.46\.0 15\.64/)
  t.match(requests[1], /^2001:db8::1 POST \/ a \\"b\\" 1186\.64/)
  t.same(bad, { 'not an HTTP request': 1, 'cut off': 1 })
})

t.test('JSON of nginx, Caddy and Traefik', async t => {
  const nginx = await read([
    '{"time_iso8601":"2015-05-17T12:05:03+02:00","remote_addr":"192.0.2.1","request":"GET /a\\u0020 HTTP/1.1","request_method":"GET","request_uri":"/a","http_user_agent":"curl \\"8\\"","request_time":"0.500"}',
    '{"msec":"1431857104.250","remote_addr":"192.0.2.1","request":"GET /b HTTP/1.1","http_user_agent":"","request_time":"0.250"}',
    '{"msec":"1431857105.250","remote_addr":"192.0.2.1","request":"GET /c HTTP/1.1","request_time":"0.250"}',
    '{"msec":"1431857104.250"',
    '{"time":"2015-05-17T12:05:03+02:00","remote_addr":"192.0.2.1"}',
    '[]',
  ])
  t.same(nginx.formats, ['json'])
  t.same(nginx.requests, ['192.0.2.1 GET /a curl "8" -500', '192.0.2.1 GET /b  1000', '192.0.2.1 GET /c  2000'])
  t.same(nginx.bad, { 'not JSON': 2, 'no request': 1 })
  const caddy = await read([
    '{"level":"info","ts":1646861401.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","remote_port":"41342","client_ip":"192.0.2.9","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/x","headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*"]}},"duration":0.25,"status":200}',
    '{"ts":1646861402,"request":{"client_ip":"192.0.2.9","method":"GET","uri":"/y","headers":{}},"duration":1e-3}',
  ])
  t.same(caddy.requests, ['192.0.2.9 GET /x curl/7.82.0 250', '192.0.2.9 GET /y  999'])
  const old = await read([
    '{"ts":1646861402,"request":{"remote_addr":"192.0.2.9:4444","method":"GET","uri":"/z"},"duration":0.001}',
  ])
  t.match(old.requests, [/^192\.0\.2\.9(?::4444)? GET \/z /], 'before 2.5')
  const traefik = await read([
    '{"ClientAddr":"192.0.2.3:5123","ClientHost":"192.0.2.3","Duration":2000000000,"RequestMethod":"PUT","RequestPath":"/t","RequestHost":"a.example","StartUTC":"2022-01-01T00:00:01.125Z","time":"2022-01-01T00:00:03Z","request_User-Agent":"Go-http-client/2.0"}',
  ])
  t.same(traefik.requests, ['192.0.2.3 PUT /t Go-http-client/2.0 125'], 'its time is that of the beginning')
  const own = await read(['{"when":1431857103123,"who":"192.0.2.1","call":{"verb":"GET","to":"/z"},"took":"5ms"}'], {
    fields: { time: 'when', ip: 'who', method: 'call.verb', path: 'call.to', duration: 'took' },
  })
  t.same(own.requests, ['192.0.2.1 GET /z  118'])
})

t.test('headers in JSON are found under all their names', async t => {
  const line = (more: object) => JSON.stringify({ ts: 1, ip: '192.0.2.1', method: 'GET', path: '/', ...more })
  for (const more of [
    { http_x_api_key: 'k' },
    { 'request_X-Api-Key': 'k' },
    { 'x-api-key': 'k' },
    { headers: { 'X-API-Key': ['k'] } },
    { request: { headers: { 'x-api-key': 'k' } } },
  ]) {
    const parser = new JsonParser({}, [line(more)])
    const text = Buffer.from(line(more))
    parser.parse(text, 0, text.length)
    t.equal(parser.header('x-api-key'), 'k', line(more))
    t.ok(parser.has('x-api-key'))
    t.notOk(parser.has('x-other'))
  }
})

t.test('every form of a time', async t => {
  const second = Date.UTC(2015, 4, 17, 10, 5, 3) / 1_000
  for (const [text, fraction] of [
    ['17/May/2015:10:05:03 +0000', -1],
    ['17/May/2015:12:05:03 +0200', -1],
    ['17/May/2015:04:35:03 -0530', -1],
    ['2015-05-17T10:05:03Z', -1],
    ['2015-05-17 10:05:03,25', 250],
    ['2015-05-17T10:05:03.250+00:00', 250],
    ['1431857103', -1],
    ['1431857103.250', 250],
    ['1431857103250', 250],
    ['1431857103250000', 250],
    ['1431857103250000000', 250],
  ] as const) {
    t.same(readTimestamp(text), { second, fraction }, text)
  }
  for (const text of ['', 'now', '17/Foo/2015:10:05:03 +0000', '2015-05-17', '12'])
    t.equal(readTimestamp(text), undefined)
})

t.test('a format can be given, and an unknown format is reported', async t => {
  const odd = ['no log at all', 'really']
  await t.rejects(
    readAll(bytes(`\n${odd.join('\n')}`)),
    /^standard input is not a log of a known format: none of its first lines fits one; the first is line 2: no log at all; name the format with --format/,
  )
  await t.rejects(
    read(odd, { format: 'combined' }),
    /^standard input cannot be read as combined: 2 of 2 lines \(100 %\) are bad; the first is line 1, no time: no log at all; name/,
  )
  const empty = await readAll(bytes('\n\n'))
  t.same([empty.reading.requests, empty.reading.errors], [0, []])
})

t.test('a log of JSON whose client has an unknown name asks for the name', async t => {
  const line = '{"time":1770112800000,"req":{"method":"GET","url":"/","remoteAddress":"192.0.2.1"}}'
  await t.rejects(read([line]), { message: /, no address: .*; name the field with --field ip=NAME, name the format/ })
  const fields = { ip: 'req.remoteAddress', method: 'req.method', path: 'req.url' }
  t.match((await read([line], { fields })).requests, [/^192\.0\.2\.1 GET \//])
})

t.test('R2: prefixes of syslog and of containers are removed', async t => {
  const line = '192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl/8"'
  const json =
    '{"msec":"1431857103.250","remote_addr":"192.0.2.7","request":"GET /a HTTP/1.1","http_user_agent":"curl/8"}'
  for (const prefix of [
    'Feb  3 10:00:00 host nginx: ',
    'Feb 13 10:00:00 web-1.example.com nginx[1234]: ',
    'Feb 3 10:00:00 2001:db8::1 nginx[1234]: ',
    'Feb  3 10:00:00 nginx: ',
    'Feb  3 2026 10:00:00.123456 host nginx/access: ',
    'Feb 03 10:00:00.123456 host nginx[12]: ',
    'Tue 2026-02-03 10:00:00 UTC host nginx[12]: ',
    'web_nginx.1.x7k2v9q0a1b2c3d4e5f6g7h8i@node-1    | ',
    'Tue 2026-02-03 10:00:00.123456 +03 host nginx.service[12]: ',
    '1770112800.123456 host nginx[12]: ',
    '[1234567.890123] host nginx[12]: ',
    '[    4.890123] host nginx[12]: ',
    '<190>Feb  3 10:00:00 host nginx: ',
    '2026-02-03T10:00:00.123456+01:00 host nginx: ',
    '2026-02-03T10:00:00Z host nginx[1]: ',
    '2026-02-03T10:00:00+0100 host nginx[1]:  ',
    '<190>2026-02-03T10:00:00.123Z host httpd: ',
    '<190>1 2026-02-03T10:00:00.123Z host nginx 12 access - ',
    '<190>1 2026-02-03T10:00:00.123+01:00 - nginx - - [a@1 b="c \\"] d"][e@1] \ufeff',
    '1 2026-02-03T10:00:00Z host nginx 12 - - ',
    ...['nginx-1  | ', 'web_1    | ', 'a | ', '2026-02-03T10:00:00.123456789+00:00 stdout F '],
    ...['2026-02-03T10:00:00.123Z stderr F ', '2026-02-03T10:00:00.123456789Z ', '[pod/web-0/nginx] '],
    ...['nginx-1  | 2026-02-03T10:00:00.123456789Z ', '2026-02-03T10:00:00Z stdout F Feb  3 10:00:00 host nginx: '],
  ]) {
    const { formats, requests, bad } = await read([`${prefix}${line}`, line, `${prefix}${line}`])
    t.same(formats, ['combined'], prefix)
    t.same(requests, Array(3).fill('192.0.2.7 GET /a curl/8 0'), prefix)
    t.same(bad, {}, prefix)
    t.same((await read([`${prefix}${json}`])).requests, ['192.0.2.7 GET /a curl/8 250'], prefix)
  }
})

t.test('a text that is no address is no client', async t => {
  const line = (client: string) => `${client} - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "-"`
  for (const client of [
    ...['192.0.2.1', '2001:db8::7', '::ffff:192.0.2.1', 'fe80::1%eth0', '[2001:db8::7]:443', '192.0.2.1:8080'],
    ...['localhost', 'host.example.com', 'ip-10-0-0-1.ec2.internal', '10-0-0-1', 'my_host', '192.0.2.xxx', '192.0.2.*'],
    ...['unix:', 'Feb', '4.3.2.1.in-addr.arpa'],
  ]) {
    const { requests, bad } = await read([line(client)])
    t.same(bad, {}, client)
    t.match(requests[0], `${client} GET /`)
  }
  t.match((await read([line('192.0.2.1, 198.51.100.2')])).requests[0], /^192\.0\.2\.1 GET/, 'X-Forwarded-For')
  const odd = {
    'unknown prefix': [
      'Feb  3 10:00:00 192.0.2.1',
      'Feb  3 10:00:00 host 192.0.2.1',
      '2026-02-03T10:00:00Z host 192.0.2.1',
      '2026-02-03T10:00:00.123Z stdout 192.0.2.1',
      '2026-02-03 10:00:00 host nginx: 192.0.2.1',
      '<190>what is this',
      '1770112800.123',
      'Tue 2026-02-03 10:00:00 UTC host',
      '[   12.345678] host',
    ],
    'no address': [
      ...['10:00:00', 'www.example.com:443', 'www.example.com -', '1770112800', '2026/02/03', '[1]', 'a:b'],
      ...['10:00:00 192.0.2.1', '1770112800 192.0.2.1', '2026/02/03 192.0.2.1', '- -'],
    ],
  }
  for (const [reason, clients] of Object.entries(odd)) {
    for (const client of clients) {
      const { requests, bad } = await read([line('192.0.2.1'), line(client)])
      t.same(bad, { [reason]: 1 }, client)
      t.equal(requests.length, 1, client)
    }
  }
  await t.rejects(
    readAll(bytes(odd['unknown prefix'].map(client => `${line(client)}\n`).join(''))),
    /is not a log of a known format: .* line 1: Feb {2}3 .*; .* remove what stands before each request/,
  )
})

t.test("shaper's own log", async t => {
  const time = Date.UTC(2026, 1, 3, 10) + 500
  const record = (more: object) => JSON.stringify({ level: 30, time, ...more })
  const request = { route: 'api', outcome: 'forwarded', status: 200, method: 'GET', path: '/a', key: '0123456789ab' }
  const { formats, requests, bad, origin } = await read([
    record({ msg: 'listening' }),
    record({ ...request, waitMs: 100.5, upstreamMs: 50, msg: 'request' }),
    record({ ...request, outcome: 'rejected', status: 429, waitMs: 0, msg: 'request' }),
    record({ ...request, outcome: 'refused', status: 400, waitMs: 0, msg: 'request' }),
    record({ ...request, key: undefined, waitMs: 0, msg: 'request' }),
    'not of this log',
  ])
  t.same(formats, ['shaper'])
  t.same(bad, { 'not JSON': 1 })
  t.equal(origin, Math.floor(time / 1_000))
  t.same(requests, ['0123456789ab GET /a  349.5', '0123456789ab GET /a  500'])
})
