/** Many instances on one store, each at its own distance and with its own load, on a virtual clock. */
import { predictedWait } from '../../src/core/admission/predicted-wait.js'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import type { Clock } from '../../src/core/clock.js'
import { type Arrival, Gate, type LaneRoute, type SharedBucket, Ticket } from '../../src/core/queue/lane.js'
import { type Rejection, Shaper } from '../../src/core/shaper.js'
import { Sharing } from '../../src/sharing/sharing.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { random } from '../core/run.js'
import { createHeapClock } from './heap-clock.js'
import { type Connection, connect } from './store-at-distance.js'

/** ms after a rejection until a client that is always there asks again. */
const AGAIN = 25

/** ms from one look at the clock to the next. */
const MOMENT = 1e-4

/** Requests of one key to one instance. */
export interface Source {
  readonly instance: number
  /** One for each bucket of the stack. */
  readonly keys: readonly string[]
  /** Its own. Absent: that of the simulation. */
  readonly stack?: readonly BucketLimits[]
  readonly load: Demand
  /** 0 to 7; 3 if absent. */
  readonly priority?: number
  readonly weight?: number
  /** Cost units of each request. Absent: 1. */
  readonly cost?: number
  /** Absent: one that all others without a name have. */
  readonly route?: string
  /** ms. Absent: any wait will do. */
  readonly maxWait?: number
  /** It asks in this span only, in ms from the start of the load. */
  readonly from?: number
  readonly to?: number
  /** Within it: ms of load, then ms without. */
  readonly onOff?: { readonly on: number; readonly off: number }
  /** `part` of the requests hangs up, after `after` ms on average. */
  readonly hangUp?: { readonly part: number; readonly after: number }
}

/** `depth`: the number of requests that wait at any time. `poisson`, `every`: ms between requests, on average or exactly. */
export type Demand =
  | { readonly kind: 'saturated'; readonly depth: number }
  | { readonly kind: 'poisson' | 'every'; readonly ms: number }
  | { readonly kind: 'at-once'; readonly count: number }

/** Times are in ms from the start of the load. */
export interface Release {
  readonly at: number
  readonly arrivedAt: number
  readonly source: Source
}

/** A request that was rejected when it came, or that has waited for longer than its `maxWait`. */
export interface Loss {
  readonly at: number
  readonly source: Source
  readonly reason: Rejection['reason'] | 'expired'
  /** ms */
  readonly retryAfterMs: number | undefined
}

export interface SimulationOptions {
  readonly stack: readonly BucketLimits[]
  readonly count: number
  readonly sources: readonly Source[]
  /** ms that a message to or from the store takes; default 0.25. */
  readonly distance?: (instance: number) => number
  /** ms, at most, that a message takes longer than usual. */
  readonly jitter?: number
  readonly seed?: number
  /** ms from the start of the load: until when an instance stands still at that time. Before it: it runs. */
  readonly stillUntil?: (instance: number, at: number) => number
  /** Time goes on while an instance works, as on a machine. */
  readonly isReal?: boolean
  /** The store keeps the order of the requests of a lane, as that of workers does. */
  readonly keepsOrder?: boolean
}

export interface Simulation {
  readonly releases: Release[]
  readonly losses: Loss[]
  readonly connections: readonly Connection[]
  admitted: number
  rejected: number
  cancelled: number
  /** Lets time pass until `until` ms after the start of the load. */
  run(until: number): Promise<void>
  /** Ends an instance as SIGKILL does. */
  kill(instance: number): void
  /** The requests that wait now, in all instances that were not killed. */
  readonly waiting: number
  /** How long a request would wait that came now, in ms: as requests are told on arrival, and as the admin side tells. */
  told(source: Source): { readonly arrival: number; readonly admin: number; readonly estimate: number }
}

/** One process of a machine of its own. */
interface Process {
  readonly clock: Clock
  readonly connection: Connection
  readonly shaper: Shaper
  request(source: Source, ended: (how: Ending) => void): void
  arrivalOf(source: Source): Arrival
}

