import type { RoomRequest } from '../../src/core/admission/room-source.js'
import type { Waiter } from '../../src/core/queue/lane.js'
import type { ReleaseMode } from '../../src/core/release/slot-source.js'
import type { Shaper } from '../../src/core/shaper.js'
import type { Shard } from '../../src/sharing/shard.js'
import type { StoreSlots } from '../../src/sharing/store-slots.js'

/** A shard of a store whose buckets pass requests in one way. */
export function shardIn(mode: ReleaseMode, more: Partial<Shard> = {}): Shard {
  const plain = { mode, isDoubtful: false, keepsOrder: false, turn: undefined, decidedAlone: 0 }
  return { ...plain, hasSeveralLanes: () => false, answered() {}, ...more } as Partial<Shard> as Shard
}

/** Queues a request that a store has admitted. */
export function enqueue(
  shaper: Shaper,
  { waiter, ...request }: Omit<RoomRequest, 'mode'> & { readonly waiter: Waiter },
) {
  const asked = { ...request, mode: 'shape' as const }
  return shaper.lineUpIn((shaper.engine.source as StoreSlots).roomFor(asked), asked, waiter)
}
