import type { PresentRate } from '../../config/schedule.js'
import type { Rejection, SharedBucket } from '../../core/queue/lane.js'
import type { Limited } from '../../http/quota/quota-fields.js'
import type { Override } from '../../sharing/board.js'
import type { ShardNews } from '../../sharing/sharing.js'

/** What was read of limits of single keys. */
export interface LimitsReport {
  readonly keys: number
  /** Rows that were not used, and keys that come twice, with their numbers; the first of them. */
  readonly told: readonly string[]
  /** How many there are beyond these. */
  readonly more: number
  /** How many rows were not used. */
  readonly bad: number
}

/** What became of reading limits of single keys. */
export type LimitsNews =
  | ({ readonly bucket: string; readonly failure?: undefined } & LimitsReport)
  | { readonly bucket: string; readonly failure: string }

/** How a request ended. Each request has exactly one outcome. `accepted`: it is stored to be sent later, or asks about such a one. */
export type Outcome = 'forwarded' | 'rejected' | 'cancelled' | 'expired' | 'failed' | 'refused' | 'accepted'
export type Decision = 'would_reject' | 'would_delay'
/** Who says how long a client waits for its answer: itself, its route or a trusted hop, or the hang-ups of others. */
export type PatienceSource = 'known' | 'learnt'

/** How long a client is taken to wait for its answer, and how long that takes to come. Times are in ms. */
export interface Outlook {
  /** Since its arrival. Infinity: as far as is known it stays. */
  readonly patience: number
  readonly source: PatienceSource
  /** From the release to the head of the answer. 0: not known. */
  readonly service: number
}

/** Why a request was not sent: its client would not have been there for the answer. */
export interface GivenUp extends Outlook {
  readonly at: 'arrival' | 'release'
}

export interface RejectionCause {
  /** `evicted`: it waited, and made room for another request. `patience`: it was given up. */
  readonly reason: Exclude<Rejection['reason'], 'down'> | 'evicted' | 'patience'
  /** The first bucket that rejected it. '': no bucket did. */
  readonly bucket: string
}

/** Why a request was refused, or got no whole answer although it was to be sent. */
export interface RequestFailure {
  readonly detail: string
  /** What the system or the parser said. */
  readonly cause?: Error | undefined
  /** It happened to an earlier request. This one was not sent because of it. */
  readonly isEarlier?: boolean
}

/** What a request really cost, by bucket of its stack. Undefined: its answer does not say. */
export type Settled = readonly (number | undefined)[]
/** Where a true cost comes from: from the answer, or from the fact that the upstream did not serve the request. */
export type SettledBy = 'answer' | 'unserved' | 'unknown'

/** A request as observers see it. Valid only during the call. */
export interface RequestRecord {
  /** '' before a route has matched. */
  readonly route: string
  /** '' if it could not be read. */
  readonly method: string
  /** As received, with its query. */
  readonly target: string
  readonly stack: readonly SharedBucket[]
  /** The keys of the stack's buckets, in the same order. */
  readonly keys: readonly string[]
  readonly cost: number
  /** What was reserved in each bucket of the stack. Undefined: its route has one cost for all. */
  readonly costs: readonly number[] | undefined
  /** What it really cost in each bucket of the stack. Undefined: that is not known, or not yet. */
  readonly settled: Settled | undefined
  /** It is over, and its answer is still inflated: `settled` is told later. */
  readonly isSettling: boolean
  /** 0 to 7. Its default before its route is known. */
  readonly priority: number
  /** How long it was queued, in ms. */
  readonly wait: number
  /** How long it would be queued by what was known on arrival, in ms. Undefined: its route has no `explain`, or nothing waits. */
  readonly predictedWait: number | undefined
  /** Time from sending to the head of the answer, in ms. */
  readonly upstreamTime: number | undefined
  readonly retries: number
  readonly inFlight: boolean
  readonly givenUp: GivenUp | undefined
  readonly rejection: RejectionCause | undefined
  /** Why it was refused, has failed, or has to be sent again. */
  readonly failure: RequestFailure | undefined
  /** It would have been given up for learnt patience, and waited on to see whether its client did. */
  readonly onTrial: boolean
  /** It was not sent: it has got the answer to a request like it. */
  readonly coalesced: boolean
  header(name: string): string | undefined
}

