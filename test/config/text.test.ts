import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { readJson } from '../../src/config/read/json.js'
import { warnings } from '../../src/config/warnings/index.js'
import { often, runs } from '../runs.js'
import { faults, least, parse } from './sample.js'

/** Undefined for a text that is not JSON. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

t.test('a text that is not JSON is one problem with its place', async t => {
  const table: [text: string, message: string][] = [
    ['', 'line 1, column 1: expected a value, but the text ends'],
    ['{\n  "a": 1\n  "b": 2\n}', 'line 3, column 3: expected "," or "}", found a string'],
    ['{ "a": 1,, }', 'line 1, column 10: expected a key in double quotes, found ","'],
    ['{ , }', 'line 1, column 3: expected a value, found ","'],
    ['[1,, ]', 'line 1, column 4: expected a value, found ","'],
    ['{ // x\n  /* y', 'line 2, column 3: this comment does not end; add "*/"'],
    ['{ # x\n}', 'line 1, column 3: "#" does not belong here'],
    ['{\r\n\t"a": 1.}', 'line 2, column 7: this number lacks digits'],
    ['{ "a": { "b": 1 ', 'line 1, column 17: expected "}", but the text ends'],
    ["{ 'a': 1 }", 'line 1, column 3: strings take double quotes'],
    ['{ a: 1 }', 'line 1, column 3: a word without quotes does not belong here; keys and texts take double quotes'],
    ['{ "a" 1 }', 'line 1, column 7: expected ":", found a number'],
    ['{ "a": nul }', 'line 1, column 8: a word without quotes does not belong here; keys and texts take double quotes'],
    ['{ "a": "x\ny" }', 'line 1, column 8: this string does not end on its line, or has a bad escape'],
    ['{ "a": [1 }', 'line 1, column 11: expected "," or "]", found "}"'],
    ['{} {}', 'line 1, column 4: expected the end of the text, found "{"'],
    ['{ "a": 01 }', 'line 1, column 9: expected "," or "}", found a number'],
    ['{ "a" = 1 }', 'line 1, column 7: "=" does not belong here'],
    [
      '{ "a": pässword }',
      'line 1, column 8: a word without quotes does not belong here; keys and texts take double quotes',
    ],
  ]
  for (const [text, message] of table) {
    t.same(faults(text, { file: 'a.json' }), [`a.json is not JSON: ${message}`], message)
  }
})

t.test('comments, and a comma after the last one', async t => {
  const { buckets, routes } = parse(`// at the top
  {
    "upstream": "echo:", // after a value; "quotes", too
    /* over
       lines */
    "buckets": { "a": { "rate": /* within */ "5/s", }, },
    "routes": [{ "match": { "path": "/x//y" } }, { "buckets": ["a",], },],
  } // at the end`)
  t.match(buckets, [{ name: 'a', rate: 0.005 }])
  t.match(routes, [{ match: { path: '/x//y' } }, {}], 'what looks like a comment in a text is text')
  t.same(
    faults('{\n  // a comment\n  "upstream": "echo:",\n  "buckets": { "a": { "rat": 1 } },\n}').map(
      line => line.split(';')[0],
    ),
    ['buckets.a.rat: unknown key', 'buckets.a.rate: missing'],
  )
})

t.test('property: any JSON is read as JSON.parse reads it', async () => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.constantFrom(undefined, 2, '\t', ' \r\n'), (value, space) => {
      const text = JSON.stringify(value, null, space)
      const read = readJson(text, 'a.json')
      assert.deepEqual(read.findings, [])
      assert.equal(JSON.stringify(read.value), JSON.stringify(JSON.parse(text)))
    }),
    { numRuns: runs(300) },
  )
})

t.test('property: a text with a character missing is JSON where JSON.parse says so', async t => {
  let refused = 0
  const shorter = fc
    .tuple(fc.jsonValue(), fc.nat())
    .map(([value, at]) => ({ text: JSON.stringify(value), at }))
    .map(({ text, at }) => text.slice(0, at % text.length) + text.slice((at % text.length) + 1))
    // Comments and commas at an end are read, and JSON.parse refuses them.
    .filter(text => !/\/|,[\]}]/.test(text))
  fc.assert(
    fc.property(shorter, text => {
      const { value } = readJson(text, '')
      if (value === undefined) refused += 1
      assert.equal(JSON.stringify(value), JSON.stringify(parsed(text)), text)
    }),
    { numRuns: runs(1000) },
  )
  t.ok(refused > often(300), `${refused} refused`)
})

t.test('a long log is known not to be JSON from its first line', async t => {
  const line = '[Wed Nov 25 10:00:00 2026] [core:error] [pid 1] no JSON\n'
  t.match(readJson(line.repeat(200_000), 'error.log').findings, [{ message: /line 1, column 2/ }])
})

