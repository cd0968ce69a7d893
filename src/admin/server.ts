/** The admin server: health, metrics, state, dashboard. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { AggregatorRegistry, type MetricObjectWithValues, type MetricValue } from 'prom-client'
import { formatListen } from '../config/schema/address.js'
import type { AdminSettings } from '../config/settings.js'
import { orElse } from '../core/structures/or-else.js'
import { createTokenCheck, pageDenial } from '../http/access.js'
import { type ListenHandle, startListening, urlOf } from '../http/listening.js'
import type { DeliveryOrder } from '../proxy/context.js'
import { dashboardPage } from './dashboard/page.js'
import { createFleet, type Fleet, type FleetSource, remembered, rememberedByKey } from './fleet/fleet.js'
import type { KeySource } from './keys/key-source.js'
import { type KeyState, withOthers } from './keys/key-state.js'
import { readOverrideChange } from './keys/override-change.js'
import type { Reset } from './keys/reset.js'
import { keyTest, withFoundElsewhere } from './keys/search.js'
import { watchedWithOthers } from './snapshot/merge-snapshots.js'
import type { InstanceSnapshot, Snapshot, WatchedSnapshot } from './snapshot/snapshot.js'
import { type FailedReload, withTroubles } from './snapshot/troubles.js'

export interface Readiness {
  readonly draining: boolean
  /** False: its store does not answer, and without it newcomers are rejected. */
  readonly admits: boolean
}

/** The data of the admin server: of this process, or of all workers together. */
export interface AdminSource extends FleetSource, KeySource {
  snapshot(): Promise<Snapshot>
  ready(): Promise<Readiness>
  /** Undefined: no route stores requests. */
  deliveries(order: DeliveryOrder): Promise<readonly object[] | boolean | undefined>
  failedReload?(): FailedReload | undefined
  /** Restarts the program. @returns the process that serves then @throws why it does not: nothing has changed */
  restart?(): Promise<number>
  metrics(): Promise<readonly MetricObjectWithValues<MetricValue<string>>[][]>
}

export interface AdminServer {
  readonly url: string
  readonly server: Server
  close(): Promise<void>
}

/** Limits for clients of the admin server. `EXCESS` is for connections that are being closed. `TIMEOUT` is in ms. */
const MOST_CONNECTIONS = 512
const EXCESS = 128
const TIMEOUT = 5_000

