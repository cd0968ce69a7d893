/** Worlds of whole proxies: one upstream for all, and what a seed says cut down to what clients can say over HTTP. */
import type { Open } from './instance.js'
import { ProxyInstance } from './proxy-instance.js'
import { type ClientPlan, dice, type EventPlan, type Scenario } from './scenario.js'
import { VirtualUpstream } from './virtual-upstream.js'

/** ms for which clients come: less than in worlds without a proxy, which cost less. */
const LOAD = 2_500
/** How much longer the answers to a slow client take. */
const SLOW = 20

export function openProxies(): Open {
  let upstream: VirtualUpstream | undefined
  return (world, number) => {
    const { clock, chance, stirred, scenario } = world
    const serviceOf = (head: string): number => scenario.service * (/\nX-Kind: slow/i.test(head) ? SLOW : 2 * chance())
    const line = { clock, chance, stirred, cuts: 0.3, delay: () => scenario.jitter * chance() }
    upstream ??= new VirtualUpstream({ line, serviceOf })
    return new ProxyInstance(world, number, upstream)
  }
}

export function fitProxies(scenario: Scenario): Scenario {
  const d = dice(scenario.seed + 7)
  const load = Math.min(LOAD, scenario.load)
  const clients = scenario.clients.map(
    (client): ClientPlan => ({
      ...client,
      weight: 1,
      maxWait: Infinity,
      from: Math.min(client.from, load / 2),
      to: load,
    }),
  )
  const events = scenario.events.map((event): EventPlan => ({ ...event, at: Math.min(event.at, load) }))
  const trouble: EventPlan = {
    ...{ kind: 'upstream', at: Math.floor(d.between(200, load)), lasts: Math.floor(d.between(50, 1_000)) },
    ...{ instance: -1, by: d.below(4), client: '' },
  }
  const jitter = Math.max(scenario.jitter, d.oneOf([0, 0.5]))
  return { ...scenario, jitter, turns: 6, load, clients, events: d.is(0.3) ? [...events, trouble] : events }
}
