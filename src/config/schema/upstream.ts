import { isIP } from 'node:net'
import { isDeepStrictEqual } from 'node:util'
import * as z from 'zod'
import { readAuthority } from '../../http/authority.js'
import { quote, quoteUrl, type RefusedValue, wants } from '../messages.js'
import { formatPath } from '../problems.js'
import { PROFILE_NAMES } from '../profiles.js'
import { adapt } from './adapt.js'
import { BUILT_IN, GATE, parseUpstreamUrl } from './address.js'
import { key } from './key.js'
import {
  bytes,
  count,
  flag,
  maybe,
  NOT_THIS_FORM,
  object,
  oneOf,
  read,
  report,
  someOf,
  text,
  timeout,
  timerDuration,
  whole,
} from './values.js'

const REMEDY = 'use e.g. "http://127.0.0.1:9000" or "echo:"'
const urlError = ({ input }: RefusedValue) =>
  input === undefined ? `missing; ${REMEDY}` : `${quoteUrl(input)} is not an upstream's URL; ${REMEDY}`

const url = read(z.string({ error: urlError }), parseUpstreamUrl)
const status = whole('a status', 'use a status from 400 to 599, e.g. 503', 400, 599)
const statuses = someOf(status, wants('a list of statuses', 'use e.g. [429, 503]'), 'use e.g. [429, 503]')

/** The upstream is tried again after this time, even if its Retry-After is longer. */
const LONGEST_PAUSE = '60s'

const pauseOn = object(
  {
    status: statuses.describe('The statuses that pause all releases, e.g. [429, 503].'),
    default: timerDuration.prefault('1s').describe('The pause when there is no Retry-After, e.g. "1s".'),
    max: timeout.prefault(LONGEST_PAUSE).describe('The longest pause, e.g. "60s".'),
  },
  'use e.g. { "status": [429, 503], "default": "1s", "max": "60s" }',
)

const retry = object(
  {
    status: statuses.describe('The statuses to try again on, e.g. [502, 503].'),
    max: count('a number of tries', 3).prefault(3).describe('How often a request is tried again at most, e.g. 3.'),
  },
  'use e.g. { "status": [502, 503], "max": 3 }',
)

const breakerObject = object(
  {
    failures: count('a number of failures', 5).prefault(5).describe('How many failures in a row open it, e.g. 5.'),
    status: z
      .array(status, { error: wants('a list of statuses', 'use e.g. [500, 503]') })
      .prefault([])
      .describe('The statuses that count as failures, e.g. [500, 503].'),
    probe: timeout.prefault('1s').describe('From the opening to the first probe, e.g. "1s".'),
    maxProbe: timeout.prefault('30s').describe('The longest time between two probes, e.g. "30s".'),
    hold: timerDuration.prefault('5s').describe('How long requests wait for the upstream to come back, e.g. "5s".'),
  },
  'use e.g. { "failures": 5, "hold": "5s" } or false',
  'an object or false',
)

const breaker = z.union([breakerObject, z.literal(false)], {
  error: wants('an object or false', 'use e.g. { "failures": 5, "hold": "5s" } or false'),
})

const ca = maybe(text('the path of a CA file', 'use e.g. "/etc/shaper/ca.pem"')).describe(
  'PEM file of the authorities to trust, e.g. "/etc/shaper/ca.pem".',
)
const servername = maybe(text('a server name', 'use e.g. "api.example.com"')).describe(
  'The name to expect in the certificate, e.g. "api.example.com".',
)
const ownFile = (what: string, example: string) =>
  maybe(text(`the path of ${what}`, `use e.g. "${example}"`)).describe(
    `PEM file of ${what} that the upstream asks for, e.g. "${example}".`,
  )

const tls = object(
  {
    ca,
    servername,
    cert: ownFile('a certificate', '/etc/shaper/client.pem'),
    key: ownFile('a private key', '/etc/shaper/client-key.pem'),
  },
  'use { "ca": "FILE", "servername": "NAME", "cert": "FILE", "key": "FILE" }',
).superRefine(({ cert, key }, ctx) => {
  const [given, missing] = cert === undefined ? ['key', 'cert'] : ['cert', 'key']
  if ((cert === undefined) !== (key === undefined))
    report(ctx, missing!, `missing, as "${given}" is set; name the PEM file of the ${missing}, or remove "${given}"`)
})

