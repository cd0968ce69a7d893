/** The admin server: health, metrics, state, dashboard. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { AggregatorRegistry, type MetricObjectWithValues, type MetricValue } from 'prom-client'
import type { AdminSettings } from '../../config/settings.js'
import { startListening, urlOf } from '../../http/listening.js'
import { dashboardPage } from '../dashboard/page.js'
import { createFleet, type Fleet, type FleetSource } from '../fleet/fleet.js'
import { remembered } from '../remembered.js'
import type { Snapshot } from '../snapshot/snapshot.js'
import { type Access, type AccessDenial, createAccess } from './access.js'
import { EventStreams } from './event-stream.js'

/** Whether the program accepts requests, and whether its store answers. */
export interface Readiness {
  readonly draining: boolean
  readonly storeReady: boolean
}

/** The data of the admin server: of this process, or of all workers together. */
export interface AdminSource extends FleetSource {
  snapshot(): Promise<Snapshot>
  ready(): Promise<Readiness>
  metrics(): Promise<readonly MetricObjectWithValues<MetricValue<string>>[][]>
  /**
   * Clears the cost that a bucket instance holds for requests that have passed, and ends its block. Undefined: there is no
   * such instance.
   */
  reset(bucket: string, key: string): Promise<Reset | undefined>
}

/** The effect of a reset. */
export interface Reset {
  /** The forgotten cost units. */
  readonly forgotten: number
  /** How many requests still wait. */
  readonly waiting: number
  /** The level of the bucket now, in cost units. */
  readonly level: number
  /** How long the last waiting request has to wait for this bucket, in ms. */
  readonly lastWaitMs: number
}

export interface AdminServer {
  readonly url: string
  close(): Promise<void>
}

/** Limits for clients of the admin server. `TIMEOUT` is in ms. */
const MOST_CONNECTIONS = 512
const TIMEOUT = 5_000

