import { readKeyLimits } from '../../proxy/limits/key-limits.js'
import type { LineParser } from '../formats/line-parser.js'
import { LogArrivals } from '../input/arrivals.js'
import { type Directory, RouteDirectory } from '../input/client-directory.js'
import { printable } from '../input/line-scanner.js'
import { createLogChecks, type Plan, type ReplayLimits } from '../plan/plan.js'
import { patientRoutes, readPatiently } from '../runs/route-patience.js'
import type { Outcomes, RunTally } from '../runs/run-tally.js'
import { ShaperRun } from '../runs/shaper-run.js'
import { Waits } from '../runs/wait-quantiles.js'
import { createReport, LONGEST_KEY, type ReplayReport } from './report.js'

const LISTED = 50

/** The outcomes of one client on one side; waits in ms. */
interface Side extends Outcomes {
  readonly maxWait: number
}

interface ClientChange {
  readonly client: string
  readonly agent: string
  readonly requests: number
  readonly a: Side
  readonly b: Side
}

export interface DiffReport {
  readonly a: ReplayReport
  readonly b: ReplayReport
  readonly clients: {
    readonly newlyRejected: number
    readonly noLongerRejected: number
    readonly newlyDelayed: number
    readonly noLongerDelayed: number
    /** The clients with the largest changes first: by rejections, then by delays. */
    readonly changed: readonly ClientChange[]
  }
}

/** Numbers pairs of the numbers that two directories give to a line. */
class PairDirectory implements Directory {
  readonly firsts: number[] = []
  readonly seconds: number[] = []
  readonly #a: RouteDirectory
  readonly #b: RouteDirectory
  readonly #known = new Map<number, number>()

  constructor(a: RouteDirectory, b: RouteDirectory) {
    this.#a = a
    this.#b = b
  }

  identify(parser: LineParser): number {
    const [first, second] = [this.#a.identify(parser), this.#b.identify(parser)]
    const pair = first * 2 ** 26 + second
    const known = this.#known.get(pair)
    if (known !== undefined) return known
    this.#known.set(pair, this.firsts.length)
    this.firsts.push(first)
    this.seconds.push(second)
    return this.firsts.length - 1
  }

  text(client: number): string {
    return this.#a.text(client)
  }
}

/** Puts the same requests through both limits. A client is an address. */
export async function diffLimits(a: ReplayLimits, b: ReplayLimits, plan: Omit<Plan, 'limits'>): Promise<DiffReport> {
  // Both directories number clients in the order in which they first appear, so the numbers are the same.
  const directoryOfA = new RouteDirectory(a.settings, 'address', await readKeyLimits(a.settings.buckets))
  const directoryOfB = new RouteDirectory(b.settings, 'address', await readKeyLimits(b.settings.buckets))
  const directory = new PairDirectory(directoryOfA, directoryOfB)
  const { notes, begin } = createLogChecks(plan.fields ?? {}, a, b)
  const serviceTimes = new Waits()
  const routes = [a, b].flatMap(({ settings }) => patientRoutes(settings))
  const onServiceTime = (ms: number): void => serviceTimes.add(ms)
  const arrivals = new LogArrivals({ ...plan, directory, begin, ...(routes.length > 0 && { onServiceTime }) })
  const open = (service = 0) => {
    const runs = [
      new ShaperRun(a.settings, directoryOfA, { service }),
      new ShaperRun(b.settings, directoryOfB, { service }),
    ] as const
    return {
      runs,
      begin(origin: number) {
        for (const run of runs) run.begin(origin)
      },
      arrive(at: number, id: number, agent: number) {
        runs[0].arrive(at, directory.firsts[id]!, agent)
        runs[1].arrive(at, directory.seconds[id]!, agent)
      },
    }
  }
  const { reading, result, note } = await readPatiently(arrivals, { serviceTimes, routes, open })
  if (note !== undefined) notes.add(note)
  for (const run of result.runs) run.end()
  const [tallyOfA, tallyOfB] = [result.runs[0].tally, result.runs[1].tally]
  const report = (limits: ReplayLimits, tally: RunTally): ReplayReport =>
    createReport({ plan: { ...plan, limits }, reading, tally, directory, notes: [...notes] })
  const sides: ClientChange[] = []
  for (let client = 0; client < tallyOfA.clients; client += 1) {
    const [before, after] = [tallyOfA.outcomes(client), tallyOfB.outcomes(client)]
    sides.push({ client: String(client), agent: before.agent, requests: before.requests, a: before, b: after })
  }
  const clients = changes(sides)
  return {
    a: report(a, tallyOfA),
    b: report(b, tallyOfB),
    clients: {
      ...clients,
      changed: clients.changed.map(change => ({
        ...change,
        client: printable(directory.text(Number(change.client)), LONGEST_KEY),
        a: sideOf(change.a),
        b: sideOf(change.b),
      })),
    },
  }
}

/** Compares two reports, and the clients that either lists. */
export function diffReports(a: ReplayReport, b: ReplayReport): DiffReport {
  const known = new Map<string, ClientChange>()
  const none = { delayed: 0, rejected: 0, maxWait: 0 }
  for (const { client, agent, requests, ...rest } of a.clients.hardest)
    known.set(client, { client, agent, requests, a: sideOf({ requests, ...rest }), b: { requests, ...none } })
  for (const { client, agent, requests, ...rest } of b.clients.hardest) {
    const before = known.get(client)?.a ?? { requests, ...none }
    known.set(client, { client, agent, requests, a: before, b: sideOf({ requests, ...rest }) })
  }
  return { a, b, clients: changes([...known.values()]) }
}

function changes(sides: readonly ClientChange[]): DiffReport['clients'] {
  const count = (test: (change: ClientChange) => boolean): number => sides.filter(test).length
  const size = ({ a, b }: ClientChange): [number, number] => {
    return [Math.abs(a.rejected - b.rejected), Math.abs(a.delayed - b.delayed)]
  }
  return {
    newlyRejected: count(({ a, b }) => a.rejected === 0 && b.rejected > 0),
    noLongerRejected: count(({ a, b }) => a.rejected > 0 && b.rejected === 0),
    newlyDelayed: count(({ a, b }) => a.delayed === 0 && b.delayed > 0),
    noLongerDelayed: count(({ a, b }) => a.delayed > 0 && b.delayed === 0),
    changed: sides
      .map(change => ({ change, size: size(change) }))
      .filter(({ size: [rejected, delayed] }) => rejected + delayed > 0)
      .sort((x, y) => y.size[0] - x.size[0] || y.size[1] - x.size[1])
      .slice(0, LISTED)
      .map(({ change }) => change),
  }
}

function sideOf({ requests, delayed, rejected, maxWait }: Side): Side {
  return { requests, delayed, rejected, maxWait: Math.round(maxWait * 1_000) / 1_000 }
}