const options = {
  profile: maybe(oneOf(PROFILE_NAMES, 'a profile')).describe(
    'Whose API it is: buckets, learn and pauseOn as its provider states them, e.g. "github".',
  ),
  hostHeader: oneOf(['preserve', 'upstream'], 'a choice of Host header')
    .prefault('preserve')
    .describe('The Host header the upstream sees, e.g. "upstream" for outside APIs.'),
  maxInFlight: maybe(count('a number of requests', 100)).describe(
    'The most requests under way at once, e.g. 100; no bound when absent.',
  ),
  connections: maybe(count('a number of connections', 100)).describe(
    'The most connections open at once, WebSockets included, e.g. 100; when absent, maxInFlight.',
  ),
  keepAlive: z
    .union(
      [z.codec(z.literal(false), z.literal(0), { decode: () => 0 as const, encode: () => false as const }), timeout],
      { error: wants('a time to keep idle connections for', 'use e.g. "4s" or false') },
    )
    .prefault('4s')
    .describe('How long an idle connection is kept, e.g. "4s"; false: each serves one request.'),
  maxConnectionAge: timeout
    .prefault('5m')
    .describe(
      'How old a connection may be to serve another request, e.g. "5m", so that a changed DNS answer is followed.',
    ),
  requestBuffer: bytes('a size', 'use bytes, e.g. 65536; 0 to stream every body')
    .prefault(65_536)
    .describe('The bytes of a body that are read before its request is sent, e.g. 65536; 0 to stream.'),
  responseBuffer: bytes('a size', 'use bytes, e.g. 262144')
    .prefault(262_144)
    .describe('The bytes of an answer that are read ahead of its client, e.g. 262144.'),
  connectTimeout: timeout.prefault('5s').describe('How long a connection may take, e.g. "5s".'),
  responseTimeout: timeout
    .prefault('60s')
    .describe('How long the response\'s headers may take after the upload, e.g. "60s".'),
  idleTimeout: timeout.prefault('60s').describe('The longest silence between body bytes, e.g. "60s".'),
  tls: tls.prefault({}).describe('How to verify an https upstream, and who we are, e.g. { "ca": "ca.pem" }.'),
  breaker: breaker
    .prefault({})
    .describe('When requests are kept away from an upstream that fails, e.g. { "failures": 5 } or false.'),
  adapt: maybe(adapt).describe(
    'Finds the rate that the upstream can take, e.g. { "min": "5/s", "max": "200/s", "latency": { "p90": "800ms" } }.',
  ),
  warmUp: maybe(timeout).describe(
    'How long the rate climbs from a tenth after a failure or a pause, e.g. "10s"; at once when absent.',
  ),
  pauseOn: maybe(pauseOn).describe(
    'Answers that pause all releases, e.g. { "status": [429, 503], "default": "1s", "max": "60s" }.',
  ),
  retry: maybe(retry).describe('Answers that are tried again, e.g. { "status": [503], "max": 3 }.'),
  via: flag.prefault(true).describe('Whether requests carry Via, by which one that comes back is known, e.g. false.'),
  http2: flag
    .prefault(false)
    .describe('Whether requests go over HTTP/2, e.g. true for gRPC; over TLS where it is https.'),
  learn: flag.prefault(false).describe("Learn the rate from the upstream's own rate limit headers, e.g. true."),
  resource: maybe(text('the name of a resource', 'use e.g. "search"')).describe(
    'In which of the limits of its URL the requests count, e.g. "search"; pauses and learnt rates are its own.',
  ),
}

const { hostHeader: _hostHeader, http2: _http2, profile: _profile, resource: _resource, ...common } = options

/** Options that suit all origins of egress. Whose they are, and the names they are asked by and have to prove, are their own. */
export const egressOptions = {
  ...common,
  tls: object({ ca }, 'use { "ca": "FILE" }')
    .prefault({})
    .describe('How to verify https origins, e.g. { "ca": "ca.pem" }.'),
}

const SERVERS = 'use e.g. ["http://10.0.0.1:9000", "http://10.0.0.2:9000"]'
const RESOLVER = 'use e.g. ["10.0.0.2:53"]'
const resolverError = wants('the address of a DNS server', 'use e.g. "10.0.0.2:53" or "[fd00::2]:53"')
const ofDns = {
  dns: maybe(
    z.union([z.literal(true), z.literal('srv')], { error: wants('a way to follow DNS', 'use true or "srv"') }),
  ).describe(
    'Each address of the name is a server, followed within its time to live, e.g. true; "srv": its SRV records.',
  ),
  resolver: maybe(
    someOf(
      z
        .string({ error: resolverError })
        .refine(value => isIP(readAuthority(value)?.host ?? '') !== 0, { error: resolverError }),
      wants('a list of DNS servers', RESOLVER),
      RESOLVER,
    ),
  ).describe('The DNS servers to ask, e.g. ["10.0.0.2:53"]; those of the system when absent.'),
}

