/** What the log tells of the store that instances share. */
import type { Logger } from 'pino'
import type { StoreSettings } from '../config/settings.js'
import type { Observer } from '../proxy/events.js'

/** Tells of outages, of their end, and of how many instances there are. */
export function createStoreLog(settings: StoreSettings, log: Logger): Required<Pick<Observer, 'shared'>> {
  let lost = false
  let last = 1
  return {
    shared(state, instances) {
      if (state === 'alone') {
        lost = true
        last = instances
        log.warn({ instances }, `the store does not answer: ${alone(settings, instances)}`)
      } else if (state === 'shared' && (lost || instances !== last)) {
        const again = lost ? 'the store answers again: ' : ''
        lost = false
        last = instances
        log.info({ instances }, `${again}the limits are shared by ${instances} instance${instances === 1 ? '' : 's'}`)
      }
    },
  }
}

function alone({ onOutage }: StoreSettings, instances: number): string {
  if (onOutage === 'closed') return 'rejecting what has limits'
  if (onOutage === 'open') return 'forwarding everything at once'
  return `going on alone, at 1/${instances} of the rates`
}
