/** Shows a live table of buckets with the data of an admin server. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { BucketSnapshot, DryRunSnapshot, InstanceSnapshot, Snapshot } from '../../admin/snapshot/snapshot.js'
import { CommandError } from '../command-error.js'
import { aligned } from './table.js'

export interface TopOptions {
  /** The URL of the admin server. */
  readonly admin: string
  /** The token of the admin server. */
  readonly token: string | undefined
  /** Whether to show what dry runs would have done instead. */
  readonly dryRun: boolean
  /** ms between two tables. */
  readonly interval: number
  /** How many tables to show; Infinity: until a signal. */
  readonly count: number
}

/** The size of a terminal that does not tell it. */
const SIZE = { columns: 100, rows: 40 }

const BAR = 12

/** The most characters of a server's text in an error. */
const LONGEST_DETAIL = 200

/**
 * Shows `count` tables. On a terminal each replaces the one before.
 *
 * @throws CommandError when the admin server does not answer, or refuses
 */
export async function runTop(options: TopOptions, out: NodeJS.WriteStream): Promise<void> {
  let before: Snapshot | undefined
  let lines = 0
  for (let shown = 0; shown < options.count; shown += 1) {
    if (shown > 0) await sleep(options.interval)
    // Rates are differences of two snapshots, so the first table takes two.
    before ??= shown === 0 && !options.dryRun ? await firstSnapshot(options) : undefined
    const now = await fetchSnapshot(options)
    const table = options.dryRun ? dryRunTable(now) : bucketTable(now, before)
    const { columns = SIZE.columns, rows = SIZE.rows } = out.isTTY ? out : { columns: Infinity, rows: Infinity }
    const text = table.slice(0, Math.max(1, rows - 1)).map(line => line.slice(0, columns).trimEnd())
    const clear = out.isTTY && lines > 0 ? `\x1b[${lines}A\x1b[J` : ''
    out.write(`${clear}${text.join('\n')}\n`)
    lines = text.length
    before = now
  }
}

async function firstSnapshot(options: TopOptions): Promise<Snapshot> {
  const snapshot = await fetchSnapshot(options)
  await sleep(Math.min(options.interval, 1_000))
  return snapshot
}