const serverObject = object(
  {
    url: url.describe('Where the server is, e.g. "http://10.0.0.1:9000" or "unix:/run/app.sock".'),
    weight: whole('a weight', 'use a whole number from 1 to 1000, e.g. 2', 1, 1_000)
      .prefault(1)
      .describe('How many requests it takes for each one of a server of weight 1, e.g. 2.'),
    maxInFlight: options.maxInFlight.describe('The most requests that it has at once, e.g. 8; no bound when absent.'),
    connections: options.connections.describe(
      'The most connections open to it at once, WebSockets included, e.g. 8; when absent, maxInFlight.',
    ),
    backup: flag.prefault(false).describe('Whether it takes requests only while no other is up, e.g. true.'),
    ...ofDns,
  },
  'use { "url": "http://10.0.0.1:9000", "weight": 2, "maxInFlight": 8 }',
)

type ServerSettings = Omit<z.output<typeof serverObject>, 'maxInFlight'> & { maxInFlight: number }

function plainServerOf(value: string): ServerSettings {
  return { url: value, weight: 1, maxInFlight: Infinity, backup: false }
}

const plainServer = read(url, plainServerOf, ({ url, ...rest }) => {
  if (rest.weight !== 1 || rest.maxInFlight < Infinity || rest.backup || Object.keys(rest).length > 3)
    throw NOT_THIS_FORM
  return url
})
const server = z.union(
  [
    plainServer,
    read(
      serverObject,
      ({ maxInFlight = Infinity, ...rest }): ServerSettings => ({ ...rest, maxInFlight }),
      ({ maxInFlight, ...rest }) => ({ ...rest, ...(maxInFlight < Infinity && { maxInFlight }) }),
    ),
  ],
  { error: wants("a server's URL", 'use e.g. "http://10.0.0.1:9000", or an object with "url"') },
)

const health = object(
  {
    path: z
      .string({ error: wants('a path', 'use e.g. "/healthz"') })
      .regex(/^\/[\x21-\x7e]*$/, { error: wants('a path', 'use e.g. "/healthz"') })
      .describe('What is asked of each server, e.g. "/healthz".'),
    interval: timeout.prefault('2s').describe('From one check to the next, e.g. "2s".'),
    timeout: timeout.prefault('1s').describe('How long an answer may take, e.g. "1s".'),
    status: someOf(
      whole('a status', 'use a status from 200 to 599, e.g. 200', 200, 599),
      wants('a list of statuses', 'use e.g. [200, 204]'),
      'use e.g. [200]',
    )
      .prefault([200])
      .describe('The statuses of a server that is well, e.g. [200].'),
    rise: count('a number of checks', 2)
      .prefault(2)
      .describe('After how many good checks in a row a server is up again, e.g. 2.'),
    fall: count('a number of checks', 3)
      .prefault(3)
      .describe('After how many failed checks in a row a server is down, e.g. 3.'),
  },
  'use e.g. { "path": "/healthz", "interval": "2s" }',
)

const pick = z.union(
  [
    oneOf(['least-in-flight', 'round-robin'], 'a way to pick a server'),
    object(
      { hash: key.describe('The key by which a client keeps its server, e.g. "header:x-user".') },
      'use { "hash": "header:NAME" }',
    ),
  ],
  { error: wants('a way to pick a server', 'use "least-in-flight", "round-robin" or { "hash": "header:NAME" }') },
)

const ofServers = {
  servers: maybe(someOf(server, wants('a list of servers', SERVERS), SERVERS)).describe(
    'Several servers behind one queue, in place of `url`, e.g. ["http://10.0.0.1:9000", "unix:/run/app.sock"].',
  ),
  pick: maybe(pick).describe('Which server takes the next request, e.g. "round-robin"; "least-in-flight" when absent.'),
  health: maybe(health).describe('Asks each server regularly whether it is well, e.g. { "path": "/healthz" }.'),
}

const upstreamObject = object(
  {
    url: maybe(url).describe('Where to forward, e.g. "http://127.0.0.1:9000" or "unix:/run/app.sock".'),
    ...ofServers,
    ...ofDns,
    ...options,
  },
  REMEDY,
)

const defaults = z.strictObject(options).parse({})

/**
 * Without a bound `maxInFlight` is Infinity, and without a breaker there is none. `keepAlive` 0: each connection serves one
 * request. With `servers` the URL is that of all.
 */
export function settingsOf(given: z.output<typeof upstreamObject>): UpstreamSettings {
  const { maxInFlight = Infinity, breaker, url, servers, dns, resolver, ...rest } = given
  const followed = dns && { dns, ...(resolver && { resolver }) }
  const all = followed ? [{ ...plainServerOf(url!), ...followed }] : servers
  return {
    ...rest,
    url: url ?? servers!.map(each => each.url).join(' '),
    ...(all && { servers: all }),
    maxInFlight,
    ...(breaker !== false && { breaker }),
  }
}

