/**
 * What a run of the world leaves behind: what a bystander sees at the doors of the instances and of the upstream, each with its time in
 * ms of the world. The checker (checker.ts) knows nothing else.
 */

export interface LimitsEntry {
  readonly what: 'limits'
  readonly at: number
  readonly bucket: string
  /** Absent: those of all keys. */
  readonly key?: string
  /** Cost units per ms. */
  readonly rate: number
  readonly capacity: number
  readonly burst?: number
}

/** What is assumed of the world. */
export interface AssumedEntry {
  readonly what: 'assumed'
  readonly at: number
  readonly hasStore: boolean
  readonly instances: number
  /** The stack, from the clients' own bucket to everyone's. */
  readonly stack: readonly string[]
  readonly mode: 'shape' | 'meter'
  /** ms that a message to the store, or from it, takes at least, and by how much it may take longer. */
  readonly far: number
  readonly jitter: number
  /** ms that an instance may be late in everything. */
  readonly lateness: number
  readonly maxInFlight: number
  /** Rejected clients are given appointments. */
  readonly books: boolean
  /** Somebody makes room for others: lower numbers. */
  readonly hasClasses: boolean
}

/** Something was wrong, or was changed, from `at` to `until`. */
export interface FaultEntry {
  readonly what: 'fault'
  readonly kind: FaultKind
  readonly at: number
  readonly until: number
  /** -1: all. */
  readonly instance: number
}

export type FaultKind =
  | 'stall'
  | 'crash'
  | 'leave'
  | 'join'
  | 'store-down'
  | 'store-silent'
  | 'store-cut'
  | 'store-slow'
  | 'store-clock'
  | 'reload'
  | 'override'
  | 'pause'
  | 'upstream'
  | 'reset'

export interface ArriveEntry {
  readonly what: 'arrive'
  readonly at: number
  readonly request: number
  readonly client: string
  readonly kind: string
  readonly instance: number
  /** Its keys, one for each bucket of the stack. */
  readonly keys: readonly string[]
  readonly cost: number
  readonly priority: number
  readonly route: string
  readonly maxWait: number
  /** It was told to come back now, and may have a booking. */
  readonly isBack?: boolean
  readonly hasBooking?: boolean
}

export interface DecideEntry {
  readonly what: 'decide'
  readonly at: number
  readonly request: number
  readonly verdict: 'released' | 'queued' | 'rejected'
  readonly reason?: string
  readonly retryAfterMs?: number | undefined
}

export interface ReleaseEntry {
  readonly what: 'release'
  readonly at: number
  readonly request: number
  /** It was sent before, and its connection broke. */
  readonly again?: boolean
}

export interface EndEntry {
  readonly what: 'end'
  readonly at: number
  readonly request: number
  /** `lost`: with its instance. `failed`: its upstream did. */
  readonly how: 'done' | 'hung-up' | 'expired' | 'evicted' | 'rejected' | 'failed' | 'lost'
}

/** What an instance says of itself when all is over. */
export interface RestEntry {
  readonly what: 'rest'
  readonly at: number
  /** -1: the store. */
  readonly instance: number
  /** What should be 0, by name. */
  readonly left: Readonly<Record<string, number>>
}

/** Ends of a kind, as the metrics of all instances count them. */
export interface MetricEntry {
  readonly what: 'metric'
  readonly at: number
  readonly name: EndEntry['how']
  readonly sum: number
}

export type Entry =
  | LimitsEntry
  | AssumedEntry
  | FaultEntry
  | ArriveEntry
  | DecideEntry
  | ReleaseEntry
  | EndEntry
  | RestEntry
  | MetricEntry

export type History = readonly Entry[]