async function fetchSnapshot({ admin, token }: TopOptions): Promise<Snapshot> {
  const url = new URL('/buckets?all', admin)
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` }
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new CommandError('SHAPER_TOKEN has characters that cannot be sent; set it to the token of the configuration')
  }
  const answer = await fetch(url, { headers, signal: AbortSignal.timeout(5_000) }).catch((error: Error) => {
    const { cause } = error as { cause?: { code?: string } }
    const reason = cause?.code ?? error.message
    throw new CommandError(
      `the admin server at ${url.origin} does not answer (${reason}); start shaper with "admin" in its configuration, or name it with --admin URL`,
    )
  })
  if (answer.status === 401) {
    const fault =
      token === undefined
        ? 'wants a token; set SHAPER_TOKEN'
        : 'refuses the token in SHAPER_TOKEN; set it to the token of the configuration'
    throw new CommandError(`the admin server at ${url.origin} ${fault}`)
  }
  if (!answer.ok)
    throw new CommandError(`the admin server at ${url.origin} answers ${answer.status}${await detailOf(answer)}`)
  const snapshot = (await answer.json().catch(() => undefined)) as Snapshot | undefined
  if (!Array.isArray(snapshot?.buckets) || !Array.isArray(snapshot.routes)) {
    throw new CommandError(`${url.origin} is not an admin server of shaper; name one with --admin URL`)
  }
  return snapshot
}

/** What a problem document (RFC 9457) says, as the end of a message. Empty: the answer is none. */
async function detailOf(answer: Response): Promise<string> {
  const { detail } = ((await answer.json().catch(() => null)) ?? {}) as { detail?: unknown }
  return typeof detail === 'string' ? `: ${printable(detail, LONGEST_DETAIL)}` : ''
}

/** The table of buckets. Rates are differences to the snapshot `before`. */
export function bucketTable(now: Snapshot, before: Snapshot | undefined): string[] {
  const seconds = before === undefined ? Infinity : Math.max(0.001, (now.at - before.at) / 1_000)
  const rows = now.buckets.flatMap(bucket => {
    const old = before?.buckets.find(({ name }) => name === bucket.name)
    const perSecond = (of: (bucket: BucketSnapshot) => number): string =>
      decimal(Math.max(0, of(bucket) - (old === undefined ? 0 : of(old))) / seconds)
    return [
      [
        bucket.name,
        `${decimal(bucket.rate)}/s${bucket.rate < bucket.configured ? ` of ${decimal(bucket.configured)}` : ''}`,
        `${bucket.keys} ${bucket.keys === 1 ? 'key' : 'keys'}`,
        '',
        String(bucket.waiting),
        perSecond(({ offered }) => offered),
        perSecond(({ released }) => released),
        perSecond(({ rejected }) => rejected),
        '',
      ],
      ...bucket.fullest.map(instanceRow),
    ]
  })
  const titles = ['bucket', 'rate', 'key', 'level', 'queued', 'in/s', 'released/s', 'rejected/s', 'a newcomer waits']
  return [...summary(now), ...patience(now), '', ...memberTable(now, before, seconds), ...aligned([titles, ...rows])]
}

/** The instances of the store. Empty: there is one. */
function memberTable({ members = [] }: Snapshot, before: Snapshot | undefined, seconds: number): string[] {
  if (members.length < 2) return []
  const rows = members.map(({ name, isHere, draining, storeReady, queued, inFlight, forwarded, rejected, waitP99 }) => {
    const old = before?.members?.find(member => member.name === name)
    const perSecond = (now: number, then: number | undefined): string =>
      then === undefined ? '' : decimal(Math.max(0, now - then) / seconds)
    const state = draining ? 'shutting down' : storeReady ? '' : 'without the store'
    return [
      `${printable(name)}${isHere ? ' *' : ''}`,
      String(queued),
      String(inFlight),
      perSecond(forwarded, old?.forwarded),
      perSecond(rejected, old?.rejected),
      milliseconds(waitP99),
      state,
    ]
  })
  const titles = ['instance (* here)', 'queued', 'in flight', 'forwarded/s', 'rejected/s', 'wait p99', '']
  return [...aligned([titles, ...rows]), '']
}

function instanceRow({ key, tier, level, capacity, waiting, predictedWaitMs, blockedMs }: InstanceSnapshot): string[] {
  const filled = Math.min(BAR, Math.round((level / (capacity ?? Infinity)) * BAR))
  const bar = `${'#'.repeat(filled)}${'.'.repeat(BAR - filled)} ${decimal(level)}/${capacity === null ? 'any' : decimal(capacity)}`
  const blocked = blockedMs === undefined ? undefined : blockedMs < 0 ? 'blocked' : `blocked ${milliseconds(blockedMs)}`
  return ['', tier ?? '', printable(key), bar, String(waiting), '', '', '', blocked ?? milliseconds(predictedWaitMs)]
}

/** The table of dry runs. */
export function dryRunTable({ at, dryRun }: Snapshot): string[] {
  if (dryRun === undefined) return ['no route is a dry run; start with --dry-run, or set "dryRun": true']
  const { since, keys, agents } = dryRun
  const minutes = Math.max(0, at - since) / 60_000
  const kinds = Object.entries(agents) as [string, DryRunSnapshot['agents'][keyof DryRunSnapshot['agents']]][]
  return [
    `since ${new Date(since).toISOString()} (${decimal(minutes)} min)`,
    '',
    ...aligned([
      ['agents', 'would reject', 'would delay'],
      ...kinds.map(([name, counts]) => [name, String(counts.would_reject), String(counts.would_delay)]),
    ]),
    '',
    ...aligned([
      ['route', 'bucket', 'key', 'agent', 'would reject', 'would delay', 'longest'],
      ...keys.map(hit => [
        hit.route,
        hit.bucket,
        printable(hit.key),
        hit.agent,
        String(hit.wouldReject),
        String(hit.wouldDelay),
        milliseconds(hit.longestWait),
      ]),
    ]),
  ]
}

function summary({ queued, inFlight, wait, lateness, store, processes, draining, upstreams }: Snapshot): string[] {
  const paused = upstreams
    .filter(({ pausedMs }) => pausedMs > 0)
    .map(({ url, pausedMs }) => `${url} pauses for ${milliseconds(pausedMs)}`)
  const failing = upstreams
    .filter(({ probeMs }) => probeMs !== undefined)
    .map(({ url, probeMs }) => `${url} fails, tried again in ${milliseconds(probeMs!)}`)
  return [
    `${queued} queued, ${inFlight} in flight; wait p50 ${milliseconds(wait.p50)}, p99 ${milliseconds(wait.p99)}, ` +
      `max ${milliseconds(wait.max)}; late p99 ${milliseconds(lateness.p99)}`,
    [
      ...(processes > 1 ? [`${processes} processes`] : []),
      ...(store.type === 'memory' ? [] : [`${store.type}: ${store.ready ? `${store.instances} instances` : 'away'}`]),
      ...(draining ? ['shutting down'] : []),
      ...paused,
      ...failing,
    ].join('; '),
  ].filter(line => line !== '')
}

/** How long the clients of routes wait for answers, as learnt, and what was not sent because of that. */
function patience({ routes }: Snapshot): string[] {
  return routes.flatMap(({ name, patience }) => {
    if (patience === undefined) return []
    const { learntMs, lastMinute } = patience
    const parts = [
      ...(learntMs === undefined ? [] : [`clients leave after about ${milliseconds(learntMs)}`]),
      ...(lastMinute === 0 ? [] : [`${lastMinute} given up in the last minute`]),
    ]
    return parts.length === 0 ? [] : [`${name}: ${parts.join('; ')}`]
  })
}

/** A text without control characters: a key comes from a client and must not control the terminal. */
function printable(text: string, longest = 40): string {
  const clean = text.replace(/[^\p{L}\p{N}\p{P}\p{S} ]/gu, '?')
  return clean.length > longest ? `${clean.slice(0, longest - 1)}~` : clean
}

function decimal(value: number): string {
  return String(Number(value >= 100 ? value.toFixed(0) : value.toPrecision(3)))
}

function milliseconds(ms: number): string {
  if (ms >= 10_000) return `${decimal(ms / 1_000)} s`
  return `${decimal(ms)} ms`
}
