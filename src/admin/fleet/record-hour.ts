/** Records the last hour of this process, and shows it to the other instances: two parts of it every ten seconds. */
import type { Board, View } from '../../core/board.js'
import { type HourOwner, writeHour } from './hour-parts.js'
import { HourRing, STEP, type Totals } from './hour-ring.js'

/** ms after the end of a step. A timer may be early by one. */
const LATER = 20

export interface RecordingOptions extends HourOwner {
  /** ms since 1970. Its steps are even. */
  wallNow(): number
  /** Runs in `ms`. It may be early by a millisecond. */
  later(ms: number, run: () => void): void
  totals(): Totals
  /** Undefined: there are no other instances. */
  readonly board: Board | undefined
}

/** Goes on until the process ends. @returns the parts of the last hour */
export function recordHour({ id, name, wallNow, later, totals, board }: RecordingOptions): () => View[] {
  const ring = new HourRing(wallNow())
  const parts = (): View[] => writeHour({ id, name }, ring.points, wallNow())
  let turn = 0
  const show = async (): Promise<void> => {
    if (board === undefined) return
    const all = parts()
    const latest = all.at(-1)
    if (latest === undefined) return
    // One of the others each time, in turn. So a store that has lost them has all of them again after two minutes.
    turn = (turn + 1) % all.length
    const due = new Set([latest, all[turn]!])
    await Promise.all(Array.from(due, ({ id, text }) => board.show('hour', id, text)))
  }
  const step = (): void => {
    ring.end(wallNow(), totals())
    // Without an answer the store is away, and it is shown later.
    show().catch(() => undefined)
    plan()
  }
  const plan = (): void => later(STEP - (wallNow() % STEP) + LATER, step)
  plan()
  return parts
}
