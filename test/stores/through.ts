import type { Store } from '../../src/sharing/store.js'
import { type Through, wrapped } from '../../src/stores/verbs.js'

/** The same store without leases, appointments and news. Each of its calls goes through `call`. Closing it does nothing. */
export function through(store: Store, call: Through): Store {
  const { lease: _lease, appoint: _appoint, leave: _leave, listen: _listen, board: _board, ...plain } = store
  return Object.assign(
    wrapped(() => plain, call),
    { close: async () => undefined },
  )
}
