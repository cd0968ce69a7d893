import * as z from 'zod'
import { wants } from '../messages.js'
import { adminListen, DEFAULT_LISTEN, formatListen, isLocal, listenSchema, trustProxy } from './address.js'
import { buckets } from './buckets.js'
import { egress } from './egress.js'
import { identity } from './identity.js'
import { route, waitingPage } from './routes.js'
import { store } from './store.js'
import { upstream } from './upstream.js'
import {
  bytes,
  count,
  flag,
  maybe,
  object,
  oneOf,
  report,
  someOf,
  ticketKey,
  timeout,
  timerDuration,
  token,
  whole,
} from './values.js'

/** Bytes. */
export const LEAST_BUFFER_MEMORY = 65_536

const limits = object(
  {
    maxKeys: count('a count', 100_000).prefault(100_000).describe('The most bucket instances kept, e.g. 100000.'),
    maxQueued: count('a count', 10_000).prefault(10_000).describe('The most requests queued in all, e.g. 10000.'),
    maxConnections: count('a count', 20_000).prefault(20_000).describe('The most client connections open, e.g. 20000.'),
    connectionsPerClient: count('a count', 512)
      .prefault(512)
      .describe('The most client connections open from one address, e.g. 512.'),
    headersTimeout: timeout.prefault('10s').describe('How long a request\'s headers may take, e.g. "10s".'),
    keepAliveTimeout: timeout.prefault('75s').describe('How long an idle client connection is kept, e.g. "75s".'),
    tunnelIdleTimeout: timeout.prefault('1h').describe('How long a WebSocket may be silent, e.g. "1h".'),
    bodyTimeout: timeout.prefault('10s').describe('How long a request\'s body may take from its turn on, e.g. "10s".'),
    minBodyRate: bytes('a rate', 'use bytes/s, e.g. 240; 0 for none')
      .prefault(240)
      .describe('The least bytes/s of a client that we wait for, over 20 s, e.g. 240; 0 for none.'),
    bufferMemory: whole(
      'a size of memory',
      `use at least ${LEAST_BUFFER_MEMORY} bytes, e.g. 67108864`,
      LEAST_BUFFER_MEMORY,
    )
      .prefault(67_108_864)
      .describe('The most bytes of bodies in all buffers together, e.g. 67108864.'),
    maxHeaderSize: whole('a size of headers', 'use 1 to 1048576 bytes, e.g. 16384', 1, 1_048_576)
      .prefault(16_384)
      .describe("The most bytes of a request's headers, e.g. 16384."),
    maxHeaders: whole('a number of headers', 'use 1 to 2000, e.g. 100', 1, 2_000)
      .prefault(100)
      .describe('The most headers of a request, e.g. 100.'),
    drainDelay: timerDuration
      .prefault('0s')
      .describe('How long to go on accepting after SIGTERM while /readyz is 503, e.g. "5s"; "0s" for not at all.'),
    shutdownTimeout: timerDuration.prefault('30s').describe('How long to go on releasing after SIGTERM, e.g. "30s".'),
  },
  'use e.g. { "maxQueued": 10000 }',
)

const adminObject = object(
  {
    listen: adminListen.describe(
      'Where the admin server listens, e.g. "127.0.0.1:9090", "unix:/run/shaper-admin.sock" or "systemd:admin".',
    ),
    token: maybe(token).describe(`What callers send as Authorization: Bearer, e.g. "\${SHAPER_TOKEN}".`),
  },
  'use e.g. { "listen": "127.0.0.1:9090" }',
)

const admin = adminObject.superRefine((value, ctx) => {
  if (value.token === undefined && !isLocal(value.listen)) {
    const listen = formatListen(value.listen)
    const message = `other machines can reach ${listen}, so a token is needed; set "admin": { "listen": ${JSON.stringify(listen)}, "token": "\${SHAPER_TOKEN}" } in the file, or listen on 127.0.0.1`
    report(ctx, 'token', message)
  }
})

