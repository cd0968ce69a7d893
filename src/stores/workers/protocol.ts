/** What a worker asks of its primary, and in which words. */
import { performance } from 'node:perf_hooks'
import type { News } from '../../sharing/board.js'
import { BOARD_VERBS, STORE_VERBS } from '../verbs.js'

/** The verbs by their numbers in a question: those of the store, then those of its board. */
export const ALL_VERBS = [...STORE_VERBS, ...BOARD_VERBS] as const

/** The number of a verb, and what it is called with. */
export type AskedVerb = readonly [verb: number, ...input: unknown[]]

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

export interface NewsMessage {
  readonly news: News
}

export function isNewsMessage(message: AnswerMessage | NewsMessage): message is NewsMessage {
  return typeof message === 'object' && !Array.isArray(message)
}

/** What to add to `performance.now`, in ms. Each reading is too small by the time between its clocks, so the most is best. */
const OFFSET = Math.max(...Array.from({ length: 64 }, () => Number(process.hrtime.bigint()) / 1e6 - performance.now()))

/** The clock of the store, as a worker reads it, and how its moments map to the worker's own. In ms. */
export interface StoreClock {
  now(): number
  ours(theirs: number): number
  theirs(ours: number): number
}

/** CLOCK_MONOTONIC, the same in all processes of a machine. Moments are mapped late by less than 1 us. */
export const MACHINE: StoreClock = {
  now: () => performance.now() + OFFSET,
  ours: theirs => theirs - OFFSET,
  theirs: ours => ours + OFFSET,
}
