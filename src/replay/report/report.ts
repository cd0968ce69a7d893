import { readFileSync } from 'node:fs'
import { formatKeyPart } from '../../config/schema/key.js'
import { durationText } from '../../core/units.js'
import type { AgentClass } from '../../http/agent-class.js'
import { policyHash } from '../../http/policy-hash.js'
import type { Reading } from '../input/arrivals.js'
import type { Directory } from '../input/client-directory.js'
import { printable } from '../input/line-scanner.js'
import { type Plan, singleOf } from '../plan/plan.js'
import { type Grid, rateText } from '../plan/sweep-grid.js'
import { configLines, type TargetBucket } from '../plan/target.js'
import type { PointOutcome } from '../runs/level-rows.js'
import type { ClientOutcomes, Outcomes, Peak, RunTally, SeriesPoints } from '../runs/run-tally.js'
import type { LeavingCounts } from '../runs/shaper-run.js'
import { binStart, type WaitSummary, type Waits } from '../runs/wait-quantiles.js'

const LISTED = 50
export const LONGEST_KEY = 60

export interface ReplayReport extends Pick<Reading, 'formats' | 'lines' | 'skipped' | 'late'>, Outcomes {
  readonly logs: readonly string[]
  readonly limits: {
    readonly name: string
    readonly rate?: string
    readonly capacity?: number
    readonly burst?: number
    readonly key?: string
    /** Where no rate was given: the smallest limits that meet the target, or the largest that were tried. */
    readonly chosen?: 'smallest' | 'largest'
  }
  readonly bad: number
  readonly badLines: {
    readonly reasons: Readonly<Record<string, number>>
    readonly examples: readonly { readonly line: number; readonly reason: string; readonly text: string }[]
  }
  readonly from: string | undefined
  readonly to: string | undefined
  /** How times within a second were assumed. */
  readonly times: string
  readonly admitted: number
  readonly atOnce: number
  /** Rejected requests that had been queued first. */
  readonly expired: number
  /** Waits of the delayed requests. */
  readonly wait: WaitSummary
  readonly agents: Readonly<Record<AgentClass, Outcomes>>
  readonly clients: {
    readonly total: number
    readonly delayed: number
    readonly rejected: number
    /** The clients hit hardest first. */
    readonly hardest: readonly (Omit<ClientOutcomes, 'client'> & { readonly client: string })[]
  }
  /** The second with the most arrivals, and the upstream's busiest second without and with the limits. */
  readonly busiest: PeakReport
  readonly upstream: { readonly before: PeakReport; readonly after: PeakReport }
  readonly series: SeriesPoints & { readonly start: string | undefined }
  /** The waits of delayed requests, in bins from `from` to `to` ms. */
  readonly waits: readonly { readonly from: number; readonly to: number; readonly count: number }[]
  readonly sweep?: {
    readonly rates: readonly string[]
    readonly capacities: readonly number[]
    /** Sorted by rate, then by capacity. */
    readonly points: readonly (Omit<PointOutcome, 'rate'> & { readonly rate: string })[]
    /** The smallest limits that meet the target; absent: none do, or there is no target. */
    readonly recommended?: Omit<PointOutcome, 'rate'> & { readonly rate: string; readonly config: string }
  }
  /** With clients that leave; absent: not asked for. */
  readonly leaving?: LeavingReport
  readonly notes: readonly string[]
  readonly errors: readonly string[]
}

/** What would become of the requests of clients that leave. Times in ms. */
export interface LeavingReport {
  /** How long all clients wait for their answers. */
  readonly patience: number
  /** How long answers take: the 90th percentile in the log. Absent: the log does not tell, and they take no time. */
  readonly service?: number
  /** Without giving up any request, and with it. */
  readonly kept: LeavingOutcomes
  readonly givenUp: LeavingOutcomes
}

/** Requests by what would have become of them. The upstream sees those that are in time and those that are late. */
export interface LeavingOutcomes extends Readonly<LeavingCounts> {
  readonly rejected: number
}

export interface PeakReport extends Omit<Peak, 'second'> {
  readonly at: string | undefined
}

export interface SweepReport {
  readonly bucket: TargetBucket
  readonly grid: Grid
  readonly outcomes: readonly PointOutcome[]
  readonly found?: PointOutcome
}

export interface Findings {
  readonly plan: Plan
  readonly reading: Reading
  readonly tally: RunTally
  readonly directory: Directory
  readonly notes: readonly string[]
  readonly swept?: SweepReport
  readonly left?: LeavingReport
}

