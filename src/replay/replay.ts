/** Puts the requests of logs through limits and reports what these would have done. */
import { formatKeyPart } from '../config/schema/key.js'
import type { Settings } from '../config/settings.js'
import { slackOf } from '../core/bucket/limits.js'
import { LogArrivals, type Reading } from './input/arrivals.js'
import { AddressDirectory, type Directory, RouteDirectory } from './input/client-directory.js'
import { InputError } from './input/log-files.js'
import { Recording } from './input/recording.js'
import {
  createLogChecks,
  isByAddress,
  limitsAt,
  type Plan,
  type ReplayLimits,
  type Single,
  singleOf,
} from './plan/plan.js'
import { findSmallest } from './plan/smallest-limits.js'
import { type Grid, pointsOf } from './plan/sweep-grid.js'
import type { TargetBucket } from './plan/target.js'
import { Trial } from './plan/trial.js'
import {
  createReport,
  type Findings,
  type LeavingOutcomes,
  type LeavingReport,
  type ReplayReport,
  type SweepReport,
} from './report/report.js'
import type { Bound } from './runs/bound-run.js'
import { BoundRun } from './runs/bound-run.js'
import { LeavingClients } from './runs/leaving-clients.js'
import type { Request } from './runs/level-rows.js'
import { MeterRun } from './runs/meter-run.js'
import { patientRoutes, readPatiently, usualServiceTime } from './runs/route-patience.js'
import type { ReplayRun } from './runs/run.js'
import type { RunTally } from './runs/run-tally.js'
import { ShaperRun } from './runs/shaper-run.js'
import { type PointOutcome, SweepRun } from './runs/sweep-run.js'
import { EXACT, Waits } from './runs/wait-quantiles.js'

/** How the requests of a log are told apart, and what they are put through. */
interface Setup {
  readonly directory: Directory
  readonly createRun: (service: number | undefined) => ReplayRun
}

/** One bucket by itself. */
function setupOfBucket({ settings }: ReplayLimits, single: Single): Setup {
  const { bucket, cost, route } = single
  const routes = new RouteDirectory(settings)
  const byKey: Directory = {
    identify: parser => routes.kinds[routes.identify(parser)]!.client,
    text: client => routes.text(client),
  }
  return {
    directory: isByAddress(single) ? new AddressDirectory() : byKey,
    createRun: () => new MeterRun(bucket.limits, cost, route.mode === 'meter' ? 'meter' : 'shape'),
  }
}

/** A whole configuration. */
function setupOfRoutes({ settings }: ReplayLimits): Setup {
  const directory = new RouteDirectory(settings)
  return { directory, createRun: service => new ShaperRun(settings, directory, { service: service ?? 0 }) }
}

/**
 * Reads the logs of a plan and puts their requests through its limits.
 *
 * @throws ConfigError where the log lacks what a flag needs
 */
export async function replay(plan: Plan): Promise<ReplayReport> {
  const { limits, patience } = plan
  const single = singleFor(plan)
  const { directory, createRun } = single === undefined ? setupOfRoutes(limits) : setupOfBucket(limits, single)
  const { notes, begin } = createLogChecks(plan.fields ?? {}, limits)
  const serviceTimes = new Waits()
  const routes = single === undefined ? patientRoutes(limits.settings) : []
  const onServiceTime = (ms: number): void => serviceTimes.add(ms)
  const isTimed = patience !== undefined || routes.length > 0
  const arrivals = new LogArrivals({ ...plan, directory, begin, ...(isTimed && { onServiceTime }) })
  const open = (service: number | undefined) => recorded(createRun(service), recorderFor(plan, single))
  const { reading, result, note } = await readPatiently(arrivals, { serviceTimes, routes, open })
  if (note !== undefined) notes.add(note)
  const { run, recorder } = result
  run.end()
  if (run instanceof ShaperRun && run.notByBuckets > 0) {
    notes.add(
      `${run.notByBuckets} of those rejected had no route, lacked a key, or found no room for another key or waiter`,
    )
  }
  const oneAddress = oneAddressNote(plan, reading, run.tally)
  if (oneAddress !== undefined) notes.add(oneAddress)
  const findings = { plan, reading, tally: run.tally, directory }
  if (reading.requests === 0 || recorder === undefined) return createReport({ ...findings, notes: [...notes] })
  if (recorder instanceof Trial) {
    const repeat = createRepeat(arrivals, recorder.recording)
    const swept = { bucket: bucketOf(single!, reading), ...(await sweepOver(plan, single!, recorder, repeat)) }
    const chosen = limits.sought ? await replayChosen(plan, single!, swept, repeat) : {}
    return createReport({ ...findings, ...chosen, notes: [...notes, ...targetNotes(plan, swept)], swept })
  }
  const leaving = {
    settings: limits.settings,
    directory: directory as RouteDirectory,
    patience: patience!,
    serviceTimes,
  }
  const left = await letClientsLeave(leaving, reading.origin, createRepeat(arrivals, recorder))
  return createReport({ ...findings, notes: [...notes], left })
}

