/**
 * Answers of the store that are lost while a bucket is full: the command ran, and its answer never came. How many requests wait afterwards,
 * on the virtual clock.
 */
import t from 'tap'
import { limits } from '../core/run.js'
import { type Simulation, type Source, simulate } from './simulator.js'
import { allowedBurst, ratePerSecond, worstBurst } from './spacing.js'

const CAPACITY = 100

/** ms after a loss until the capacity is as before. An instance keeps to its share for one second, and what is too much has to leave. */
const RECOVERY = 2_250

/** ms from one loss to the next. */
const APART = 4_000

interface Loss {
  /** A cut connection fails its calls at once. A silent one fails them after their time. */
  readonly how: 'cut' | 'silent'
  /** ms. */
  readonly lasts: number
  /** How many of the instances lose their answers. */
  readonly of: number
}

/** More clients than fit, who ask again as soon as they are rejected. */
async function saturated(rate: number, count: number): Promise<Simulation> {
  const sources = Array.from({ length: count }, (_, instance): Source => {
    return { instance, keys: ['all'], load: { kind: 'saturated', depth: 300 / count } }
  })
  return simulate({ stack: [limits(rate, CAPACITY, 'everyone')], count, sources })
}

/** How many wait in a span, in ms from the start: the least and the most. */
async function waitingIn(simulation: Simulation, from: number, to: number): Promise<[least: number, most: number]> {
  let [least, most] = [Infinity, 0]
  for (let at = from; at < to; at += 10) {
    await simulation.run(at)
    least = Math.min(least, simulation.waiting)
    most = Math.max(most, simulation.waiting)
  }
  return [least, most]
}

for (const [rate, count, loss] of [
  [50, 2, { how: 'silent', lasts: 50, of: 1 }],
  [200, 2, { how: 'silent', lasts: 50, of: 2 }],
  [200, 2, { how: 'silent', lasts: 50, of: 1 }],
  [200, 2, { how: 'silent', lasts: 300, of: 2 }],
  [200, 2, { how: 'cut', lasts: 50, of: 2 }],
  [200, 2, { how: 'cut', lasts: 300, of: 1 }],
  [200, 4, { how: 'silent', lasts: 50, of: 4 }],
  [200, 4, { how: 'cut', lasts: 300, of: 4 }],
  [200, 2, { how: 'silent', lasts: 1_000, of: 2 }],
] as [number, number, Loss][]) {
  const { how, lasts, of } = loss
  t.test(`${of} of ${count} instances at ${rate}/s lose their answers for ${lasts} ms, ${how}`, async t => {
    const simulation = await saturated(rate, count)
    await simulation.run(5_000)
    for (let losses = 0; losses < 3; losses += 1) {
      const from = 5_000 + losses * (lasts + APART + 37)
      const [least, most] = await waitingIn(simulation, from - 500, from)
      t.ok(least >= 95 && most <= 104, `before: ${least} to ${most} wait`)
      for (const connection of simulation.connections.slice(0, of)) connection.loses = how
      await simulation.run(from + lasts)
      for (const connection of simulation.connections) connection.loses = undefined
      const back = from + lasts + RECOVERY
      const after = await waitingIn(simulation, back, from + lasts + APART)
      t.ok(after[0] >= 95 && after[1] <= 104, `after ${losses + 1}: ${after.join(' to ')} wait`)
      const times = simulation.releases.map(({ at }) => at)
      const released = ratePerSecond(times, back, from + lasts + APART)
      const within = Math.max(0.01 * rate, 1_000 / (APART - RECOVERY))
      t.ok(Math.abs(released - rate) < within, `${released} released per second`)
    }
    // An instance that alone has lost the store adds its share to the rate. The others use the slots that it does not.
    if (of < count) {
      const end = 5_000 + 3 * (lasts + APART) + 2 * 37
      const released = simulation.releases.filter(({ at }) => at > 5_000 && at <= end).length
      const idle = (rate * (end - 5_000)) / 1_000 - released
      t.ok(idle < (how === 'cut' ? 0.02 : 0.3) * rate * 3, `${idle} slots idle`)
      return
    }
    // Those that hear of the store again later than the first of them pass their shares until then: r (1 + k / n).
    const away = (of - 1) / count
    const burst = worstBurst(
      simulation.releases.map(({ at }) => at),
      (rate / 1_000) * (1 + away),
    )
    t.ok(burst <= allowedBurst(rate / 1_000, count), `${burst} in one go`)
  })
}

t.test('an instance that is killed while it has most of what waits leaves the capacity to the others', async t => {
  const simulation = await saturated(200, 2)
  await simulation.run(5_000)
  simulation.kill(0)
  await simulation.run(10_000)
  const left = simulation.releases.filter(({ at }) => at > 9_500)
  const mean = left.reduce((sum, { at, arrivedAt }) => sum + at - arrivedAt, 0) / left.length
  t.ok(left.length >= 99, `${left.length} released in half a second`)
  t.ok(Math.abs(mean - (1_000 * CAPACITY) / 200) < 25, `what is left waits for ${mean} ms, as behind b`)
})
