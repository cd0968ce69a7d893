/** Tells when limits from outside may have changed. */
import { type Stats, stat, statSync } from 'node:fs'
import type { LimitsSource } from '../../config/settings.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { SideConnection } from '../../stores/postgres/link.js'

/** ms between two looks at a file. It is looked at through links, so a replaced one and one behind a link are noticed, too. */
const LOOK = 200
/** ms for the statements that keep a connection listening. */
const STATEMENT = 1_000

interface WatchOptions {
  readonly clock: Clock
  changed(): void
  /** What was read of it stays. */
  missing(failure: string): void
}

/** @returns ends it */
export type WatchSource = (source: LimitsSource, options: WatchOptions) => () => void

export const watchSource: WatchSource = (source, options) =>
  'file' in source ? watchFile(source.file, options) : watchQuery(source, options)

/** What is seen of it now is what is read next. */
function watchFile(file: string, { clock, changed, missing }: WatchOptions): () => void {
  let seen = looksOf(statSync(file, { throwIfNoEntry: false }))
  let isClosed = false
  const look = (): void =>
    stat(file, (error, stats) => {
      if (isClosed) return
      timer = clock.at(clock.now() + LOOK, look)
      const now = looksOf(error === null ? stats : undefined)
      if (now === seen) return
      seen = now
      if (now === '') missing('the file is gone; what was read of it stays in use')
      else changed()
    })
  let timer: Cancel = clock.at(clock.now() + LOOK, look)
  return () => {
    isClosed = true
    timer()
  }
}

function looksOf(stats: Stats | undefined): string {
  return stats === undefined ? '' : [stats.ino, stats.size, stats.mtimeMs, stats.ctimeMs].join()
}

type QuerySource = Exclude<LimitsSource, { file: string }>

function watchQuery({ refresh, channel, postgres }: QuerySource, { clock, changed }: WatchOptions): () => void {
  let timer: Cancel = clock.at(clock.now() + refresh, ask)
  function ask(): void {
    timer = clock.at(clock.now() + refresh, ask)
    changed()
  }
  let listening: SideConnection | undefined
  let isClosed = false
  const listen = async (): Promise<void> => {
    const link = await import('../../stores/postgres/link.js')
    if (isClosed) return
    const options = { url: postgres.url, timeout: STATEMENT, channel: `"${channel}"`, prepare: async () => {} }
    listening = new link.SideConnection({ ...options, received: changed })
    listening.listen()
  }
  if (channel !== undefined) void listen()
  return () => {
    isClosed = true
    timer()
    listening?.close()
  }
}
