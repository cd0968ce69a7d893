import { Listeners, type News } from '../sharing/board.js'
import type { Store } from '../sharing/store.js'
import { wrapped } from './verbs.js'

interface DeferredStore extends Store {
  opened(store: Store): Promise<void>
}

/**
 * A store that is still being opened, or that the user owns. Until it is open, questions to it fail.
 *
 * @param borrowed a store that its owner closes. Undefined: one is opened, which has everything that is optional
 */
export function deferredStore(borrowed?: Store): DeferredStore {
  const listeners = new Listeners()
  let store = borrowed
  let isClosed = false
  let stopListening: (() => void) | undefined
  const hear = (): void => {
    stopListening ??= store?.listen?.(news => listeners.tell(news))
  }
  const deferred = wrapped(
    () => store,
    run => run(),
  )
  return Object.assign(deferred, {
    async opened(opened: Store): Promise<void> {
      if (isClosed) return opened.close()
      store = opened
      if (listeners.any) hear()
    },
    listen(listener: (news: News) => void): () => void {
      const stop = listeners.add(listener)
      hear()
      return stop
    },
    async close(): Promise<void> {
      isClosed = true
      stopListening?.()
      if (borrowed === undefined) await store?.close()
    },
  })
}
