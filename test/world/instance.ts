/** What the world knows of an instance of the system, whatever it is made of, and what an instance knows of the world. */
import type { Clock } from '../../src/core/clock.js'
import type { HeapClock } from '../instances/heap-clock.js'
import type { Connection } from '../instances/store-at-distance.js'
import type { EndEntry, Entry, RestEntry } from './history.js'
import type { BucketPlan, ClientPlan, Scenario } from './scenario.js'
import type { Condition } from './virtual-upstream.js'

export interface Ask {
  readonly request: number
  readonly client: ClientPlan
  /** Who comes: of the clients of one key one that comes back is the same as before. */
  readonly visitor: string
  /** What it was given when it was told to come back now. */
  readonly booking?: Booking | undefined
  readonly isBack: boolean
}

/** A number of the core, or the ticket in an answer. */
export type Booking = number | string

/** How a request has ended for its client. */
export interface Ending {
  readonly how: 'done' | 'rejected' | 'gone'
  readonly retryAfterMs?: number | undefined
  readonly booking?: Booking | undefined
}

export interface World {
  readonly scenario: Scenario
  readonly clock: HeapClock
  /** The configuration in force. */
  buckets(): readonly BucketPlan[]
  chance(): number
  record(entry: Entry): void
  /** Continuations are to run before time goes on. */
  stirred(): void
  /** The clock of an instance: late while it stands still, and silent once it is gone. */
  clockOf(instance: number, isGone: () => boolean): Clock
  /** A connection to the store. Undefined: there is none. */
  connect(instance: number, awake: Clock): Connection | undefined
}

/** Starts an instance. */
export type Open = (world: World, number: number) => Instance

export interface Instance {
  readonly number: number
  readonly connection: Connection | undefined
  /** It takes requests. */
  readonly isUp: boolean
  /** @param ended called once, unless the client hangs up @returns hangs up */
  ask(ask: Ask, ended: (ending: Ending) => void): () => void
  /** As SIGKILL does. */
  crash(): void
  /** As SIGTERM does. */
  leave(): void
  reload(buckets: readonly BucketPlan[]): void
  /** Other limits of a key. Undefined: its own again. */
  override(bucket: BucketPlan, key: string, rate: number | undefined): void
  reset(bucket: BucketPlan, key: string): void
  /** Its upstream asks for a pause, in ms. */
  pause(ms: number): void
  /** All instances have one upstream. */
  upstreamIs(condition: Condition): void
  /** How many requests ended how, as its metrics count them. Empty: it has none. */
  counts(): ReadonlyMap<EndEntry['how'], number>
  /** What should be 0 now. */
  left(): RestEntry['left']
  close(): Promise<void>
}
