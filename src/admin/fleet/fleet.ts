/** All instances of a store as one: those of this program, asked now, and the others as they show themselves. */
import type { View } from '../../core/board.js'
import { mergeSnapshots } from '../snapshot/merge-snapshots.js'
import type { MemberSnapshot, Snapshot } from '../snapshot/snapshot.js'
import { type FleetMember, readView } from './member.js'

/** How long what others show is reused, in ms. They show it once a second. */
const FRESH = 900

export interface FleetSource {
  /** The instances of this program: its one process, or its workers. */
  members(): Promise<readonly FleetMember[]>
  /** What all instances of the store show, these included. Nothing without a store. */
  views(): Promise<readonly View[]>
}

/** Takes snapshots of all instances together, with one line for each in `members`. */
export function createFleet(source: FleetSource): () => Promise<Snapshot> {
  let others: readonly FleetMember[] = []
  let readAt = -Infinity

  async function read(own: readonly FleetMember[]): Promise<void> {
    const now = performance.now()
    if (now - readAt < FRESH) return
    readAt = now
    // Without an answer the store is away, and nothing is known of the others.
    const views = await source.views().catch(() => [])
    const ids = new Set(own.map(({ id }) => id))
    const found: FleetMember[] = []
    for (const view of views) {
      if (ids.has(view.id)) continue
      const member = readView(view, performance.timeOrigin + performance.now())
      if (member !== undefined) found.push(member)
      // Each may be large, and requests are released by this thread, too.
      await new Promise(setImmediate)
    }
    others = found.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  return async () => {
    const own = await source.members()
    await read(own)
    const all = [...own, ...others]
    const merged = mergeSnapshots(all.map(({ snapshot }) => snapshot))
    return {
      ...merged,
      at: own[0]!.snapshot.at,
      members: [...own.map(member => ({ ...summary(member), isHere: true })), ...others.map(summary)],
    }
  }
}

function summary({ name, age, snapshot, passed }: FleetMember): MemberSnapshot {
  const { uptime, draining, store, queued, inFlight, wait } = snapshot
  return {
    name,
    isHere: false,
    age,
    uptime,
    draining,
    storeReady: store.ready,
    queued,
    inFlight,
    ...passed,
    waitP99: wait.p99,
  }
}
