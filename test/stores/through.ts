import type { MaybePromise } from '../../src/core/maybe-promise.js'
import type { Store } from '../../src/core/store.js'

/** The same store. Each of its calls goes through `call`. Closing it does nothing. */
export function through(store: Store, call: <T>(run: () => MaybePromise<T>) => MaybePromise<T>): Store {
  return {
    horizon: store.horizon,
    admit: request => call(() => store.admit(request)),
    claim: request => call(() => store.claim(request)),
    giveBack: request => call(() => store.giveBack(request)),
    ...(store.settle && { settle: request => call(() => store.settle!(request)) }),
    reset: bucket => call(() => store.reset(bucket)),
    beat: id => call(() => store.beat(id)),
    exchange: (upstream, news) => call(() => store.exchange(upstream, news)),
    close: async () => undefined,
  }
}
