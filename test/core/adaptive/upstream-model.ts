/** Upstreams on the virtual clock, and a source that sends to them at an adaptive rate, evenly spaced. */
import { AdaptiveRate, type AdaptiveTargets, type SentRequest } from '../../../src/core/adaptive/adaptive-rate.js'
import { createVirtualClock } from '../../../src/core/clock.js'
import { random } from '../run.js'

export interface Model {
  readonly targets: AdaptiveTargets
  readonly seconds: number
  /** Workers at a moment, in s. */
  readonly workers: (at: number) => number
  /** ms that a worker takes for a request. */
  readonly service: (chance: () => number, client: number, at: number) => number
  /** The longest queue before the workers. What comes then fails at once. Default: any. */
  readonly queue?: number
  /** The part of the requests that fail by chance. */
  readonly failing?: number
  /** Requests per second that want to be sent. Default: always more than may. */
  readonly offered?: (at: number) => number
  readonly clients?: number
  /** The part of the requests of each instance that shares the rate. Default: one has all. */
  readonly parts?: readonly number[]
  /** The client of a request; default: each as often. */
  readonly clientOf?: (chance: () => number) => number
  readonly seed?: number
}

export interface Moment {
  /** s */
  readonly at: number
  /** Per second. */
  readonly rate: number
  readonly phase: string
  readonly queued: number
}

export interface Run {
  /** Ten a second. */
  readonly moments: readonly Moment[]
  /** Served, failed, and late ones among the served, in a span of time in s. */
  tally(from: number, to: number): { served: number; failed: number; late: number }
  /** When the rate is first within this part of a capacity, from a moment on, in s. Infinity: never. */
  firstWithin(tolerance: number, capacity: number, from: number): number
  /** For which part of a span it is. */
  partWithin(tolerance: number, capacity: number, from: number, to: number): number
  /** Mean, least and greatest rate in a span. */
  rates(from: number, to: number): { mean: number; min: number; max: number }
}

interface Waiting {
  readonly sender: AdaptiveRate
  readonly request: SentRequest
  readonly client: number
}

export function simulate(model: Model): Run {
  const { targets, seconds, workers, service, queue = Infinity, failing = 0, offered, clients = 20 } = model
  const clock = createVirtualClock()
  const chance = random(model.seed ?? 1)
  const { parts = [1] } = model
  const rates = parts.map(() => new AdaptiveRate(targets, 0, parts.length > 1 ? 'shared' : 'own'))
  const rate = rates[0]!
  /** What a change of an instance makes the others do, 2 ms later. Each is told in the same order. */
  const changing = (instance: AdaptiveRate, change: () => void): void => {
    const before = JSON.stringify(instance.state)
    change()
    if (JSON.stringify(instance.state) !== before) tell(instance)
  }
  const tell = (instance: AdaptiveRate): void => {
    const { state } = instance
    clock.at(clock.now() + 2, () => {
      for (const other of rates) if (other !== instance && !other.adopt(state, clock.now())) tell(other)
    })
  }
  const senderOf = (): AdaptiveRate => {
    if (rates.length === 1) return rate
    let left = chance()
    for (const [at, part] of parts.entries()) {
      left -= part
      if (left < 0) return rates[at]!
    }
    return rate
  }
  const moments: Moment[] = []
  const ends: { at: number; latency: number | undefined }[] = []
  const waiting: Waiting[] = []
  let busy = 0
  const work = (): void => {
    while (waiting.length > 0 && busy < workers(clock.now() / 1_000)) {
      const { sender, request, client } = waiting.shift()!
      busy += 1
      clock.at(clock.now() + service(chance, client, clock.now() / 1_000), () => {
        busy -= 1
        const now = clock.now()
        const latency = now - request.sentAt
        ends.push({ at: now / 1_000, latency })
        changing(sender, () => sender.served(request, now))
        work()
      })
    }
  }
  const fail = (sender: AdaptiveRate, request: SentRequest): void => {
    clock.at(clock.now() + 1, () => {
      ends.push({ at: clock.now() / 1_000, latency: undefined })
      changing(sender, () => sender.failed(request, clock.now()))
    })
  }
  const clientOf = model.clientOf ?? (() => Math.floor(chance() * clients))
  const send = (): void => {
    const now = clock.now()
    const client = clientOf(chance)
    const sender = senderOf()
    const facts = { cost: 1, client: `client ${client}`, isTimed: true, isHeld: now - wantedAt > 1e-6 }
    let request!: SentRequest
    changing(sender, () => {
      request = sender.sent(facts, now)
    })
    if (chance() < failing || (waiting.length >= queue && busy >= workers(now / 1_000))) fail(sender, request)
    else waiting.push({ sender, request, client })
    work()
  }
  let free = 0
  let sentAt = 0
  let wantedAt = 0
  const next = (): void => {
    const now = clock.now()
    const wanted = offered === undefined ? 0 : sentAt + 1_000 / offered(now / 1_000)
    const due = Math.max(free, wanted, now)
    wantedAt = offered === undefined ? 0 : Math.max(wanted, now)
    clock.at(due, () => {
      sentAt = clock.now()
      send()
      free = clock.now() + 1 / rate.rate
      next()
    })
  }
  const look = (): void => {
    moments.push({ at: clock.now() / 1_000, rate: rate.rate * 1_000, phase: rate.phase, queued: waiting.length })
    work()
    clock.at(clock.now() + 100, look)
  }
  clock.at(0, look)
  next()
  clock.runUntil(seconds * 1_000)
  return {
    moments,
    tally(from, to) {
      const within = ends.filter(({ at }) => at >= from && at < to)
      const times = within.flatMap(({ latency }) => latency ?? [])
      const target = targets.latency?.ms ?? Infinity
      return {
        served: times.length,
        failed: within.length - times.length,
        late: times.filter(latency => latency > target).length,
      }
    },
    firstWithin(tolerance, capacity, from) {
      return moments.find(({ at, rate }) => at >= from && isWithin(rate, capacity, tolerance))?.at ?? Infinity
    },
    partWithin(tolerance, capacity, from, to) {
      const within = moments.filter(({ at }) => at >= from && at < to)
      return within.filter(moment => isWithin(moment.rate, capacity, tolerance)).length / within.length
    },
    rates(from, to) {
      const within = moments.filter(({ at }) => at >= from && at < to).map(moment => moment.rate)
      return {
        mean: within.reduce((sum, each) => sum + each, 0) / within.length,
        min: Math.min(...within),
        max: Math.max(...within),
      }
    },
  }
}

/** Rates per second, latency in ms. */
export function targets({ min, max, p90 }: { min: number; max: number; p90?: number }): AdaptiveTargets {
  const base = { min: min / 1_000, max: max / 1_000, start: min / 1_000, errors: 0.02 }
  return p90 === undefined ? base : { ...base, latency: { part: 0.9, ms: p90 } }
}

export function isWithin(rate: number, capacity: number, tolerance: number): boolean {
  return Math.abs(rate / capacity - 1) <= tolerance
}
