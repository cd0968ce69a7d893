/** Limits that answers announce for a key: a lower rate for a time, and a pause where nothing is left. */
import type { Cancel, Clock } from '../core/clock.js'
import { costAt, type Demand } from '../core/queue/lane.js'
import type { Fields } from '../http/quota/field-values.js'
import { LearnedQuotas } from '../http/quota/learned-quotas.js'
import { followersOf, LIMITED, type Limited, readQuotas } from '../http/quota/quota-fields.js'
import type { KeyQueue } from './key-queues.js'

interface Known {
  readonly quotas: LearnedQuotas
  expiry: Cancel
}

/** The most beginnings of paths that are known. What comes then is not learnt. */
const MOST_PATHS = 10_000
/** Segments of the longest of them. */
const LONGEST_PATH = 4

/**
 * In which of an API's limits (`x-ratelimit-resource` of answers) a request counts, by the beginning of its path. `/search` may be one,
 * and `/search/code` another: the longest beginning that is known counts.
 */
export class Resources {
  /** By key and beginning. */
  readonly #byPath = new Map<string, string>()

  /** Undefined: no answer has said. */
  of(key: string, path: string): string | undefined {
    const known = beginnings(key, path).findLast(beginning => this.#byPath.has(beginning))
    return known === undefined ? undefined : this.#byPath.get(known)
  }

  learn(key: string, path: string, resource: string): void {
    if (this.of(key, path) === resource || this.#byPath.size >= MOST_PATHS) return
    const all = beginnings(key, path)
    const known = all.findLastIndex(beginning => this.#byPath.has(beginning))
    this.#byPath.set(all[Math.min(known + 1, all.length - 1)]!, resource)
  }
}

function beginnings(key: string, path: string): string[] {
  const segments = path
    .split('?', 1)[0]!
    .split('/')
    .slice(0, LONGEST_PATH + 1)
  return segments.slice(1).map((_, last) => `${key} ${segments.slice(0, last + 2).join('/')}`)
}

interface LearnedRatesOptions {
  readonly clock: Clock
  readonly names: readonly string[]
  /** Those that follow a limit on requests if none is called `requests`. */
  readonly usual: readonly string[]
  changed(queue: KeyQueue): void
}

export class LearnedRates {
  readonly #options: LearnedRatesOptions
  readonly #followers: Readonly<Record<Limited, readonly string[]>>
  /** Gone with its queue. */
  readonly #known = new WeakMap<KeyQueue, Known>()
  /** A limit may be for weeks. It does not keep a queue that has been dropped. */
  readonly #dropped = new FinalizationRegistry<Known>(known => known.expiry())

  constructor(options: LearnedRatesOptions) {
    this.#options = options
    const { names, usual } = options
    this.#followers = { requests: followersOf('requests', names, usual), tokens: followersOf('tokens', names) }
  }

  /** Cost units per ms. Infinity: nothing is known. */
  rateOf(queue: KeyQueue | undefined, bucket: string): number {
    const known = queue && this.#known.get(queue)
    if (known === undefined) return Infinity
    const limits = LIMITED.filter(limited => this.#followers[limited].includes(bucket))
    return Math.min(...limits.map(limited => known.quotas.rateOf(limited)))
  }

  /** @param longest the longest pause, in ms. @returns ms for which nothing is left */
  learn(queue: KeyQueue, fields: Fields, call: Demand, longest: number): number {
    const quotas = readQuotas(fields, Date.now())
    if (quotas.length === 0) return 0
    const known = this.#known.get(queue) ?? this.#open(queue)
    const costs = { requests: this.#costOf(call, 'requests'), tokens: this.#costOf(call, 'tokens') }
    const pause = known.quotas.learn(quotas, this.#options.clock.now(), { longest, costs })
    this.#follow(queue, known)
    return pause
  }

  #open(queue: KeyQueue): Known {
    const known: Known = { quotas: new LearnedQuotas(), expiry: () => false }
    this.#known.set(queue, known)
    this.#dropped.register(queue, known)
    return known
  }

  /** What a call takes of a limit, seen from the buckets that follow it. */
  #costOf(call: Demand, limited: Limited): number {
    const place = call.stack.findIndex(({ limits }) => this.#followers[limited].includes(limits.name))
    return place < 0 ? 1 : costAt(call, place)
  }

  #follow(queue: KeyQueue, known: Known): void {
    const { clock, changed } = this.#options
    const { quotas } = known
    const isChanged = quotas.follow(clock.now()).length > 0
    known.expiry()
    const expiresAt = Math.min(...LIMITED.map(limited => quotas.expiresAt(limited)))
    if (expiresAt < Infinity) {
      const kept = new WeakRef(queue)
      known.expiry = clock.at(expiresAt, () => {
        const open = kept.deref()
        if (open !== undefined) this.#follow(open, known)
      })
    }
    if (isChanged) changed(queue)
  }
}