/** @throws when the address cannot be listened on */
export async function startAdmin(
  settings: AdminSettings,
  source: AdminSource,
  handed?: ListenHandle,
): Promise<AdminServer> {
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
  await startListening(server, settings.listen, handed)
  return {
    url: urlOf(server, formatListen(settings.listen)),
    server,
    close: () =>
      new Promise(resolve => {
        streams.close()
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

/** Connections without a request that has access. The longest idle one makes room, so nobody keeps probes out. */
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
  if (!streams.open(res, latest, interval === null ? undefined : Number(interval)))
    sendProblem(res, 503, 'too many clients are watching already; close another dashboard')
}

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
  if (path === '/restart') return only(['POST'], method, res, () => serveRestart(req, res, source))
  if (path === '/overrides')
    return only(['GET', 'HEAD'], method, res, async () => sendJson(res, 200, { overrides: await source.overrides() }))
  if (/^\/deliveries(\/|$)/.test(path)) return serveDeliveries(req, res, source, { path, params })
  sendProblem(res, 404, 'there is no such page; see / for the dashboard')
}

const DELIVERY_STATES = ['waiting', 'done', 'dead', 'cancelled']
const NO_DELIVERIES = 'no route has "deliver"'

async function serveDeliveries(
  req: IncomingMessage,
  res: ServerResponse,
  source: AdminSource,
  { path, params }: { readonly path: string; readonly params: URLSearchParams },
): Promise<void> {
  const { method = '' } = req
  const [, , id, verb, ...rest] = path.split('/')
  if (id === undefined) {
    const state = params.get('state') ?? undefined
    if (state !== undefined && !DELIVERY_STATES.includes(state))
      return sendProblem(res, 400, `state is one of ${DELIVERY_STATES.join(', ')}`)
    return only(['GET', 'HEAD'], method, res, async () => {
      const deliveries = await source.deliveries({ verb: 'list', state })
      if (deliveries === undefined) sendProblem(res, 404, NO_DELIVERIES)
      else if (!params.has('counts')) sendJson(res, 200, { deliveries })
      else sendJson(res, 200, { counts: await source.deliveries({ verb: 'count' }), deliveries })
    })
  }
  if (rest.length > 0 || (verb !== undefined && verb !== 'retry'))
    return sendProblem(res, 404, 'use POST /deliveries/ID/retry or DELETE /deliveries/ID')
  if (verb === undefined && (method === 'GET' || method === 'HEAD')) {
    const [found] = ((await source.deliveries({ verb: 'show', id })) ?? []) as readonly object[]
    return found === undefined ? sendProblem(res, 404, 'there is no such delivery') : sendJson(res, 200, found)
  }
  return only(verb === 'retry' ? ['POST'] : ['GET', 'HEAD', 'DELETE'], method, res, async () => {
    if (verb === 'retry' && !isJson(req)) return sendProblem(res, 415, 'send it with Content-Type: application/json')
    const isDone = await source.deliveries({ verb: verb === 'retry' ? 'retry' : 'remove', id })
    if (isDone) sendJson(res, 200, { id })
    else sendProblem(res, 404, verb === 'retry' ? 'there is no such dead letter' : 'there is none, or it is being sent')
  })
}

async function serveRestart(req: IncomingMessage, res: ServerResponse, source: AdminSource): Promise<void> {
  if (!isJson(req)) return sendProblem(res, 415, 'send it with Content-Type: application/json')
  if (source.restart === undefined) return sendProblem(res, 409, 'this program cannot restart itself')
  try {
    // The successor takes the next question.
    res.setHeader('Connection', 'close')
    sendJson(res, 200, { pid: await source.restart() })
  } catch (error) {
    sendProblem(res, 409, `no restart, the process goes on as it was: ${(error as Error).message}`)
  }
}

/** A plain form of another site cannot have this type without asking first. */
function isJson({ headers }: IncomingMessage): boolean {
  return /^application\/json\s*(;|$)/i.test(headers['content-type'] ?? '')
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

function only(allowed: readonly string[], method: string, res: ServerResponse, run: () => void | Promise<void>) {
  if (allowed.includes(method)) return run()
  sendProblem(res, 405, `use ${allowed[0]}`, { Allow: allowed.join(', ') })
}

function ready(res: ServerResponse, { draining, admits }: Readiness): void {
  if (draining) sendText(res, 503, 'shutting down\n')
  else if (!admits) sendText(res, 503, 'the store does not answer\n')
  else sendText(res, 200, 'ready\n')
}

/** Bytes of the body of a PUT. */
const MOST_BODY = 4_096
/** Characters of a text that keys are searched for. No key is longer. */
const LONGEST_QUERY = 128
const NO_BUCKET = 'there is no such bucket; GET /buckets lists them'
/** Buckets whose rate is found. It cannot be set. */
const ADAPTED = /^adaptive(:|$)/
const KEY_METHODS = ['GET', 'HEAD', 'PUT', 'DELETE']
/** Where single keys are asked for: this program, and what others on its store list. */
type KeyRequests = Pick<Served, 'source' | 'fleet'>

async function serveSearch(res: ServerResponse, { source, fleet }: KeyRequests, text: string): Promise<void> {
  if (text === '' || text.length > LONGEST_QUERY)
    return sendProblem(
      res,
      400,
      `q is a text in a key, of 1 to ${LONGEST_QUERY} characters, or the hash of a key in the log`,
    )
  const test = keyTest(text)
  const found = await fleet.elsewhere((_, key) => test(key))
  sendJson(res, 200, withFoundElsewhere(await source.search(text), found))
}

async function serveKey(req: IncomingMessage, res: ServerResponse, asked: KeyRequests, path: string): Promise<void> {
  const [, , bucket, key, ...rest] = path.split('/').map(decode)
  if (bucket === undefined || key === undefined || rest.length > 0)
    return sendProblem(res, 400, 'use /buckets/NAME/KEY, both percent-encoded')
  if (req.method === 'PUT') return servePut(req, res, asked.source, { bucket, key })
  const detail = await asked.source.whyNoKey(bucket, key)
  if (detail !== undefined) return sendProblem(res, 400, detail)
  const answer = await (req.method === 'DELETE' ? reset : stateOf)(asked, bucket, key)
  if (answer !== undefined) sendJson(res, 200, answer)
  else sendProblem(res, 404, NO_BUCKET)
}

async function stateOf({ source, fleet }: KeyRequests, bucket: string, text: string): Promise<KeyState | undefined> {
  const state = await source.key(bucket, text)
  return state && withOthers(state, await listedElsewhere(fleet, bucket, state.key))
}

function reset({ source }: KeyRequests, bucket: string, text: string): Promise<Reset | undefined> {
  return source.reset(bucket, text)
}

async function listedElsewhere(
  fleet: KeyRequests['fleet'],
  bucket: string,
  key: string,
): Promise<readonly InstanceSnapshot[]> {
  const found = await fleet.elsewhere((name, each) => name === bucket && each === key)
  return found.map(({ instance }) => instance)
}

async function servePut(
  req: IncomingMessage,
  res: ServerResponse,
  source: KeySource,
  { bucket, key }: { readonly bucket: string; readonly key: string },
): Promise<void> {
  if (!isJson(req)) return sendProblem(res, 415, 'send the change with Content-Type: application/json')
  const body = await readBody(req)
  if (body === undefined)
    return sendProblem(res, 413, `the body has more than ${MOST_BODY} bytes`, { Connection: 'close' })
  if (ADAPTED.test(bucket))
    return sendProblem(res, 409, 'the rate of this bucket is found from answers; set upstream.adapt')
  let change: ReturnType<typeof readOverrideChange>
  try {
    change = readOverrideChange(bucket, key, body, Date.now())
  } catch (error) {
    return sendProblem(res, 400, (error as Error).message)
  }
  const answer = await source.override(change)
  if (answer === undefined) sendProblem(res, 404, NO_BUCKET)
  else if (answer.status === 'set') sendJson(res, 200, answer.override)
  else if (answer.status === 'ended') sendJson(res, 200, { bucket, key, until: 'now' })
  else if (answer.status === 'wrong') sendProblem(res, 400, answer.detail)
  else if (answer.status === 'absent') sendProblem(res, 404, 'this key has no override')
  else sendProblem(res, 409, '1,000 overrides last already; end one, or change the configuration')
}

/** Undefined: it is too long. */
function readBody(req: IncomingMessage): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = []
    let length = 0
    req.on('data', (part: Buffer) => {
      length += part.length
      if (length > MOST_BODY) resolve(undefined)
      else parts.push(part)
    })
    req.once('end', () => resolve(Buffer.concat(parts).toString('utf8')))
    req.once('error', reject)
  })
}

