import * as z from 'zod'
import { quote, quoteUrl, type RefusedValue, wants } from '../messages.js'
import { PROFILE_NAMES } from '../profiles.js'
import type { UpstreamSettings } from '../settings.js'
import { adapt } from './adapt.js'
import { GATE, parseUpstreamUrl } from './address.js'
import { bytes, flag, object, oneOf, read, text, timeout, timerDuration, whole } from './values.js'

const REMEDY = 'use e.g. "http://127.0.0.1:9000" or "echo:"'
const urlError = ({ input }: RefusedValue) =>
  input === undefined ? `missing; ${REMEDY}` : `${quoteUrl(input)} is not an upstream's URL; ${REMEDY}`

const url = read(z.string({ error: urlError }), parseUpstreamUrl)

const status = whole('a status', 'use a status from 400 to 599, e.g. 503', 400, 599)
const statuses = z
  .array(status, { error: wants('a list of statuses', 'use e.g. [429, 503]') })
  .min(1, { error: 'the list is empty; use e.g. [429, 503]' })

/** The upstream is tried again after this time, even if its Retry-After is longer. */
const LONGEST_PAUSE = '60s'

const pauseOn = object(
  {
    status: statuses.describe('The statuses that pause all releases, e.g. [429, 503].'),
    default: timerDuration.prefault('1s').describe('The pause when there is no Retry-After, e.g. "1s".'),
    max: timeout.prefault(LONGEST_PAUSE).describe('The longest pause, e.g. "60s".'),
  },
  'an object',
  'use e.g. { "status": [429, 503], "default": "1s", "max": "60s" }',
)

const retry = object(
  {
    status: statuses.describe('The statuses to try again on, e.g. [502, 503].'),
    max: whole('a number of tries', 'use a whole number above 0, e.g. 3', 1)
      .prefault(3)
      .describe('How often a request is tried again at most, e.g. 3.'),
  },
  'an object',
  'use e.g. { "status": [502, 503], "max": 3 }',
)

const breakerObject = object(
  {
    failures: whole('a number of failures', 'use a whole number above 0, e.g. 5', 1)
      .prefault(5)
      .describe('How many failures in a row open it, e.g. 5.'),
    status: z
      .array(status, { error: wants('a list of statuses', 'use e.g. [500, 503]') })
      .prefault([])
      .describe('The statuses that count as failures, e.g. [500, 503].'),
    probe: timeout.prefault('1s').describe('From the opening to the first probe, e.g. "1s".'),
    maxProbe: timeout.prefault('30s').describe('The longest time between two probes, e.g. "30s".'),
    hold: timerDuration.prefault('5s').describe('How long requests wait for the upstream to come back, e.g. "5s".'),
  },
  'an object or false',
  'use e.g. { "failures": 5, "hold": "5s" } or false',
)

const breaker = z.union([breakerObject, z.literal(false)], {
  error: wants('an object or false', 'use e.g. { "failures": 5, "hold": "5s" } or false'),
})

const ca = text('the path of a CA file', 'use e.g. "/etc/shaper/ca.pem"')
  .exactOptional()
  .describe('PEM file of the authorities to trust, e.g. "/etc/shaper/ca.pem".')
const servername = text('a server name', 'use e.g. "api.example.com"')
  .exactOptional()
  .describe('The name to expect in the certificate, e.g. "api.example.com".')

