/** The messages between the primary and its workers. */
import type { OverrideChange } from '../../admin/keys/override-change.js'
import type { Settings } from '../../config/settings.js'
import type { ViewKind } from '../../core/board.js'
import type { Drained } from '../../proxy/server/server.js'
import { WORKER } from './instance-name.js'
import type { Program } from './serve.js'

/** The file descriptor of a worker that leads to its primary, for the store. 3 is the channel of orders and reports. */
export const PIPE = 4

/** Messages of the primary to a worker. */
export type Order =
  | { readonly verb: 'start'; readonly settings: Settings; readonly program: Program }
  | { readonly verb: 'reload'; readonly id: number; readonly settings: Settings }
  | { readonly verb: 'drain'; readonly timeout: number; readonly delay: number }
  /** A request of the admin server. */
  | { readonly verb: 'ask'; readonly id: number; readonly question: Question }

export type Question =
  | { readonly about: 'snapshot' }
  | { readonly about: 'metrics' }
  | { readonly about: 'ready' }
  | { readonly about: 'members' }
  | { readonly about: 'hours' }
  | { readonly about: 'views'; readonly kind: ViewKind }
  | { readonly about: 'whyNoKey' | 'key' | 'watch' | 'reset'; readonly bucket: string; readonly key: string }
  | { readonly about: 'search'; readonly text: string }
  | { readonly about: 'override'; readonly change: OverrideChange }
  | { readonly about: 'overrides' }

/** Messages of a worker to the primary. */
export type WorkerReport =
  /** It receives orders from now on. Earlier ones are lost. */
  | { readonly verb: 'up' }
  | { readonly verb: 'ready'; readonly url: string }
  /** It could not start, and ends. */
  | { readonly verb: 'failed'; readonly message: string }
  | { readonly verb: 'reloaded'; readonly id: number; readonly expired: ReadonlyMap<string, number> }
  /** It has drained, and ends. */
  | ({ readonly verb: 'drained' } & Drained)
  /** The answer to a question. */
  | { readonly verb: 'answered'; readonly id: number; readonly answer: unknown }
  /** It keeps the old configuration, or cannot answer. */
  | { readonly verb: 'refused'; readonly id: number; readonly message: string }

export function isWorker(): boolean {
  return process.env[WORKER] !== undefined && process.send !== undefined
}