t.test('JSON is read as JSON.parse reads it', async t => {
  const odd =
    '\uFEFF \t\r\n{ "upstream": "ec\\u0068o:", "buckets": { "a\\u002d1": { "rate": 5e0, "capacity": 1.5E+1 } }, "dryRun": true }\n'
  const { routes, buckets, dryRun } = parse(odd)
  t.equal(routes[0]?.upstream.url, 'echo:')
  t.match(buckets, [{ name: 'a-1', rate: 0.005, capacity: 15 }])
  t.equal(dryRun, true)
})

t.test('keys given twice', async t => {
  t.same(
    faults(
      '{"upstream":"echo:","upstream":"echo:","buckets":{"a":{"rate":1,"rate":2}},"routes":[{},{"name":"x","name":"y"}]}',
    ),
    [
      'upstream: given twice; remove one',
      'buckets.a.rate: given twice; remove one',
      'routes[1].name: given twice; remove one',
    ],
  )
  t.same(faults('{"upstream":"echo:","buckets":{"__proto__":{"rate":1},"a":{"rate":1}}}'), [
    'buckets.__proto__: this word cannot be a key; use another',
  ])
})

t.test('environment variables', async t => {
  const file = { ...least(), listen: `\${HOST}:\${PORT}`, buckets: { client: { rate: `\${RATE}` } } }
  const { listen, buckets } = parse(file, { env: { HOST: '0.0.0.0', PORT: '81', RATE: '7/s' } })
  t.same(listen, [{ host: '0.0.0.0', port: 81 }])
  t.equal(buckets[0]?.rate, 0.007)
  t.same(faults(file, { env: { PORT: '81' } }), [
    'buckets.client.rate: environment variable "RATE" is not set; set it or write the value here',
    'listen: environment variable "HOST" is not set; set it or write the value here',
  ])
  t.same(faults(file, { env: { HOST: '0.0.0.0', PORT: 'x', RATE: '' } }), [
    'listen: "0.0.0.0:x" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080" or "unix:/run/shaper.sock"',
    'buckets.client.rate: "" is not a rate; use e.g. "5/s", "6/30s"',
  ])
  t.same(faults({ ...least(), routes: [{ buckets: [`\${toString}`] }] }), [
    'routes[0].buckets[0]: environment variable "toString" is not set; set it or write the value here',
  ])
  t.match(parse({ ...least(), listen: `:\${P}` }, { env: { P: '5' }, flags: { listen: ':6' } }).listen, [{ port: 6 }])
  t.same(
    faults({ ...least(), listen: `:\${P}` }, { flags: { listen: ':6' } }),
    [],
    'a flag overrides an unset variable',
  )
})

t.test('by default variables come from the environment of the process', async t => {
  process.env.SHAPER_TEST_RATE = '9/s'
  t.teardown(() => delete process.env.SHAPER_TEST_RATE)
  const file = { upstream: 'echo:', buckets: { a: { rate: `\${SHAPER_TEST_RATE}` } } }
  const { parseConfig } = await import('../../src/config/load.js')
  t.equal(parseConfig(JSON.stringify(file)).buckets[0]?.rate, 0.009)
})

t.test('secrets stay out of messages', async t => {
  const env = { PW: 's3cr@t', TOKEN: 's3cr@t' }
  const file = {
    upstream: `http://me:\${PW}@h`,
    store: { type: 'redis', url: `http://me:\${PW}@h`, cluster: [`me:\${PW}@h`] },
    buckets: { a: { rate: `http://me:\${PW}@h` } },
    routes: [{ upstream: { url: `me:\${PW}@h/x` } }, { upstream: [`me:\${PW}@h`] }],
    admin: { listen: 'x', token: [`\${TOKEN}`] },
  }
  const lines = faults(file, { env })
  t.equal(lines.length, 8)
  t.notMatch(lines.join('\n'), /s3cr|@t/)
})

t.test('a fault in JSON quotes nothing of its line, so no key and no token', async t => {
  for (const text of [
    `{ "admin": { "token": 's3cret' } }`,
    '{ "admin": { "token": s3cret } }',
    '{ "admin": { "token": "s3cret } }',
    '{ "token": "s3cret" s3cret',
    '{ "keys": ["s3cret" "s3cret"] }',
    '{ "keys": [s3cret] }',
    '{ "keys": [98s3cret] }',
    '{ "header": { "x-api-key": "s3cret",, } }',
  ]) {
    const [message, ...others] = faults(text, { file: 'a.json' })
    t.same(others, [])
    t.match(message, /^a\.json is not JSON: line 1, column \d+: /, text)
    t.notMatch(message, /s3cret|98/, text)
  }
})

