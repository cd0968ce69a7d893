/** What the primary and its workers say to each other. */
import type { Settings } from '../../config/settings.js'
import type { Program } from './serve.js'

/** Set in a worker's environment: its number. */
export const WORKER = 'SHAPER_WORKER'

/** What the primary says to a worker. */
export type Order =
  | { readonly verb: 'start'; readonly settings: Settings; readonly program: Program }
  | { readonly verb: 'reload'; readonly id: number; readonly settings: Settings }
  | { readonly verb: 'drain'; readonly timeout: number }
  /** What the admin server wants to know, or to have done. */
  | { readonly verb: 'tell'; readonly id: number; readonly question: Question }

export type Question =
  | { readonly about: 'snapshot' }
  | { readonly about: 'metrics' }
  | { readonly about: 'ready' }
  | { readonly about: 'reset'; readonly bucket: string; readonly key: string }

/** What a worker says to the primary. */
export type WorkerReport =
  /** It hears: what was said before is lost. */
  | { readonly verb: 'up' }
  | { readonly verb: 'ready'; readonly url: string }
  /** It could not start, and ends. */
  | { readonly verb: 'failed'; readonly message: string }
  | { readonly verb: 'reloaded'; readonly id: number; readonly expired: ReadonlyMap<string, number> }
  /** The answer to a question. */
  | { readonly verb: 'told'; readonly id: number; readonly answer: unknown }
  /** It goes on with what it had, or cannot tell. */
  | { readonly verb: 'refused'; readonly id: number; readonly message: string }

export function isWorker(): boolean {
  return process.env[WORKER] !== undefined && process.send !== undefined
}
