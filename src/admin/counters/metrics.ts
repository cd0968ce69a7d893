/** Prometheus metrics. Labels are route, bucket and the like, never a key. */
import { Counter, Gauge, Histogram, type MetricObjectWithValues, type MetricValue, Registry } from 'prom-client'
import { isAnyRate } from '../../config/derived/default-capacity.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { Observer } from '../../proxy/observe/observer.js'
import { EventLoopLag } from './event-loop-lag.js'
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
  /** The number of instances of each bucket. */
  keys(): Iterable<readonly [bucket: string, instances: number]>
  /** What each bucket allows at present, of keys in no tier. */
  limits(): Iterable<BucketLimits>
  /** What is learnt on each route, in ms. Undefined: not known. */
  waits(): Iterable<LearntWaits>
  /** How many waiting pages listen. */
  waitingPages(): number
  /** Whether each upstream that has a breaker may be used: the breaker is closed. */
  upstreams(): Iterable<readonly [url: string, isUp: boolean]>
}

export interface LearntWaits {
  readonly route: string
  /** After how long most clients leave. */
  readonly patience: number | undefined
  /** The upstream's usual time to answer. */
  readonly service: number | undefined
}

/** Receives the duration of each store call. */
export interface StoreMetrics {
  /** A call was answered after `ms`. */
  storeAnswered(ms: number): void
  storeFailed(): void
}

export class Metrics implements StoreMetrics, Pick<Observer, 'released' | 'finished' | 'settled'> {
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

