import { workerCount } from '../../config/checks/workers.js'
import { adaptedUpstreams } from '../../config/derived/adapted-upstreams.js'
import { openFileLimit } from '../../config/derived/open-files.js'
import { loadConfig } from '../../config/load.js'
import { formatDate, type Profile, profiles } from '../../config/profiles.js'
import { effective } from '../../config/report/effective-config.js'
import { exactRate } from '../../config/report/exact-units.js'
import { type LongestWait, longestWaits, longestWaitText, waitsForAnswers } from '../../config/report/longest-waits.js'
import type { RouteSettings, Settings } from '../../config/settings.js'
import { certificateWarnings } from '../../config/warnings/certificates.js'
import { warnings } from '../../config/warnings/index.js'
import { openFileWarnings } from '../../config/warnings/open-files.js'
import { figuresInUse } from '../../config/warnings/profiles.js'
import { durationText } from '../../core/units.js'
import { CONNECT_PACED } from '../egress-text.js'
import type { Terminal } from '../terminal.js'
import { type CommandOptions, sourcesOf } from './common-options.js'
import { aligned } from './table.js'

/** The measured memory of a queued request and of a bucket instance, in kB. */
const QUEUED_KB = 8
const INSTANCE_KB = 0.2

export interface CheckOptions extends CommandOptions {
  /** Nothing on stderr but warnings and errors. */
  json?: boolean
  /** Nothing but errors. */
  quiet?: boolean
}

/**
 * Prints the effective configuration as JSON on stdout, and nothing else there. Longest waits, memory and warnings go to
 * stderr.
 *
 * @throws ConfigError
 */
export function runCheck({ json = false, quiet = false, ...options }: CheckOptions, terminal: Terminal): void {
  const sources = sourcesOf(options, terminal)
  const { settings, file } = loadConfig(sources)
  const workers = sources.workers === undefined ? undefined : workerCount(sources.workers)
  if (json || !quiet) terminal.stdout.write(`${JSON.stringify(effective(settings), null, 2)}\n`)
  if (quiet) return
  const warned = [
    ...warnings(settings),
    ...certificateWarnings(settings.listen, Date.now()),
    ...openFileWarnings(settings, openFileLimit(), workers),
  ]
  const warningLines = warned.map(({ path, message }) => `warning: ${path}: ${message}`)
  const lines = json ? warningLines : [...effects(settings), ...warningLines, `${file ?? 'the flags'}: valid`]
  for (const line of lines) terminal.stderr.write(`${line}\n`)
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

/** One line for each adaptive rate. */
function adaptiveLines(routes: readonly RouteSettings[]): string[] {
  const adapted = adaptedUpstreams(routes.map(({ upstream }) => upstream))
  return [...adapted].map(
    ([
      url,
      {
        name,
        targets: { min, max, start },
      },
    ]) => {
      const rates = `${exactRate(min)} to ${exactRate(max)}, from ${exactRate(start)}`
      return `adaptive rate of ${url}, bucket "${name}": ${rates}`
    },
  )
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
