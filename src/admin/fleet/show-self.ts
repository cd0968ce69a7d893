/** Shows this instance to the others on its store, once a second. */
import type { Board } from '../../core/board.js'
import { type FleetMember, writeView } from './member.js'

/** ms */
const INTERVAL = 1_000

/** Goes on while the instance drains, until the process ends. */
export function startShowing(board: Board, self: () => Promise<FleetMember>): void {
  let isUnderWay = false
  const show = async (): Promise<void> => {
    if (isUnderWay) return
    isUnderWay = true
    try {
      const member = await self()
      const text = writeView(member)
      if (text !== undefined) await board.show('present', member.id, text)
    } catch {
      // The store is away: the others see that this instance is missing, and it shows itself again later.
    }
    isUnderWay = false
  }
  void show()
  // Not all instances at the same moment.
  setInterval(() => void show(), INTERVAL * (0.95 + 0.1 * Math.random())).unref()
}