t.test('keys of tiers and values of headers stay out of messages', async t => {
  const at = (tiers: unknown, routes?: object[]) =>
    faults({ upstream: 'echo:', buckets: { a: { rate: 1, tiers } }, ...(routes && { routes }) })
  const path = 'buckets.a.tiers[0]'
  const key = 'use e.g. "customer-1"'
  t.same(at([{ name: 'x', weight: 2, keys: ['s3cret', 's3cret', 8675309001, true, ''] }]), [
    `${path}.keys[2]: a number is not a key; ${key}`,
    `${path}.keys[3]: true is not a key; ${key}`,
    `${path}.keys[4]: "" is not a key; ${key}`,
    `${path}.keys[1]: the same key as tiers[0].keys[0]; remove one`,
  ])
  t.same(at([{ name: 'x', weight: 2, keys: 's3cret' }]), [
    `${path}.keys: this text is not a list of keys; use e.g. ["customer-1"]`,
  ])
  t.same(at([{ name: 'x', weight: 2, header: 's3cret' }]), [
    `${path}.header: this text is not a header to look for; use e.g. { "x-plan": "gold" }`,
  ])
  t.match(at(['s3cret']), [/^buckets\.a\.tiers\[0\]: this text is not a tier; use e\.g\. /])
  t.match(at('s3cret'), [/^buckets\.a\.tiers: this text is not a list of tiers; use e\.g\. /])
  t.same(at([], [{ match: { header: { 'x-key': 8675309001 } } }]), [
    'routes[0].match.header.x-key: a number is not a header value; use a string, e.g. "gold"',
  ])
  t.same(at([], [{ match: { header: 's3cret' } }]), [
    'routes[0].match.header: this text is not headers to match; use e.g. { "x-plan": "gold" }',
  ])
})

t.test('a variable without braces is an error, and a warning where it may be text', async t => {
  const key = '$SHAPER_TICKET_KEY_OF_PRODUCTION_1'
  const redis = (url: string) => ({ store: { type: 'redis', url } })
  const postgres = (url: string) => ({ store: { type: 'postgres', url } })
  const bucket = (key: unknown) => ({ buckets: { client: { rate: '5/s', key } } })
  const wrong: [file: object, path: string, name: string][] = [
    [{ upstream: { url: 'https://a', tls: { servername: '$NAME' } } }, 'upstream.tls.servername', 'NAME'],
    [{ upstream: { url: 'https://a', tls: { ca: '/etc/$Dir/ca.pem' } } }, 'upstream.tls.ca', 'Dir'],
    [redis('redis://:$REDIS_PASSWORD@127.0.0.1:6379'), 'store.url', 'REDIS_PASSWORD'],
    [postgres('postgres://$PGUSER:x@a/b'), 'store.url', 'PGUSER'],
    [postgres('postgres://u:x@a/$DB'), 'store.url', 'DB'],
    [{ ticketKeys: [key] }, 'ticketKeys[0]', key.slice(1)],
    [{ admin: { listen: ':9090', token: '$SHAPER_TOKEN' } }, 'admin.token', 'SHAPER_TOKEN'],
    [bucket('header:$H'), 'buckets.client.key', 'H'],
    [bucket(['ip', 'header:$H']), 'buckets.client.key[1]', 'H'],
    [{ routes: [{ match: { host: '$HOST' } }] }, 'routes[0].match.host', 'HOST'],
  ]
  for (const [file, path, name] of wrong) {
    const line = `${path}: "$${name}" is not replaced; write "\${${name}}" for a variable`
    t.same(faults({ ...least(), ...file }), [line], line)
  }
  const unsure: [file: object, path: string][] = [
    [redis('redis://:a$Bc@127.0.0.1:6379'), 'store.url'],
    [{ ticketKeys: [`a${key}`] }, 'ticketKeys[0]'],
    [{ routes: [{ match: { header: { 'x-plan': '$PLAN' } } }] }, 'routes[0].match.header.x-plan'],
    [{ routes: [{ match: { path: '/$Batch' } }] }, 'routes[0].match.path'],
    [bucket('query:$Top'), 'buckets.client.key'],
  ]
  for (const [file, path] of unsure) {
    const line = `"$" and a name are taken as text here; for a variable write "\${NAME}"`
    const told = warnings(parse({ ...least(), ...file })).filter(({ message }) => message.startsWith('"$"'))
    t.same(told, [{ path, message: line }], path)
  }
  const env = { A: 'redis://:a$Bc@127.0.0.1:6379', B: '$PLAN', C: key }
  const file = {
    ...redis(`\${A}`),
    ticketKeys: [`\${C}`],
    routes: [{ match: { path: '~ ^/a$', header: { a: `\${B}` } } }],
  }
  t.notOk(parse({ ...least(), ...file }, { env }).notReplaced, 'what variables hold is text, as is "$" at the end')
})
