/**
 * Runs a scenario: instances of the real code, clients and faults on one virtual clock, one store and one source of chance. The same
 * scenario leaves the same history.
 */
import type { Clock } from '../../src/core/clock.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { createHeapClock } from '../instances/heap-clock.js'
import { type Connection, connect } from '../instances/store-at-distance.js'
import { type Back, startClient } from './clients.js'
import { applyEvent } from './events.js'
import type { EndEntry, Entry, History } from './history.js'
import type { Ending, Instance, Open, World } from './instance.js'
import { type ClientPlan, dice, type EventPlan, type Scenario } from './scenario.js'

/** ms from one look at the clock to the next, where time goes on while an instance works. */
const MOMENT = 1e-4
/** ms after which what waits must have left: and some more for outages. */
const REST = 8_000

/** What the events change. */
export interface Running extends World {
  readonly instances: Instance[]
  /** By instance: until when it stands still, in ms. */
  readonly stillUntil: Map<number, number>
  readonly store: { ahead: number; slower: number }
  configure(buckets: Scenario['buckets']): void
  /** ms: when the load began. */
  readonly start: number
  open(): Instance
}

export async function runWorld(scenario: Scenario, open: Open): Promise<History> {
  const { random } = Math
  Math.random = dice(scenario.seed + 1).chance
  try {
    return await run(scenario, open)
  } finally {
    Math.random = random
  }
}

async function run(scenario: Scenario, open: Open): Promise<History> {
  const clock = createHeapClock()
  const d = dice(scenario.seed)
  const history: Entry[] = []
  const stillUntil = new Map<number, number>()
  const store = { ahead: 0, slower: 0 }
  const reach = { horizon: 0, back: 0 }
  const storeNow = (): number => clock.now() + store.ahead
  const inner = createMemoryStore({ clock: { now: storeNow }, reach })
  let isStirred = false
  let present = scenario.buckets
  let last = 0
  const movingNow = (): number => {
    last = Math.max(last + MOMENT, clock.now())
    return last
  }
  const stirred = (): void => {
    isStirred = true
  }

  /** Does what is due once the instance does not stand still. */
  function awakeOf(instance: number): Clock {
    const still = (): number => Math.max(stillUntil.get(instance) ?? 0, stillUntil.get(-1) ?? 0)
    return {
      now: clock.now,
      at(due, run) {
        let cancel = clock.at(due, function go() {
          if (still() > clock.now()) cancel = clock.at(still(), go)
          else run()
        })
        return () => cancel()
      },
    }
  }

  const world: World = {
    ...{ scenario, clock, chance: d.chance, stirred, buckets: () => present },
    record: entry => void history.push(entry),
    clockOf(instance, isGone) {
      const awake = awakeOf(instance)
      return {
        now: scenario.isReal ? movingNow : clock.now,
        at: (due, run) => awake.at(due, () => void (isGone() || run())),
        wallNow: clock.now,
      }
    },
    connect(instance): Connection | undefined {
      if (!scenario.hasStore) return undefined
      const way = (): number => scenario.far + scenario.jitter * d.chance() + store.slower / 2
      return connect({
        ...{ inner, reach, clock, storeNow, awake: awakeOf(instance), keepsOrder: scenario.keepsOrder },
        ...{ distance: { there: way, back: way }, answered: stirred },
      })
    },
  }

  async function pass(until: number): Promise<void> {
    while (clock.step(until)) {
      if (isStirred) await calm()
    }
    clock.runUntil(until)
  }

  /** Continuations of any depth run before time goes on, and what they plan for the next turn. */
  async function calm(): Promise<void> {
    for (let turns = scenario.turns; turns > 0; turns -= 1) {
      await new Promise(resolve => setImmediate(resolve))
      if (isStirred) turns = scenario.turns
      isStirred = false
    }
  }

  const instances: Instance[] = []
  const start = 20 + 10 * (scenario.far + scenario.jitter)
  const running: Running = {
    ...world,
    ...{ instances, stillUntil, store, start },
    configure(buckets) {
      present = buckets
    },
    open() {
      const instance = open(world, instances.length)
      instances.push(instance)
      return instance
    },
  }
  for (let count = 0; count < scenario.instances; count += 1) running.open()
  await calm()
  await pass(start)
  while (instances.some(({ isUp }) => !isUp)) await pass(clock.now() + 1)
  assume(running)
  const until = start + scenario.load
  const door = doorOf(running, until)
  for (const client of scenario.clients) startClient(client, door)
  for (const event of scenario.events) clock.at(start + event.at, () => applyEvent(event, running))
  await pass(until)
  await pass(until + REST + longestRest(scenario))
  rest(running)
  // One that nobody has used since its clock was set back is forgotten when the clock shows that time again.
  if (scenario.hasStore && !scenario.events.some(({ kind, by }) => kind === 'store-clock' && by < 0)) {
    const waiting = [...inner.parts()].filter(part => 'bucket' in part)
    history.push({ what: 'rest', at: clock.now(), instance: -1, left: { buckets: waiting.length } })
  }
  tellCounts(running)
  for (const instance of instances) void instance.close()
  await pass(clock.now() + 1_000)
  return history
}