/** The configuration file. Its input type, defaults, messages and JSON Schema all come from here. */
export const file = object(
  {
    $schema: maybe(z.string({ error: wants('the path of a JSON Schema', 'use "./shaper.schema.json"') })).describe(
      'Lets editors check this file, e.g. "./shaper.schema.json".',
    ),
    listen: listenSchema
      .prefault(DEFAULT_LISTEN)
      .describe(
        'Where to listen, e.g. "0.0.0.0:8080", "unix:/run/shaper.sock" or "systemd", also several; port 0 takes any free port.',
      ),
    upstream: maybe(upstream).describe(
      'Where to forward, e.g. "http://127.0.0.1:9000" or "echo:"; "gate:" answers a proxy that asks.',
    ),
    trustProxy: trustProxy
      .prefault(false)
      .describe('Which hops may set X-Forwarded-For, e.g. true, 1 or ["loopback", "10.0.0.0/8"].'),
    store: store
      .prefault('memory')
      .describe('Where levels are kept, e.g. "memory" or { "type": "redis", "url": "redis://127.0.0.1:6379" }.'),
    buckets: buckets
      .prefault({})
      .describe('The limits by name, e.g. { "client": { "key": "ip", "rate": "5/s", "capacity": 10 } }.'),
    routes: maybe(
      someOf(
        route,
        wants('a list of routes', 'use e.g. [{ "buckets": ["client"] }]'),
        'add e.g. { "buckets": ["client"] }, or remove "routes"',
      ),
    ).describe('The first match wins, e.g. [{ "match": { "path": "/api/*" }, "buckets": ["client"] }].'),
    limits: limits.prefault({}).describe('Bounds on memory and time, e.g. { "maxQueued": 10000 }.'),
    admin: maybe(admin).describe('The admin server, e.g. { "listen": "127.0.0.1:9090" }; none when absent.'),
    ticketKeys: maybe(
      someOf(
        ticketKey,
        wants('a list of keys', `use e.g. ["\${SHAPER_TICKET_KEY}"]`),
        `use e.g. ["\${SHAPER_TICKET_KEY}"], or remove it`,
      ),
    ).describe(`What signs tickets; the first signs, all are accepted, e.g. ["\${SHAPER_TICKET_KEY}"].`),
    egress: maybe(egress).describe(
      'Where programs may send requests with --egress, e.g. { "allow": ["api.example.com:443"] }.',
    ),
    identity: maybe(identity).describe(
      'How the keys "jwt:CLAIM" are verified, e.g. { "jwt": { "jwksUrl": "https://..." } }.',
    ),
    accessLog: flag.prefault(true).describe('Whether to log a line for each request, e.g. false.'),
    dryRun: flag.prefault(false).describe('Decide and report but hold and reject nothing, on every route, e.g. true.'),
    waitingPage: waitingPage
      .prefault(true)
      .describe(
        'What rejected browsers get: a page that waits and comes back by itself, e.g. true, false or { "template": "wait.html" }.',
      ),
    headers: flag.prefault(true).describe('Whether forwarded answers carry RateLimit and Server-Timing, e.g. false.'),
    pacing: oneOf(['precise', 'timer'], 'a kind of pacing')
      .prefault('precise')
      .describe('How releases are timed, e.g. "precise" (to microseconds) or "timer" (to 1-2 ms, without a thread).'),
  },
  'the file holds one object, e.g. { "upstream": "http://127.0.0.1:9000" }',
)

export type File = z.output<typeof file>

/** The JSON Schema (draft 2020-12) of the file, for editors. */
export function jsonSchema(): object {
  const { $schema, ...rest } = z.toJSONSchema(file, { io: 'input', target: 'draft-2020-12' })
  return {
    $schema,
    title: 'shaper.config.json',
    description: 'The configuration of shaper, a reverse-proxy traffic shaper.',
    ...rest,
  }
}
