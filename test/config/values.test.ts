import t from 'tap'
import { jsonSchema } from '../../src/config/schema/schema.js'
import { faults, least } from './sample.js'

const PATHS = 'use e.g. "/login", "/api/*" or "~ ^/v[0-9]+/"'
const RANGES = 'use e.g. "192.0.2.1", "10.0.0.0/8" or "2001:db8::/32"'
const KEYS =
  '"ip", "all", "route", "method", "host", "cert", "header:NAME", "cookie:NAME", "query:NAME", "path:N", the N-th segment, "jwt:CLAIM" or "body:JSON.PATH"'
const bucket = (values: object) => ({ upstream: 'echo:', buckets: { a: { rate: '5/s', ...values } } })
const route = (values: object) => ({ ...least(), routes: [values] })
const top = (values: object) => ({ ...least(), ...values })

const ESTIMATES = 'use e.g. "body/4" (bytes of the body for each unit), "n" (a number in the JSON body) or 10'
const JSON_PATHS = 'use names and places, e.g. "usage.total_tokens" or "choices[0].index"; there are no expressions'

t.test('every invalid value has its own message', async t => {
  const table: [file: object, line: string][] = [
    [bucket({ rate: '5/w' }), 'buckets.a.rate: "5/w" is not a rate; use e.g. "5/s", "6/30s"'],
    [bucket({ rate: '5/SEC' }), 'buckets.a.rate: "5/SEC" is not a rate; did you mean "5/s"?'],
    [bucket({ rate: '5r/s' }), 'buckets.a.rate: "5r/s" is not a rate; did you mean "5/s"?'],
    [
      bucket({ rate: '90 requests per minute' }),
      'buckets.a.rate: "90 requests per minute" is not a rate; did you mean "90/m"?',
    ],
    [bucket({ rate: '5 per minute' }), 'buckets.a.rate: "5 per minute" is not a rate; did you mean "5/m"?'],
    [bucket({ rate: '6 / 30 Seconds' }), 'buckets.a.rate: "6 / 30 Seconds" is not a rate; did you mean "6/30s"?'],
    [bucket({ rate: '0/sec' }), 'buckets.a.rate: "0/sec" is not a rate; use e.g. "5/s", "6/30s"'],
    [bucket({ rate: 0 }), 'buckets.a.rate: 0 is not a rate; use e.g. "5/s", "6/30s"'],
    [bucket({ rate: '1/9999d' }), 'buckets.a.rate: "1/9999d" is less than one in ten years; use e.g. "5/s", "1/30d"'],
    [bucket({ rate: 1e-12 }), 'buckets.a.rate: 1e-12 is less than one in ten years; use e.g. "5/s", "1/30d"'],
    [bucket({ rate: null }), 'buckets.a.rate: null is not a rate; use e.g. "5/s", "6/30s"'],
    [bucket({ rate: {} }), 'buckets.a.rate: an object is not a rate; use e.g. "5/s", "6/30s"'],
    [
      { upstream: 'echo:', buckets: { a: { maxInFlight: 2, capacity: 5 } } },
      'buckets.a.capacity: has no effect without a rate; add e.g. "rate": "5/s", or remove it',
    ],
    [
      { upstream: 'echo:', buckets: { a: { maxInFlight: 2, tiers: [{ name: 'x', keys: ['k'], burst: 5 }] } } },
      'buckets.a.tiers[0].burst: has no effect without a rate; add e.g. "rate": "5/s", or remove it',
    ],
    [
      { upstream: 'echo:', buckets: { a: {} } },
      'buckets.a.rate: missing; use e.g. "5/s", "6/30s", a "quota", or a maxInFlight alone',
    ],
    [bucket({ capacity: 0 }), 'buckets.a.capacity: 0 is not a capacity; use a number above 0, e.g. 10'],
    [bucket({ capacity: '10' }), 'buckets.a.capacity: "10" is not a capacity; use a number above 0, e.g. 10'],
    [bucket({ maxDelay: 10 }), 'buckets.a.maxDelay: 10 has no unit; write e.g. "10s" or "10ms"'],
    [bucket({ maxDelay: '10' }), 'buckets.a.maxDelay: "10" is not a duration; use e.g. "250ms", "10s", "1m"'],
    [bucket({ maxDelay: true }), 'buckets.a.maxDelay: true is not a duration; use e.g. "250ms", "10s", "1m"'],
    [
      bucket({ status: 200 }),
      'buckets.a.status: 200 is not a status for rejections; use a status from 400 to 599, e.g. 429',
    ],
    [
      bucket({ status: 600 }),
      'buckets.a.status: 600 is not a status for rejections; use a status from 400 to 599, e.g. 429',
    ],
    [
      bucket({ status: 429.5 }),
      'buckets.a.status: 429.5 is not a status for rejections; use a status from 400 to 599, e.g. 429',
    ],
    [
      bucket({ overflow: 'drop' }),
      'buckets.a.overflow: "drop" is not a choice for overflow; use "reject", "fill" or "fair"',
    ],
    [bucket({ blockFor: 30 }), 'buckets.a.blockFor: 30 is not a time to block for; use e.g. "30s" or "drain"'],
    [
      top({ upstream: { url: 'echo:', keepAlive: true } }),
      'upstream.keepAlive: true is not a time to keep idle connections for; use e.g. "4s" or false',
    ],
    [top({ upstream: { url: 'echo:', keepAlive: '0s' } }), 'upstream.keepAlive: "0s" is not above 0; use e.g. "10s"'],
    [bucket({ blockFor: 'off' }), 'buckets.a.blockFor: "off" is not a time to block for; use e.g. "30s" or "drain"'],
    [route({ patience: 'off' }), 'routes[0].patience: "off" is not a patience; use e.g. "2s", "auto" or "none"'],
    [route({ patience: '0s' }), 'routes[0].patience: "0s" is not above 0; use e.g. "10s"'],
    [route({ patience: 2 }), 'routes[0].patience: 2 is not a patience; use e.g. "2s", "auto" or "none"'],
    [route({ patience: '2 sek' }), 'routes[0].patience: "2 sek" is not a duration; use e.g. "250ms", "10s", "1m"'],
    [bucket({ blockFor: '0s' }), 'buckets.a.blockFor: "0s" is not above 0; use e.g. "10s"'],
    [
      bucket({ maxInFlight: 1.5 }),
      'buckets.a.maxInFlight: 1.5 is not a number of requests; use a whole number above 0, e.g. 4',
    ],
    [
      bucket({ maxInFlight: 0 }),
      'buckets.a.maxInFlight: 0 is not a number of requests; use a whole number above 0, e.g. 4',
    ],
    ...[8, -1].map((priority): [object, string] => [
      route({ priority }),
      `routes[0].priority: ${priority} is not a priority; use a whole number from 0 (first) to 7 (last)`,
    ]),
    [
      route({ priority: 'high' }),
      'routes[0].priority: "high" is not a priority; use a whole number from 0 (first) to 7 (last), or { "header": true }',
    ],
    ...[-0.1, 1, 'half'].map((minShare): [object, string] => [
      bucket({ minShare }),
      `buckets.a.minShare: ${JSON.stringify(minShare)} is not a share of the rate; use a number from 0 to less than 1, e.g. 0.05`,
    ]),
    [bucket({ burst: 0 }), 'buckets.a.burst: 0 is not a burst; use a number of cost units above 0, e.g. 10'],
    [bucket({ burst: '9' }), 'buckets.a.burst: "9" is not a burst; use a number of cost units above 0, e.g. 10'],
    [bucket({ weight: -1 }), 'buckets.a.weight: -1 is not a weight; use a number above 0, e.g. 2'],
    [
      bucket({ tiers: {} }),
      'buckets.a.tiers: an object is not a list of tiers; use e.g. [{ "name": "gold", "keys": ["a"], "rate": "50/s" }]',
    ],
    [
      bucket({ tiers: [{ name: 'g', keys: ['a'], rate: 'x' }] }),
      'buckets.a.tiers[0].rate: "x" is not a rate; use e.g. "5/s", "6/30s"',
    ],
    [bucket({ key: 'ipp' }), 'buckets.a.key: "ipp" is not a key; did you mean "ip"?'],
    [bucket({ key: 'header' }), 'buckets.a.key: "header" is not a key; did you mean "header:NAME"?'],
    [bucket({ key: 'headr:x-a' }), 'buckets.a.key: "headr:x-a" is not a key; did you mean "header:x-a"?'],
    [bucket({ key: 'user' }), `buckets.a.key: "user" is not a key; use ${KEYS}`],
    [bucket({ key: 5 }), `buckets.a.key: 5 is not a key; use ${KEYS}, or a list of these`],
    [bucket({ key: 'header:' }), 'buckets.a.key: "header:" names no header; write e.g. "header:NAME"'],
    [bucket({ key: 'header:a b' }), 'buckets.a.key: "a b" is not a header name; use e.g. "x-api-key"'],
    [bucket({ key: 'cookie:a;b' }), 'buckets.a.key: "a;b" is not a cookie name; use e.g. "session"'],
    [bucket({ key: [] }), `buckets.a.key: the list is empty; use ${KEYS}`],
    [bucket({ key: ['ip', 'hots'] }), 'buckets.a.key[1]: "hots" is not a key; did you mean "host"?'],
    [bucket({ key: ['ip', 'ip'] }), 'buckets.a.key: "ip" is listed twice; remove one'],
    [
      bucket({ key: { from: 'ip', missing: 'drop' } }),
      'buckets.a.key.missing: "drop" is not a choice for a missing key; use "ip", "reject", "all" or "skip"',
    ],
    [
      bucket({ key: { from: 'header:a', duplicates: 'last' } }),
      'buckets.a.key.duplicates: "last" is not a choice for a header with several lines; use "first" or "reject"',
    ],
    [
      bucket({ key: { from: ['ip', 'cookie:a'], duplicates: 'reject' } }),
      'buckets.a.key.duplicates: the key has no header, so "reject" has no effect; remove it, or use a key such as "header:NAME"',
    ],
    ...[0, 129, 56.5, '56', null].map((ipv6): [file: object, line: string] => [
      bucket({ key: { from: 'ip', ipv6 } }),
      `buckets.a.key.ipv6: ${JSON.stringify(ipv6)} is not a prefix length of IPv6; use 1 to 128, e.g. 56`,
    ]),
    ...[
      { from: 'all', ipv6: 56 },
      { from: 'header:a', missing: 'reject', ipv6: 56 },
      { from: ['method', 'route'], ipv6: 128 },
    ].map((key): [file: object, line: string] => [
      bucket({ key }),
      'buckets.a.key.ipv6: the key has no address, so this has no effect; remove it, or use a key such as "ip"',
    ]),
    [bucket({ key: { missing: 'ip' } }), `buckets.a.key.from: missing; use ${KEYS}, or a list of these`],
    [route({ mode: 'on' }), 'routes[0].mode: "on" is not a mode; use "shape", "meter" or "off"'],
    [route({ name: 'a b' }), 'routes[0].name: "a b" is not a name; use 1 to 64 letters, digits, "_", "." or "-"'],
    [
      route({ name: 'a'.repeat(65) }),
      `routes[0].name: "${'a'.repeat(65)}" is not a name; use 1 to 64 letters, digits, "_", "." or "-"`,
    ],
    [route({ match: { path: 'x' } }), `routes[0].match.path: "x" does not start with "/"; ${PATHS}`],
    [
      route({ match: { path: '/x?y' } }),
      `routes[0].match.path: "/x?y" has a query, a fragment or a space, which no path has; ${PATHS}`,
    ],
    [
      route({ match: { path: '/ü' } }),
      'routes[0].match.path: "/ü" has "ü", and the characters of a path are visible ASCII; write "%C3%BC"',
    ],
    [
      route({ match: { path: '/*/../x' } }),
      'routes[0].match.path: "/*/../x" has a "." or ".." after a "*", and no path has one when it is compared; write the path without it',
    ],
    [route({ match: { path: '~^/x' } }), 'routes[0].match.path: "~^/x" has no space after "~"; write "~ ^/x"'],
    [route({ match: { path: '~ ' } }), `routes[0].match.path: "~ " has no expression after "~"; ${PATHS}`],
    [
      route({ match: { path: '~ (a' } }),
      'routes[0].match.path: "~ (a" is not a regular expression: missing closing ): `(a`; write a regular expression of RE2, e.g. "~ ^/v[0-9]+/"',
    ],
    [
      route({ match: { path: '~ ^/(?!a)' } }),
      'routes[0].match.path: "~ ^/(?!a)" is not a regular expression: invalid or unsupported Perl syntax: `(?!`; there is no lookaround and no backreference, as these take more than linear time; write it without them',
    ],
    [
      route({ match: { normalise: ['case'] } }),
      'routes[0].match.normalise: there is no path to compare; add e.g. "path": "/api/*", or remove it',
    ],
    [
      route({ match: { path: '/a', normalise: ['slash', 'slash'] } }),
      'routes[0].match.normalise: "slash" is listed twice; remove one',
    ],
    [
      route({ match: { path: '/a', normalise: ['slashes'] } }),
      'routes[0].match.normalise[0]: "slashes" is not what to ignore in a path; use "case", "slash" or "params"',
    ],
    [
      route({ match: { path: '/a;b', normalise: ['params'] } }),
      'routes[0].match.path: "/a;b" has a ";", and "params" leaves out all of them; write the path without ";..."',
    ],
    [route({ match: { ip: '10.0.0' } }), `routes[0].match.ip: "10.0.0" is not an address or CIDR; ${RANGES}`],
    [
      route({ match: { ip: ['10.0.0.0/8', '10.0.0.0/40'] } }),
      `routes[0].match.ip[1]: "10.0.0.0/40" is not an address or CIDR; ${RANGES}`,
    ],
    [
      route({ match: { ip: '10.1.2.3/8' } }),
      'routes[0].match.ip: "10.1.2.3/8" has bits set after its prefix; write "10.0.0.0/8", or the address alone',
    ],
    [route({ match: { ip: [] } }), 'routes[0].match.ip: the list is empty; use e.g. ["10.0.0.0/8"]'],
    [
      route({ match: { method: 'PSOT' } }),
      'routes[0].match.method: "PSOT" is not an HTTP method; did you mean "POST"?',
    ],
    [route({ match: { method: ['GET', 5] } }), 'routes[0].match.method[1]: 5 is not an HTTP method; use e.g. "POST"'],
    [route({ match: { method: [] } }), 'routes[0].match.method: the list is empty; use e.g. ["GET", "HEAD"]'],
    [
      route({ match: { host: 'http://a' } }),
      'routes[0].match.host: "http://a" is not a host; use e.g. "api.example.com" or "*.example.com"',
    ],
    [
      route({ match: { header: { 'a b': 'x' } } }),
      'routes[0].match.header["a b"]: "a b" is not a header name; use e.g. "x-api-key"',
    ],
    [
      route({ match: { header: { 'X-A': '1', 'x-a': '2' } } }),
      'routes[0].match.header.x-a: given twice in different cases; remove one',
    ],
    [
      route({ match: { header: { 'x-a': 1 } } }),
      'routes[0].match.header.x-a: a number is not a header value; use a string, e.g. "gold"',
    ],
    [
      route({ cost: 0 }),
      'routes[0].cost: 0 is not a cost; costs are above 0 (to forward untouched, use "mode": "off")',
    ],
    [route({ cost: -1 }), 'routes[0].cost: -1 is not a cost; use a number above 0, e.g. 5'],
    [
      route({ cost: '5' }),
      'routes[0].cost: "5" is not a cost; use e.g. 5, { "POST": 5, "default": 1 }, { "header": "x-cost", "max": 100 } or { "buckets": { "tokens": { "estimate": "body/4" } } }',
    ],
    [route({ cost: { heder: 'x-cost' } }), 'routes[0].cost.heder: unknown key; did you mean "header"?'],
    [route({ cost: { Defaults: 1 } }), 'routes[0].cost.Defaults: unknown key; did you mean "default"?'],
    [route({ cost: { buckts: { a: 1 } } }), 'routes[0].cost.buckts: unknown key; did you mean "buckets"?'],
    [route({ cost: { POST: '1' } }), 'routes[0].cost.POST: "1" is not a cost; use a number above 0, e.g. 5'],
    [route({ cost: { PSOT: 1 } }), 'routes[0].cost.PSOT: "PSOT" is not an HTTP method; did you mean "POST"?'],
    [
      route({ cost: { POST: 0 } }),
      'routes[0].cost.POST: 0 is not a cost; costs are above 0 (to forward untouched, use "mode": "off")',
    ],
    ...[
      [{ estimate: 'body/0' }, '.estimate: "body/0" does not divide by a number above 0; use e.g. "body/4"'],
      [{ estimate: 'body/' }, '.estimate: "body/" does not divide by a number above 0; use e.g. "body/4"'],
      [{ estimate: 0 }, '.estimate: 0 is not a cost; costs are above 0 (to forward untouched, use "mode": "off")'],
      [{ estimate: 'body * 4' }, `.estimate: "body * 4" is not an estimate; ${ESTIMATES}`],
      [{ estimate: true }, `.estimate: true is not an estimate; ${ESTIMATES}`],
      [{ max: 'a..b' }, `.max: "a..b" is not a path in JSON; ${JSON_PATHS}`],
      [{ max: 5 }, `.max: 5 is not a path in JSON; ${JSON_PATHS}`],
      [{ after: 'usage.in + usage.out' }, `.after: "usage.in + usage.out" is not a path in JSON; ${JSON_PATHS}`],
      [{ after: '$.usage.' }, `.after: "$.usage." is not a path in JSON; ${JSON_PATHS}`],
      [{ after: 5 }, `.after: 5 is not a path in JSON; ${JSON_PATHS}`],
      [{ after: [] }, '.after: the list is empty; use e.g. ["usage.total_tokens"]'],
      [{ after: ['usage.in', 'a..b'] }, `.after[1]: "a..b" is not a path in JSON; ${JSON_PATHS}`],
      [{ afer: 'usage' }, '.afer: unknown key; did you mean "after"?'],
      [-1, ': -1 is not a cost; use a number above 0, e.g. 5'],
      ['body/4', ': "body/4" is not a cost; use e.g. 5 or { "estimate": "body/4", "after": "usage.total_tokens" }'],
    ].map(([cost, message]): [object, string] => [
      route({ cost: { buckets: { a: cost } } }),
      `routes[0].cost.buckets.a${message}`,
    ]),
    [
      route({ cost: { buckets: { a: 1 }, default: 1 } }),
      'routes[0].cost.default: does not go with "buckets", which says the cost in each; remove one',
    ],
    [
      route({ cost: { buckets: { a: 1 }, header: 'x' } }),
      'routes[0].cost.header: does not go with "buckets", which says the cost in each; remove one',
    ],
    [
      route({ cost: { max: 5 } }),
      'routes[0].cost.max: only goes with "header"; add e.g. "header": "x-cost" or remove it',
    ],
    [
      route({ cost: { min: 5 } }),
      'routes[0].cost.min: only goes with "header"; add e.g. "header": "x-cost" or remove it',
    ],
    [
      route({ cost: { header: 'x-cost', max: 2, min: 3 } }),
      'routes[0].cost.min: 3 is above max (2); lower it or raise max',
    ],
    [
      route({ cost: { header: 'x-cost', max: 2, min: 0 } }),
      'routes[0].cost.min: 0 is not a cost; costs are above 0 (to forward untouched, use "mode": "off")',
    ],
    [route({ cost: { header: 'x-cost' } }), 'routes[0].cost.max: missing; say the most a header may cost, e.g. 100'],
    [
      route({ cost: { header: 'x cost', max: 5 } }),
      'routes[0].cost.header: "x cost" is not a header name; use e.g. "x-api-key"',
    ],
    [
      route({ cost: { header: 'x-cost', max: 2, default: 3 } }),
      'routes[0].cost.default: 3 is above max (2); lower it or raise max',
    ],
    [
      route({ cost: { header: 'x-cost', max: 2, defualt: 1 } }),
      'routes[0].cost.defualt: unknown key; did you mean "default"?',
    ],
    [route({ maxWait: 10 }), 'routes[0].maxWait: 10 has no unit; write e.g. "10s" or "10ms"'],
    [route({ buckets: 'client' }), 'routes[0].buckets: "client" is not a list of bucket names; use e.g. ["client"]'],
    [route({ buckets: ['client', 5] }), 'routes[0].buckets[1]: 5 is not the name of a bucket; use e.g. "client"'],
    [
      top({ routes: [5] }),
      'routes[0]: 5 is not a route; use e.g. { "match": { "path": "/api/*" }, "buckets": ["client"] }',
    ],
    [top({ routes: [] }), 'routes: the list is empty; add e.g. { "buckets": ["client"] }, or remove "routes"'],
    [top({ routes: {} }), 'routes: an object is not a list of routes; use e.g. [{ "buckets": ["client"] }]'],
    [top({ limits: { maxKeys: 0 } }), 'limits.maxKeys: 0 is not a count; use a whole number above 0, e.g. 100000'],
    [
      top({ limits: { maxQueued: 1.5 } }),
      'limits.maxQueued: 1.5 is not a count; use a whole number above 0, e.g. 10000',
    ],
    [
      top({ limits: { maxHeaderSize: '16k' } }),
      'limits.maxHeaderSize: "16k" is not a size of headers; use 1 to 1048576 bytes, e.g. 16384',
    ],
    [
      // Above 30 MB a head would be too long for the regular expressions that read it.
      top({ limits: { maxHeaderSize: 30_000_000 } }),
      'limits.maxHeaderSize: 30000000 is not a size of headers; use 1 to 1048576 bytes, e.g. 16384',
    ],
    [top({ limits: { maxHeaders: 0 } }), 'limits.maxHeaders: 0 is not a number of headers; use 1 to 2000, e.g. 100'],
    [
      top({ limits: { maxHeaders: 2_001 } }),
      'limits.maxHeaders: 2001 is not a number of headers; use 1 to 2000, e.g. 100',
    ],
    [top({ limits: { headersTimeout: '0s' } }), 'limits.headersTimeout: "0s" is not above 0; use e.g. "10s"'],
    [
      top({ limits: { keepAliveTimeout: '25d' } }),
      'limits.keepAliveTimeout: "25d" is longer than a timer can run; use at most "24d"',
    ],
    [top({ limits: { shutdownTimeout: 30 } }), 'limits.shutdownTimeout: 30 has no unit; write e.g. "30s" or "30ms"'],
    [top({ dryRun: 'yes' }), 'dryRun: "yes" is not true or false; write true or false, without quotes'],
    [top({ headers: 0 }), 'headers: 0 is not true or false; write true or false, without quotes'],
    [
      top({ waitingPage: 'wait.html' }),
      'waitingPage: "wait.html" is not true, false or an object; use false for none, or e.g. { "template": "wait.html" }',
    ],
    [
      route({ waitingPage: { template: '' } }),
      'routes[0].waitingPage.template: "" is not the path of an HTML file; use e.g. "wait.html"',
    ],
    [
      route({ waitingPage: { template: 'x', html: 'y' } }),
      'routes[0].waitingPage.html: unknown key; known keys: template',
    ],
    [top({ pacing: 'fast' }), 'pacing: "fast" is not a kind of pacing; use "precise" or "timer"'],
    [
      top({ store: 'redis' }),
      'store: "redis" is not a store; use "memory", or an object with "type": "memory", "redis" or "postgres"',
    ],
    [
      top({ store: { type: 'etcd' } }),
      'store.type: "etcd" is not a kind of store; use "memory", "redis" or "postgres"',
    ],
    [
      top({ store: { type: 'memory', file: '' } }),
      'store.file: "" is not a file; use e.g. "/var/lib/shaper/levels.json"',
    ],
    [top({ store: { type: 'memory', url: 'x' } }), 'store.url: unknown key; known keys: type, file'],
    [top({ store: { type: 'redis' } }), 'store.url: missing; give url or cluster'],
    [
      top({ store: { type: 'redis', url: 'http://h' } }),
      'store.url: "http://h" is not the URL of this store; use e.g. "redis://127.0.0.1:6379"',
    ],
    [top({ store: { type: 'postgres' } }), 'store.url: missing; use e.g. "postgres://127.0.0.1/shaper"'],
    [
      top({ store: { type: 'postgres', url: 'postgres://h/d', onOutage: 'x' } }),
      'store.onOutage: "x" is not a choice for an outage; use "local", "closed" or "open"',
    ],
    [top({ admin: { listen: 'x' } }), 'admin.listen: "x" has no port; write "x:9090"'],
    [
      top({ admin: { listen: '0.0.0.0:9090' } }),
      `admin.token: other machines can reach 0.0.0.0:9090, so a token is needed; set "admin": { "listen": "0.0.0.0:9090", "token": "\${SHAPER_TOKEN}" } in the file, or listen on 127.0.0.1`,
    ],
    [
      top({ admin: { listen: '0.0.0.0:9090', token: '' } }),
      `admin.token: not a token; use at least 16 letters, digits and -._~+/ without spaces, e.g. "\${SHAPER_TOKEN}" with the output of: openssl rand -hex 32`,
    ],
  ]
  for (const [file, line] of table) t.same(faults(file), [line], line)
})

