/** Puts the requests of logs through limits and reports what these would have done. */
import { formatKeyPart } from '../config/schema/key.js'
import { slackOf } from '../core/bucket/limits.js'
import type { LineParser } from './formats/line-parser.js'
import { LogArrivals } from './input/arrivals.js'
import { AddressDirectory, type Directory, RouteDirectory } from './input/client-directory.js'
import { InputError, STDIN } from './input/log-files.js'
import type { Recording } from './input/recording.js'
import { isByAddress, missingFields, type Plan, type ReplayLimits, type Single, singleOf } from './plan/plan.js'
import { findSmallest } from './plan/smallest-limits.js'
import { type Grid, pointsOf } from './plan/sweep-grid.js'
import { Trial } from './plan/trial.js'
import { createReport, type ReplayReport, type SweepReport } from './report/report.js'
import type { Bound } from './runs/bound-run.js'
import { BoundRun } from './runs/bound-run.js'
import type { Request } from './runs/level-rows.js'
import { MeterRun } from './runs/meter-run.js'
import type { ReplayRun } from './runs/run.js'
import { ShaperRun } from './runs/shaper-run.js'
import { type PointOutcome, SweepRun } from './runs/sweep-run.js'
import { EXACT } from './runs/wait-quantiles.js'

/** Clients of one bucket by its key. */
export class KeyDirectory implements Directory {
  readonly #routes: RouteDirectory

  constructor(routeDirectory: RouteDirectory) {
    this.#routes = routeDirectory
  }

  identify(parser: LineParser): number {
    return this.#routes.kinds[this.#routes.identify(parser)]!.client
  }

  text(client: number): string {
    return this.#routes.text(client)
  }
}

/** How the requests of a log are told apart, and what they are put through. */
interface Setup {
  readonly directory: Directory
  readonly createRun: () => ReplayRun
}

/** One bucket by itself. */
function setupOfBucket({ settings }: ReplayLimits, single: Single): Setup {
  const { bucket, cost, route } = single
  return {
    directory: isByAddress(single) ? new AddressDirectory() : new KeyDirectory(new RouteDirectory(settings)),
    createRun: () => new MeterRun(bucket.limits, cost, route.mode === 'meter' ? 'meter' : 'shape'),
  }
}

/** A whole configuration. */
function setupOfRoutes({ settings }: ReplayLimits): Setup {
  const directory = new RouteDirectory(settings)
  return { directory, createRun: () => new ShaperRun(settings, directory) }
}

/**
 * Reads the logs of a plan and puts their requests through its limits.
 *
 * @throws ConfigError where the log lacks what a flag needs
 */
export async function replay(plan: Plan): Promise<ReplayReport> {
  const { limits, sweep, target } = plan
  const found = singleOf(limits.settings)
  const sweeps = sweep !== undefined || target !== undefined
  const single = limits.plain || sweeps ? found : undefined
  const { directory, createRun } = single === undefined ? setupOfRoutes(limits) : setupOfBucket(limits, single)
  const notes = new Set<string>()
  const begin = (parser: LineParser, log: string): void => {
    for (const missing of missingFields(limits, parser, log === STDIN ? 'standard input' : log)) notes.add(missing)
  }
  const arrivals = new LogArrivals({ ...plan, directory, begin })
  const { reading, result } = await arrivals.read(() => {
    const run = createRun()
    const begin = run.begin?.bind(run)
    if (!sweeps || single === undefined) return { run, ...(begin && { begin }), arrive: run.arrive.bind(run) }
    const trial = new Trial(plan, requestOf(single))
    const arrive = (at: number, id: number, agent: number): void => {
      run.arrive(at, id, agent)
      trial.arrive(at, id)
    }
    return { run, trial, arrive }
  })
  const { run, trial } = result
  run.end()
  if (run instanceof ShaperRun && run.notByBuckets > 0) {
    notes.add(
      `${run.notByBuckets} of those rejected had no route, lacked a key, or found no room for another key or waiter`,
    )
  }
  const findings = { plan, reading, tally: run.tally, directory }
  if (trial === undefined || single === undefined || reading.requests === 0) {
    return createReport({ ...findings, notes: [...notes] })
  }
  const swept = await sweepOver(plan, single, trial, createRepeat(arrivals, trial.recording))
  if (target !== undefined) for (const note of targetNotes(target, swept)) notes.add(note)
  return createReport({ ...findings, notes: [...notes], swept })
}

/** What a reader of the recommendation has to know. */
function targetNotes(target: readonly Bound[], { found, grid }: SweepReport): string[] {
  if (found === undefined) {
    return ['no rate and capacity within the sweep meets the target; give --sweep a wider range, or ask for less']
  }
  const notes: string[] = []
  if (!target.some(({ metric }) => metric === 'reject')) {
    notes.push(
      'the target does not bound rejections, so the limits that it recommends may reject most requests; add e.g. reject<=0.1% to --target',
    )
  }
  if (found.rate === grid.rates[0]) {
    notes.push(
      'the recommended rate is the lowest of the sweep, and a lower one may meet the target, too; give --sweep a wider range',
    )
  }
  return notes
}

/** Receives recorded arrivals. */
interface RecordedSink {
  arrive(at: number, client: number): void
}

/** Passes all arrivals to `open()`: from the recording, or by reading the logs again. @throws InputError */
type Repeat = <T extends RecordedSink>(open: () => T) => Promise<T>

function createRepeat(arrivals: LogArrivals, recording: Recording): Repeat {
  return async open => {
    if (recording.complete) {
      const run = open()
      recording.play(run)
      return run
    }
    if (!arrivals.repeatable) {
      throw new InputError(
        `standard input has more than ${recording.size} requests, and cannot be read twice; save it to a file and name that`,
      )
    }
    return (await arrivals.read(open)).result
  }
}

function requestOf({ bucket, cost }: Single): Request {
  return { cost, slack: slackOf(bucket.limits, cost) }
}

async function sweepOver({ target }: Plan, single: Single, trial: Trial, repeat: Repeat): Promise<SweepReport> {
  const { bucket } = single
  const request = requestOf(single)
  const grid = trial.grid ?? trial.gridFromTraffic
  const swept = trial.swept ?? (await repeat(() => new SweepRun(pointsOf(grid), request)))
  const found = target === undefined ? undefined : await recommend(target, grid, request, repeat)
  return {
    key: bucket.key.parts.map(formatKeyPart).join(','),
    burst: bucket.limits.burst,
    grid,
    outcomes: swept.outcomes(),
    ...(found && { found }),
  }
}

async function recommend(
  bounds: readonly Bound[],
  grid: Grid,
  request: Request,
  repeat: Repeat,
): Promise<PointOutcome | undefined> {
  const point = await findSmallest(bounds, grid, request.cost, async points =>
    (await repeat(() => new BoundRun(points, request, bounds))).counts(),
  )
  if (point === undefined) return undefined
  const outcome = (await repeat(() => new SweepRun([point], request, EXACT))).outcomes()[0]!
  const wait = { ...outcome.wait }
  // The limits keep the bounds exactly, so a quantile above its bound is a rounding error of too many waits.
  for (const { metric, most } of bounds) {
    if (metric !== 'reject' && metric !== 'delay') wait[metric] = Math.min(wait[metric], most)
  }
  return { ...outcome, wait }
}
