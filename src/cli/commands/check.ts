import { workerCount } from '../../config/checks/workers.js'
import { adaptedUpstreams } from '../../config/derived/adapted-upstreams.js'
import { isAnyRate } from '../../config/derived/default-capacity.js'
import { openFileLimit } from '../../config/derived/open-files.js'
import { loadConfig } from '../../config/load.js'
import { formatPath } from '../../config/problems.js'
import { formatDate, type Profile, profiles } from '../../config/profiles.js'
import { exactRate } from '../../config/read-values.js'
import { effective, isCredential } from '../../config/report/effective-config.js'
import {
  CONNECT_PACED,
  type LongestWait,
  longestWaits,
  longestWaitText,
  waitsForAnswers,
} from '../../config/report/longest-waits.js'
import type { BucketSettings, RouteSettings, Settings } from '../../config/settings.js'
import { certificateWarnings } from '../../config/warnings/certificates.js'
import { warnings } from '../../config/warnings/index.js'
import { openFileWarnings } from '../../config/warnings/open-files.js'
import { figuresInUse } from '../../config/warnings/profiles.js'
import { durationText } from '../../core/units.js'
import type { BucketOwner } from '../../proxy/limits/key-limits.js'
import type { LimitsReport } from '../../proxy/observe/observer.js'
import type { Terminal } from '../command.js'
import { aligned } from '../text.js'
import { type CommandOptions, sourcesOf } from './common-options.js'

/** The measured memory of a queued request and of a bucket instance, in kB. */
const QUEUED_KB = 8
const INSTANCE_KB = 0.2
/** Keys with limits from outside that are shown. */
const FIRST = 3

export interface CheckOptions extends CommandOptions {
  /** Nothing on stderr but warnings and errors. */
  json?: boolean
  quiet?: boolean
}

/** Nothing but the configuration goes to stdout. Longest waits, memory and warnings go to stderr. @throws ConfigError */
export async function runCheck(
  { json = false, quiet = false, ...options }: CheckOptions,
  terminal: Terminal,
): Promise<void> {
  const sources = sourcesOf(options, terminal)
  const { settings, file } = loadConfig(sources)
  const outside = await Promise.all(settings.buckets.map(outsideOf))
  const workers = sources.workers === undefined ? undefined : workerCount(sources.workers)
  if (json || !quiet) terminal.stdout.write(`${JSON.stringify(effective(settings), null, 2)}\n`)
  if (quiet) return
  const warned = [
    ...warnings(settings),
    ...certificateWarnings(settings.listen, Date.now()),
    ...openFileWarnings(settings, openFileLimit(), workers),
    ...outside.flatMap(({ warned }) => warned),
  ]
  const warningLines = warned.map(({ path, message }) => `warning: ${path}: ${message}`)
  const lines = json
    ? warningLines
    : [...effects(settings), ...outside.flatMap(({ lines }) => lines), ...warningLines, `${file ?? 'the flags'}: valid`]
  for (const line of lines) terminal.stderr.write(`${line}\n`)
}

/** How many keys of a bucket have limits of their own, and the first of them. @throws ConfigError if their file cannot be used */
async function outsideOf(
  settings: BucketSettings,
): Promise<{ readonly lines: string[]; readonly warned: ReturnType<typeof warnings> }> {
  const { name, outside, key: ofKey } = settings
  if (outside === undefined) return { lines: [], warned: [] }
  const { readKeyLimits } = await import('../../proxy/limits/key-limits.js')
  const { LimitsError } = await import('../../proxy/limits/rows.js')
  const { hashedKey } = await import('../../proxy/routing/key.js')
  const path = formatPath(['buckets', name, 'limits'])
  try {
    const limits = (await readKeyLimits([settings])).of(name)!
    const { told, more } = limits.last as LimitsReport
    const shown = Array.from(limits.first(settings, FIRST), ([key, owner]) => {
      const shownKey = isCredential(ofKey) ? `(${hashedKey(key)} in the log)` : JSON.stringify(key)
      return `  ${shownKey}: ${ownText(owner)}`
    })
    const messages = more > 0 ? [...told, `${more} more of these`] : told
    return {
      lines: [`bucket "${name}": ${limits.size} keys have limits of their own`, ...shown],
      warned: messages.map(message => ({ path, message })),
    }
  } catch (error) {
    if (!(error instanceof LimitsError)) throw error
    return { lines: [], warned: [{ path: error.path ?? path, message: error.reason }] }
  }
}

