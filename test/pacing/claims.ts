/** The steps of the pacing thread. The thread is plain JavaScript, so their types are here. */
import type { ArmedWrites } from '../../src/pacing/armed-writes.js'

export type Memory = ArmedWrites['memory']

/** An entry as the pacing thread knows it: its place, and its state word when it was read. */
export interface Entry {
  readonly index: number
  readonly word: number
}

export const { armedWord, claim, finish, mayClaim } = (await import(
  new URL('../../src/pacing/claims.js', import.meta.url).href
)) as {
  armedWord(memory: Memory, index: number): number
  claim(memory: Memory, entry: Entry): boolean
  finish(memory: Memory, entry: Entry, result: number, at: number): void
  mayClaim(memory: Memory, entry: Entry): boolean
}
