/** An instance of the whole proxy: routes, exchange, gate, upstream and HTTP/1.1, over virtual sockets on the virtual clock. */
import { TrafficTally } from '../../src/admin/counters/traffic-tally.js'
import { parseConfig } from '../../src/config/load.js'
import type { Settings } from '../../src/config/settings.js'
import type { Clock } from '../../src/core/clock.js'
import type { SharedBucket } from '../../src/core/queue/lane.js'
import { combineObservers, type Observer, type Outcome, type RequestRecord } from '../../src/proxy/observe/observer.js'
import { type RunningProxy, startProxy } from '../../src/proxy/server/server.js'
import type { Opens, SocketEvents } from '../../src/proxy/upstream/opener.js'
import type { StoredBucket } from '../../src/sharing/stored-bucket.js'
import type { Connection } from '../instances/store-at-distance.js'
import type { EndEntry, RestEntry } from './history.js'
import type { Ask, Ending, Instance, World } from './instance.js'
import type { BucketPlan, ClientPlan } from './scenario.js'
import { asSocket, connected, type Line, type VirtualSocket } from './virtual-socket.js'
import type { Condition, VirtualUpstream } from './virtual-upstream.js'

/** ms until those that still wait are answered 503. */
const DRAIN = 20_000

const ENDS: Readonly<Record<Outcome, EndEntry['how']>> = {
  ...{ forwarded: 'done', rejected: 'rejected', cancelled: 'hung-up', expired: 'expired' },
  ...{ failed: 'failed', refused: 'failed', accepted: 'failed' },
}

interface Seen {
  readonly request: number
  isDecided: boolean
  isOver: boolean
}

export class ProxyInstance implements Instance {
  readonly number: number
  readonly connection: Connection | undefined
  isUp = false
  /** What its metrics are made of. */
  readonly #tally: TrafficTally
  readonly #world: World
  readonly #clock: Clock
  readonly #line: Line
  readonly #upstream: VirtualUpstream
  readonly #clients: Map<number, ClientPlan>
  /** Its ends of the connections. */
  readonly #sockets = new Set<VirtualSocket>()
  readonly #seen = new Map<number, Seen>()
  readonly #sentOnce = new Set<number>()
  readonly #addresses = new Map<string, string>()
  #proxy: RunningProxy | undefined
  #isGone = false

