/** What a worker asks of its primary, and in which words. */
import type { Board, News } from '../../core/board.js'
import type { Store } from '../../core/store.js'

const OF_STORE = [
  'admit',
  'claim',
  'giveBack',
  'lease',
  'reset',
  'beat',
  'leave',
  'exchange',
  'settle',
  'promise',
] as const
const OF_BOARD = ['setOverride', 'endOverride', 'overrides', 'show', 'views', 'agreeOnSecret'] as const

/** The verbs by their numbers in a question. A new verb is added here, and to `WorkerStore`. */
export const VERBS = [...OF_STORE, ...OF_BOARD] as const

export type Verb = ((typeof OF_STORE)[number] & keyof Store) | ((typeof OF_BOARD)[number] & keyof Board)

export function isOfBoard(verb: Verb): verb is (typeof OF_BOARD)[number] {
  return (OF_BOARD as readonly string[]).includes(verb)
}

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
