import { formatKeyPart } from '../config/schema/key.js'
import type { Settings } from '../config/settings.js'
import { slackOf } from '../decider/costs.js'
import { type KeyLimits, readKeyLimits } from '../proxy/limits/key-limits.js'
import { LogArrivals, type Reading } from './input/arrivals.js'
import { AddressDirectory, type Directory, RouteDirectory } from './input/client-directory.js'
import { InputError } from './input/log-files.js'
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
import { type Grid, type GridRequest, gridForPeak, pointsOf } from './plan/sweep-grid.js'
import type { TargetBucket } from './plan/target.js'
import {
  createReport,
  type Findings,
  type LeavingOutcomes,
  type LeavingReport,
  type ReplayReport,
  type SweepReport,
} from './report/report.js'
import { type Bound, BoundRun, type PointOutcome, type Request, SweepRun } from './runs/level-rows.js'
import { MeterRun } from './runs/meter-run.js'
import { patientRoutes, readPatiently, usualServiceTime } from './runs/route-patience.js'
import type { ReplayRun, RunTally } from './runs/run-tally.js'
import { LeavingClients, ShaperRun } from './runs/shaper-run.js'
import { EXACT, Waits } from './runs/wait-quantiles.js'

interface Setup {
  readonly directory: Directory
  readonly createRun: (service: number | undefined) => ReplayRun
}

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

function setupOfRoutes({ settings }: ReplayLimits, keyLimits: KeyLimits): Setup {
  const directory = new RouteDirectory(settings, 'first key', keyLimits)
  return { directory, createRun: (service = 0) => new ShaperRun(settings, directory, { service }) }
}

/**
 * Reads the logs of a plan and puts their requests through its limits.
 *
 * @throws ConfigError where the log lacks what a flag needs
 */
export async function replay(plan: Plan): Promise<ReplayReport> {
  const { limits, patience } = plan
  const single = singleFor(plan)
  const keyLimits = await readKeyLimits(limits.settings.buckets)
  const { directory, createRun } =
    single === undefined ? setupOfRoutes(limits, keyLimits) : setupOfBucket(limits, single)
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

function oneAddressNote({ limits }: Plan, { requests, formats }: Reading, { clients }: RunTally): string | undefined {
  const single = singleOf(limits.settings)
  const isKnown = single !== undefined && isByAddress(single) && !formats.includes('shaper')
  if (!isKnown || clients !== 1 || requests < MANY) return undefined
  return `all ${requests} requests have the same address, perhaps that of a balancer; if the log has X-Forwarded-For, add --field ip=x_forwarded_for`
}

function targetNotes({ target }: Plan, { found, grid }: SweepReport): string[] {
  if (target === undefined) return []
  if (found === undefined)
    return ['no rate and capacity within the sweep meets the target; give --sweep a wider range, or ask for less']
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

/** Passes all arrivals to `open()`: from the recording, or by reading the logs again. @throws InputError */
type Repeat = <T extends Pick<ReplayRun, 'arrive'>>(open: () => T) => Promise<T>

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
  return { grid, outcomes: swept.outcomes(), ...(found && { found }) }
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

/** What a sweep does in the first reading of the logs: it sweeps if its grid is given, else it collects what it needs. */
class Trial {
  readonly recording = new Recording()
  /** Undefined: the grid follows the traffic. */
  readonly grid: Grid | undefined
  readonly swept: SweepRun | undefined
  readonly #request: GridRequest
  readonly #records: boolean
  readonly #peak = new ClientPeak()

  constructor({ sweep = {}, target, limits }: Pick<Plan, 'sweep' | 'target' | 'limits'>, request: Request) {
    const { rates, capacities } = sweep
    this.#request = sweep
    this.grid = rates !== undefined && capacities !== undefined ? { rates, capacities } : undefined
    this.swept = this.grid && new SweepRun(pointsOf(this.grid), request)
    // A target is sought after the sweep, and what it finds is replayed, with the same requests.
    this.#records = target !== undefined || limits.sought === true || this.grid === undefined
  }

  arrive(at: number, client: number, agent: number): void {
    if (this.#records) this.recording.arrive(at, client, agent)
    if (this.swept !== undefined) return this.swept.arrive(at, client)
    this.#peak.arrive(at, client)
  }

  /** A grid for the traffic, within the axes that are given. */
  get gridFromTraffic(): Grid {
    return { ...gridForPeak(this.#peak.most), ...this.#request }
  }
}

/** The most requests of one client within a second, wherever that begins: a burst may lie across the end of one of the clock's. */
class ClientPeak {
  most = 1
  /** How many requests of each client are in the second that ends now. */
  readonly #counts = new Map<number, number>()
  /** Those requests, from place `first` on. */
  #times: number[] = []
  #clients: number[] = []
  #first = 0

  arrive(at: number, client: number): void {
    while (this.#first < this.#times.length && this.#times[this.#first]! <= at - 1_000) this.#leave()
    this.#times.push(at)
    this.#clients.push(client)
    const count = (this.#counts.get(client) ?? 0) + 1
    this.#counts.set(client, count)
    if (count > this.most) this.most = count
  }

  #leave(): void {
    const client = this.#clients[this.#first]!
    const count = this.#counts.get(client)! - 1
    if (count === 0) this.#counts.delete(client)
    else this.#counts.set(client, count)
    this.#first += 1
    // Half of the lists at least is to be dropped, so each entry is copied once on average.
    if (this.#first < 1_024 || this.#first < this.#times.length / 2) return
    this.#times = this.#times.slice(this.#first)
    this.#clients = this.#clients.slice(this.#first)
    this.#first = 0
  }
}

const PIECE = 1 << 16
/** The most arrivals to keep: about 400 MB. */
const MOST = 32_000_000

class Recording {
  size = 0
  readonly #times: Float64Array[] = []
  /** The client times 4, and the class of the user agent: the two lowest bits. */
  readonly #tags: Int32Array[] = []
  /** False: there were too many arrivals, and none is kept. */
  complete = true

  arrive(at: number, client: number, agent: number): void {
    if (!this.complete) return
    if (this.size === MOST) {
      this.complete = false
      this.#times.length = 0
      this.#tags.length = 0
      return
    }
    const within = this.size % PIECE
    if (within === 0) {
      this.#times.push(new Float64Array(PIECE))
      this.#tags.push(new Int32Array(PIECE))
    }
    this.#times[this.#times.length - 1]![within] = at
    this.#tags[this.#tags.length - 1]![within] = client * 4 + agent
    this.size += 1
  }

  play(into: { arrive(at: number, client: number, agent: number): void }): void {
    for (let from = 0; from < this.size; from += PIECE) {
      const times = this.#times[from / PIECE]!
      const tags = this.#tags[from / PIECE]!
      const count = Math.min(PIECE, this.size - from)
      for (let at = 0; at < count; at += 1) into.arrive(times[at]!, tags[at]! >>> 2, tags[at]! & 3)
    }
  }
}
