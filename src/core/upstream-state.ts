/** What is known of an upstream's limits. Durations in ms from now. */
export interface UpstreamState {
  /** How much longer it pauses. 0: no pause. */
  readonly pausedFor: number
  /** Cost units per ms that it allows. Undefined: it has not said. */
  readonly rate: number | undefined
  /** How much longer that rate holds. 0: there is none. */
  readonly rateFor: number
}
