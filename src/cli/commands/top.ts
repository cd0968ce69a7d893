/** Shows a live table of buckets with the data of an admin server. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { DryRunSnapshot, Snapshot } from '../../admin/snapshot/snapshot.js'
import { durationText } from '../../core/units.js'
import type { Terminal } from '../terminal.js'
import { arrange, type TopView } from '../top/layout.js'
import { runScreen } from '../top/run-screen.js'
import { Screen } from '../top/screen.js'
import { sectionsOf, summaryOf, troublesOf } from '../top/sections.js'
import { cellText, decimal } from '../top/text.js'
import { type AdminAddress, askAdmin } from './admin-client.js'
import { aligned } from './table.js'

export interface TopOptions extends AdminAddress {
  /** Whether to show what dry runs would have done instead. */
  readonly dryRun: boolean
  /** ms between two tables. */
  readonly interval: number
  /** How many tables to show; Infinity: until a signal. */
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

/** The latest snapshots. */
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
        cellText(hit.key),
        hit.agent,
        String(hit.wouldReject),
        String(hit.wouldDelay),
        durationText(hit.longestWait),
      ]),
    ]),
  ]
}
