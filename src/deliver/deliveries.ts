/**
 * Accepts requests to be delivered later, and answers what becomes of them. What a client is told is committed. Sending is the
 * worker's.
 */
import { createHash, randomBytes } from 'node:crypto'
import { parseItem } from 'structured-headers'
import { maskUrl } from '../config/messages.js'
import { periodAt } from '../config/periods.js'
import type { DeliverSettings, KeyPart, Settings } from '../config/settings.js'
import type { Clock } from '../core/clock.js'
import type {
  Accepted,
  Deliveries,
  DeliveryAnswer,
  DeliveryCount,
  DeliveryOrder,
  ProxyContext,
} from '../proxy/context.js'
import { DELIVERIES_PATH } from '../proxy/exchange/exchange.js'
import type { Reply } from '../proxy/http/client.js'
import { isHopByHop, isNamed, NameSet } from '../proxy/http/fields.js'
import { headerValue } from '../proxy/http/request.js'
import type { Route } from '../proxy/routing/route.js'
import { describeTrouble } from '../stores/describe-error.js'
import type { StoredHead } from './attempt.js'
import type { DeliveryRow, DeliveryTable, NewDelivery, State } from './table.js'
import { LEASE, Worker, type WorkerOptions } from './worker.js'

/** Rows and bytes that are committed at once, and that may wait for it. */
const BATCH = { rows: 128, bytes: 8 * 1024 * 1024 }
const WAITING = { rows: 10_000, bytes: 128 * 1024 * 1024 }
/** Characters of an Idempotency-Key. */
const LONGEST_KEY = 255
/** No attempt has ended. */
const RESULTS = new Map(['done', 'retry', 'dead', 'cancelled'].map(result => [result, 0]))
const STATES: readonly State[] = ['waiting', 'done', 'dead', 'cancelled']
const ID = /^[\w-]{22}$/
/** ms that a cancellation waits for the instance that has the delivery, and between two looks. */
const CANCEL = { wait: 3_000, look: 100 }
const LISTED = 100
/** Questions about deliveries at a time. */
const ASKING = { each: 16, all: 256 }
/** Of a quota, that are looked ahead. */
const MOST_PERIODS = 100
/** ms by which the clock of the database may differ, so that an end of a period is not the one before. */
const CLOCKS = 1_000
/** ms for which counts are remembered. */
const COUNTED = 10_000
/** The part of `maxWaiting` that is accepted until what waits is counted again. */
const RECOUNTED = 1 / 16

/** Headers that do not apply later, or that are written anew. */
const DROPPED = new NameSet([
  ...['prefer', 'expect', 'trailer', 'shaper-ticket', 'http2-settings'],
  ...['grpc-timeout', 'x-envoy-expected-rq-timeout-ms'],
])
/** Keys that tell clients apart for sure. */
const VERIFIED: ReadonlySet<KeyPart['kind']> = new Set(['jwt', 'cert'])

const AWAY: Reply = {
  status: 503,
  detail: 'the database of deliveries does not answer; send the request again, with the same Idempotency-Key',
  retryAfterMs: 1_000,
  outage: true,
}
const NOT_HERE: Reply = { status: 404, detail: 'there is no such delivery, or not any more' }
const BAD_KEY: Reply = {
  status: 400,
  detail: `Idempotency-Key is no text of 1 to ${LONGEST_KEY} visible characters; use e.g. "8e03978e-40d5-43dd-bc93-6894a57f9324"`,
}
const OTHER: Reply = {
  status: 409,
  detail: 'this Idempotency-Key was used for another request; use a new key for each request',
}
const TOO_MANY: Reply = {
  status: 503,
  detail: 'too many questions about deliveries at a time; ask again',
  retryAfterMs: 1_000,
}
const SENT: Reply = { status: 409, detail: 'it has been sent, or is being sent' }

export type DeliveriesOptions = Pick<WorkerOptions, 'clock' | 'wallNow' | 'onError'> &
  Partial<Pick<WorkerOptions, 'random' | 'lease'>>

/** The database of some routes. */
interface Place {
  readonly table: DeliveryTable
  readonly acceptor: Acceptor
  readonly room: WaitingRoom
  readonly worker: Worker
}

/** A database of deliveries cannot be used. Its message has the URL without its password. */
export class DeliveryError extends Error {}

