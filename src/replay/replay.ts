/** Puts the requests of logs through limits, and tells what these would have done. */
import { formatKeyPart } from '../config/key-schema.js'
import { CoreRun } from './core-run.js'
import { AddressDirectory, type Directory, WayDirectory } from './directory.js'
import { pointsOf } from './grid.js'
import { InputError, STDIN } from './input.js'
import type { LineParser } from './line-parser.js'
import { MeterRun } from './meter-run.js'
import { isByAddress, lacks, type Plan, type Single, singleOf } from './plan.js'
import type { Recording } from './recording.js'
import { createReport, type Report, type SweepReport } from './report.js'
import type { Run } from './run.js'
import { SweepRun } from './sweep-run.js'
import { type Evaluate, findSmallest } from './target.js'
import { Traffic } from './traffic.js'
import { Trial } from './trial.js'

/** Clients of one bucket by its key. */
export class KeyDirectory implements Directory {
  readonly #ways: WayDirectory

  constructor(ways: WayDirectory) {
    this.#ways = ways
  }

  who(parser: LineParser): number {
    return this.#ways.ways[this.#ways.who(parser)]!.client
  }

  text(client: number): string {
    return this.#ways.text(client)
  }
}

/** @throws ConfigError where the log lacks what a flag needs */
export async function replay(plan: Plan): Promise<Report> {
  const { limits, sweep, target } = plan
  const single = singleOf(limits.settings)
  const sweeps = sweep !== undefined || target !== undefined
  const notes = new Set<string>()
  const one = single !== undefined && (limits.plain || sweeps) ? single : undefined
  const ways = one !== undefined && isByAddress(one) ? undefined : new WayDirectory(limits.settings)
  const directory = ways === undefined ? new AddressDirectory() : one === undefined ? ways : new KeyDirectory(ways)
  const begin = (parser: LineParser, log: string): void => {
    for (const lack of lacks(limits, parser, log === STDIN ? 'standard input' : log)) notes.add(lack)
  }
  const traffic = new Traffic({ ...plan, directory, begin })
  const { reading, result } = await traffic.read(() => {
    const run: Run = one === undefined ? new CoreRun(limits.settings, ways!) : createMeter(one)
    if (!sweeps || one === undefined) return { run, arrive: run.arrive.bind(run) }
    const trial = createTrial(plan, one)
    const arrive = (at: number, who: number, agent: number): void => {
      run.arrive(at, who, agent)
      trial.arrive(at, who)
    }
    return { run, trial, arrive }
  })
  const { run, trial } = result
  run.end()
  if (run instanceof CoreRun && run.refused > 0) {
    notes.add(`${run.refused} of those rejected had no route, lacked a key, or found no room for another key or waiter`)
  }
  if (trial === undefined || one === undefined || reading.requests === 0) {
    return createReport({ plan, reading, tally: run.tally, directory, notes: [...notes] })
  }
  const swept = await sweepOver(plan, one, trial, createEvaluate(one, traffic, trial.recording))
  if (target !== undefined && swept.found === undefined) {
    notes.add('no rate and capacity within the sweep meets the target; give --sweep a wider range, or ask for less')
  }
  return createReport({ plan, reading, tally: run.tally, directory, notes: [...notes], swept })
}

function createTrial({ sweep = {}, target }: Plan, { cost }: Single): Trial {
  return new Trial(sweep, cost, target !== undefined)
}

function createMeter({ bucket, cost, route }: Single): MeterRun {
  return new MeterRun(bucket.limits, cost, route.mode === 'shape')
}

/** Goes through what is kept of the arrivals, or through the logs once more. */
function createEvaluate({ cost }: Single, traffic: Traffic, recording: Recording): Evaluate {
  return async points => {
    if (recording.complete) {
      const run = new SweepRun(points, cost)
      recording.play(run)
      return run.outcomes()
    }
    if (!traffic.repeatable) {
      throw new InputError(
        `standard input has more than ${recording.size} requests, and cannot be read twice; save it to a file and name that`,
      )
    }
    const { result } = await traffic.read(() => new SweepRun(points, cost))
    return result.outcomes()
  }
}

async function sweepOver({ target }: Plan, { bucket }: Single, trial: Trial, evaluate: Evaluate): Promise<SweepReport> {
  const grid = trial.grid ?? trial.about
  const outcomes = trial.swept?.outcomes() ?? (await evaluate(pointsOf(grid)))
  const found = target === undefined ? undefined : await findSmallest(target, grid, evaluate)
  return { key: bucket.key.parts.map(formatKeyPart).join(','), grid, outcomes, ...(found && { found }) }
}
