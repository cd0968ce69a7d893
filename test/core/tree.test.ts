/** The tree of lanes and share nodes: who stands where, and that turns go on when a share node takes a lane's place. */

import fc from 'fast-check'
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import {
  Gate,
  type Lane,
  type LaneRoute,
  type SharedBucket,
  ShareNode,
  type Source,
} from '../../src/core/queue/lane.js'
import { findLane, lanesBelow, sourcesBelow } from '../../src/core/queue/tree.js'
import { Shaper } from '../../src/core/shaper.js'
import { runs } from '../runs.js'

function bucketOf(rate: number): SharedBucket {
  return new QueuedBucket<Source, Lane>({ name: 'bucket', rate, capacity: 1e9 })
}

interface Setup {
  readonly clock: VirtualClock
  readonly shaper: Shaper
  readonly gate: Gate
  /** The names of those that have left, in order. */
  readonly left: string[]
  wait(name: string, route: LaneRoute, stack: readonly SharedBucket[], weight?: number): void
}

function setup(): Setup {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const left: string[] = []
  return {
    clock,
    shaper,
    gate: new Gate(),
    left,
    wait(name, route, stack, weight = 1) {
      const waiter = { release: () => void left.push(name), expire() {}, reject() {} }
      if (shaper.admit({ route, stack, cost: 1, weight }, waiter) === 'released') left.push(name)
    },
  }
}

t.test('a lane that is alone at its first bucket needs no share node', async t => {
  const { clock, gate, wait } = setup()
  const api = { name: 'api', gate }
  const [alice, everyone] = [bucketOf(1), bucketOf(0.001)]
  for (let at = 0; at < 3; at += 1) wait('alice', api, [alice, everyone])
  const [node] = sourcesBelow(gate.root)
  t.ok(node instanceof ShareNode && node.bucket === everyone, 'everyone meets at a node')
  const lane = findLane({ route: api, stack: [alice, everyone] })!
  t.same(sourcesBelow(node as ShareNode).length, 1)
  t.equal((node as ShareNode).first, lane)
  t.equal(lane.bucket, alice)
  clock.runAll()
  t.same([gate.root.count, gate.root.weight, gate.root.first, gate.root.last], [0, 0, undefined, undefined])
  t.ok(alice.isPlain && everyone.isPlain)
})

t.test('a second lane at the bucket makes a node in the place of the first', async t => {
  const { clock, gate, wait, left } = setup()
  const [api, web] = [
    { name: 'api', gate },
    { name: 'web', gate },
  ]
  const [alice, bob] = [bucketOf(0.001), bucketOf(1e-9)]
  for (const name of ['at once', 'api', 'api', 'api']) wait(name, api, [alice])
  for (const name of ['bob at once', 'bob']) wait(name, api, [bob])
  for (const name of ['web', 'web']) wait(name, web, [alice], 1)
  const [first, second] = sourcesBelow(gate.root)
  t.ok(first instanceof ShareNode && first.bucket === alice && first.weight === 2)
  t.equal(second, findLane({ route: api, stack: [bob] }))
  t.same(
    lanesBelow(gate.root)
      .map(({ route }) => route.name)
      .sort(),
    ['api', 'api', 'web'],
  )
  t.equal(findLane({ route: web, stack: [bob] }), undefined)
  t.equal(findLane({ route: web, stack: [bob, alice] }), undefined, 'a lane does not pass the bucket of another')
  clock.runUntil(5_000)
  t.same(left, ['at once', 'bob at once', 'api', 'web', 'api', 'web', 'api'], 'they take turns')
  t.ok(alice.isPlain)
  t.same([gate.root.count, gate.root.weight], [1, 1])
})

t.test('a longer stack whose second bucket is the first of a lane meets it there', async t => {
  const { clock, gate, wait, left } = setup()
  const [api, web] = [
    { name: 'api', gate },
    { name: 'web', gate },
  ]
  const [own, everyone] = [bucketOf(1), bucketOf(0.001)]
  for (const name of ['at once', 'api', 'api']) wait(name, api, [everyone])
  t.equal(gate.root.first, findLane({ route: api, stack: [everyone] }))
  for (const name of ['web', 'web']) wait(name, web, [own, everyone])
  t.equal(gate.root.count, 1)
  t.equal(findLane({ route: web, stack: [own, everyone] })!.parent, findLane({ route: api, stack: [everyone] })!.parent)
  clock.runAll()
  t.same(left, ['at once', 'api', 'web', 'api', 'web'])
})

const load = fc.array(
  fc.record({
    route: fc.nat({ max: 2 }),
    client: fc.nat({ max: 2 }),
    count: fc.integer({ min: 1, max: 4 }),
    /** ms until the next. */
    pause: fc.constantFrom(0, 0, 300, 1_000, 2_500),
  }),
  { minLength: 2, maxLength: 30 },
)

t.test('property: lanes that come and go leave no trace, and nobody is forgotten', async () => {
  fc.assert(
    fc.property(load, fc.constantFrom(0.0005, 0.005), (arrivals, rate) => {
      const { clock, gate, wait, left } = setup()
      const routes = [0, 1, 2].map(at => ({ name: `route ${at}`, gate }))
      const clients = [0, 1, 2].map(() => bucketOf(rate))
      const everyone = bucketOf(0.001)
      const stackOf = (client: number): SharedBucket[] => [clients[client]!, ...(client === 2 ? [] : [everyone])]
      let came = 0
      for (const { route, client, count, pause } of arrivals) {
        for (let at = 0; at < count; at += 1) wait(`${client}`, routes[route]!, stackOf(client))
        came += count
        checkTree(gate.root)
        clock.runUntil(clock.now() + pause)
        checkTree(gate.root)
      }
      clock.runAll()
      if (left.length !== came) throw new Error(`${came - left.length} of ${came} wait for ever`)
      if (gate.root.count !== 0 || gate.root.weight !== 0) throw new Error('somebody is left below the gate')
      if ([...clients, everyone].some(({ isPlain }) => !isPlain)) throw new Error('waiting state')
    }),
    { seed: 3, numRuns: runs(500) },
  )
})

/** Whether each node knows those below it, and weighs as much as its lanes. */
function checkTree(node: ShareNode): void {
  const sources = sourcesBelow(node)
  const lanes = lanesBelow(node)
  if (sources.length !== node.count || sources.at(-1) !== node.last) throw new Error('the list is broken')
  if (sources.some(({ parent }) => parent !== node)) throw new Error('a source does not know where it stands')
  if (lanes.reduce((sum, { weight }) => sum + weight, 0) !== node.weight) throw new Error('a weight is wrong')
  for (const source of sources) {
    if (source.bucket === undefined && source.before?.bucket !== undefined) throw new Error('lanes come first')
    if (source instanceof ShareNode) checkTree(source)
    else if (source.tickets.size === 0) throw new Error('an empty lane')
  }
}