export class StoredDeliveries implements Deliveries {
  /** Results of attempts here, by route and result. */
  readonly results = new Map<string, Map<string, number>>()
  readonly #options: DeliveriesOptions
  readonly #places = new Map<string, Place>()
  #context: ProxyContext | undefined
  /** Questions that are not answered yet, by client. */
  readonly #asking = new Map<string, number>()
  #askingInAll = 0
  #counted: { readonly at: number; readonly counts: Promise<readonly DeliveryCount[]> } | undefined

  constructor(options: DeliveriesOptions) {
    this.#options = options
  }

  get isUsed(): boolean {
    return this.#places.size > 0
  }

  async start(context: ProxyContext): Promise<void> {
    this.#context = context
    const commit = await this.#prepare(context.routes.map(({ settings }) => settings))
    commit()
  }

  prepare({ routes }: Settings): Promise<() => void> {
    return this.#prepare(routes)
  }

  async #prepare(routes: Settings['routes']): Promise<() => void> {
    const byUrl = new Map<string, Map<string, DeliverSettings>>()
    for (const { name, deliver } of routes) {
      if (deliver === undefined) continue
      byUrl.set(deliver.url, (byUrl.get(deliver.url) ?? new Map<string, DeliverSettings>()).set(name, deliver))
    }
    const opened = new Map<string, Place>()
    for (const url of byUrl.keys()) if (!this.#places.has(url)) opened.set(url, await this.#open(url))
    return () => {
      for (const [url, place] of opened) this.#places.set(url, place)
      for (const { name, deliver } of routes)
        if (deliver !== undefined && !this.results.has(name)) this.results.set(name, new Map(RESULTS))
      for (const [url, { worker }] of this.#places) worker.setRoutes(byUrl.get(url) ?? new Map())
    }
  }

  async #open(url: string): Promise<Place> {
    const { DeliveryTable } = await import('./table.js')
    const table = new DeliveryTable(url)
    const { random = Math.random, lease = LEASE, ...rest } = this.#options
    const recorded = (route: string, result: string): void => {
      const ofRoute = this.results.get(route)!
      ofRoute.set(result, ofRoute.get(result)! + 1)
    }
    const worker = new Worker({ ...rest, random, lease, table, context: this.#context!, recorded })
    try {
      await table.open()
      await worker.start()
    } catch (error) {
      await table.close()
      throw new DeliveryError(`${maskUrl(url)}: ${describeTrouble(error as Error)}`)
    }
    return { table, worker, acceptor: new Acceptor(table), room: new WaitingRoom(table, rest.clock) }
  }

  limitsChanged(): void {
    for (const { worker } of this.#places.values()) worker.limitsChanged()
  }

  leave(): void {
    for (const { worker } of this.#places.values()) worker.leave()
  }

  async close(): Promise<void> {
    for (const { worker, table } of this.#places.values()) {
      await worker.close()
      await table.close()
    }
    this.#places.clear()
  }

  async accept(route: Route, request: Accepted): Promise<DeliveryAnswer> {
    const place = this.#places.get(route.settings.deliver!.url)
    if (place === undefined) return AWAY
    const { rawHeaders } = request.facts
    const given = headerValue(rawHeaders, 'idempotency-key')
    const key = given === undefined ? randomBytes(16).toString('hex') : readKey(given)
    if (key === undefined) return BAD_KEY
    const delivery = describe(route, request, key, given ?? JSON.stringify(key))
    let row: DeliveryRow | undefined
    try {
      const full = await place.room.fullFor(route)
      if (full !== undefined) return full
      row = await place.acceptor.accept(delivery)
      if (row !== undefined && isForgotten(route.settings.deliver!, row)) {
        await place.table.remove(row.id)
        row = await place.acceptor.accept(delivery)
      }
    } catch (error) {
      this.#options.onError(error as Error)
      return AWAY
    }
    if (row === undefined) return AWAY
    if (!row.fingerprint.equals(delivery.fingerprint)) return OTHER
    place.room.accepted(route.name)
    place.worker.look(route.name)
    const more = ['Location', DELIVERIES_PATH + row.id, 'Preference-Applied', 'respond-async']
    return documentAnswer(202, documentOf(row), more)
  }

  async ask(method: string, id: string, client: string): Promise<DeliveryAnswer> {
    const ofClient = this.#asking.get(client) ?? 0
    if (ofClient >= ASKING.each || this.#askingInAll >= ASKING.all) return TOO_MANY
    this.#asking.set(client, ofClient + 1)
    this.#askingInAll += 1
    const answer = await this.#ask(method, id)
    this.#askingInAll -= 1
    const left = this.#asking.get(client)! - 1
    if (left > 0) this.#asking.set(client, left)
    else this.#asking.delete(client)
    return answer
  }

  async #ask(method: string, id: string): Promise<DeliveryAnswer> {
    if (method !== 'GET' && method !== 'HEAD' && method !== 'DELETE')
      return { status: 405, detail: 'use GET, or DELETE to cancel', headers: ['Allow', 'GET, HEAD, DELETE'] }
    if (!ID.test(id)) return NOT_HERE
    try {
      return await (method === 'DELETE' ? this.#cancel(id) : this.#tell(id))
    } catch (error) {
      this.#options.onError(error as Error)
      return { ...AWAY, detail: 'the database of deliveries does not answer' }
    }
  }

  async #tell(id: string): Promise<DeliveryAnswer> {
    for (const { table } of this.#places.values()) {
      const row = await table.find(id)
      if (row === undefined || isForgotten(this.#settingsOf(row.route)?.deliver, row)) continue
      const expected = this.#expectedIn(row)
      const document = documentOf(row, expected)
      if (row.state !== 'waiting') return documentAnswer(200, document)
      return documentAnswer(200, document, ['Retry-After', String(Math.max(1, Math.ceil(expected / 1_000)))])
    }
    return NOT_HERE
  }

  /** ms until it is sent, if those before it in its lane take the slots of its slowest bucket, and what its quotas let pass. */
  #expectedIn({ route, ahead, due, now }: DeliveryRow & { readonly ahead: number }): number {
    const buckets = this.#settingsOf(route)?.buckets ?? []
    const slowest = Math.min(...buckets.map(({ rate }) => rate))
    let at = Math.max(due, now)
    for (const { quota, capacity } of buckets)
      for (let period = 1; quota !== undefined && period <= Math.min(MOST_PERIODS, ahead / capacity); period += 1)
        at = periodAt(quota, { wall: at + CLOCKS, now: at + CLOCKS }).until
    return Math.max(at - now, slowest > 0 && slowest < Infinity ? ahead / slowest : 0)
  }

  #settingsOf(route: string): Route['settings'] | undefined {
    return this.#context!.routes.find(({ name }) => name === route)?.settings
  }

  async #cancel(id: string): Promise<DeliveryAnswer> {
    const { clock } = this.#options
    for (const { table, worker } of this.#places.values()) {
      if (worker.isSent(id)) return SENT
      let row = await table.cancel(id)
      if (row === undefined) continue
      worker.cancel(id)
      const end = clock.now() + CANCEL.wait
      while (row?.state === 'waiting' && !row.sent && clock.now() < end) {
        await new Promise<void>(resolve => void clock.at(clock.now() + CANCEL.look, resolve))
        row = await table.find(id)
      }
      const isCancelled = row?.state === 'cancelled' || (await table.keep(id))
      return isCancelled ? { status: 204, headers: [], body: '' } : SENT
    }
    return NOT_HERE
  }

  async administer(order: DeliveryOrder): Promise<readonly object[] | boolean> {
    const tables = [...this.#places.values()].map(({ table }) => table)
    if (order.verb === 'list') {
      const { state } = order
      const lists = await Promise.all(tables.map(table => table.list(state === undefined ? STATES : [state], LISTED)))
      return lists.flat().map(listed)
    }
    if (order.verb === 'count') return this.counts()
    const { verb, id } = order
    if (verb === 'show')
      return (await Promise.all(tables.map(table => table.find(id)))).flatMap(row => (row ? listed(row) : []))
    for (const table of tables) if (await table[verb](id)) return true
    return verb === 'remove' && (await this.#cancel(id)).status === 204
  }

  /** Counting takes a while where millions wait, so it is not done at each question. */
  counts(): Promise<readonly DeliveryCount[]> {
    const now = this.#options.clock.now()
    if (this.#counted === undefined || now - this.#counted.at > COUNTED) {
      const tables = [...this.#places.values()].map(({ table }) => table.counts())
      this.#counted = { at: now, counts: Promise.all(tables).then(each => each.flat()) }
      this.#counted.counts.catch(() => {
        this.#counted = undefined
      })
    }
    return this.#counted.counts
  }
}

/**
 * Whether a route may store more. Counting reads all that waits, so what was accepted here is added to the last count, until that may be
 * too much. So each other instance may exceed the bound by a sixteenth.
 */
class WaitingRoom {
  readonly #table: DeliveryTable
  readonly #clock: Clock
  #counts: ReadonlyMap<string, number> | undefined
  #countedAt = -Infinity
  #counting: Promise<void> | undefined
  /** Accepted here since then, by route. */
  readonly #since = new Map<string, number>()

  constructor(table: DeliveryTable, clock: Clock) {
    this.#table = table
    this.#clock = clock
  }

  accepted(route: string): void {
    this.#since.set(route, (this.#since.get(route) ?? 0) + 1)
  }

  /** What is answered if as many wait as may. @throws if the database does not answer */
  async fullFor({ name, settings }: Route): Promise<Reply | undefined> {
    const { maxWaiting } = settings.deliver!
    const since = this.#since.get(name) ?? 0
    const isOld = this.#clock.now() - this.#countedAt > COUNTED
    const isToCount = isOld && (since > RECOUNTED * maxWaiting || this.#waiting(name) >= maxWaiting)
    if (this.#counts === undefined || isToCount) this.#counting ??= this.#count()
    // All wait for it, as they are stored in the order of their arrival.
    await this.#counting
    if (this.#waiting(name) < maxWaiting) return undefined
    const retryAfterMs = Math.max(1_000, this.#countedAt + COUNTED - this.#clock.now())
    return { status: 503, detail: `${maxWaiting} requests of this route wait already, its "maxWaiting"`, retryAfterMs }
  }

  #waiting(route: string): number {
    return (this.#counts?.get(route) ?? 0) + (this.#since.get(route) ?? 0)
  }

  async #count(): Promise<void> {
    const at = this.#clock.now()
    try {
      const counts = await this.#table.counts()
      this.#counts = new Map(
        counts.filter(({ state }) => state === 'waiting').map(({ route, count }) => [route, count]),
      )
      this.#countedAt = at
      this.#since.clear()
    } finally {
      this.#counting = undefined
    }
  }
}

/** Commits what comes meanwhile together, in the order of its arrival. */
class Acceptor {
  readonly #table: DeliveryTable
  #waiting: { row: NewDelivery; done: (row: DeliveryRow | undefined) => void; failed: (error: Error) => void }[] = []
  #bytes = 0
  #isBusy = false

  constructor(table: DeliveryTable) {
    this.#table = table
  }

  /** @throws if it was not committed, as far as is known */
  accept(row: NewDelivery): Promise<DeliveryRow | undefined> {
    if (this.#waiting.length >= WAITING.rows || this.#bytes > WAITING.bytes)
      return Promise.reject(new Error('too many requests wait to be stored'))
    return new Promise((done, failed) => {
      this.#waiting.push({ row, done, failed })
      this.#bytes += row.body.length
      void this.#commit()
    })
  }

  async #commit(): Promise<void> {
    if (this.#isBusy) return
    this.#isBusy = true
    // Those of one tick go together.
    await new Promise(resolve => setImmediate(resolve))
    while (this.#waiting.length > 0) {
      let count = 0
      let bytes = 0
      while (count < Math.min(BATCH.rows, this.#waiting.length) && bytes < BATCH.bytes) {
        bytes += this.#waiting[count]!.row.body.length
        count += 1
      }
      const some = this.#waiting.splice(0, count)
      this.#bytes -= bytes
      try {
        const rows = await this.#table.insert(some.map(({ row }) => row))
        for (const [at, { done }] of some.entries()) done(rows[at])
      } catch (error) {
        for (const { failed } of some) failed(error as Error)
      }
    }
    this.#isBusy = false
  }
}

/** It is deleted in the next minute. */
function isForgotten(deliver: DeliverSettings | undefined, { ended, now }: DeliveryRow): boolean {
  return deliver !== undefined && ended !== null && now - ended > deliver.keep
}

/** The text of a key: a string of RFC 9651 as the draft demands, or a bare word. Undefined: it is neither. */
function readKey(field: string): string | undefined {
  if (field.length > LONGEST_KEY + 2) return undefined
  if (/^[!#-+\x2d-~]+$/.test(field)) return field.length <= LONGEST_KEY ? field : undefined
  try {
    const [text] = parseItem(field)
    return typeof text === 'string' && text !== '' && text.length <= LONGEST_KEY ? text : undefined
  } catch {
    return undefined
  }
}

/** @param field the key as it is sent */
function describe(route: Route, request: Accepted, key: string, field: string): NewDelivery {
  const { facts, keys, body, claims, connection } = request
  const { method, target, rawHeaders } = facts
  const lane = digest([route.name, ...keys])
  // Where no key says for sure who it is, what they are authorized with does.
  const isKnown = route.buckets.some(({ settings }) => settings.key.parts.some(({ kind }) => VERIFIED.has(kind)))
  const whose = isKnown ? '' : (headerValue(rawHeaders, 'authorization') ?? '')
  const { peer, peerKey, certificate, encrypted } = connection
  const head: StoredHead = {
    ...{ method, target, peer, peerKey, certificate, encrypted },
    claims: [...claims],
    headers: storedHeaders(request, field),
  }
  return {
    id: newId(),
    route: route.name,
    lane: lane.subarray(0, 16),
    dedupe: digest([route.name, JSON.stringify(keys), whose, key]),
    fingerprint: createHash('sha256')
      .update(JSON.stringify([method, target]))
      .update(body)
      .digest(),
    head: JSON.stringify(head),
    body,
  }
}

/** Not with a hyphen first: on a command line it would be an option. */
function newId(): string {
  const id = randomBytes(16).toString('base64url')
  return id.startsWith('-') ? newId() : id
}

function digest(texts: readonly string[]): Buffer {
  return createHash('sha256').update(JSON.stringify(texts)).digest()
}

function storedHeaders({ facts, body }: Accepted, key: string): string[] {
  const { rawHeaders, connection } = facts
  const headers: string[] = []
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!
    if (isHopByHop(name) || DROPPED.has(name) || connection?.has(name.toLowerCase())) continue
    headers.push(name, rawHeaders[at + 1]!)
  }
  const has = (wanted: string): boolean => headers.some((name, at) => at % 2 === 0 && isNamed(name, wanted))
  if (facts.host !== undefined && !has('host')) headers.unshift('Host', facts.host)
  if (body.length > 0 && !has('content-length')) headers.push('Content-Length', String(body.length))
  if (!has('idempotency-key')) headers.push('Idempotency-Key', key)
  return headers
}

/** What is said of a delivery. @param expected ms until it is sent, for one that waits */
function documentOf(row: DeliveryRow, expected = Math.max(0, row.due - row.now)) {
  const { state, sent, owned, attempts, created, ended, error, answer } = row
  const isWaiting = state === 'waiting'
  return {
    state: isWaiting && sent && owned ? 'sending' : state,
    attempts,
    createdAt: timeOf(created),
    ...(isWaiting && { nextAttemptAt: timeOf(row.now + expected) }),
    ...(ended !== null && { endedAt: timeOf(ended) }),
    ...(error !== null && state !== 'done' && { error: JSON.parse(error) as object }),
    ...(answer !== null && state !== 'waiting' && { answer: answerOf(answer, row.answer_body) }),
  }
}

function listed(row: DeliveryRow): object {
  return { id: row.id, route: row.route, ...documentOf(row) }
}

function answerOf(head: string, body: Buffer | null): object {
  const { status, headers } = JSON.parse(head) as { status: number; headers: readonly string[] }
  const pairs: [string, string][] = []
  for (let at = 0; at < headers.length; at += 2) pairs.push([headers[at]!, headers[at + 1]!])
  if (body === null || body.length === 0) return { status, headers: pairs }
  const text = body.toString()
  const isText = Buffer.from(text).equals(body)
  return { status, headers: pairs, ...(isText ? { body: text } : { bodyBase64: body.toString('base64') }) }
}

function timeOf(ms: number): string {
  return new Date(Math.round(ms)).toISOString()
}

function documentAnswer(status: number, document: object, more: readonly string[] = []): DeliveryAnswer {
  const body = Buffer.from(`${JSON.stringify(document)}\n`).toString('latin1')
  const headers = [
    ...['Content-Type', 'application/json', 'Content-Length', String(body.length)],
    ...['Cache-Control', 'no-store', 'X-Content-Type-Options', 'nosniff', ...more],
  ]
  return { status, headers, body }
}