function decode(part: string): string | undefined {
  return orElse(() => decodeURIComponent(part), undefined)
}

type AccessDenial = 401 | 403 | 421
type Access = (req: IncomingMessage) => AccessDenial | undefined

/** Without a token the address is loopback, and every program on the machine may ask. Pages of other sites may not. */
function createAccess(token: string | undefined): Access {
  if (token === undefined) return accessWithout
  const isToken = createTokenCheck(token)
  return ({ headers: { authorization = '' } }) => {
    const [, sent = ''] = /^Bearer +(\S+) *$/i.exec(authorization) ?? []
    return isToken(sent) ? undefined : 401
  }
}

function accessWithout({ headers }: IncomingMessage): AccessDenial | undefined {
  const { host, origin } = headers
  return pageDenial({ host, origin, fetchSite: headers['sec-fetch-site'] as string | undefined }, 'http')
}

const PLAIN = { 'Cache-Control': 'no-store', 'X-Content-Type-Options': 'nosniff' }

function sendText(res: ServerResponse, status: number, body: string): void {
  res.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8', ...PLAIN }).end(body)
}

function sendJson(res: ServerResponse, status: number, value: unknown, type = 'application/json'): void {
  res.writeHead(status, { 'Content-Type': type, ...PLAIN }).end(`${JSON.stringify(value)}\n`)
}

function sendProblem(res: ServerResponse, status: number, detail: string, headers: Record<string, string> = {}): void {
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value)
  sendJson(res, status, { type: 'about:blank', status, detail }, 'application/problem+json')
}

/** ms between two snapshots of one client. */
const INTERVAL = { least: 200, usual: 500, most: 10_000 }
const MOST_CLIENTS = 16
/** A client with more unread bytes than this gets no snapshots until it has read. */
const UNREAD = 256 * 1024
/** A client that reads nothing for this long is cut off, in ms. */
const PATIENCE = 30_000

/** Snapshots as server-sent events, at a bounded rate to a bounded number of clients. */
class EventStreams {
  readonly #clients = new Set<ServerResponse>()

  /** Answers with a stream until the client hangs up. False: there are too many. @param wanted ms between two snapshots */
  open(res: ServerResponse, take: () => Promise<Snapshot>, wanted: number | undefined): boolean {
    if (this.#clients.size >= MOST_CLIENTS) return false
    const interval = Math.min(INTERVAL.most, Math.max(INTERVAL.least, wanted ?? INTERVAL.usual))
    this.#clients.add(res)
    res.writeHead(200, {
      'Content-Type': 'text/event-stream; charset=utf-8',
      'Cache-Control': 'no-store',
      'X-Accel-Buffering': 'no',
      'X-Content-Type-Options': 'nosniff',
    })
    let readAt = performance.now()
    let timer: NodeJS.Timeout | undefined
    const tick = async (): Promise<void> => {
      if (res.writableLength <= UNREAD) {
        readAt = performance.now()
        const snapshot = await take().catch(() => undefined)
        if (res.destroyed) return
        res.write(
          snapshot === undefined ? ': no snapshot\n\n' : `event: snapshot\ndata: ${JSON.stringify(snapshot)}\n\n`,
        )
      } else if (performance.now() - readAt > PATIENCE) res.destroy()
      timer = setTimeout(tick, interval)
    }
    res.once('close', () => {
      clearTimeout(timer)
      this.#clients.delete(res)
    })
    void tick()
    return true
  }

  close(): void {
    for (const res of this.#clients) res.destroy()
  }
}
