/** Prometheus metrics. Labels are route, bucket and the like, never a key. */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import type { Meter } from '@opentelemetry/api'
import {
  Counter,
  Gauge,
  type GaugeConfiguration,
  Histogram,
  type MetricObjectWithValues,
  type MetricValue,
  Registry,
} from 'prom-client'
import { isAnyRate } from '../../config/derived/default-capacity.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import type { Clock } from '../../core/clock.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { Deliveries, DeliveryCount } from '../../proxy/context.js'
import type { FollowedLimits } from '../../proxy/limits/key-limits.js'
import type { Observer } from '../../proxy/observe/observer.js'
import type { Store } from '../../sharing/store.js'
import { wrapped } from '../../stores/verbs.js'
import { makeInstruments } from './instruments.js'
import type { RouteTally, StatusCounts, TrafficTally } from './traffic-tally.js'

/** The route label of requests without a route. A route name cannot contain parentheses, so this cannot clash. */
export const NO_ROUTE = '(none)'
/** Upper bounds of histogram buckets, in seconds. */
const WAITS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
const LATENESSES = [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1]
const ANSWERS = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
const STORE_CALLS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25]

export interface MetricsOptions {
  readonly tally: TrafficTally
  keys(): Iterable<readonly [bucket: string, instances: number]>
  /** What each bucket allows at present, of keys in no tier. */
  limits(): Iterable<BucketLimits>
  /** Limits of single keys from outside. */
  outside(): Iterable<readonly [bucket: string, limits: Pick<FollowedLimits, 'size' | 'readAt' | 'last'>]>
  /** Whether the public keys of tokens could be read when that was tried last. Undefined: none are read from a URL. */
  canReadKeys(): boolean | undefined
  /** What is learnt on each route, in ms. Undefined: not known. */
  waits(): Iterable<LearntWaits>
  waitingPages(): number
  /** Undefined: no route stores requests. */
  deliveries(): Pick<Deliveries, 'counts' | 'results'> | undefined
  servers(): Iterable<ServerState>
  /** Undefined: no SDK of OpenTelemetry is loaded. */
  readonly meter?: Meter | undefined
}

/** A server of an upstream. */
export interface ServerState {
  readonly upstream: string
  readonly server: string
  /** Undefined: it has neither a breaker nor a check. */
  readonly isUp: boolean | undefined
  readonly inFlight: number
}

/** In ms. */
interface LearntWaits {
  readonly route: string
  readonly patience: number | undefined
  readonly service: number | undefined
}

type Value<Label extends string> = readonly [labels: Partial<Record<Label, string>>, value: number]
type Values<Label extends string> = () => Iterable<Value<Label>>
type RouteValues = (route: RouteTally) => Iterable<Value<string>>
type GaugeOptions<Label extends string> = Pick<GaugeConfiguration<Label>, 'labelNames' | 'aggregator'>

/** Takes the present values each time that metrics are asked for. */
function collector<Label extends string>(values: Values<Label>) {
  return function (this: Counter<Label> | Gauge<Label>): void {
    this.reset()
    for (const [labels, value] of values()) this.inc(labels, value)
  }
}

function by<Label extends string>(label: Label, counts: Readonly<Record<string, number>>): Value<Label>[] {
  return Object.entries(counts).map(([name, count]) => [{ [label]: name } as Record<Label, string>, count])
}

/** Of this process since its start. */
export function cpuSeconds(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1e6
}

export class Metrics implements Pick<Observer, 'released' | 'finished' | 'settled'> {
  readonly #registry = new Registry()
  readonly #waits: Histogram<'route'>
  readonly #priorityWaits: Histogram<'priority'>
  /** Some request had another priority than the usual one. */
  #hasPriorities = false
  readonly #lateness: Histogram
  readonly #answers: Histogram<'route'>
  readonly #storeCalls: Histogram
  readonly #storeErrors: Counter
  readonly #settlements: Counter<'route' | 'by'>
  readonly #costs: Counter<'route' | 'bucket' | 'kind'>