export function createReport({ plan, reading, tally, directory, notes, swept, left }: Findings): ReplayReport {
  const { formats, lines, skipped, requests, bad, late, origin } = reading
  const { atOnce, delayed, rejected, expired, series } = tally
  const hasAny = requests > 0
  const single = singleOf(plan.limits.settings)
  const key = single?.bucket.key.parts.map(formatKeyPart).join(',') ?? 'ip'
  const at = (ms: number): string | undefined => (hasAny ? new Date(origin * 1_000 + ms).toISOString() : undefined)
  const peak = ({ second, ...rest }: Peak): PeakReport => ({ at: at(second * 1_000), ...rest })
  const points = series.toPoints()
  return {
    logs: plan.logs,
    formats,
    limits: {
      name: plan.limits.name,
      ...(single && {
        rate: rateText(single.bucket.rate),
        capacity: single.bucket.capacity,
        ...(single.bucket.limits.burst !== undefined && { burst: single.bucket.limits.burst }),
        key,
      }),
      ...(plan.limits.sought && { chosen: swept?.found === undefined ? 'largest' : 'smallest' }),
    },
    ...{ lines, skipped, requests, bad: bad.count },
    badLines: { reasons: Object.fromEntries(bad.reasons), examples: bad.examples },
    late,
    from: at(reading.first),
    to: at(reading.last),
    times: describeTimes(reading, plan.seed),
    ...{ admitted: atOnce + delayed, atOnce, delayed, rejected, expired },
    wait: rounded(tally.waits.summary()),
    agents: tally.agents(),
    clients: {
      total: tally.clients,
      ...tally.hit(),
      hardest: tally.hardest(LISTED).map(client => ({
        ...client,
        client: printable(directory.text(client.client), LONGEST_KEY),
        meanWait: toMicroseconds(client.meanWait),
        maxWait: toMicroseconds(client.maxWait),
      })),
    },
    busiest: peak(series.busiest),
    upstream: { before: peak(series.busiest), after: peak(series.fullest) },
    series: { ...points, start: at(points.first * 1_000) },
    waits: distribution(tally.waits),
    ...(swept && { sweep: sweepReport(swept) }),
    ...(left && { leaving: left }),
    notes: [...reading.notes, ...notes],
    errors: reading.errors.map(({ message }) => message),
  }
}

function sweepReport({ bucket, grid, outcomes, found }: SweepReport): NonNullable<ReplayReport['sweep']> {
  const pointReport = ({ rate, wait, ...rest }: PointOutcome) => {
    return { rate: rateText(rate), ...rest, wait: rounded(wait) }
  }
  return {
    rates: grid.rates.map(rateText),
    capacities: grid.capacities,
    points: outcomes.map(pointReport),
    ...(found && { recommended: { ...pointReport(found), config: configLines(found, bucket) } }),
  }
}

function describeTimes({ whole, longest }: Reading, seed: number | undefined): string {
  const logged = !whole
    ? 'as logged'
    : seed === undefined
      ? 'whole seconds as logged, all at their beginning'
      : `whole seconds; the requests of one second are spread over it, at places that --seed ${seed} decides`
  return longest > 0 ? `${logged}; less the request time, at most ${durationText(longest)}` : logged
}

/** The waits in bins with edges at 1, 2 and 5 times powers of ten, in ms. */
function distribution({ bins, count, max }: Waits): { from: number; to: number; count: number }[] {
  if (count === 0) return []
  const edges = [0]
  // The last bin may end beyond the longest wait.
  for (let exponent = 0; edges.at(-1)! <= 1.1 * max; exponent += 1) {
    for (const digit of [1, 2, 5]) edges.push(digit * 10 ** exponent)
  }
  const found = edges.slice(1).map((to, at) => ({ from: edges[at]!, to, count: 0 }))
  for (const [bin, inBin] of bins.entries()) {
    if (inBin === 0) continue
    const middle = (binStart(bin) + binStart(bin + 1)) / 2
    found.find(({ to }) => middle < to)!.count += inBin
  }
  while (found.at(-1)?.count === 0) found.pop()
  return found.slice(found.findIndex(bin => bin.count > 0))
}

function rounded({ p50, p90, p99, max }: WaitSummary): WaitSummary {
  return { p50: toMicroseconds(p50), p90: toMicroseconds(p90), p99: toMicroseconds(p99), max: toMicroseconds(max) }
}

function toMicroseconds(ms: number): number {
  return Math.round(ms * 1_000) / 1_000
}

/** A report as one page that loads nothing else: style, script and data are inside. */
export function replayPage(report: ReplayReport): string {
  const style = `\n${read('plots.css')}`
  const script = `\n${read('plots.js')}`
  const policy = `default-src 'none'; script-src ${policyHash(script)}; style-src ${policyHash(style)}; base-uri 'none'; form-action 'none'`
  // It cannot end its script element. Keys and paths come from clients.
  const data = JSON.stringify(report).replaceAll('<', '\\u003c')
  return read('plots.html')
    .replace('<!-- policy -->', () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`)
    .replace('<!-- style -->', () => `<style>${style}</style>`)
    .replace('<!-- data -->', () => `<script type="application/json" id="report">${data}</script>`)
    .replace('<!-- script -->', () => `<script type="module">${script}</script>`)
}

function read(name: string): string {
  return readFileSync(new URL(name, import.meta.url), 'utf8')
}
