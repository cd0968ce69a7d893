import type { Clock } from '../../core/clock.js'
import type { MaybePromise, Store } from '../../core/store.js'
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
    admit: request => timed(store.admit(request), now()),
    claim: request => timed(store.claim(request), now()),
    giveBack: request => timed(store.giveBack(request), now()),
    reset: bucket => timed(store.reset(bucket), now()),
    beat: id => timed(store.beat(id), now()),
    leave: id => timed(store.leave?.(id), now()),
    get left() {
      return store.left ?? 0
    },
    exchange: (upstream, received) => timed(store.exchange(upstream, received), now()),
    close: () => store.close(),
  }
}
