import type { RequestRecord } from './observer.js'

/** Where a request goes. */
export interface Departure {
  /** The URL of the upstream. */
  readonly upstream: string
  /** When it will be sent if it is armed, in ms of the clock. It may be taken back until then. Undefined: now. */
  readonly slot: number | undefined
}

/** Adds the context of its trace to the headers of a request for the upstream: names and values in turn. */
export type Propagate = (request: RequestRecord, headers: string[], departure: Departure) => void