const options = {
  profile: oneOf(PROFILE_NAMES, 'a profile')
    .exactOptional()
    .describe('Whose API it is: buckets, learn and pauseOn as its provider states them, e.g. "github".'),
  hostHeader: oneOf(['preserve', 'upstream'], 'a choice of Host header')
    .prefault('preserve')
    .describe('The Host header the upstream sees, e.g. "upstream" for outside APIs.'),
  maxInFlight: whole('a number of requests', 'use a whole number above 0, e.g. 100', 1)
    .exactOptional()
    .describe('The most requests under way at once, e.g. 100; no bound when absent.'),
  connections: whole('a number of connections', 'use a whole number above 0, e.g. 100', 1)
    .exactOptional()
    .describe('The most connections open at once, WebSockets included, e.g. 100; when absent, maxInFlight.'),
  keepAlive: z
    .union([z.literal(false).transform(() => 0), timeout], {
      error: wants('a time to keep idle connections for', 'use e.g. "4s" or false'),
    })
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
  tls: object({ ca, servername }, 'an object', 'use { "ca": "FILE", "servername": "NAME" }')
    .prefault({})
    .describe('How to verify an https upstream, e.g. { "ca": "ca.pem" }.'),
  breaker: breaker
    .prefault({})
    .describe('When requests are kept away from an upstream that fails, e.g. { "failures": 5 } or false.'),
  adapt: adapt
    .exactOptional()
    .describe(
      'Finds the rate that the upstream can take, e.g. { "min": "5/s", "max": "200/s", "latency": { "p90": "800ms" } }.',
    ),
  warmUp: timeout
    .exactOptional()
    .describe('How long the rate climbs from a tenth after a failure or a pause, e.g. "10s"; at once when absent.'),
  pauseOn: pauseOn
    .exactOptional()
    .describe('Answers that pause all releases, e.g. { "status": [429, 503], "default": "1s", "max": "60s" }.'),
  retry: retry.exactOptional().describe('Answers that are tried again, e.g. { "status": [503], "max": 3 }.'),
  via: flag.prefault(true).describe('Whether requests carry Via, by which one that comes back is known, e.g. false.'),
  http2: flag
    .prefault(false)
    .describe('Whether requests go over HTTP/2, e.g. true for gRPC; over TLS where it is https.'),
  learn: flag.prefault(false).describe("Learn the rate from the upstream's own rate limit headers, e.g. true."),
  resource: text('the name of a resource', 'use e.g. "search"')
    .exactOptional()
    .describe(
      'In which of the limits of its URL the requests count, e.g. "search"; pauses and learnt rates are its own.',
    ),
}

const { hostHeader: _hostHeader, http2: _http2, profile: _profile, resource: _resource, ...common } = options

/** Options that suit all origins of egress. Whose they are, and the names they are asked by and have to prove, are their own. */
export const egressOptions = {
  ...common,
  tls: object({ ca }, 'an object', 'use { "ca": "FILE" }')
    .prefault({})
    .describe('How to verify https origins, e.g. { "ca": "ca.pem" }.'),
}

const upstreamObject = object(
  { url: url.describe('Where to forward, e.g. "http://127.0.0.1:9000".'), ...options },
  'an object',
  REMEDY,
)

const defaults = z.strictObject(options).parse({})

export function settingsOf({ maxInFlight = Infinity, ...rest }: z.output<typeof upstreamObject>): UpstreamSettings {
  const { url, hostHeader, breaker, ...others } = rest
  return { url, hostHeader, maxInFlight, ...others, ...(breaker !== false && { breaker }) }
}

/** A gate has no connections. It answers at once, whatever the request has passed before and whether or not its body has come. */
const OF_GATE = { requestBuffer: 0, breaker: false, via: false } as const

function ofUrl(value: string): UpstreamSettings {
  return settingsOf({ ...defaults, ...(value === GATE && OF_GATE), url: value })
}

const checkedObject = upstreamObject.transform((value, ctx) => {
  const refuse = (key: string, message: string): void =>
    void ctx.issues.push({ code: 'custom', path: [key], message, input: undefined })
  if (value.url === GATE) {
    refuse('url', `${quote(GATE)} takes no options, as nothing is forwarded; write "upstream": ${quote(GATE)}`)
  } else if (value.http2 && value.url === 'echo:') {
    refuse('http2', '"echo:" speaks HTTP/1.1 only; leave "http2" out')
  }
  return settingsOf(value)
})

export const upstream = z.union([url.transform(ofUrl), checkedObject], {
  error: wants("an upstream's URL", `${REMEDY}, or an object with "url"`),
})
