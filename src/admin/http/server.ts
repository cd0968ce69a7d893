/** The admin server: health, metrics, state, dashboard. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { AggregatorRegistry, type MetricObjectWithValues, type MetricValue } from 'prom-client'
import type { AdminSettings } from '../../config/settings.js'
import { startListening, urlOf } from '../../http/listening.js'
import { dashboardPage } from '../dashboard/page.js'
import { createFleet, type Fleet, type FleetSource } from '../fleet/fleet.js'
import type { KeySource } from '../keys/key-source.js'
import { remembered, rememberedByKey } from '../remembered.js'
import { watchedWithOthers } from '../snapshot/merge-snapshots.js'
import type { Snapshot, WatchedSnapshot } from '../snapshot/snapshot.js'
import { type FailedReload, withTroubles } from '../snapshot/troubles.js'
import { type Access, type AccessDenial, createAccess } from './access.js'
import { PLAIN, sendJson, sendProblem, sendText } from './answers.js'
import { EventStreams } from './event-stream.js'
import { KEY_METHODS, listedElsewhere, serveKey, serveSearch } from './key-requests.js'

export interface Readiness {
  readonly draining: boolean
  /** False: its store does not answer, and without it newcomers are rejected. */
  readonly admits: boolean
}

/** The data of the admin server: of this process, or of all workers together. */
export interface AdminSource extends FleetSource, KeySource {
  snapshot(): Promise<Snapshot>
  ready(): Promise<Readiness>
  /** Undefined: the last reload put the configuration into effect, or there was none. */
  failedReload?(): FailedReload | undefined
  metrics(): Promise<readonly MetricObjectWithValues<MetricValue<string>>[][]>
}

export interface AdminServer {
  readonly url: string
  close(): Promise<void>
}

/** Limits for clients of the admin server. `EXCESS` is for connections that are being closed. `TIMEOUT` is in ms. */
const MOST_CONNECTIONS = 512
const EXCESS = 128
const TIMEOUT = 5_000

