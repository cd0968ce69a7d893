import type { Observer, Outcome, RequestRecord } from './observer.js'

/** Counts the requests that have ended, but for those whose clients left. */
export class AnswerCount implements Required<Pick<Observer, 'finished'>> {
  count = 0

  finished(_request: RequestRecord, outcome: Outcome): void {
    if (outcome !== 'cancelled') this.count += 1
  }
}
