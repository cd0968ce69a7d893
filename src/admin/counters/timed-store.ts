import type { Clock } from '../../core/clock.js'
import type { MaybePromise } from '../../core/maybe-promise.js'
import type { Store } from '../../core/store.js'
import type { StoreMetrics } from './metrics.js'

/** The same store with its calls timed. */
export function timedStore(store: Store, { now }: Pick<Clock, 'now'>, metrics: StoreMetrics): Store {
  function timed<T>(answer: MaybePromise<T>, askedAt: number): MaybePromise<T> {
    if (!(answer instanceof Promise)) return answer
    answer.then(
      () => metrics.storeAnswered(now() - askedAt),
      () => metrics.storeFailed(),
    )
    return answer
  }
  return {
    get horizon() {
      return store.horizon
    },
    horizonOf: stack => store.horizonOf?.(stack) ?? store.horizon,
    latenessOf: bucket => store.latenessOf?.(bucket) ?? 0,
    admit: request => timed(store.admit(request), now()),
    claim: request => timed(store.claim(request), now()),
    giveBack: request => timed(store.giveBack(request), now()),
    ...(store.settle && { settle: request => timed(store.settle!(request), now()) }),
    get keepsOrder() {
      return store.keepsOrder === true
    },
    ...(store.promise && { promise: request => timed(store.promise!(request), now()) }),
    ...(store.lease && { lease: request => timed(store.lease!(request), now()) }),
    reset: bucket => timed(store.reset(bucket), now()),
    get shards() {
      return store.shards
    },
    shardOf: bucket => store.shardOf?.(bucket) ?? '',
    beat: (id, shard) => timed(store.beat(id, shard), now()),
    leave: (id, shard) => timed(store.leave?.(id, shard), now()),
    exchange: (upstream, received) => timed(store.exchange(upstream, received), now()),
    ...(store.listen && { listen: listener => store.listen!(listener) }),
    get board() {
      return store.board
    },
    close: () => store.close(),
  }
}
