/** Makes a scenario that fails smaller, as long as it fails: without some of its clients and events, and plainer. */
import type { ClientPlan, EventPlan, Scenario } from './scenario.js'

/** The most runs that it takes. */
const MOST = 400

export async function shrink(scenario: Scenario, fails: (smaller: Scenario) => Promise<boolean>): Promise<Scenario> {
  let smallest = scenario
  let runs = 0
  for (let goesOn = true; goesOn; ) {
    goesOn = false
    for (const smaller of smallerOnes(smallest)) {
      runs += 1
      if (runs > MOST) return smallest
      if (!(await fails(smaller))) continue
      smallest = smaller
      goesOn = true
      break
    }
  }
  return smallest
}

function* smallerOnes(scenario: Scenario): Generator<Scenario> {
  const { events, clients, buckets, instances } = scenario
  for (const smaller of shorter(events, 0)) yield { ...scenario, events: smaller }
  for (const smaller of shorter(clients, 1)) yield { ...scenario, clients: smaller }
  if (instances > 1) yield { ...scenario, instances: instances - 1 }
  for (const smaller of shorter(buckets, 1)) yield { ...scenario, buckets: smaller }
  yield* plainer(scenario, PLAIN)
  for (const smaller of changed(clients, plainerClients)) yield { ...scenario, clients: smaller }
  for (const smaller of changed(events, plainerEvents)) yield { ...scenario, events: smaller }
}

const PLAIN: Partial<Scenario> = {
  ...{ isReal: false, books: false, keepsOrder: false, maxInFlight: Infinity, service: 0, jitter: 0, far: 0.25 },
}

/** Lists without one of these, if more than `least` are there. */
function* shorter<T>(list: readonly T[], least: number): Generator<T[]> {
  if (list.length > least) for (const at of list.keys()) yield list.filter((_, place) => place !== at)
}

/** Lists with one of these changed. */
function* changed<T>(list: readonly T[], changes: (one: T) => Iterable<T>): Generator<T[]> {
  for (const [at, one] of list.entries())
    for (const other of changes(one)) yield list.map((each, place) => (place === at ? other : each))
}

/** With one of these values in place of its own. */
function* plainer<T extends object>(one: T, plain: Partial<T>): Generator<T> {
  for (const [name, value] of Object.entries(plain)) if (one[name as keyof T] !== value) yield { ...one, [name]: value }
}

function* plainerClients(client: ClientPlan): Generator<ClientPlan> {
  yield* plainer(client, { cost: 1, priority: 3, weight: 1, maxWait: Infinity, route: 'route', from: 0 })
  if (client.depth > 1) yield { ...client, depth: Math.floor(client.depth / 2) }
  if (client.to > 500) yield { ...client, to: Math.floor(client.to / 2) }
}

function* plainerEvents(event: EventPlan): Generator<EventPlan> {
  if (event.lasts > 10) yield { ...event, lasts: Math.floor(event.lasts / 2) }
  if (event.at % 1_000 > 0) yield { ...event, at: 1_000 * Math.floor(event.at / 1_000) }
}