  constructor(world: World, number: number, upstream: VirtualUpstream) {
    this.#world = world
    this.number = number
    this.#upstream = upstream
    this.#clients = new Map()
    this.#clock = world.clockOf(number, () => this.#isGone)
    this.connection = world.connect(number, this.#clock)
    const { clock, chance, stirred, scenario } = world
    this.#line = { clock, chance, stirred, cuts: 0.3, delay: () => scenario.jitter * chance() }
    this.#tally = new TrafficTally({ now: this.#clock.now, wallNow: world.clock.now })
    void this.#start()
  }

  async #start(): Promise<void> {
    const store = this.connection?.store
    this.#proxy = await startProxy({
      settings: settingsOf(this.#world, this.#world.buckets()),
      ...{ pacer: this.#clock, clock: this.#clock, wallNow: () => 1e12 + this.#world.clock.now() },
      observer: combineObservers([this.#tally, this.#observer()]),
      id: `i${this.number}`,
      openerOf: () => this.#opener(),
      ...(store && { shared: { store, onOutage: 'local' as const, id: String(this.number) } }),
      prepared: async ({ bucketTable }) => this.#tally.join(bucketTable),
    })
    // Nobody connects to them, and nothing is left of a world when its test is over.
    for (const server of this.#proxy.servers) server.unref()
    this.isUp = !this.#isGone
    this.#world.stirred()
  }

  #opener(): Opens {
    return {
      open: events => asSocket(this.#open(events)),
      openHttp2: () => {
        throw new Error('the world has no HTTP/2')
      },
    }
  }

  #open({ onOpen, onRead, beforeClose }: SocketEvents): VirtualSocket {
    const { clock, chance, stirred, scenario } = this.#world
    // Here the slot is the moment of the write.
    const [near, far] = connected({ ...this.#line, delay: () => 0 })
    this.#sockets.add(near)
    near.onWrite = text => this.#sent(text)
    near.on('data', (chunk: Buffer) => onRead(chunk, chunk.length))
    near.on('close', () => {
      beforeClose()
      this.#sockets.delete(near)
    })
    clock.at(clock.now() + scenario.jitter * chance(), () => {
      stirred()
      if (near.destroyed || near.isDead) return
      if (this.#upstream.condition === 'refusing')
        return void near.destroy(Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' }))
      this.#upstream.accept(far)
      onOpen()
    })
    return near
  }

  /** Bytes are written to the upstream. */
  #sent(text: string): void {
    const [, number] = /^GET [\s\S]*\r\nX-Request: (\d+)\r\n/i.exec(text) ?? []
    if (number === undefined || this.#isGone) return
    const request = Number(number)
    const again = this.#sentOnce.has(request)
    this.#sentOnce.add(request)
    this.#world.record({ what: 'release', at: this.#clock.now(), request, ...(again && { again }) })
  }

  #observer(): Observer {
    return {
      arrived: record => this.#arrived(record),
      queued: record => this.#decided(record, 'queued'),
      released: record => this.#decided(record, 'released'),
      sent: record => this.#decided(record, 'released'),
      finished: (record, outcome) => this.#finished(record, outcome),
    }
  }

  #arrived(record: RequestRecord): void {
    const seen: Seen = { request: Number(record.header('x-request')), isDecided: false, isOver: false }
    this.#seen.set(seen.request, seen)
    const client = this.#clients.get(seen.request)!
    this.#world.record({
      ...{ what: 'arrive', at: this.#clock.now(), request: seen.request, client: client.name, kind: client.kind },
      ...{ instance: this.number, keys: record.keys, cost: record.cost, priority: record.priority },
      ...{ route: record.route, maxWait: Infinity },
      hasBooking: record.header('shaper-ticket') !== undefined,
    })
  }

  #decided(record: RequestRecord, verdict: 'queued' | 'released' | 'rejected'): void {
    const seen = this.#seen.get(Number(record.header('x-request')))
    if (seen === undefined || seen.isDecided || this.#isGone) return
    seen.isDecided = true
    const reason = verdict === 'rejected' ? { reason: record.rejection?.reason ?? '' } : {}
    this.#world.record({ what: 'decide', at: this.#clock.now(), request: seen.request, verdict, ...reason })
  }

  #finished(record: RequestRecord, outcome: Outcome): void {
    const seen = this.#seen.get(Number(record.header('x-request')))
    if (seen === undefined || this.#isGone) return
    const isEvicted = outcome === 'rejected' && seen.isDecided
    if (outcome === 'rejected') this.#decided(record, 'rejected')
    const how = isEvicted ? 'evicted' : ENDS[outcome]
    seen.isOver = true
    this.#seen.delete(seen.request)
    this.#world.record({ what: 'end', at: this.#clock.now(), request: seen.request, how })
  }

  ask(ask: Ask, ended: (ending: Ending) => void): () => void {
    const { client, request, visitor, booking } = ask
    this.#clients.set(request, client)
    const [near, far] = connected(this.#line)
    far.remoteAddress = this.#addressOf(visitor)
    this.#sockets.add(far)
    far.on('close', () => this.#sockets.delete(far))
    // As in the kernel, until it is accepted.
    const ignore = (): void => undefined
    far.on('error', ignore)
    let answer = ''
    let isOver = false
    const end = (ending: Ending): void => {
      if (isOver) return
      isOver = true
      near.destroy()
      ended(ending)
    }
    near.on('data', (bytes: Buffer) => {
      answer += bytes.toString('latin1')
      const ending = endingOf(answer)
      if (ending !== undefined) end(ending)
    })
    near.on('error', ignore)
    near.on('close', () => end({ how: 'gone' }))
    near.on('end', () => end({ how: 'gone' }))
    near.write(requestOf(ask, booking), 'latin1')
    // It may stand still.
    this.#clock.at(this.#clock.now(), () => {
      this.#world.stirred()
      if (far.destroyed) return
      if (this.#isGone || this.#proxy === undefined) return far.die()
      far.off('error', ignore)
      this.#proxy.servers[0]!.emit('connection', far)
    })
    return () => {
      isOver = true
      if (this.#world.chance() < 0.5) near.resetAndDestroy()
      else near.destroy()
    }
  }

  /** Each visitor has one. */
  #addressOf(visitor: string): string {
    const known = this.#addresses.get(visitor)
    if (known !== undefined) return known
    // The same in all instances.
    const number = Number(visitor.replace(/\D+/, '')) + (visitor.startsWith('visitor') ? 256 : 0)
    const address = `10.${number >> 16}.${(number >> 8) & 255}.${number & 255}`
    this.#addresses.set(visitor, address)
    return address
  }

  crash(): void {
    if (this.#isGone) return
    this.isUp = false
    const at = this.#clock.now()
    for (const { request } of this.#seen.values()) this.#world.record({ what: 'end', at, request, how: 'lost' })
    this.#seen.clear()
    this.#isGone = true
    if (this.connection !== undefined) this.connection.gone = true
    for (const socket of [...this.#sockets]) socket.die()
    for (const server of this.#proxy?.servers ?? []) server.close()
  }

  leave(): void {
    this.isUp = false
    void this.close()
  }

  async close(): Promise<void> {
    if (this.#isGone || this.#proxy === undefined) return
    await this.#proxy.drain(DRAIN)
    this.#isGone = true
  }

  reload(buckets: readonly BucketPlan[]): void {
    void this.#proxy?.reload(settingsOf(this.#world, buckets)).then(() => this.#world.stirred())
    this.#world.stirred()
  }

  override(bucket: BucketPlan, key: string, rate: number | undefined): void {
    const overrides = this.#proxy?.context.overrides
    const done =
      rate === undefined
        ? overrides?.end(bucket.name, key)
        : overrides?.set({ bucket: bucket.name, key, rate, endsIn: 1e6 })
    void done?.catch(() => undefined)
    this.#world.stirred()
  }

  reset(bucket: BucketPlan, key: string): void {
    const { context } = this.#proxy ?? {}
    const instance = context?.bucketTable.peek(bucket.name, key)
    if (context === undefined || instance === undefined) return
    if (context.sharing === undefined) context.shaper.engine.reset(instance)
    else void context.sharing.reset(instance as StoredBucket).catch(() => undefined)
  }

  pause(ms: number): void {
    const { context } = this.#proxy ?? {}
    if (context === undefined || this.#isGone) return
    for (const gate of new Set(context.routes.map(({ lane }) => lane.gate))) context.shaper.engine.pause(gate, ms)
  }

  upstreamIs(condition: Condition): void {
    this.#upstream.condition = condition
  }

  counts(): ReadonlyMap<EndEntry['how'], number> {
    const sums = new Map<EndEntry['how'], number>()
    for (const { outcomes } of this.#tally.routes.values())
      for (const [outcome, count] of Object.entries(outcomes)) {
        const how = ENDS[outcome as Outcome]
        sums.set(how, (sums.get(how) ?? 0) + count)
      }
    return sums
  }

  left(): RestEntry['left'] {
    const { shaper, bucketTable, inProgress, routes, bodyBytes } = this.#proxy!.context
    const now = this.#clock.now()
    const buckets = [...bucketTable.all()]
    const sumOf = (of: (bucket: SharedBucket) => number): number => buckets.reduce((sum, each) => sum + of(each), 0)
    const gates = [...new Set(routes.map(({ lane }) => lane.gate))]
    return {
      ...{ 'in progress': inProgress, waiting: shaper.queued, 'bytes held': bodyBytes.used },
      'in flight': gates.reduce((sum, { inFlight }) => sum + inFlight, 0),
      'waiting in buckets': sumOf(bucket => bucket.waiting),
      'queued in buckets': sumOf(bucket => bucket.queued),
      'in flight in buckets': sumOf(bucket => bucket.inFlight),
      level: sumOf(bucket => bucket.level(now)),
      unseen: this.#seen.size,
    }
  }
}

function requestOf({ request, client }: Ask, booking: Ask['booking']): string {
  const { name, cost, priority, route } = client
  const ticket = booking === undefined ? '' : `Shaper-Ticket: ${booking}\r\n`
  return (
    `GET /${route} HTTP/1.1\r\nHost: world\r\nX-Request: ${request}\r\nX-Client: ${name}\r\nX-Cost: ${cost}\r\n` +
    `X-Kind: ${client.kind}\r\nPriority: u=${priority}\r\n${ticket}\r\n`
  )
}

/** Undefined: the answer is not whole yet. */
function endingOf(answer: string): Ending | undefined {
  const end = answer.indexOf('\r\n\r\n')
  if (end < 0) return undefined
  const head = answer.slice(0, end)
  const field = (name: string): string | undefined => new RegExp(`\r\n${name}: ([^\r]*)`, 'i').exec(head)?.[1]
  if (answer.length < end + 4 + Number(field('content-length') ?? 0)) return undefined
  const status = Number(head.slice(9, 12))
  if (status === 200) return { how: 'done' }
  const retryAfter = field('retry-after')
  return {
    how: status === 429 ? 'rejected' : 'gone',
    retryAfterMs: retryAfter === undefined ? undefined : 1_000 * Number(retryAfter),
    booking: field('shaper-ticket'),
  }
}

function settingsOf({ scenario }: World, buckets: readonly BucketPlan[]): Settings {
  const { mode, books, maxInFlight } = scenario
  const route = (name: string) => ({
    ...{ name, match: { path: `/${name}` }, mode, buckets: buckets.map(({ name }) => name), patience: 'none' },
    ...{ cost: { header: 'x-cost', min: 1, max: 100, default: 1 }, priority: { header: true } },
    ...(books && { appointments: true }),
  })
  const config = {
    ...{ listen: '127.0.0.1:0', trustProxy: true, ticketKeys: ['the world has one key for all of its tickets'] },
    upstream: { url: 'http://10.255.0.1:80', ...(maxInFlight < Infinity && { maxInFlight }) },
    buckets: Object.fromEntries(
      buckets.map(({ name, perSecond, capacity, burst, isOwn }) => [
        name,
        {
          ...{ key: isOwn ? 'header:x-client' : 'all', rate: perSecond, capacity },
          ...(burst !== undefined && { burst }),
        },
      ]),
    ),
    routes: [route('route'), route('other')],
  }
  return parseConfig(JSON.stringify(config), { env: {} })
}
