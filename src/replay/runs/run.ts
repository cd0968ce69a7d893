import type { RunTally } from './run-tally.js'

/** Something that requests are put through, in the order of their arrival. */
export interface ReplayRun {
  /**
   * @param at ms since the beginning of the log
   * @param id whose request it is, as the directory of clients counts them
   * @param agent what kind of program, by its place among AGENT_CLASSES
   */
  arrive(at: number, id: number, agent: number): void
  /** Nobody comes any more. */
  end(): void
  readonly tally: RunTally
}