  constructor({ tally, keys, waits, limits, upstreams, waitingPages }: MetricsOptions) {
    const registers = [this.#registry]
    const histogram = <Label extends string>(name: string, help: string, limits: number[], ...labelNames: Label[]) =>
      new Histogram({ name, help, buckets: limits, labelNames, registers })
    this.#waits = histogram('shaper_queue_wait_seconds', 'How long released requests were queued', WAITS, 'route')
    this.#priorityWaits = histogram(
      'shaper_priority_wait_seconds',
      'How long released requests of each priority were queued, once there are several',
      WAITS,
      'priority',
    )
    this.#lateness = histogram('shaper_release_lateness_seconds', 'How late releases were', LATENESSES)
    this.#answers = histogram(
      'shaper_upstream_seconds',
      "From sending to the head of the upstream's answer",
      ANSWERS,
      'route',
    )
    this.#storeCalls = histogram('shaper_store_seconds', 'How long the store took to answer', STORE_CALLS)
    this.#storeErrors = new Counter({
      name: 'shaper_store_errors_total',
      help: 'Calls that the store did not answer',
      registers,
    })
    this.#settlements = new Counter({
      name: 'shaper_settlements_total',
      help: 'Requests of routes that settle costs, by what told the true cost',
      labelNames: ['route', 'by'],
      registers,
    })
    this.#costs = new Counter({
      name: 'shaper_settled_cost_total',
      help: 'What was reserved for settled requests, and what they really cost',
      labelNames: ['route', 'bucket', 'kind'],
      registers,
    })
    new Counter({
      name: 'shaper_requests_total',
      help: 'Requests, by outcome',
      labelNames: ['route', 'outcome'],
      registers,
      collect() {
        this.reset()
        for (const [route, { outcomes }] of tally.routes) {
          for (const [outcome, count] of Object.entries(outcomes))
            this.inc({ route: route || NO_ROUTE, outcome }, count)
        }
      },
    })
    new Counter({
      name: 'shaper_rejections_total',
      help: 'Rejected requests, by the bucket that rejected them and the reason',
      labelNames: ['route', 'bucket', 'reason'],
      registers,
      collect() {
        this.reset()
        for (const [route, { rejections }] of tally.routes) {
          for (const [bucket, reasons] of rejections) {
            for (const [reason, count] of reasons) this.inc({ route: route || NO_ROUTE, bucket, reason }, count)
          }
        }
      },
    })
    const responses = (name: string, help: string, of: (route: RouteTally) => StatusCounts) =>
      new Counter({
        name,
        help,
        labelNames: ['route', 'class'],
        registers,
        collect() {
          this.reset()
          for (const [name, route] of tally.routes) {
            const counts = of(route)
            // 1xx is a WebSocket.
            for (let digit = counts[1] > 0 ? 1 : 2; digit <= 5; digit += 1)
              this.inc({ route: name || NO_ROUTE, class: `${digit}xx` }, counts[digit])
          }
        },
      })
    responses('shaper_responses_total', 'Answers to clients, by class of their status', ({ responses }) => responses)
    responses(
      'shaper_upstream_responses_total',
      'Answers of upstreams that were passed on, by class of their status',
      ({ upstreamResponses }) => upstreamResponses,
    )
    new Counter({
      name: 'shaper_dry_run_total',
      help: 'Requests that a dry run would have delayed or rejected',
      labelNames: ['route', 'outcome'],
      registers,
      collect() {
        this.reset()
        for (const [route, { rehearsed }] of tally.routes) {
          for (const [outcome, count] of Object.entries(rehearsed))
            this.inc({ route: route || NO_ROUTE, outcome }, count)
        }
      },
    })
    new Counter({
      name: 'shaper_given_up_total',
      help: 'Requests that were not sent, because their clients would not have been there for the answer',
      labelNames: ['route', 'at', 'source'],
      registers,
      collect() {
        this.reset()
        for (const [route, { givenUp }] of tally.routes) {
          for (const [at, sources] of Object.entries(givenUp)) {
            for (const [source, count] of Object.entries(sources))
              this.inc({ route: route || NO_ROUTE, at, source }, count)
          }
        }
      },
    })
    new Counter({
      name: 'shaper_patience_trials_total',
      help: 'Requests that waited on where others were given up, to see whether their clients did',
      labelNames: ['route'],
      registers,
      collect() {
        this.reset()
        for (const [route, { trials }] of tally.routes) this.inc({ route: route || NO_ROUTE }, trials)
      },
    })
    new Counter({
      name: 'shaper_coalesced_total',
      help: 'Requests that were answered with the answer to another one, of routes with coalesce',
      labelNames: ['route'],
      registers,
      collect() {
        this.reset()
        for (const [route, { coalesced }] of tally.routes) this.inc({ route: route || NO_ROUTE }, coalesced)
      },
    })
    const learnt = (name: string, help: string, of: (waits: LearntWaits) => number | undefined) =>
      new Gauge({
        name,
        help,
        labelNames: ['route'],
        // Each process learns for itself.
        aggregator: 'average',
        registers,
        collect() {
          this.reset()
          for (const each of waits()) {
            const ms = of(each)
            if (ms !== undefined) this.set({ route: each.route }, ms / 1_000)
          }
        },
      })
    learnt('shaper_patience_seconds', 'After how long most clients leave, as learnt', ({ patience }) => patience)
    learnt('shaper_service_time_seconds', "The upstream's usual time to answer", ({ service }) => service)
    new Gauge({
      name: 'shaper_queued',
      help: 'Requests in queues',
      labelNames: ['route'],
      registers,
      collect() {
        for (const [route, { queued }] of tally.routes) this.set({ route: route || NO_ROUTE }, queued)
      },
    })
    new Gauge({
      name: 'shaper_upstream_in_flight',
      help: 'Requests on their way to an upstream or back',
      registers,
      collect() {
        this.set(tally.inFlight)
      },
    })
    new Gauge({
      name: 'shaper_waiting_pages',
      help: 'Pages of rejected browsers that wait and listen for their turn',
      registers,
      collect() {
        this.set(waitingPages())
      },
    })
    new Gauge({
      name: 'shaper_upstream_up',
      help: '1 while the breaker of an upstream is closed, 0 while it is open',
      labelNames: ['upstream'],
      // Each process has a breaker of its own.
      aggregator: 'min',
      registers,
      collect() {
        this.reset()
        for (const [upstream, isUp] of upstreams()) this.set({ upstream }, isUp ? 1 : 0)
      },
    })
    const lag = new EventLoopLag()
    new Gauge({
      name: 'shaper_event_loop_lag_seconds',
      help: 'The longest time in the last minute for which the event loop was busy with something else',
      aggregator: 'max',
      registers,
      collect() {
        this.set(lag.longest / 1_000)
      },
    })
    new Gauge({
      name: 'shaper_keys',
      help: 'Bucket instances, with several workers of the one that has most',
      labelNames: ['bucket'],
      // Those of a key are one, whichever workers have it.
      aggregator: 'max',
      registers,
      collect() {
        this.reset()
        for (const [bucket, instances] of keys()) this.set({ bucket }, instances)
      },
    })
    new Gauge({
      name: 'shaper_limit',
      help: 'The present rate of each bucket, of keys in no tier, in cost units per second',
      labelNames: ['bucket'],
      aggregator: 'max',
      registers,
      collect() {
        this.reset()
        for (const { name, rate, capacity } of limits())
          if (!isAnyRate({ rate, capacity })) this.set({ bucket: name }, rate * 1_000)
      },
    })
    new Gauge({
      name: 'shaper_capacity',
      help: 'The capacity of each bucket that has one, of keys in no tier, in cost units',
      labelNames: ['bucket'],
      aggregator: 'max',
      registers,
      collect() {
        this.reset()
        for (const { name, capacity } of limits()) if (capacity < Infinity) this.set({ bucket: name }, capacity)
      },
    })
    new Gauge({
      name: 'process_resident_memory_bytes',
      help: 'Resident memory',
      registers,
      collect() {
        this.set(process.memoryUsage.rss())
      },
    })
    new Gauge({
      name: 'process_start_time_seconds',
      help: 'Start time of the process, in seconds since 1970',
      aggregator: 'min',
      registers,
    }).set(Date.now() / 1_000 - process.uptime())
    new Counter({
      name: 'process_cpu_seconds_total',
      help: 'CPU time used, user and system, in seconds',
      registers,
      collect() {
        const { user, system } = process.cpuUsage()
        this.reset()
        this.inc((user + system) / 1e6)
      },
    })
  }

  readonly released: NonNullable<Observer['released']> = ({ route, wait, priority }, lateness) => {
    this.#waits.observe({ route }, wait / 1_000)
    if (priority !== DEFAULT_PRIORITY) this.#hasPriorities = true
    if (this.#hasPriorities) this.#priorityWaits.observe({ priority }, wait / 1_000)
    this.#lateness.observe(lateness / 1_000)
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
    this.#storeCalls.observe(ms / 1_000)
  }

  storeFailed(): void {
    this.#storeErrors.inc()
  }

  /** All metrics as plain values, for merging with those of other processes. */
  values(): Promise<MetricObjectWithValues<MetricValue<string>>[]> {
    return this.#registry.getMetricsAsJSON()
  }
}
