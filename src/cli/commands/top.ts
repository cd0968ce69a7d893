/** Shows a live table of buckets with the data of an admin server. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { DryRunSnapshot, Snapshot } from '../../admin/snapshot/snapshot.js'
import { CommandError } from '../command-error.js'
import type { Terminal } from '../terminal.js'
import { arrange, type View } from '../top/layout.js'
import { runScreen } from '../top/run-screen.js'
import { Screen } from '../top/screen.js'
import { sectionsOf, summaryOf } from '../top/sections.js'
import { decimal, milliseconds, printable } from '../top/text.js'
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

/** The most characters of a server's text in an error. */
const LONGEST_DETAIL = 200

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

async function writeTables(options: TopOptions, out: NodeJS.WriteStream): Promise<void> {
  let before: Snapshot | undefined
  for (let shown = 0; shown < options.count; shown += 1) {
    if (shown > 0) await sleep(options.interval)
    // Rates are differences of two snapshots, so the first table takes two.
    before ??= shown === 0 && !options.dryRun ? await firstSnapshot(options) : undefined
    const now = await fetchSnapshot(options)
    const lines = options.dryRun ? dryRunTable(now) : topLines(now, before)
    out.write(`${shown > 0 ? '\n' : ''}${lines.join('\n')}\n`)
    before = now
  }
}

/** @throws CommandError when the first answer does not come */
async function showLive(options: TopOptions, terminal: Pick<Terminal, 'stdin' | 'stdout'>): Promise<void> {
  let before: Snapshot | undefined
  let now = await fetchSnapshot(options)
  const screen = new Screen()
  screen.update(now, undefined)
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
        ;[before, now] = [now, await fetchSnapshot(options)]
        screen.update(now, before)
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

/** Everything there is, in lines of any length. Rates are differences to the snapshot `before`. */
export function topLines(now: Snapshot, before: Snapshot | undefined): string[] {
  const view: View = { focus: 'key', filter: '', sort: {}, scroll: {} }
  const shown = arrange(sectionsOf(now, before), view, { columns: Infinity, rows: Infinity })
  return [summaryOf(now).join('; '), ...shown.flatMap(({ lines }) => ['', ...lines])]
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