type UpstreamSettings = Omit<
  z.output<typeof upstreamObject>,
  'maxInFlight' | 'breaker' | 'url' | 'servers' | 'dns' | 'resolver'
> & { url: string; servers?: readonly ServerSettings[]; maxInFlight: number; breaker?: z.output<typeof breakerObject> }

/** The inverse of `settingsOf`. */
export function optionsOf(settings: UpstreamSettings): z.output<typeof upstreamObject> {
  const { maxInFlight, breaker, url, servers, ...rest } = settings
  const [{ dns, resolver, ...first } = { url: '' }, ...others] = servers ?? []
  const isOne = servers === undefined || (others.length === 0 && isDeepStrictEqual(first, plainServerOf(url)) && dns)
  return {
    ...(isOne ? { url, ...(dns && { dns, ...(resolver && { resolver }) }) } : { servers: [...servers] }),
    ...rest,
    ...(Number.isFinite(maxInFlight) && { maxInFlight }),
    breaker: breaker ?? false,
  }
}

/** A gate has no connections. It answers at once, whatever the request has passed before and whether or not its body has come. */
const OF_GATE = { requestBuffer: 0, breaker: false, via: false } as const

const checkedObject = upstreamObject.superRefine((value, ctx) => {
  const { url, servers, dns, pick, http2 } = value
  if ((url === undefined) === (servers === undefined)) {
    const message =
      url === undefined ? `missing; ${REMEDY}, or "servers": a list` : 'there are "servers", too; remove one of them'
    return report(ctx, 'url', message)
  }
  if (url === GATE) {
    report(ctx, 'url', `${quote(GATE)} takes no options, as nothing is forwarded; write "upstream": ${quote(GATE)}`)
  } else if (http2 && url === 'echo:') {
    report(ctx, 'http2', '"echo:" speaks HTTP/1.1 only; leave "http2" out')
  }
  if (servers === undefined && dns === undefined && pick !== undefined)
    report(ctx, 'pick', 'there is one server only; remove it, or name several in "servers"')
  if (servers === undefined) checkDns(value, [], ctx)
  else checkServers(value, ctx)
})

type Issues = Parameters<typeof report>[0]

function checkServers({ servers = [], ...rest }: z.output<typeof upstreamObject>, ctx: Issues): void {
  for (const key of ['dns', 'resolver'] as const)
    if (rest[key] !== undefined) report(ctx, key, 'is for the upstream\'s "url"; write it beside the "url" of a server')
  const tell = (path: PropertyKey[], message: string): void => {
    ctx.issues.push({ code: 'custom', path: ['servers', ...path], message, input: undefined })
  }
  const isTls = (value: string): boolean => value.startsWith('https:')
  for (const [index, server] of servers.entries()) {
    const { url } = server
    const first = servers.findIndex(each => each.url === url)
    if (BUILT_IN.includes(url))
      tell([index], `${quote(url)} is no server among others; write "upstream": ${quote(url)}`)
    else if (first < index)
      tell([index], `${quote(url)} is at ${formatPath(['servers', first])} already; remove one of them`)
    else if (isTls(url) !== isTls(servers[0]!.url))
      tell([index], 'one upstream has one scheme: either all its servers are https, or none')
    checkDns(server, ['servers', index], ctx)
  }
  if (servers.length > 0 && servers.every(({ backup }) => backup))
    tell([0, 'backup'], 'all servers are backups; leave "backup" out at one of them at least')
}

type Followed = Partial<Pick<z.output<typeof upstreamObject>, 'url' | 'dns' | 'resolver'>>

function checkDns({ url = '', dns, resolver }: Followed, path: PropertyKey[], ctx: Issues): void {
  const tell = (key: string, message: string): void => {
    ctx.issues.push({ code: 'custom', path: [...path, key], message, input: undefined })
  }
  if (resolver !== undefined && dns === undefined)
    tell('resolver', 'counts beside "dns" only; set "dns": true, or remove it')
  if (dns === undefined) return
  const { hostname = '', port = '', protocol = '' } = url.startsWith('http') ? new URL(url) : {}
  if (hostname === '' || isIP(hostname.replace(/^\[|\]$/g, '')) !== 0)
    tell('dns', `${quote(url)} has no name that DNS could resolve; remove "dns", or use a name`)
  else if (dns === 'srv' && port !== '')
    tell('dns', `SRV records say the port; write "url": "${protocol}//${hostname}"`)
}

const plain = read(
  url,
  value => settingsOf({ ...defaults, ...(value === GATE && OF_GATE), url: value }),
  upstream => {
    if (upstream.url !== GATE) throw NOT_THIS_FORM
    return GATE
  },
)

export const upstream = z.union([plain, read(checkedObject, settingsOf, optionsOf)], {
  error: wants("an upstream's URL", `${REMEDY}, or an object with "url"`),
})
