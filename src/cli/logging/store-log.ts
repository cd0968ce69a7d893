/**
 * Logs the state of a shared store: one line when an outage begins and one when it ends. The beginnings of repeated outages
 * are logged at most every ten seconds. The last line always tells the current state.
 */
import type { Logger } from 'pino'
import type { StoreSettings } from '../../config/settings.js'
import type { Observer } from '../../proxy/observe/observer.js'

/** ms between two lines about outages that begin, or about errors without an outage. */
const QUIET_MS = 10_000
/** An outage is noticed within this time, in ms. After it an error without an outage is logged by itself. */
const NOTICE_MS = 3_000

export interface StoreLog extends Required<Pick<Observer, 'shared'>> {
  /** The last error of the store; undefined once it answers again. */
  readonly reason: string | undefined
  /** Takes an error of the store, such as a lost connection. */
  complain(error: Error): void
}

/** @param schedule writes a line, at once or when it is wanted */
export function createStoreLog(
  settings: StoreSettings,
  log: Logger,
  schedule: (write: () => void) => void = write => write(),
): StoreLog {
  let reason: string | undefined
  let lastInstances = 1
  let isAway = false
  /** Whether the last line says that the store is away. */
  let isReportedAway = false
  /** How many outages have begun since the last reported one. */
  let unreported = 0
  let nextOutage = -Infinity
  let nextTrouble = -Infinity
  let isPlanned = false
  let troubleTimer: NodeJS.Timeout | undefined

  function reportOutage(): void {
    const fields = {
      store: settings.type,
      instances: lastInstances,
      reason,
      ...(unreported > 1 && { outages: unreported }),
    }
    isReportedAway = true
    unreported = 0
    nextOutage = performance.now() + QUIET_MS
    schedule(() => log.warn(fields, `the store does not answer: ${alone(settings, fields.instances)}`))
  }

  function catchUp(): void {
    isPlanned = false
    if (isAway && !isReportedAway) reportOutage()
    else if (unreported > 0) {
      const fields = { store: settings.type, outages: unreported }
      unreported = 0
      schedule(() => log.warn(fields, 'the store was away again for a short time'))
    }
  }

  function reportTrouble(): void {
    troubleTimer = undefined
    const now = performance.now()
    const message = reason
    if (message === undefined || now < nextTrouble) return
    nextTrouble = now + QUIET_MS
    schedule(() => log.warn({ store: settings.type }, message))
  }

  function onOutage(instances: number): void {
    lastInstances = instances
    isAway = true
    unreported += 1
    clearTimeout(troubleTimer)
    troubleTimer = undefined
    const wait = nextOutage - performance.now()
    if (wait <= 0) reportOutage()
    else if (!isPlanned) {
      isPlanned = true
      setTimeout(catchUp, wait).unref()
    }
  }

  function onReturn(instances: number): void {
    const isNews = isReportedAway || instances !== lastInstances
    const again = isReportedAway ? 'the store answers again: ' : ''
    if (isAway) reason = undefined
    lastInstances = instances
    isAway = false
    isReportedAway = false
    if (!isNews) return
    const count = `${instances} instance${instances === 1 ? '' : 's'}`
    schedule(() => log.info({ instances }, `${again}the limits are shared by ${count}`))
  }

  return {
    get reason() {
      return reason
    },
    complain({ message }) {
      reason = message
      if (!isAway) troubleTimer ??= setTimeout(reportTrouble, NOTICE_MS).unref()
    },
    shared(state, instances) {
      if (state === 'alone' && !isAway) onOutage(instances)
      else if (state === 'shared') onReturn(instances)
    },
  }
}

function alone({ onOutage }: StoreSettings, instances: number): string {
  if (onOutage === 'closed') return 'rejecting what has limits'
  if (onOutage === 'open') return 'forwarding everything at once'
  return `going on alone, at 1/${instances} of the rates`
}
