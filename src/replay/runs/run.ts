import type { RunTally } from './run-tally.js'

/** Limits that requests are put through, in the order of arrival. */
export interface ReplayRun {
  /** Called before the first arrival. @param origin ms since 1970 of the beginning of the log */
  begin?(origin: number): void
  /**
   * @param at ms since the beginning of the log
   * @param id the number that the directory gives to the line
   * @param agent index in AGENT_CLASSES
   */
  arrive(at: number, id: number, agent: number): void
  /** Ends the run: no request arrives any more. */
  end(): void
  readonly tally: RunTally
}
