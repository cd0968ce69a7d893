import type { Logger } from 'pino'
import type { FailedReload } from '../../admin/snapshot/troubles.js'
import { changedFiles, type UsedFile, usedFiles } from '../../config/checks/readable-files.js'
import { ConfigError } from '../../config/load.js'
import { changes } from '../../config/report/changes.js'
import type { Settings } from '../../config/settings.js'
import { certificateWarnings } from '../../config/warnings/certificates.js'

/** Settings that take effect at start only. */
const FIXED_AT_START = /^(listen|pacing|store|admin|accessLog|limits\.maxHeader(Size|s))\b/

export interface Reloader {
  /** Reads the configuration and puts it into effect. A bad one is logged and changes nothing. Calls run one at a time. */
  readonly reload: () => void
  current(): Settings
  /** Undefined: the last reload was not refused, or there was none. */
  failed(): FailedReload | undefined
}

interface ReloaderOptions {
  readonly settings: Settings
  /** The files of `settings`, as they were before it was put into effect. */
  readonly files: readonly UsedFile[]
  /** Reads the configuration. @throws ConfigError where it is bad */
  readonly load: () => Settings
  readonly apply: (next: Settings, files: readonly UsedFile[]) => Promise<ReadonlyMap<string, number>>
  readonly log: Logger
  /** Counts a reload. One that finds nothing changed is `ok`. */
  readonly reloaded?: ((result: 'ok' | 'failed') => void) | undefined
}

export function createReloader({ settings: first, files, load, apply, log, reloaded }: ReloaderOptions): Reloader {
  let current = first
  let filesInUse = files
  let failure: FailedReload | undefined
  let last = Promise.resolve()
  const reload = async (): Promise<void> => {
    try {
      const next = load()
      const now = usedFiles(next, first.listen)
      const changed = changes(current, next)
      const changedNames = changedFiles(filesInUse, now)
      if (changed.length + changedNames.length === 0) {
        reloaded?.('ok')
        failure = undefined
        return log.info('reloaded: nothing has changed')
      }
      const expired = await apply(next, now)
      reloaded?.('ok')
      failure = undefined
      current = next
      filesInUse = now
      log.info({ changes: [...changed, ...changedNames] }, 'reloaded')
      const isFixed = (line: string): boolean => FIXED_AT_START.test(line)
      // What is again as it runs is none.
      for (const line of changed.some(isFixed) ? changes(first, next).filter(isFixed) : [])
        log.warn(`${line}: takes effect at the next start`)
      for (const { path, message } of certificateWarnings(first.listen, Date.now())) log.warn(`${path}: ${message}`)
      for (const [route, count] of expired) {
        log.warn({ route, count }, `route ${route}: ${count} waiters now exceed maxWait and are answered 503`)
      }
    } catch (error) {
      reloaded?.('failed')
      failure = { at: Date.now(), problems: (error as Error).message.split('\n') }
      logRefusal(error as Error, failure, log)
    }
  }
  return {
    reload: () => {
      last = last.then(reload)
    },
    current: () => current,
    failed: () => failure,
  }
}

function logRefusal(error: Error, { problems }: FailedReload, log: Logger): void {
  if (isHalfRenewed(error)) {
    log.warn({ problems }, 'not reloaded: certificate and key do not belong together yet, and the former ones stay')
  } else log.error({ problems }, 'not reloaded: the configuration stays as it was')
}

/** A renewal writes the certificate and its key one after the other. In between they do not fit. */
function isHalfRenewed(error: Error): boolean {
  return error instanceof ConfigError && error.problems.every(({ path }) => /\btls\.(cert|key|clientCa)$/.test(path))
}