type Ending = 'released' | 'rejected' | 'cancelled'

export async function simulate(options: SimulationOptions): Promise<Simulation> {
  const {
    stack,
    count,
    sources,
    distance = () => 0.25,
    jitter = 0,
    seed = 1,
    stillUntil = () => -Infinity,
    isReal,
    keepsOrder = false,
  } = options
  const clock = createHeapClock()
  const chance = random(seed)
  const reach = { horizon: 0, back: 0 }
  const inner = createMemoryStore({ clock, reach })
  const releases: Release[] = []
  const losses: Loss[] = []
  let hasAnswers = false
  /** The start of the load. */
  let start = 0

  function createProcess(instance: number): Process {
    const way = (): number => distance(instance) + jitter * chance()
    /** Does what is due once the instance does not stand still. */
    const awake: Clock = {
      now: clock.now,
      at(due, run) {
        let cancel = clock.at(due, function go() {
          const still = start + stillUntil(instance, clock.now() - start)
          if (still > clock.now()) cancel = clock.at(still, go)
          else run()
        })
        return () => cancel()
      },
    }
    const connection = connect({
      ...{ inner, reach, distance: { there: way, back: way } },
      ...{ clock, awake, keepsOrder },
      answered: () => {
        hasAnswers = true
      },
    })
    let last = 0
    const movingNow = (): number => {
      last = Math.max(last + MOMENT, clock.now())
      return last
    }
    const own: Clock = {
      now: isReal ? movingNow : clock.now,
      at: (due, run) => awake.at(due, () => void (connection.gone || run())),
    }
    const { store } = connection
    const sharing = new Sharing({ store, onOutage: 'local', clock: own, id: String(instance) })
    const shaper = new Shaper({ clock: own, share: sharing.shareBy(own) })
    sharing.group(new Map(), bucketsOfSeveralLanes(options))
    const bucketTable = new BucketTable(1e9, (limits, key) => sharing.createBucket(limits, key))
    const gate = new Gate()
    void sharing.join({
      shaper,
      clock: own,
      buckets: () => bucketTable.all(),
      peek: () => undefined,
      gates: () => [gate],
    })
    const routes = new Map<string, LaneRoute>()

    function routeOf(name: string): LaneRoute {
      const route = routes.get(name) ?? { name, gate }
      routes.set(name, route)
      return route
    }

    function arrivalOf({ keys, priority, weight, cost = 1, route = 'route', stack: own = stack }: Source): Arrival {
      const buckets = own.map((whole, place) => {
        const limits = sharing.limitsOf(whole, keys[place]!)
        return bucketTable.find(limits, keys[place]!, clock.now()) as SharedBucket
      })
      const arrival = { route: routeOf(route), stack: buckets, cost, ...(priority !== undefined && { priority }) }
      return weight === undefined ? arrival : { ...arrival, weight }
    }

    function request(source: Source, ended: (how: Ending) => void): void {
      const arrivedAt = clock.now()
      const { hangUp, maxWait = Infinity } = source
      const lost = (reason: Loss['reason'], retryAfterMs?: number): void => {
        losses.push({ at: clock.now() - start, source, reason, retryAfterMs })
      }
      const arrival = arrivalOf(source)
      let isReleased = false
      const release = (): void => {
        isReleased = true
        releases.push({ at: clock.now() - start, arrivedAt: arrivedAt - start, source })
        gate.leave()
        for (const bucket of arrival.stack) bucket.leave()
        ended('released')
      }
      shaper.arrive(
        arrival,
        {
          decided(verdict) {
            if (verdict !== 'released' && 'reason' in verdict) {
              simulation.rejected += 1
              lost(verdict.reason, verdict.retryAfterMs)
              return ended('rejected')
            }
            simulation.admitted += 1
            if (verdict === 'released') return release()
            if (!(verdict instanceof Ticket) || hangUp === undefined || chance() >= hangUp.part) return
            own.at(arrivedAt - hangUp.after * Math.log(1 - chance()), () => {
              if (isReleased || !shaper.cancel(verdict)) return
              simulation.cancelled += 1
              ended('cancelled')
            })
          },
          release,
          expire() {
            lost('expired')
            ended('cancelled')
          },
          reject: () => ended('rejected'),
        },
        'shape',
        maxWait,
      )
    }
    return { clock: own, connection, shaper, request, arrivalOf }
  }

  const processes = Array.from({ length: count }, (_, instance) => createProcess(instance))

  async function run(until: number): Promise<void> {
    while (clock.step(until)) {
      if (!hasAnswers) continue
      hasAnswers = false
      // Continuations of any depth run before time goes on.
      await new Promise(resolve => setImmediate(resolve))
    }
    clock.runUntil(until)
  }

  const simulation: Simulation = {
    releases,
    losses,
    connections: processes.map(({ connection }) => connection),
    ...{ admitted: 0, rejected: 0, cancelled: 0 },
    run: until => run(start + until),
    kill(instance) {
      processes[instance]!.connection.gone = true
    },
    told(source) {
      const { shaper, arrivalOf } = processes[source.instance]!
      const arrival = arrivalOf(source)
      const now = clock.now()
      const exact = shaper.exactWaits([{ arrival, pause: 0 }])
      let step = exact.next()
      while (!step.done) step = exact.next()
      const [estimate, onArrival] = [0, 1_000].map(most => Math.max(0, predictedWait(arrival, now, 0, most)))
      return { arrival: onArrival!, admin: step.value[0]!, estimate: estimate! }
    },
    get waiting() {
      return processes.reduce((sum, { shaper, connection }) => sum + (connection.gone ? 0 : shaper.queued), 0)
    },
  }

  const farthest = Math.max(...processes.map((_, instance) => distance(instance) + jitter))
  start = 10 + 10 * farthest
  await run(start)
  for (const source of sources) startSource(source, processes[source.instance]!, { start, chance })
  return simulation
}