/** @throws when the address cannot be listened on */
export async function startAdmin(settings: AdminSettings, source: AdminSource): Promise<AdminServer> {
  const snapshot = remembered(() => source.snapshot())
  const fleet = createFleet(source)
  const streams = new EventStreams()
  const watch = rememberedByKey((bucket, key) => source.watch(bucket, key))
  const served: Served = { access: createAccess(settings.token), source, snapshot, fleet, streams, watch }
  // Loads the page now, so a missing file fails the start.
  dashboardPage()

  const idle = new IdleConnections()
  const server = createServer({ connectionsCheckingInterval: 1_000 }, (req, res) => {
    // Pipelined: its answer would have to wait in memory for a client that may not read.
    if (res.socket === null) return void req.socket.destroy()
    idle.asked(req.socket, served.access(req) === undefined ? res : undefined)
    // Only a PUT has a body that is read.
    if (req.method !== 'PUT') req.resume()
    res.once('finish', () => req.resume())
    void answer(req, res, served).catch(error => {
      if (res.headersSent) res.destroy()
      else sendProblem(res, 503, (error as Error).message)
    })
  })
  server.maxConnections = MOST_CONNECTIONS + EXCESS
  server.on('connection', socket => idle.opened(socket))
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

/**
 * Connections without a request that has access. The one that has been idle longest makes room for a newcomer, so that nobody keeps
 * probes out.
 */
class IdleConnections {
  readonly #idle = new Set<Socket>()
  #open = 0

  opened(socket: Socket): void {
    this.#open += 1
    const [longest] = this.#idle
    if (this.#open > MOST_CONNECTIONS && longest !== undefined) {
      this.#idle.delete(longest)
      longest.destroy()
    }
    this.#idle.add(socket)
    socket.once('close', () => {
      this.#open -= 1
      this.#idle.delete(socket)
    })
  }

  /** @param answer the connection stays until it has been sent. Undefined: the request has no access */
  asked(socket: Socket, answer: ServerResponse | undefined): void {
    this.#idle.delete(socket)
    if (answer === undefined) this.#idle.add(socket)
    else answer.once('close', () => socket.destroyed || this.#idle.add(socket))
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
async function take({ source, snapshot, fleet }: Served, query: URLSearchParams): Promise<Snapshot | undefined> {
  const name = query.get('instance')
  const found = await (name !== null ? fleet.one(name) : query.has('all') ? fleet.all() : snapshot())
  return found && withTroubles(found, source.failedReload?.())
}

async function serveBuckets(res: ServerResponse, served: Served, query: URLSearchParams): Promise<void> {
  const found = await take(served, query)
  if (found === undefined) sendProblem(res, 404, NO_INSTANCE)
  else sendJson(res, 200, found)
}

async function serveHistory(res: ServerResponse, { fleet }: Served, query: URLSearchParams): Promise<void> {
  sendJson(res, 200, await fleet.hour(query.get('instance') ?? undefined))
}

/** The key that a query asks for besides. With the instances of the store it is told what they list of it. */
async function watchedKey({ watch, fleet }: Served, query: URLSearchParams): Promise<WatchedSnapshot | undefined> {
  const [bucket, key] = [query.get('bucket'), query.get('key')]
  const watched = bucket === null || key === null ? undefined : await watch(bucket, key)
  if (watched === undefined || !query.has('all')) return watched
  return watchedWithOthers(watched, await listedElsewhere(fleet, watched.bucket, watched.instance.key))
}

function serveEvents(res: ServerResponse, served: Served, query: URLSearchParams): void {
  const { streams } = served
  const interval = query.get('interval')
  if (interval !== null && !/^\d{1,6}$/.test(interval))
    return sendProblem(res, 400, 'interval is not a number of ms; use e.g. 500')
  // The watched instance may end. Its watchers then see all others.
  const latest = async (): Promise<Snapshot> => {
    const found = (await take(served, query)) ?? (await take(served, new URLSearchParams('all')))!
    const watched = await watchedKey(served, query)
    return watched === undefined ? found : { ...found, watched }
  }
  if (!streams.open(res, latest, interval === null ? undefined : Number(interval))) {
    sendProblem(res, 503, 'too many clients are watching already; close another dashboard')
  }
}

/** What the handlers need. */
interface Served {
  readonly access: Access
  readonly source: AdminSource
  readonly snapshot: () => Promise<Snapshot>
  readonly watch: AdminSource['watch']
  readonly fleet: Fleet
  readonly streams: EventStreams
}

async function answer(req: IncomingMessage, res: ServerResponse, served: Served): Promise<void> {
  const { access, source } = served
  const { method = '', url = '/' } = req
  const [path = '/', query = ''] = url.split('?', 2) as [string, string?]
  if (path === '/healthz') return only(['GET', 'HEAD'], method, res, () => sendText(res, 200, 'ok\n'))
  if (path === '/readyz') return only(['GET', 'HEAD'], method, res, async () => ready(res, await source.ready()))
  const denial = access(req)
  // The page itself holds no data, so links to it work without a token and from other sites.
  if (path === '/' && denial !== 421)
    return only(['GET', 'HEAD'], method, res, () => serveDashboard(res, method, denial))
  if (denial !== undefined) return refuse(res, denial)
  if (path === '/metrics') return only(['GET', 'HEAD'], method, res, () => serveMetrics(res, source))
  const params = new URLSearchParams(query)
  if (path === '/buckets') {
    const sought = params.get('q')
    const serve = sought === null ? () => serveBuckets(res, served, params) : () => serveSearch(res, served, sought)
    return only(['GET', 'HEAD'], method, res, serve)
  }
  if (path === '/history') return only(['GET', 'HEAD'], method, res, () => serveHistory(res, served, params))
  if (path === '/events') return only(['GET'], method, res, () => serveEvents(res, served, params))
  if (path.startsWith('/buckets/')) return only(KEY_METHODS, method, res, () => serveKey(req, res, served, path))
  if (path === '/overrides')
    return only(['GET', 'HEAD'], method, res, async () => sendJson(res, 200, { overrides: await source.overrides() }))
  sendProblem(res, 404, 'there is no such page; see / for the dashboard')
}

const CHALLENGE = { 'WWW-Authenticate': 'Bearer realm="shaper"' }

const NO_INSTANCE = 'no instance has this name; /buckets?all lists them in "members"'

const REFUSALS: Record<AccessDenial, string> = {
  401: 'send the token as Authorization: Bearer',
  403: 'requests from pages of other sites are not allowed',
  421: 'use an IP address or localhost in the URL, or give the admin server a token',
}

function refuse(res: ServerResponse, status: AccessDenial): void {
  sendProblem(res, status, REFUSALS[status], status === 401 ? CHALLENGE : {})
}

function only(
  allowed: readonly string[],
  method: string,
  res: ServerResponse,
  run: () => void | Promise<void>,
): void | Promise<void> {
  if (allowed.includes(method)) return run()
  sendProblem(res, 405, `use ${allowed[0]}`, { Allow: allowed.join(', ') })
}

/** Ready means that newcomers would be served. */
function ready(res: ServerResponse, { draining, admits }: Readiness): void {
  if (draining) sendText(res, 503, 'shutting down\n')
  else if (!admits) sendText(res, 503, 'the store does not answer\n')
  else sendText(res, 200, 'ready\n')
}