t.test('unknown keys', async t => {
  t.same(faults(bucket({ rat: 1, foo: 2 })), [
    'buckets.a.rat: unknown key; did you mean "rate"?',
    'buckets.a.foo: unknown key; known keys: key, rate, quota, timeZone, capacity, maxDelay, burst, grace, maxInFlight, status, overflow, blockFor, tiers, limits, weight, minShare',
  ])
  t.same(faults(top({ upstraem: 'x' })), ['upstraem: unknown key; did you mean "upstream"?'])
  t.same(faults(top({ http: 'node' })), [
    'http: unknown key; known keys: $schema, listen, upstream, trustProxy, store, buckets, routes, limits, admin, ticketKeys, egress, identity, ' +
      'accessLog, dryRun, waitingPage, headers, pacing',
  ])
  t.same(faults(route({ nmae: 'x', match: { pth: '/' } })), [
    'routes[0].match.pth: unknown key; did you mean "path"?',
    'routes[0].nmae: unknown key; did you mean "name"?',
  ])
  t.same(faults(top({ upstream: { url: 'echo:', connectTimout: '1s' } })), [
    'upstream.connectTimout: unknown key; did you mean "connectTimeout"?',
  ])
})

t.test('maxInFlight in the wrong place: the message says where it belongs', async t => {
  const message = 'maxInFlight: unknown key here; it belongs in "upstream" or a bucket'
  t.same(faults(top({ maxInFlight: 4 })), [message])
  t.same(faults(route({ maxInFlight: 4 })), [`routes[0].${message}`])
  t.same(faults(top({ limits: { maxInFlight: 4 } })), [`limits.${message}`])
  t.same(faults(top({ upstream: { url: 'echo:', maxInFlight: 4 } })), [])
  t.same(faults(bucket({ maxInFlight: 4 })), [])
})