/** The names of buckets in which requests of several routes or classes wait. */
function bucketsOfSeveralLanes({ stack, sources }: SimulationOptions): Set<string> {
  const lanes = new Map<string, string>()
  const several = new Set<string>()
  for (const { route, priority, stack: own = stack } of sources) {
    const lane = `${route} ${priority}`
    for (const { name } of own) if ((lanes.get(name) ?? lane) !== lane) several.add(name)
    for (const { name } of own) lanes.set(name, lane)
  }
  return several
}

function startSource(
  source: Source,
  process: Process,
  { start, chance }: { start: number; chance: () => number },
): void {
  const { clock, connection, request } = process
  const { load, from = 0, to = Infinity, onOff } = source
  /** When it may ask next, in ms. Infinity: not any more. */
  function active(at: number): number {
    const since = at - start - from
    if (since < 0) return start + from
    if (at >= start + to) return Infinity
    if (onOff === undefined) return at
    const period = onOff.on + onOff.off
    const into = since % period
    return into < onOff.on ? at : at + period - into
  }

  /** Runs when it may ask, not before `at`. */
  function when(at: number, run: () => void): void {
    const due = active(at)
    if (due < Infinity) clock.at(due, () => void (connection.gone || run()))
  }

  function stay(): void {
    request(source, how => {
      const now = clock.now()
      when(how === 'rejected' ? now + AGAIN : now, stay)
    })
  }

  if (load.kind === 'saturated') for (let count = 0; count < load.depth; count += 1) when(start, stay)
  else if (load.kind === 'at-once') {
    for (let count = 0; count < load.count; count += 1) when(start, () => request(source, () => {}))
  } else {
    const { kind, ms } = load
    const gap = (): number => (kind === 'every' ? ms : -ms * Math.log(1 - chance()))
    const come = (): void => {
      request(source, () => {})
      when(clock.now() + gap(), come)
    }
    when(start + (kind === 'every' ? ms * chance() : gap()), come)
  }
}