/** The single bucket that is replayed without queues. Undefined: the queues of the core are needed. */
function singleFor({ limits, sweep, target, patience }: Plan): Single | undefined {
  const isByItself = limits.plain || sweep !== undefined || target !== undefined
  return isByItself && patience === undefined ? singleOf(limits.settings) : undefined
}

/** What records the arrivals. Undefined: they are needed once. */
function recorderFor(plan: Plan, single: Single | undefined): Recording | Trial | undefined {
  if (plan.patience !== undefined) return new Recording()
  const sweeps = plan.sweep !== undefined || plan.target !== undefined
  return sweeps && single !== undefined ? new Trial(plan, requestOf(single)) : undefined
}

/** A run whose arrivals are recorded. */
function recorded(run: ReplayRun, recorder: Recording | Trial | undefined) {
  const begin = run.begin?.bind(run)
  if (recorder === undefined) return { run, recorder, ...(begin && { begin }), arrive: run.arrive.bind(run) }
  const arrive = (at: number, id: number, agent: number): void => {
    run.arrive(at, id, agent)
    recorder.arrive(at, id, agent)
  }
  return { run, recorder, ...(begin && { begin }), arrive }
}

/** So many requests of one address are more likely those of many clients. */
const MANY = 100

/** Says that the address may be that of a balancer. */
function oneAddressNote({ limits }: Plan, { requests, formats }: Reading, { clients }: RunTally): string | undefined {
  const single = singleOf(limits.settings)
  const isKnown = single !== undefined && isByAddress(single) && !formats.includes('shaper')
  if (!isKnown || clients !== 1 || requests < MANY) return undefined
  return `all ${requests} requests have the same address, perhaps that of a balancer; if the log has X-Forwarded-For, add --field ip=x_forwarded_for`
}

/** What a reader of the recommendation has to know. */
function targetNotes({ target }: Plan, { found, grid }: SweepReport): string[] {
  if (target === undefined) return []
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
type RecordedSink = Pick<ReplayRun, 'arrive'>

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

function requestOf({ bucket, cost, route }: Single): Request {
  // A meter delays nothing.
  return { cost, slack: route.mode === 'meter' ? Infinity : slackOf(bucket.limits, cost) }
}

/** What a line to paste has to name. */
function bucketOf({ bucket: { name, key, limits } }: Single, { formats }: Reading): TargetBucket {
  const isOfShaper = formats.length === 1 && formats[0] === 'shaper'
  return { name, key: isOfShaper ? undefined : key.parts.map(formatKeyPart).join(','), burst: limits.burst }
}

async function sweepOver(
  { target }: Plan,
  single: Single,
  trial: Trial,
  repeat: Repeat,
): Promise<Omit<SweepReport, 'bucket'>> {
  const request = requestOf(single)
  const grid = trial.grid ?? trial.gridFromTraffic
  const swept = trial.swept ?? (await repeat(() => new SweepRun(pointsOf(grid), request)))
  const found = target === undefined ? undefined : await recommend(target, grid, request, repeat)
  return {
    grid,
    outcomes: swept.outcomes(),
    ...(found && { found }),
  }
}

/** What the report is about where no rate was given: the limits that were found, else the largest that were tried. */
async function replayChosen(
  plan: Plan,
  single: Single,
  { grid, found }: SweepReport,
  repeat: Repeat,
): Promise<Pick<Findings, 'plan' | 'tally'>> {
  const limits = limitsAt(plan.limits, single, found ?? pointsOf(grid).at(-1)!)
  const { createRun } = setupOfBucket(limits, singleOf(limits.settings)!)
  const run = await repeat(() => createRun(undefined))
  run.end()
  return { plan: { ...plan, limits }, tally: run.tally }
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

interface LeavingPlan {
  readonly settings: Settings
  readonly directory: RouteDirectory
  /** ms */
  readonly patience: number
  /** How long answers took, in ms. */
  readonly serviceTimes: Waits
}

/**
 * Puts the same requests through the limits with clients that leave: without giving up any request, and with it.
 *
 * @param origin seconds since 1970 that arrivals count from
 */
async function letClientsLeave(
  { settings, directory, patience, serviceTimes }: LeavingPlan,
  origin: number,
  repeat: Repeat,
): Promise<LeavingReport> {
  const service = usualServiceTime(serviceTimes)
  const open = () => {
    const runs = (['keep', 'give up'] as const).map(policy => {
      const clients = new LeavingClients({ patience, service: service ?? 0, policy })
      const run = new ShaperRun(settings, directory, { clients })
      run.begin(origin * 1_000)
      return { run, clients }
    })
    const arrive = (at: number, id: number): void => {
      for (const { run } of runs) run.arrive(at, id, 0)
    }
    return { runs, arrive }
  }
  const { runs } = await repeat(open)
  const [kept, givenUp] = runs.map(({ run, clients }): LeavingOutcomes => {
    run.end()
    return { ...clients.counts, rejected: run.tally.rejected }
  })
  return { patience, ...(service !== undefined && { service }), kept: kept!, givenUp: givenUp! }
}
