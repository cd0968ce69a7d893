/**
 * A store that comes and goes, on the virtual clock: whatever the sequence of outages and recoveries, the requests of one lane
 * leave in the order in which they came.
 */

import fc from 'fast-check'
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { random } from '../core/run.js'
import { createWorld, type Fault, type World } from '../proxy/instances.js'
import { often, runs } from '../runs.js'

const everyone: BucketLimits = { name: 'everyone', rate: 0.2, capacity: 400 }
const client: BucketLimits = { name: 'client', rate: 0.1, capacity: 100 }
const KEYS = ['a', 'b', 'c']
const FAULTS: readonly Fault[] = ['silent', 'lost', 'refused']

/** How long it is there and away, in turn, in ms. */
const spans = fc.array(fc.oneof(fc.integer({ min: 1, max: 300 }), fc.integer({ min: 300, max: 1_600 })), {
  minLength: 4,
  maxLength: 10,
})

interface Flapping {
  readonly seed: number
  readonly spans: readonly number[]
  readonly isStacked: boolean
  /** The longest way to the store, in ms. */
  readonly far: number
  /** How many of all requests hang up. */
  readonly hangUps: number
  readonly onOutage: 'local' | 'closed'
}

/**
 * Each let requests leave out of order once. One of two buckets was leased, and the store asked about the other. A lease ended
 * while a request waited for room, so that the store was asked about it once more.
 */
const FOUND: readonly Flapping[] = [
  { seed: 157, spans: [1, 300, 232, 118, 300], isStacked: false, far: 0.5, hangUps: 0, onOutage: 'local' },
  {
    ...{ seed: 145, spans: [1, 281, 1, 1, 116, 300, 136, 401, 429], isStacked: true, far: 0.5, hangUps: 0 },
    onOutage: 'closed',
  },
  { seed: -2_146_926_587, spans: [300, 1, 300, 300], isStacked: true, far: 0.5, hangUps: 0.2, onOutage: 'local' },
  { seed: -1_073_150_959, spans: [300, 1, 1, 1, 1], isStacked: true, far: 0.5, hangUps: 0, onOutage: 'local' },
]

/** Sends requests while the store flaps, more than may leave at first. */
async function flap({ seed, spans, isStacked, far, hangUps, onOutage }: Flapping): Promise<World> {
  const next = random(seed)
  const world = createWorld(isStacked ? [client, everyone] : [everyone], 2, () => 0.1 + next() * far, { onOutage })
  world.fault = () => FAULTS[Math.floor(next() * FAULTS.length)]!
  const end = spans.reduce((sum, span) => sum + span, 500)
  const arrive = (): void => {
    const key = KEYS[Math.floor(next() * KEYS.length)]!
    const instance = world.instances[Math.floor(next() * 2)]!
    const request = instance.request(isStacked ? [key, 'all'] : ['all'])
    if (next() < hangUps) world.clock.at(world.clock.now() + next() * 400, () => request.hangUp())
    if (world.clock.now() < end) world.clock.at(world.clock.now() + next() * 8, arrive)
  }
  arrive()
  await world.run(500)
  for (const [at, span] of spans.entries()) {
    world.down = at % 2 === 0
    await world.run(world.clock.now() + span)
  }
  world.down = false
  await world.run(end + 5_000)
  return world
}

/** How many requests left before one that had come earlier, to the same lane. */
function inversions({ sent }: World): number {
  const last = new Map<string, number>()
  let count = 0
  for (const { instance, key, id } of sent) {
    const lane = `${instance} ${key}`
    if (id < (last.get(lane) ?? -1)) count += 1
    last.set(lane, id)
  }
  return count
}

t.test('property: a lane keeps its order through any outages and recoveries', async t => {
  let sent = 0
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        seed: fc.integer(),
        spans,
        isStacked: fc.boolean(),
        far: fc.constantFrom(0.5, 5),
        hangUps: fc.constantFrom(0, 0.2),
        onOutage: fc.constantFrom('local', 'closed'),
      }),
      async flapping => {
        const world = await flap(flapping)
        sent += world.sent.length
        return inversions(world) === 0 && world.instances.every(({ shaper }) => shaper.queued === 0)
      },
    ),
    { numRuns: runs(20), examples: FOUND.map((found): [Flapping] => [found]) },
  )
  t.ok(sent > often(1_000), `${sent} were sent`)
})
