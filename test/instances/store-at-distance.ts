/**
 * The memory store as instances at a distance see it, on a virtual clock.
 *
 * As a connection to Redis does, it sends the calls of one moment together, in order, and maps the store's times as late as
 * its fastest answer took. Any verb of the store passes, and no news. What the answers to claims name in the store's time is mapped here.
 */
import type { Clock } from '../../src/core/clock.js'
import type { BucketRef } from '../../src/decider/record.js'
import { type Store, StoreError } from '../../src/sharing/store.js'
import type { Reach } from '../../src/stores/decided.js'
import type { MemoryStore } from '../../src/stores/memory/store.js'
import { Offset, RoundTrip } from '../../src/stores/timing.js'
import { VERBS } from '../../src/stores/verbs.js'

/** Calls that are sent together, at most. */
const MOST = 64
/** ms after which a call without an answer fails. */
const TIMEOUT = 250

/** The ms that a message takes, each way. Asked for each. */
export interface Distance {
  there(): number
  back(): number
}

/** What an instance has asked of the store. */
export interface Calls {
  /** By verb. */
  readonly verbs: Map<string, number>
  /** Admissions, claims and others that name a bucket, by its name and key. */
  readonly buckets: Map<string, number>
  /** Messages: calls of one moment go in one. */
  messages: number
}

export interface Connection {
  readonly store: Store
  readonly calls: Calls
  /** While true, no call has an answer. */
  down: boolean
  /** While set, calls are carried out and have no answer: `cut` fails at once, `silent` after the timeout. */
  loses: 'cut' | 'silent' | undefined
  /** The instance is gone: nothing is sent and no answer arrives any more. */
  gone: boolean
  /** Forgets what was counted so far. */
  countAgain(): void
}

interface Call {
  readonly verb: string
  readonly args: readonly unknown[]
  readonly resolve: (value: unknown) => void
  readonly reject: (error: Error) => void
  value?: unknown
}

export interface ConnectionOptions {
  readonly inner: MemoryStore
  /** The reach of that store, set for each caller. */
  readonly reach: Reach
  readonly clock: Clock
  /** The clock of the store. Absent: the same. */
  readonly storeNow?: () => number
  /** The caller's: answers arrive by it. */
  readonly awake?: Clock
  readonly distance: Distance
  /** As the store of workers does. */
  readonly keepsOrder?: boolean
  /** Answers have arrived: continuations are to run. */
  answered(): void
}

type Verbs = Record<string, (...args: readonly unknown[]) => unknown>

export function connect(options: ConnectionOptions): Connection {
  const { clock, storeNow = clock.now, awake = clock, distance, answered } = options
  const offset = new Offset()
  const roundTrip = new RoundTrip()
  const carryOut = verbsAtDistance(options, roundTrip)
  let open: Call[] | undefined
  let openedAt = 0
  // A connection keeps the order of its messages.
  let lastThere = 0
  let lastBack = 0

  const fresh = (): Calls => ({ verbs: new Map(), buckets: new Map(), messages: 0 })
  const connection: Connection = {
    store: undefined as unknown as Store,
    calls: fresh(),
    down: false,
    loses: undefined,
    gone: false,
    countAgain: () => Object.assign(connection.calls, fresh()),
  }

  function count(verb: string, args: readonly unknown[]): void {
    const { calls } = connection
    calls.verbs.set(verb, (calls.verbs.get(verb) ?? 0) + 1)
    for (const { limits, key } of verbOf(verb).stack?.(...args) ?? []) {
      const name = `${limits.name}:${key}`
      calls.buckets.set(name, (calls.buckets.get(name) ?? 0) + 1)
    }
  }

  function ask(verb: string, args: readonly unknown[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (connection.gone) return
      count(verb, args)
      const call: Call = {
        verb,
        args: verbOf(verb).theirs?.(at => offset.theirs(at), ...args) ?? args,
        resolve,
        reject,
      }
      const now = clock.now()
      if (open === undefined || openedAt !== now || open.length === MOST) {
        open = []
        openedAt = now
        send(open)
      }
      open.push(call)
    })
  }

  function send(calls: Call[]): void {
    connection.calls.messages += 1
    const sentAt = clock.now()
    if (connection.down) return fail(calls)
    lastThere = Math.max(lastThere, sentAt + distance.there())
    clock.at(lastThere, () => {
      if (open === calls) open = undefined
      if (connection.down) return fail(calls)
      const theirs = storeNow()
      for (const call of calls) call.value = carryOut[call.verb]!(...call.args)
      if (connection.loses !== undefined) return fail(calls)
      lastBack = Math.max(lastBack, clock.now() + distance.back())
      awake.at(lastBack, () => {
        if (connection.gone) return
        const received = clock.now()
        offset.learn(sentAt, received, theirs)
        roundTrip.learn(received - sentAt, received - offset.ours(theirs))
        answered()
        for (const { verb, resolve, value } of calls) {
          const { ours } = verbOf(verb)
          resolve(ours === undefined ? value : ours(value, at => offset.ours(at)))
        }
      })
    })
  }

  function fail(calls: readonly Call[]): void {
    const after = connection.loses === 'cut' ? 0 : TIMEOUT
    clock.at(clock.now() + after, () => {
      if (open === calls) open = undefined
      if (connection.gone) return
      answered()
      for (const { reject } of calls) reject(new StoreError('no answer'))
    })
  }

  // As a connection that greets.
  const [there, back] = [distance.there(), distance.back()]
  offset.learn(clock.now(), clock.now() + there + back, storeNow() + there)
  roundTrip.learn(there + back, 0)

  const verbs = Object.keys(carryOut).map(verb => [verb, (...args: readonly unknown[]) => ask(verb, args)])
  const store = Object.fromEntries(verbs) as Store
  Object.defineProperties(store, {
    horizon: { get: () => roundTrip.horizon },
    latenessOf: { value: () => offset.lateness },
    keepsOrder: { value: options.keepsOrder === true },
    close: { value: async () => undefined },
  })
  return Object.assign(connection, { store })
}

/**
 * The verbs of the store for a caller at a distance. As Redis and PostgreSQL, the memory store is told with each call how far
 * ahead, and how far back, it may grant.
 */
function verbsAtDistance({ inner, reach }: ConnectionOptions, roundTrip: RoundTrip): Verbs {
  const reached =
    <Q, A>(verb: (request: Q) => A) =>
    (request: Q): A => {
      reach.horizon = roundTrip.horizon
      reach.back = roundTrip.back
      return verb(request)
    }
  const verbs: Verbs = {}
  for (const [name, verb] of Object.entries(inner)) {
    if (typeof verb === 'function' && name !== 'close' && name !== 'listen') verbs[name] = verb as Verbs[string]
  }
  return { ...verbs, claim: reached(inner.claim) as Verbs[string], admit: reached(inner.admit) as Verbs[string] }
}

/** Of the board: a verb without moments. */
function verbOf(verb: string): UntypedVerb {
  return ((VERBS as Record<string, unknown>)[verb] as UntypedVerb) ?? {}
}

interface UntypedVerb {
  theirs?(map: (at: number) => number, ...args: readonly unknown[]): readonly unknown[]
  ours?(answer: unknown, map: (at: number) => number): unknown
  stack?(...args: readonly unknown[]): readonly BucketRef[]
}
