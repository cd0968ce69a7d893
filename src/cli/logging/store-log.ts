/**
 * Logs the state of a shared store: one line when an outage begins and one when it ends. The beginnings of repeated outages
 * are logged at most every ten seconds. The last line always tells the current state.
 *
 * Shards of a cluster that fail at about the same time are one outage. It ends when all of them answer.
 */
import type { Logger } from 'pino'
import { withoutStore } from '../../admin/snapshot/troubles.js'
import { counted } from '../../config/messages.js'
import type { StoreSettings } from '../../config/store-url.js'
import type { Observer } from '../../proxy/observe/observer.js'
import type { ShardNews } from '../../sharing/sharing.js'
import { isRefusal } from '../../stores/describe-error.js'

/** ms between two lines about outages that begin, or about errors without an outage. */
const QUIET_MS = 10_000
/** An outage is noticed within this time, in ms. After it an error without an outage is logged by itself. */
const NOTICE_MS = 3_000
/** Other shards of a cluster that fail are noticed within this time, in ms: a heartbeat and its timeout. */
const GATHER_MS = 1_500

interface StoreLog extends Required<Pick<Observer, 'shared'>> {
  /** The last error of the store; undefined once it answers again. */
  readonly reason: string | undefined
  complain(error: Error): void
}

interface Outage {
  readonly began: number
  /** All its shards, and those that are still away. A store without shards has one shard, named ''. */
  readonly shards: Set<string>
  readonly away: Set<string>
  instances: number
  reason: string | undefined
  decidedAlone: number
  isReported: boolean
}

interface LoggedStore extends Pick<StoreSettings, 'onOutage'> {
  readonly type: string
  /** How many instances are known to share it from the start. Absent: this one. */
  readonly known?: number
}

/** @param schedule writes a line, at once or when it is wanted */
export function createStoreLog(
  settings: LoggedStore,
  log: Logger,
  schedule: (write: () => void) => void = write => write(),
): StoreLog {
  const outages = new Set<Outage>()
  let reason: string | undefined
  let lastInstances = settings.known ?? 1
  /** How many outages have begun since the last reported one. */
  let unreported = 0
  let nextOutage = -Infinity
  let nextTrouble = -Infinity
  let isPlanned = false
  let troubleTimer: NodeJS.Timeout | undefined

  const unreportedOutage = (): Outage | undefined => [...outages].find(({ isReported }) => !isReported)

  function reportOutage(outage: Outage): void {
    const { instances, shards, reason } = outage
    const fields = {
      ...{ store: settings.type, ...namesOf(shards), instances, reason },
      ...(unreported > 1 && { outages: unreported }),
    }
    outage.isReported = true
    unreported = 0
    nextOutage = performance.now() + QUIET_MS
    const what = isRefusal(reason) ? 'the store refuses' : 'the store does not answer'
    schedule(() => log.warn(fields, `${what}${placeOf(shards)}: ${withoutStore(settings.onOutage, instances)}`))
  }

  function catchUp(): void {
    isPlanned = false
    const outage = unreportedOutage()
    if (outage !== undefined) reportOutage(outage)
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

  function onOutage(news: ShardNews): void {
    const { shard, instances } = news
    if (outageOf(shard) !== undefined) return
    lastInstances = instances
    clearTimeout(troubleTimer)
    troubleTimer = undefined
    const recent = unreportedOutage()
    if (recent === undefined) return begin(news)
    recent.shards.add(shard)
    recent.away.add(shard)
  }

  function begin({ shard, instances, reason: why }: ShardNews): void {
    const now = performance.now()
    const [shards, away] = [new Set([shard]), new Set([shard])]
    const known = reason ?? why
    const outage: Outage = { began: now, shards, away, instances, reason: known, decidedAlone: 0, isReported: false }
    outages.add(outage)
    unreported += 1
    const wait = Math.max(nextOutage - now, shard === '' ? 0 : GATHER_MS)
    if (wait <= 0) return reportOutage(outage)
    if (!isPlanned) setTimeout(catchUp, wait).unref()
    isPlanned = true
  }

  function outageOf(shard: string): Outage | undefined {
    return [...outages].find(({ away }) => away.has(shard))
  }

  function onReturn({ shard, instances, decidedAlone }: ShardNews): void {
    const isNews = instances !== lastInstances
    lastInstances = instances
    const outage = outageOf(shard)
    if (outage !== undefined) {
      outage.away.delete(shard)
      outage.decidedAlone += decidedAlone
      if (outage.away.size > 0) return
      end(outage)
      if (outage.isReported) return reportEnd(outage, instances)
    }
    if (isNews) schedule(() => log.info({ instances }, sharedBy(instances)))
  }

  function end(outage: Outage): void {
    outages.delete(outage)
    if (outages.size === 0) reason = undefined
    if (!outage.isReported && performance.now() >= nextOutage) reportOutage(outage)
  }

  function reportEnd({ shards, began, decidedAlone }: Outage, instances: number): void {
    const seconds = Math.round((performance.now() - began) / 100) / 10
    const fields = { store: settings.type, ...namesOf(shards), instances, seconds, decidedAlone }
    const length = `after ${seconds} s, with ${counted(decidedAlone, 'request')} decided without it`
    const message = `the store answers again${placeOf(shards)}, ${length}: ${sharedBy(instances)}`
    schedule(() => log.info(fields, message))
  }

  return {
    get reason() {
      return reason
    },
    complain({ message }) {
      reason = message
      if (outages.size === 0) troubleTimer ??= setTimeout(reportTrouble, NOTICE_MS).unref()
    },
    shared(news) {
      if (news.state === 'alone') onOutage(news)
      else if (news.state === 'shared') onReturn(news)
    },
  }
}

function sharedBy(instances: number): string {
  return `the limits are shared by ${counted(instances, 'instance')}`
}

/** Nothing for a store without shards. */
function namesOf(shards: ReadonlySet<string>): { readonly shards?: readonly string[] } {
  return shards.has('') ? {} : { shards: [...shards] }
}

function placeOf(shards: ReadonlySet<string>): string {
  return shards.has('') ? '' : ` at ${[...shards].join(', ')}`
}