t.test('the file must be an object', async t => {
  const remedy = 'the file holds one object, e.g. { "upstream": "http://127.0.0.1:9000" }'
  t.same(faults('[]'), [`a list is not an object; ${remedy}`])
  t.same(faults('null'), [`null is not an object; ${remedy}`])
})

interface Schema {
  readonly properties?: Readonly<Record<string, Schema>>
  readonly anyOf?: readonly Schema[]
  readonly oneOf?: readonly Schema[]
  readonly items?: Schema
  readonly additionalProperties?: Schema
}

/** The keys at a place of the file. `*` stands for the names in an object and for the places in a list. */
function keysAt(...place: string[]): string[] {
  let schemas = alternatives(jsonSchema() as Schema)
  for (const step of place) {
    schemas = schemas
      .map(each => (step === '*' ? (each.items ?? each.additionalProperties) : each.properties?.[step]))
      .flatMap(each => (each === undefined ? [] : alternatives(each)))
  }
  return [...new Set(schemas.flatMap(({ properties = {} }) => Object.keys(properties)))]
}

function alternatives(schema: Schema): Schema[] {
  return [schema, ...[...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].flatMap(alternatives)]
}

t.test('no message comes from zod', async t => {
  const junk = [null, 1.5, -1, '', 'x', true, [], {}, [[]], [{}], { x: { y: 1 } }, ['x'], '5']
  const wrap: ((value: unknown) => object)[] = [
    ...keysAt().map(key => (value: unknown) => top({ [key]: value })),
    ...keysAt('buckets', '*').map(key => (value: unknown) => bucket({ [key]: value })),
    ...keysAt('buckets', '*', 'tiers', '*').map(
      key => (value: unknown) => bucket({ tiers: [{ name: 'x', keys: ['k'], [key]: value }] }),
    ),
    ...keysAt('routes', '*').map(key => (value: unknown) => route({ [key]: value })),
    ...keysAt('routes', '*', 'match').map(key => (value: unknown) => route({ match: { [key]: value } })),
    ...[...keysAt('routes', '*', 'cost'), 'POST'].map(key => (value: unknown) => route({ cost: { [key]: value } })),
    ...keysAt('store').flatMap(key =>
      ['redis', 'postgres'].map(type => (value: unknown) => top({ store: { type, [key]: value } })),
    ),
    ...keysAt('upstream').map(key => (value: unknown) => top({ upstream: { url: 'echo:', [key]: value } })),
    ...['limits', 'admin', 'egress'].flatMap(part =>
      keysAt(part).map(key => (value: unknown) => top({ [part]: { [key]: value } })),
    ),
  ]
  let refused = 0
  for (const file of wrap) {
    for (const value of junk) {
      for (const line of faults(file(value))) {
        refused++
        if (/^Invalid|: Invalid|expected .* received|Unrecognized|Too (small|big)|undefined|NaN|\[object/.test(line))
          t.fail(line)
        if (!line.includes(';') && !line.endsWith('?')) t.fail(`no remedy: ${line}`)
      }
    }
  }
  t.ok(refused > 400, `${refused} lines seen`)
})

t.test('keys of tickets are long enough, and are never shown', async t => {
  for (const [keys, fault] of [
    ['a'.repeat(32), /a list of keys/],
    [[], /the list is empty/],
    [['a'.repeat(32), 's3cret'.repeat(5)], /^ticketKeys\[1\]: not a key; use at least 32 characters/],
  ] as const) {
    const found = faults({ ...least(), ticketKeys: keys })
    t.match(found[0], fault)
    t.notMatch(found.join(), /s3cret/)
  }
  t.same(faults({ ...least(), ticketKeys: ['a'.repeat(32)] }), [])
})