/** @throws when the address cannot be listened on */
export async function startAdmin(settings: AdminSettings, source: AdminSource): Promise<AdminServer> {
  const snapshot = remembered(() => source.snapshot())
  const fleet = createFleet(source)
  const streams = new EventStreams()
  const served: Served = { access: createAccess(settings.token), source, snapshot, fleet, streams }
  // Loads the page now, so a missing file fails the start.
  dashboardPage()

  const server = createServer({ connectionsCheckingInterval: 1_000 }, (req, res) => {
    req.resume()
    void answer(req, res, served).catch(error => {
      if (res.headersSent) res.destroy()
      else problem(res, 503, (error as Error).message)
    })
  })
  server.maxConnections = MOST_CONNECTIONS
  server.headersTimeout = TIMEOUT
  server.requestTimeout = TIMEOUT
  server.keepAliveTimeout = TIMEOUT
  await startListening(server, settings.listen)
  return {
    url: urlOf(server),
    close: () =>
      new Promise(resolve => {
        streams.close()
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

/** The page asks for the token, so a 401 answer contains the page too. */
function serveDashboard(res: ServerResponse, method: string, denial: AccessDenial | undefined): void {
  const { html, headers } = dashboardPage()
  const needsToken = denial === 401
  res
    .writeHead(needsToken ? 401 : 200, { ...headers, ...(needsToken && CHALLENGE) })
    .end(method === 'HEAD' ? undefined : html)
}

async function serveMetrics(res: ServerResponse, source: AdminSource): Promise<void> {
  const registry = AggregatorRegistry.aggregate(
    (await source.metrics()) as unknown as Parameters<typeof AggregatorRegistry.aggregate>[0],
  )
  res.writeHead(200, { 'Content-Type': registry.contentType, ...PLAIN }).end(await registry.metrics())
}

/** What a query asks for: this program, all instances, or one. Undefined: no instance has this name. */
async function take({ snapshot, fleet }: Served, query: URLSearchParams): Promise<Snapshot | undefined> {
  const name = query.get('instance')
  if (name !== null) return fleet.one(name)
  return query.has('all') ? fleet.all() : snapshot()
}

async function serveBuckets(res: ServerResponse, served: Served, query: URLSearchParams): Promise<void> {
  const found = await take(served, query)
  if (found === undefined) problem(res, 404, NO_INSTANCE)
  else json(res, 200, found)
}

async function serveHistory(res: ServerResponse, { fleet }: Served, query: URLSearchParams): Promise<void> {
  json(res, 200, await fleet.hour(query.get('instance') ?? undefined))
}

function serveEvents(res: ServerResponse, served: Served, query: URLSearchParams): void {
  const { streams, fleet } = served
  const interval = query.get('interval')
  if (interval !== null && !/^\d{1,6}$/.test(interval))
    return problem(res, 400, 'interval is not a number of ms; use e.g. 500')
  // An instance may end while it is watched. Who watches sees the others then.
  const latest = async (): Promise<Snapshot> => (await take(served, query)) ?? fleet.all()
  if (!streams.open(res, latest, interval === null ? undefined : Number(interval))) {
    problem(res, 503, 'too many clients are watching already; close another dashboard')
  }
}

async function serveReset(res: ServerResponse, source: AdminSource, path: string): Promise<void> {
  const [, , bucket, key, ...rest] = path.split('/').map(decode)
  if (bucket === undefined || key === undefined || rest.length > 0) {
    return problem(res, 400, 'use /buckets/NAME/KEY, both percent-encoded')
  }
  const done = await source.reset(bucket, key)
  if (done !== undefined) json(res, 200, done)
  else problem(res, 404, 'there is no such bucket, or nothing in it for this key')
}

/** What the handlers need. */
interface Served {
  readonly access: Access
  readonly source: AdminSource
  readonly snapshot: () => Promise<Snapshot>
  readonly fleet: Fleet
  readonly streams: EventStreams
}

async function answer(req: IncomingMessage, res: ServerResponse, served: Served): Promise<void> {
  const { access, source } = served
  const { method = '', url = '/' } = req
  const [path = '/', query = ''] = url.split('?', 2) as [string, string?]
  if (path === '/healthz') return only(['GET', 'HEAD'], method, res, () => text(res, 200, 'ok\n'))
  if (path === '/readyz') return only(['GET', 'HEAD'], method, res, async () => ready(res, await source.ready()))
  const denial = access(req)
  // The page itself holds no data, so links to it work without a token and from other sites.
  if (path === '/' && denial !== 421)
    return only(['GET', 'HEAD'], method, res, () => serveDashboard(res, method, denial))
  if (denial !== undefined) return refuse(res, denial)
  if (path === '/metrics') return only(['GET', 'HEAD'], method, res, () => serveMetrics(res, source))
  const params = new URLSearchParams(query)
  if (path === '/buckets') return only(['GET', 'HEAD'], method, res, () => serveBuckets(res, served, params))
  if (path === '/history') return only(['GET', 'HEAD'], method, res, () => serveHistory(res, served, params))
  if (path === '/events') return only(['GET'], method, res, () => serveEvents(res, served, params))
  if (path.startsWith('/buckets/')) return only(['DELETE'], method, res, () => serveReset(res, source, path))
  problem(res, 404, 'there is no such page; see / for the dashboard')
}

const PLAIN = { 'Cache-Control': 'no-store', 'X-Content-Type-Options': 'nosniff' }
const CHALLENGE = { 'WWW-Authenticate': 'Bearer realm="shaper"' }

const NO_INSTANCE = 'no instance has this name; /buckets?all lists them in "members"'

const REFUSALS: Record<AccessDenial, string> = {
  401: 'send the token as Authorization: Bearer',
  403: 'requests from pages of other sites are not allowed',
  421: 'use an IP address or localhost in the URL, or give the admin server a token',
}

function refuse(res: ServerResponse, status: AccessDenial): void {
  problem(res, status, REFUSALS[status], status === 401 ? CHALLENGE : {})
}

function only(
  allowed: readonly string[],
  method: string,
  res: ServerResponse,
  run: () => void | Promise<void>,
): void | Promise<void> {
  if (allowed.includes(method)) return run()
  problem(res, 405, `use ${allowed[0]}`, { Allow: allowed.join(', ') })
}

/** Ready means that the program serves, and that its store answers. */
function ready(res: ServerResponse, { draining, storeReady }: Readiness): void {
  if (draining) text(res, 503, 'shutting down\n')
  else if (!storeReady) text(res, 503, 'the store does not answer\n')
  else text(res, 200, 'ready\n')
}

function text(res: ServerResponse, status: number, body: string): void {
  res.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8', ...PLAIN }).end(body)
}

function json(res: ServerResponse, status: number, value: unknown, type = 'application/json'): void {
  res.writeHead(status, { 'Content-Type': type, ...PLAIN }).end(`${JSON.stringify(value)}\n`)
}

function problem(res: ServerResponse, status: number, detail: string, headers: Record<string, string> = {}): void {
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
  json(res, status, { type: 'about:blank', status, detail }, 'application/problem+json')
}

function decode(part: string): string | undefined {
  try {
    return decodeURIComponent(part)
  } catch {
    return undefined
  }
}