/** ms that full buckets take to drain, at the slowest rate that they may have. */
function longestRest({ buckets, events, clients, service, maxInFlight }: Scenario): number {
  const slowdown = events.reduce((product, { kind, by }) => product * (isChange(kind) && by < 1 ? 1 / by : 1), 1)
  const largest = Math.max(...clients.map(({ cost }) => cost))
  const drain = buckets.map(({ perSecond, capacity }) => (1_000 * (capacity + 4 * largest) * slowdown) / perSecond)
  const most = Math.min(...buckets.map(({ capacity }) => capacity)) + 2 * clients.length
  const answers = maxInFlight < Infinity ? (20 * service * most) / maxInFlight : 40 * service
  return 2 * Math.max(...drain) + answers + Math.max(0, ...events.map(({ lasts }) => lasts))
}

function isChange(kind: EventPlan['kind']): boolean {
  return kind === 'reload' || kind === 'override'
}

function assume({ scenario, record, clock }: Running): void {
  const { hasStore, instances, buckets, mode, far, jitter, isReal, books, clients } = scenario
  const at = clock.now()
  record({
    ...{ what: 'assumed', at, hasStore, instances, mode, far, jitter, books },
    stack: buckets.map(({ name }) => name),
    maxInFlight: scenario.maxInFlight,
    lateness: isReal ? 0.5 : 0,
    hasClasses: new Set(clients.map(({ priority }) => priority)).size > 1,
  })
  for (const { name, perSecond, capacity, burst } of buckets)
    record({
      ...{ what: 'limits', at, bucket: name, rate: perSecond / 1_000, capacity },
      ...(burst !== undefined && { burst }),
    })
}

function rest({ instances, record, clock }: Running): void {
  for (const instance of instances)
    if (instance.isUp) record({ what: 'rest', at: clock.now(), instance: instance.number, left: instance.left() })
}

function tellCounts({ instances, record, clock }: Running): void {
  const sums = new Map<EndEntry['how'], number>()
  for (const instance of instances)
    for (const [name, count] of instance.counts()) sums.set(name, (sums.get(name) ?? 0) + count)
  for (const [name, sum] of sums) record({ what: 'metric', at: clock.now(), name, sum })
}

/** How clients reach the instances. */
function doorOf(running: Running, until: number): Parameters<typeof startClient>[1] {
  const { clock, chance, instances, start: from } = running
  let requests = 0
  let visitors = 0
  function choose(client: ClientPlan): Instance | undefined {
    const up = instances.filter(({ isUp }) => isUp)
    const own = client.instance < 0 ? undefined : up.find(({ number }) => number === client.instance)
    return own ?? up[Math.floor(chance() * up.length)]
  }
  return {
    ...{ now: clock.now, chance, from, until },
    at: (due, run) => void clock.at(due, run),
    newcomer() {
      visitors += 1
      return `visitor-${visitors}`
    },
    ask(client: ClientPlan, back: Back | undefined, ended: (ending: Ending) => void) {
      const instance = choose(client)
      requests += 1
      if (instance === undefined) {
        clock.at(clock.now(), () => ended({ how: 'gone' }))
        return () => undefined
      }
      const { visitor = client.name, booking } = back ?? {}
      return instance.ask({ request: requests, client, visitor, booking, isBack: booking !== undefined }, ended)
    },
  }
}
