/** The messages between the primary and its workers. */
import { hostname } from 'node:os'
import type { AdminSource } from '../../admin/server.js'
import type { Settings } from '../../config/settings.js'
import type { Drained } from '../../proxy/server/server.js'
import type { GuestNews, GuestOrder } from '../../proxy/succession/departing.js'

/** The environment variable that holds the number of a worker. */
export const WORKER = 'SHAPER_WORKER'

/** The host and the process. A worker has the process of its primary, and its number. */
export function instanceName(): string {
  const worker = process.env[WORKER]
  return worker === undefined ? `${hostname()}:${process.pid}` : `${hostname()}:${process.ppid}/${worker}`
}

/**
 * The file descriptor of a worker that leads to its primary, for the store, and of a primary that leads to the one before it. 3 is the
 * channel of orders and reports.
 */
export const PIPE = 4

/** Values that all processes of one `shaper start` share. */
export interface Program {
  /** The pseudonym in `Via`. */
  readonly id: string
  readonly workers: number
}

export type Order =
  /** `sockets`: the file descriptors in the primary on which it listens already, by their places in `listen`. */
  | {
      readonly verb: 'start'
      readonly settings: Settings
      readonly program: Program
      readonly sockets: readonly (number | undefined)[]
    }
  | { readonly verb: 'listen' }
  | OrderOfSuccession
  | { readonly verb: 'reload'; readonly id: number; readonly settings: Settings }
  | { readonly verb: 'drain'; readonly timeout: number; readonly delay: number }
  | { readonly verb: 'ask'; readonly id: number; readonly question: Question }

/** Obeyed out of turn. */
export type OrderOfSuccession =
  /** A worker of the successor decides from now on. */
  | { readonly verb: 'hand-over' }
  /** What that says. */
  | { readonly verb: 'news'; readonly news: GuestNews }
  /** It is gone. */
  | { readonly verb: 'go-on' }
  /** Of a worker of the process before, to the one here that has its guests. */
  | { readonly verb: 'guest'; readonly order: GuestOrder; readonly from: number }

export type Asked = Exclude<keyof AdminSource, 'failedReload' | 'restart'>

export type Question =
  | { readonly [About in Asked]: { readonly about: About; readonly given: Parameters<AdminSource[About]> } }[Asked]
  | { readonly about: 'status' }

/** How a process is, for the service manager. */
export interface Status {
  /** Requests in its queues. */
  readonly waiting: number
  /** The URLs of upstreams that fail. */
  readonly failing: readonly string[]
}

export type WorkerReport =
  /** It receives orders from now on. Earlier ones are lost. */
  | { readonly verb: 'up' }
  /** To a worker of the successor. */
  | { readonly verb: 'order'; readonly order: GuestOrder }
  /** All that waits has gone over. */
  | { readonly verb: 'handed-over' }
  /** To a worker of the process before. */
  | { readonly verb: 'news'; readonly news: GuestNews; readonly from: number }
  /** It waits for the order to listen. */
  | { readonly verb: 'prepared' }
  | { readonly verb: 'ready'; readonly urls: readonly string[] }
  /** It could not start, and ends. */
  | { readonly verb: 'failed'; readonly message: string }
  | { readonly verb: 'reloaded'; readonly id: number; readonly expired: ReadonlyMap<string, number> }
  /** It has drained, and ends. */
  | ({ readonly verb: 'drained' } & Drained)
  | { readonly verb: 'answered'; readonly id: number; readonly answer: unknown }
  /** It keeps the old configuration, or cannot answer. */
  | { readonly verb: 'refused'; readonly id: number; readonly message: string }

export function isWorker(): boolean {
  return process.env[WORKER] !== undefined && process.send !== undefined
}
