/** Shows a live table of buckets with the data of an admin server. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { DryRunSnapshot, Snapshot } from '../../admin/snapshot/snapshot.js'
import { ConfigError, type Problem } from '../../config/load.js'
import { orElse } from '../../core/structures/or-else.js'
import { durationText, parseDuration } from '../../core/units.js'
import type { Terminal } from '../command.js'
import { aligned, cellText, decimal } from '../text.js'
import { arrange, type TopView } from '../top/layout.js'
import { runScreen, Screen } from '../top/screen.js'
import { sectionsOf, summaryOf, troublesOf } from '../top/sections.js'
import { type AdminAddress, adminUrl, askAdmin } from './admin-client.js'

export interface TopOptions extends AdminAddress {
  readonly dryRun: boolean
  readonly interval: number
  readonly count: number
}

/**
 * On a terminal, shows everything until a key ends it. With a `count`, for dry runs and elsewhere it writes tables, one below
 * the other.
 *
 * @throws CommandError when the admin server does not answer, or refuses. Once it has answered, a terminal waits for it.
 */
export async function runTop(
  options: TopOptions,
  { stdin, stdout }: Pick<Terminal, 'stdin' | 'stdout'>,
): Promise<void> {
  const isLive = options.count === Infinity && !options.dryRun && stdin.isTTY && stdout.isTTY
  if (isLive) await showLive(options, { stdin, stdout })
  else await writeTables(options, stdout)
}

/** ms. What the server does not tell per second is counted over the same time. */
const RATE_OVER = 5_000

class Seen {
  readonly #all: Snapshot[] = []

  /** Returns the one to compare it with. Undefined: it is the first. */
  add(now: Snapshot): Snapshot | undefined {
    while (this.#all.length > 1 && this.#all[1]!.at <= now.at - RATE_OVER) this.#all.shift()
    const [before] = this.#all
    this.#all.push(now)
    return before
  }
}

async function writeTables(options: TopOptions, out: NodeJS.WriteStream): Promise<void> {
  const seen = new Seen()
  for (let shown = 0; shown < options.count; shown += 1) {
    if (shown > 0) await sleep(options.interval)
    // Some rates are differences of two snapshots, so the first table takes two.
    if (shown === 0 && !options.dryRun) seen.add(await firstSnapshot(options))
    const now = await fetchSnapshot(options)
    const lines = options.dryRun ? dryRunTable(now) : topLines(now, seen.add(now))
    out.write(`${shown > 0 ? '\n' : ''}${lines.join('\n')}\n`)
  }
}

/** @throws CommandError when the first answer does not come */
async function showLive(options: TopOptions, terminal: Pick<Terminal, 'stdin' | 'stdout'>): Promise<void> {
  const seen = new Seen()
  const first = await fetchSnapshot(options)
  const screen = new Screen()
  screen.update(first, seen.add(first))
  const running = runScreen(screen, terminal)
  try {
    running.draw()
    let isOver = false
    const ended = running.ended.then(() => {
      isOver = true
    })
    // The first rates are not to keep anybody waiting.
    let interval = Math.min(options.interval, 1_000)
    for (;;) {
      await Promise.race([sleep(interval, undefined, { ref: false }), ended])
      if (isOver) return
      try {
        const now = await fetchSnapshot(options)
        screen.update(now, seen.add(now))
      } catch (error) {
        screen.lost(`${(error as Error).message}`)
      }
      if (isOver) return
      running.draw()
      interval = options.interval
    }
  } finally {
    running.close()
  }
}

async function firstSnapshot(options: TopOptions): Promise<Snapshot> {
  const snapshot = await fetchSnapshot(options)
  await sleep(Math.min(options.interval, 1_000))
  return snapshot
}

function fetchSnapshot(options: TopOptions): Promise<Snapshot> {
  return askAdmin<Snapshot>(
    options,
    '/buckets?all',
    ({ buckets, routes }) => Array.isArray(buckets) && Array.isArray(routes),
  )
}

/** Everything there is, in lines of any length. Rates are differences to the snapshot `before`. */
export function topLines(now: Snapshot, before: Snapshot | undefined): string[] {
  const view: TopView = { focus: 'key', filter: '', sort: {}, scroll: {} }
  const shown = arrange(sectionsOf(now, before), view, { columns: Infinity, rows: Infinity })
  return [...troublesOf(now), summaryOf(now).join('; '), ...shown.flatMap(({ lines }) => ['', ...lines])]
}

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
      ...kinds.map(([name, counts]) => [name, counts.would_reject, counts.would_delay]),
    ]),
    '',
    ...aligned([
      ['route', 'bucket', 'key', 'agent', 'would reject', 'would delay', 'longest'],
      ...keys.map(({ route, bucket, key, agent, wouldReject, wouldDelay, longestWait }) => {
        return [route, bucket, cellText(key), agent, wouldReject, wouldDelay, durationText(longestWait)]
      }),
    ]),
  ]
}

export interface TopFlags {
  admin: string
  dryRun?: boolean
  interval: string
  count?: string
}

/** The shortest interval between two requests to the admin server, in ms. */
const LEAST_INTERVAL = 100

/** @throws ConfigError with everything that is wrong */
export function readTopFlags({ admin, dryRun = false, interval, count }: TopFlags, env: NodeJS.ProcessEnv): TopOptions {
  const problems: Problem[] = []
  const refuse = (path: string, value: string, message: string): void => {
    problems.push({ path, message: `${JSON.stringify(value)} ${message}` })
  }
  const url = adminUrl(admin)
  if (url === undefined) refuse('--admin', admin, 'is not a URL; use e.g. http://127.0.0.1:9090')
  const ms = orElse(() => parseDuration(interval), Number.NaN)
  if (!(ms >= LEAST_INTERVAL))
    refuse('--interval', interval, `is not a time of at least ${LEAST_INTERVAL}ms; use e.g. 1s`)
  if (count !== undefined && !/^[1-9]\d{0,8}$/.test(count))
    refuse('--count', count, 'is not a number of tables; use e.g. 1')
  if (problems.length > 0) throw new ConfigError(problems)
  return {
    admin: url!,
    token: env.SHAPER_TOKEN,
    dryRun,
    interval: ms,
    count: count === undefined ? Infinity : Number(count),
  }
}
