/** What a worker asks of its primary, and in which words. */
import type { Board, News } from '../../core/board.js'
import type { Store } from '../../core/store.js'

/** The verbs by their numbers in a question. A new verb of the store or of its board is added here, and to `WorkerStore`. */
export const VERBS = [
  ...(['admit', 'claim', 'giveBack', 'lease', 'reset', 'beat', 'leave', 'exchange', 'settle'] as const),
  ...(['setOverride', 'endOverride', 'overrides'] as const),
] as const

export type Verb = (typeof VERBS)[number] & (keyof Store | keyof Board)

/** The number of a verb, and what it is called with. */
export type AskedVerb = readonly [verb: number, ...input: unknown[]]

/** The questions of a message. */
export interface AskedMessage {
  /** ms of the store's clock. Nobody waits for an answer after it, so nothing is to be done. */
  readonly deadline: number
  /** How far ahead and back slots may lie, in ms, by the usual way there and back. */
  readonly horizon: number
  readonly back: number
  readonly questions: readonly AskedVerb[]
}

/** The answers to the questions of a message, in their order. A text: nothing was answered, and why. */
export type AnswerMessage = readonly unknown[] | string

/** What instances tell each other. It answers nothing. */
export interface NewsMessage {
  readonly news: News
}

export function isNewsMessage(message: AnswerMessage | NewsMessage): message is NewsMessage {
  return typeof message === 'object' && !Array.isArray(message)
}