  constructor(options: MetricsOptions) {
    const { tally, keys, waits, limits, outside, canReadKeys, servers, waitingPages, deliveries, meter } = options
    const registers = [this.#registry]
    const histogram = <Label extends string>(name: string, help: string, limits: number[], ...labelNames: Label[]) =>
      new Histogram({ name, help, buckets: limits, labelNames, registers })
    const counter = <Label extends string>(name: string, help: string, labelNames: Label[], values?: Values<Label>) =>
      new Counter<Label>({ name, help, labelNames, registers, ...(values && { collect: collector(values) }) })
    const gauge = <Label extends string>(
      name: string,
      help: string,
      options: GaugeOptions<Label>,
      values: Values<Label>,
    ) => new Gauge<Label>({ name, help, ...options, registers, collect: collector(values) })
    const perRoute = (of: RouteValues) =>
      function* (): Generator<Value<string>> {
        for (const [name, route] of tally.routes)
          for (const [labels, value] of of(route)) yield [{ route: name || NO_ROUTE, ...labels }, value]
      }
    const ofRoutes = (name: string, help: string, labels: string[], of: RouteValues) =>
      counter(name, help, ['route', ...labels], perRoute(of))

    this.#waits = histogram('shaper_queue_wait_seconds', 'How long released requests were queued', WAITS, 'route')
    const byPriority = 'How long released requests of each priority were queued, once there are several'
    this.#priorityWaits = histogram('shaper_priority_wait_seconds', byPriority, WAITS, 'priority')
    this.#lateness = histogram('shaper_release_lateness_seconds', 'How late releases were', LATENESSES)
    const answers = "From sending to the head of the upstream's answer"
    this.#answers = histogram('shaper_upstream_seconds', answers, ANSWERS, 'route')
    this.#storeCalls = histogram('shaper_store_seconds', 'How long the store took to answer', STORE_CALLS)
    this.#storeErrors = counter('shaper_store_errors_total', 'Calls that the store did not answer', [])
    const settled = 'Requests of routes that settle costs, by what told the true cost'
    this.#settlements = counter('shaper_settlements_total', settled, ['route', 'by'])
    const costs = 'What was reserved for settled requests, and what they really cost'
    this.#costs = counter('shaper_settled_cost_total', costs, ['route', 'bucket', 'kind'])
    ofRoutes('shaper_requests_total', 'Requests, by outcome', ['outcome'], ({ outcomes }) => by('outcome', outcomes))
    const rejected = 'Rejected requests, by the bucket that rejected them and the reason'
    ofRoutes('shaper_rejections_total', rejected, ['bucket', 'reason'], function* ({ rejections }) {
      for (const [bucket, reasons] of rejections)
        for (const [reason, count] of reasons) yield [{ bucket, reason }, count]
    })
    const responses = (name: string, help: string, of: (route: RouteTally) => StatusCounts) =>
      ofRoutes(name, help, ['class'], function* (route) {
        const counts = of(route)
        // 1xx is a WebSocket.
        for (let digit = counts[1] > 0 ? 1 : 2; digit <= 5; digit += 1) yield [{ class: `${digit}xx` }, counts[digit]!]
      })
    responses('shaper_responses_total', 'Answers to clients, by class of their status', ({ responses }) => responses)
    responses(
      'shaper_upstream_responses_total',
      'Answers of upstreams that were passed on, by class of their status',
      ({ upstreamResponses }) => upstreamResponses,
    )
    const rehearsed = 'Requests that a dry run would have delayed or rejected'
    ofRoutes('shaper_dry_run_total', rehearsed, ['outcome'], route => by('outcome', route.rehearsed))
    const givenUp = 'Requests that were not sent, because their clients would not have been there for the answer'
    ofRoutes('shaper_given_up_total', givenUp, ['at', 'source'], function* ({ givenUp }) {
      for (const [at, sources] of Object.entries(givenUp))
        for (const [source, count] of Object.entries(sources)) yield [{ at, source }, count]
    })
    const trials = 'Requests that waited on where others were given up, to see whether their clients did'
    ofRoutes('shaper_patience_trials_total', trials, [], ({ trials }) => [[{}, trials]])
    const coalesced = 'Requests that were answered with the answer to another one, of routes with coalesce'
    ofRoutes('shaper_coalesced_total', coalesced, [], ({ coalesced }) => [[{}, coalesced]])
    const learnt = (name: string, help: string, of: (waits: LearntWaits) => number | undefined) =>
      // Each process learns for itself.
      gauge(name, help, { labelNames: ['route'], aggregator: 'average' }, function* () {
        for (const each of waits()) {
          const ms = of(each)
          if (ms !== undefined) yield [{ route: each.route }, ms / 1_000]
        }
      })
    learnt('shaper_patience_seconds', 'After how long most clients leave, as learnt', ({ patience }) => patience)
    learnt('shaper_service_time_seconds', "The upstream's usual time to answer", ({ service }) => service)
    const queued = perRoute(({ queued }) => [[{}, queued]])
    gauge('shaper_queued', 'Requests in queues', { labelNames: ['route'] }, queued)
    const pages = 'Pages of rejected browsers that wait and listen for their turn'
    gauge('shaper_waiting_pages', pages, {}, () => [[{}, waitingPages()]])
    /** All instances see the same table. */
    const stored = (name: string, help: string, of: (count: DeliveryCount) => number) =>
      new Gauge({
        ...{ name, help, labelNames: ['route', 'state'], aggregator: 'max', registers },
        async collect() {
          const counts = await deliveries()
            ?.counts()
            .catch(() => undefined)
          this.reset()
          if (counts === undefined) return
          for (const route of deliveries()!.results.keys())
            for (const state of ['waiting', 'dead']) this.set({ route, state }, 0)
          for (const count of counts) this.set({ route: count.route, state: count.state }, of(count))
        },
      })
    stored(
      'shaper_deliveries',
      'Stored requests that wait for their delivery, or are dead letters',
      ({ count }) => count,
    )
    stored('shaper_delivery_oldest_seconds', 'The age of the oldest of them', ({ age }) => age / 1_000)
    const attempts = 'Deliveries whose attempt has ended, by what came of it'
    counter('shaper_delivery_attempts_total', attempts, ['route', 'result'], function* () {
      for (const [route, results] of deliveries()?.results ?? [])
        for (const [result, count] of results) yield [{ route, result }, count]
    })
    const labelNames = ['upstream', 'server']
    const up = '1 while a server of an upstream is up, 0 while its breaker is open or its checks fail'
    // Each process has breakers and checks of its own.
    gauge('shaper_upstream_up', up, { labelNames, aggregator: 'min' }, function* () {
      for (const { upstream, server, isUp } of servers())
        if (isUp !== undefined) yield [{ upstream, server }, isUp ? 1 : 0]
    })
    const sent = 'Requests on their way to a server of an upstream or back'
    gauge('shaper_upstream_in_flight', sent, { labelNames }, function* () {
      for (const { upstream, server, inFlight } of servers()) yield [{ upstream, server }, inFlight]
    })
    const lag = new EventLoopLag()
    const busy = 'The longest time in the last minute for which the event loop was busy with something else'
    gauge('shaper_event_loop_lag_seconds', busy, { aggregator: 'max' }, () => [[{}, lag.longest / 1_000]])
    /** Of each bucket. Those of a key are one, whichever workers have it. */
    const perBucket = (name: string, help: string, values: Values<'bucket'>) =>
      gauge(name, help, { labelNames: ['bucket'], aggregator: 'max' }, values)
    perBucket('shaper_keys', 'Bucket instances, with several workers of the one that has most', function* () {
      for (const [bucket, instances] of keys()) yield [{ bucket }, instances]
    })
    const limit = 'The present rate of each bucket, of keys in no tier, in cost units per second'
    perBucket('shaper_limit', limit, function* () {
      for (const { name, rate, capacity } of limits())
        if (!isAnyRate({ rate, capacity })) yield [{ bucket: name }, rate * 1_000]
    })
    const capacity = 'The capacity of each bucket that has one, of keys in no tier, in cost units'
    perBucket('shaper_capacity', capacity, function* () {
      for (const { name, capacity } of limits()) if (capacity < Infinity) yield [{ bucket: name }, capacity]
    })
    perBucket('shaper_key_limits', 'Keys with limits of their own from outside', function* () {
      for (const [bucket, { size }] of outside()) yield [{ bucket }, size]
    })
    perBucket('shaper_key_limits_bad_rows', 'Rows of these limits that were not used', function* () {
      for (const [bucket, { last }] of outside()) if (last?.failure === undefined) yield [{ bucket }, last?.bad ?? 0]
    })
    const oldest = { labelNames: ['bucket'], aggregator: 'min' } as const
    const readAt =
      'When limits of single keys were read last, in seconds since 1970, with several workers by the last one'
    gauge('shaper_key_limits_read_seconds', readAt, oldest, function* () {
      for (const [bucket, limits] of outside()) yield [{ bucket }, limits.readAt / 1_000]
    })
    const isRead = '1 if limits of single keys could be read when that was tried last'
    gauge('shaper_key_limits_last_read_success', isRead, oldest, function* () {
      for (const [bucket, { last }] of outside()) yield [{ bucket }, last?.failure === undefined ? 1 : 0]
    })
    const keysRead = '1 if the public keys of tokens could be read from their URL when that was tried last'
    gauge('shaper_identity_keys_last_read_success', keysRead, { aggregator: 'min' }, () => {
      const isRead = canReadKeys()
      return isRead === undefined ? [] : [[{}, isRead ? 1 : 0]]
    })
    gauge('process_resident_memory_bytes', 'Resident memory', {}, () => [[{}, process.memoryUsage.rss()]])
    const startedAt = Date.now() / 1_000 - process.uptime()
    const start = 'Start time of the process, in seconds since 1970'
    gauge('process_start_time_seconds', start, { aggregator: 'min' }, () => [[{}, startedAt]])
    counter('process_cpu_seconds_total', 'CPU time used, user and system, in seconds', [], () => [[{}, cpuSeconds()]])
    if (meter !== undefined) makeInstruments(this.#registry, meter)
  }

  readonly released: NonNullable<Observer['released']> = ({ route, wait, priority }, lateness) => {
    this.#waits.observe({ route }, wait / 1_000)
    if (priority !== DEFAULT_PRIORITY) this.#hasPriorities = true
    if (this.#hasPriorities) this.#priorityWaits.observe({ priority: String(priority) }, wait / 1_000)
    this.#lateness.observe({}, lateness / 1_000)
  }

  readonly finished: NonNullable<Observer['finished']> = ({ route, upstreamTime }) => {
    if (upstreamTime !== undefined) this.#answers.observe({ route }, upstreamTime / 1_000)
  }

  readonly settled: NonNullable<Observer['settled']> = ({ route, stack, costs, settled }, by) => {
    this.#settlements.inc({ route, by })
    for (const [place, cost] of settled?.entries() ?? []) {
      if (cost === undefined) continue
      const bucket = stack[place]!.limits.name
      this.#costs.inc({ route, bucket, kind: 'reserved' }, costs![place])
      this.#costs.inc({ route, bucket, kind: 'settled' }, cost)
    }
  }

  storeAnswered(ms: number): void {
    this.#storeCalls.observe({}, ms / 1_000)
  }

  storeFailed(): void {
    this.#storeErrors.inc()
  }

  values(): Promise<MetricObjectWithValues<MetricValue<string>>[]> {
    return this.#registry.getMetricsAsJSON()
  }
}

/** How often the loop is looked at, in ms. */
const RESOLUTION = 20
/** The last minute, in pieces. `MS` is the length of one. */
const PIECES = 6
const MS = 10_000

/** How late the event loop comes to what is due. */
export class EventLoopLag {
  readonly #delays = monitorEventLoopDelay({ resolution: RESOLUTION })
  /** ns, of each past piece. */
  readonly #longest: number[] = []

  constructor() {
    this.#delays.enable()
    setInterval(() => {
      if (this.#longest.push(this.#delays.max) > PIECES) this.#longest.shift()
      this.#delays.reset()
    }, MS).unref()
  }

  /** The longest lag of the last minute, in ms. */
  get longest(): number {
    return Math.max(0, Math.max(this.#delays.max, ...this.#longest) / 1e6 - RESOLUTION)
  }
}

/** Metrics of the program as a whole, however many processes serve. */
export class ProgramMetrics {
  readonly #registry = new Registry()
  readonly #reloads: Counter<'result'>
  readonly #lastReload: Gauge

  constructor(version: string, meter?: Meter) {
    const registers = [this.#registry]
    this.#reloads = new Counter({
      name: 'shaper_config_reloads_total',
      help: 'Reloads of the configuration, by result',
      labelNames: ['result'],
      registers,
    })
    for (const result of ['ok', 'failed']) this.#reloads.inc({ result }, 0)
    this.#lastReload = new Gauge({
      name: 'shaper_config_last_reload_success',
      help: '1 if the last reload put the configuration into effect, or there was none; 0 if it failed',
      registers,
    })
    this.#lastReload.set(1)
    new Gauge({
      name: 'shaper_build_info',
      help: 'Always 1; the labels say what runs',
      labelNames: ['version', 'node'],
      registers,
    }).set({ version, node: process.versions.node }, 1)
    if (meter !== undefined) makeInstruments(this.#registry, meter)
  }

  readonly reloaded = (result: 'ok' | 'failed'): void => {
    this.#reloads.inc({ result })
    this.#lastReload.set(result === 'ok' ? 1 : 0)
  }

  values(): Promise<MetricObjectWithValues<MetricValue<string>>[]> {
    return this.#registry.getMetricsAsJSON()
  }
}

export function timedStore(
  store: Store,
  { now }: Pick<Clock, 'now'>,
  metrics: Pick<Metrics, 'storeAnswered' | 'storeFailed'>,
): Store {
  return wrapped(
    () => store,
    run => {
      const askedAt = now()
      const answer = run()
      if (answer instanceof Promise) {
        answer.then(
          () => metrics.storeAnswered(now() - askedAt),
          () => metrics.storeFailed(),
        )
      }
      return answer
    },
  )
}
