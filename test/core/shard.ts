import type { ReleaseMode, StoreShard } from '../../src/core/shared/stored-bucket.js'

/** A shard of a store whose buckets pass requests in one way. */
export function shardIn(mode: ReleaseMode): StoreShard & { mode: ReleaseMode } {
  return {
    mode,
    isDoubtful: false,
    keepsOrder: false,
    hasSeveralLanes: () => false,
    turn: undefined,
    decidedAlone: 0,
    answered() {},
  }
}