/** Metrics, logs, the demo. Called on the hot path; must not throw. */
export interface Observer {
  /** A request has come, and its turn on its connection. Nothing is known of its route. */
  began?(request: RequestRecord): void
  arrived?(request: RequestRecord): void
  queued?(request: RequestRecord): void
  unqueued?(request: RequestRecord): void
  /** A request in `shape` may be sent. `lateness`: ms after its slot. */
  released?(request: RequestRecord, lateness: number): void
  sent?(request: RequestRecord): void
  finished?(request: RequestRecord, outcome: Outcome, status: number): void
  /**
   * It has turned out what a request cost that was sent, or that this stays `unknown`. Mostly right before `finished`. Each
   * time that it was sent.
   */
  settled?(request: RequestRecord, by: SettledBy): void
  /** A dry run decided. `bucket` would have delayed or rejected the request; `wait` is the predicted wait in ms. */
  rehearsed?(request: RequestRecord, decision: Decision, bucket: string, wait: number): void
  /** The state of the shared store, and the number of instances on it. */
  shared?(news: ShardNews): void
  /** An upstream asked for a pause of `ms`. `expired` waiting requests would wait too long and were answered. */
  paused?(upstream: string, ms: number, expired: number): void
  /**
   * A server has gone down (`failing`), because of a last failure, or has come up (`answering`).
   *
   * @param others whether another server of its upstream is up, or it is itself
   */
  broken?(
    server: string,
    state: 'failing' | 'answering',
    failure: RequestFailure | undefined,
    others: 'up' | 'down',
  ): void
  /** DNS has told other addresses of a server, or it fails, or has too many: why they stay, or not all are used. */
  resolved?(server: string, addresses: readonly string[], failure: RequestFailure | undefined): void
  /** The public keys of tokens at a URL cannot be read, or can be again. */
  keysRead?(url: string, failure: RequestFailure | undefined): void
  /** An upstream's announced rate has changed: cost units per second, Infinity if it announces none. */
  learned?(upstream: string, rate: number, limited: Limited): void
  /**
   * The time of day has changed rates. `rates` are all that depend on it, as they are now. `expired` waiting requests of each
   * route would exceed their `maxWait` now and were answered.
   */
  rescheduled?(rates: readonly PresentRate[], expired: ReadonlyMap<string, number>): void
  /** Limits of single keys were read from outside, or could not be. */
  limitsRead?(news: LimitsNews): void
  /** Limits of a key were overridden here or by another instance, or that has ended. */
  overridden?(override: Override, what: 'set' | 'ended'): void
  /** A request is about to be sent again, in a slot of its own, instead of an answer with this status. */
  retried?(request: RequestRecord, status: number): void
  /** A request has several lines of a header that is a bucket's key. The first counted. */
  duplicated?(route: string, header: string): void
  /** There was no connection to the upstream for a request. It waits, and is sent again. */
  unreachable?(route: string, failure: RequestFailure): void
  /** A connection of a balancer was closed because there was no good PROXY header. */
  unannounced?(peer: string, why: string): void
  /** A peer that is no listed balancer began a connection without TLS, perhaps with a PROXY header. */
  unlisted?(peer: string): void
  /** A tunnel was closed because nothing passed through it. */
  tunnelClosed?(route: string, detail: string): void
}

export interface Departure {
  readonly upstream: string
  /** When it will be sent if it is armed, in ms of the clock. It may be taken back until then. Undefined: now. */
  readonly slot: number | undefined
}

/** Adds the context of its trace to the headers of a request for the upstream: names and values in turn. */
export type Propagate = (request: RequestRecord, headers: string[], departure: Departure) => void
type Call = (...args: unknown[]) => void

/** Calls several observers, in order. An event that none of them handles costs no call. */
export function combineObservers(observers: readonly Observer[]): Observer {
  const [only, ...more] = observers
  if (only === undefined || more.length === 0) return only ?? {}
  const calls = new Map<string, Call[]>()
  for (const observer of observers) {
    for (const name of EVENTS) {
      const call = observer[name] as Call | undefined
      if (call !== undefined) calls.set(name, [...(calls.get(name) ?? []), call.bind(observer)])
    }
  }
  return Object.fromEntries([...calls].map(([name, list]) => [name, list.length === 1 ? list[0]! : inTurn(list)]))
}

function inTurn(calls: readonly Call[]): Call {
  return (...args) => {
    for (const call of calls) call(...args)
  }
}

const EVENTS = [
  'began',
  'arrived',
  'queued',
  'unqueued',
  'released',
  'sent',
  'retried',
  'finished',
  'settled',
  'rehearsed',
  'shared',
  'paused',
  'learned',
  'rescheduled',
  'limitsRead',
  'overridden',
  'broken',
  'resolved',
  'keysRead',
  'duplicated',
  'unreachable',
  'tunnelClosed',
  'unannounced',
  'unlisted',
] as const satisfies readonly (keyof Observer)[]