function ownText({ limits: { rate, capacity, maxInFlight }, weight, priority }: BucketOwner): string {
  const parts = [
    ...(isAnyRate({ rate, capacity }) ? [] : [exactRate(rate)]),
    ...(capacity === Infinity ? [] : [`capacity ${capacity}`]),
    ...Object.entries({ maxInFlight, weight, priority }).flatMap(([name, value]) =>
      value === undefined ? [] : `${name} ${value}`,
    ),
  ]
  return parts.join(', ')
}

/** What a configuration means for those who wait, and for the memory. */
function effects(settings: Settings): string[] {
  return [
    ...routeTable(settings.routes),
    ...adaptiveLines(settings.routes),
    ...profileLines(settings),
    '',
    memory(settings),
    ...(settings.egress ? [CONNECT_PACED] : []),
    ...longestWaits(settings).flatMap(bucket => bucketLines(bucket, settings.routes)),
  ]
}

function routeTable(routes: readonly RouteSettings[]): string[] {
  const rows = routes.map(route => [
    route.name,
    route.mode,
    route.mode === 'off' ? '-' : route.buckets.map(bucket => bucket.name).join(', '),
    route.mode === 'shape' ? longestWaitText(route) : '-',
  ])
  return aligned([['route', 'mode', 'buckets', 'longest wait'], ...rows])
}

function adaptiveLines(routes: readonly RouteSettings[]): string[] {
  const adapted = adaptedUpstreams(routes.map(({ upstream }) => upstream))
  return [...adapted].map(([url, { name, targets }]) => {
    const [min, max, start] = [targets.min, targets.max, targets.start].map(exactRate)
    return `adaptive rate of ${url}, bucket "${name}": ${min} to ${max}, from ${start}`
  })
}

/** Two lines for each profile: the figures that it brings with their sources, and what they leave out. */
function profileLines({ routes, buckets }: Settings): string[] {
  const names = new Set(routes.flatMap(({ upstream }) => upstream.profile ?? []))
  return [...names].flatMap(name => {
    const { remark, buckets: known }: Profile = profiles[name]
    const figures = figuresInUse(name, buckets).map(
      ({ figure }) => `${figure.value} ${figure.of} (${figure.source}, ${formatDate(figure)})`,
    )
    const none =
      Object.keys(known).length > 0
        ? 'no figures in use; the file has its own'
        : 'no figures; the answers alone say what is allowed'
    return [`profile "${name}": ${figures.join('; ') || none}`, `  ${remark}`]
  })
}

function memory({ limits }: Settings): string {
  const queued = `${megabytes(limits.maxQueued * QUEUED_KB)} for ${limits.maxQueued} held requests (maxQueued)`
  const instances = `${megabytes(limits.maxKeys * INSTANCE_KB)} for ${limits.maxKeys} keys (maxKeys)`
  const buffers = `${megabytes(limits.bufferMemory / 1_000)} for bodies (bufferMemory)`
  return `memory: up to about ${queued}, ${instances} and ${buffers}`
}

function megabytes(kilobytes: number): string {
  return `${Number((kilobytes / 1_000).toPrecision(2))} MB`
}

function bucketLines(
  { tiers, ...bucket }: ReturnType<typeof longestWaits>[number],
  routes: readonly RouteSettings[],
): string[] {
  const users = routes.filter(({ buckets }) => buckets.some(({ name }) => name === bucket.name))
  const wait = users.some(waitsForAnswers) ? openText : closedText
  return [`bucket ${waitLine(bucket, wait)}`, ...tiers.map(tier => `  tier ${waitLine(tier, wait)}`)]
}

function waitLine({ name, rate, capacity, burst, longestWaitMs }: LongestWait, wait: WaitText): string {
  const limits = `${rate}${capacity === Infinity ? '' : `, capacity ${capacity}`}${burst === undefined ? '' : `, burst ${burst}`}`
  return `"${name}" (${limits}): ${wait(longestWaitMs)}`
}

type WaitText = (ms: number) => string

function closedText(ms: number): string {
  return `the longest wait is ${durationText(ms)}`
}

/** Of a bucket whose requests also wait for answers, for which no rate bounds the wait. */
function openText(ms: number): string {
  if (ms === 0) return 'nobody waits for the rate, but for slow answers (maxInFlight)'
  return `${closedText(ms)} by the rate alone; slow answers make it longer (maxInFlight)`
}
