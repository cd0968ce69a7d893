/** The adaptive rate, judged by simulations of upstreams on the virtual clock (upstream-model.ts). */
import t from 'tap'
import { AdaptiveRate, Sample } from '../../../src/core/adaptive/adaptive-rate.js'
import { createVirtualClock } from '../../../src/core/clock.js'
import { isWithin, type Model, simulate, targets } from './upstream-model.js'

const SEEDS = [1, 2, 3]

/** ms, with the spread of an exponential distribution. */
const varying = (mean: number) => (chance: () => number) => -mean * Math.log(1 - chance())

/** ms. Most take a third of the mean, a few take seconds. */
const heavyTailed = (mean: number) => (chance: () => number) =>
  Math.min(5_000, ((mean * 0.8) / 1.8) * (1 - chance()) ** (-1 / 1.8))

/** Ten workers that take 100 ms: 100/s. */
const steady: Model = {
  targets: targets({ min: 5, max: 500, p90: 800 }),
  seconds: 300,
  workers: () => 10,
  service: () => 100,
}

t.test('it doubles until the first trouble, and is at the capacity within 10 s', async t => {
  const run = simulate({ ...steady, seconds: 60 })
  const rates = [...new Set(run.moments.filter(({ phase }) => phase === 'doubling').map(({ rate }) => rate))]
  t.same(rates.map(Math.round), [5, 10, 20, 40, 80, 160])
  t.ok(run.firstWithin(0.1, 100, 0) < 10)
  t.ok(run.partWithin(0.1, 100, 10, 60) > 0.95, `it stays there: ${run.partWithin(0.1, 100, 10, 60)}`)
  const { served, late } = run.tally(10, 60)
  t.ok(served - late > 0.98 * 50 * 100, `${served - late} in time`)
})

t.test('nine tenths of what the upstream could do, whatever its answers look like', async t => {
  const kinds = { varying: varying(100), heavyTailed: heavyTailed(100) }
  for (const [name, service] of Object.entries(kinds)) {
    for (const seed of SEEDS) {
      const run = simulate({ ...steady, service, seed })
      const { served, late } = run.tally(10, 300)
      t.ok(served > 0.9 * 290 * 100, `${name}: ${served} served`)
      t.ok(late < 0.15 * served, `${name}: ${late} of them late`)
      t.ok(run.firstWithin(0.15, 100, 0) < 15, name)
    }
  }
})

t.test('a capacity that halves and comes back is followed within 10 s', async t => {
  const workers = (at: number): number => (at >= 100 && at < 200 ? 5 : 10)
  const run = simulate({ ...steady, workers })
  t.ok(run.firstWithin(0.1, 50, 100) < 110, `${run.firstWithin(0.1, 50, 100)}`)
  t.ok(run.firstWithin(0.1, 100, 200) < 210, `${run.firstWithin(0.1, 100, 200)}`)
  t.ok(run.partWithin(0.1, 50, 110, 200) > 0.8)
  const { served, late } = run.tally(10, 300)
  t.ok(served - late > 0.9 * (190 * 100 + 100 * 50), `${served - late} in time`)
})

t.test('it is stable for an hour', async t => {
  const run = simulate({ ...steady, service: varying(100), seconds: 3_600 })
  for (let from = 300; from < 3_600; from += 300) {
    const { served } = run.tally(from, from + 300)
    t.ok(served > 0.9 * 300 * 100, `${served} served from ${from} s on`)
    t.ok(isWithin(run.rates(from, from + 300).mean, 100, 0.1))
  }
})

t.test('instances that share the rate find it together, whatever part each of them sends', async t => {
  const follows = (at: number): number => (at >= 100 && at < 200 ? 5 : 10)
  for (const parts of [[0.5, 0.5], Array<number>(10).fill(0.1), [0.85, 0.05, 0.05, 0.05]]) {
    const fixed = simulate({ ...steady, parts })
    t.ok(fixed.tally(10, 300).served > 0.97 * 290 * 100, `${parts.length}: ${fixed.tally(10, 300).served} served`)
    t.ok(fixed.firstWithin(0.1, 100, 0) < 20, `${parts.length}: ${fixed.firstWithin(0.1, 100, 0)} s`)
    t.ok(isWithin(fixed.rates(30, 300).mean, 100, 0.05))
    const halved = simulate({ ...steady, workers: follows, parts })
    t.ok(halved.firstWithin(0.1, 50, 100) < 112, `${parts.length}: ${halved.firstWithin(0.1, 50, 100)} s`)
    t.ok(halved.firstWithin(0.1, 100, 200) < 212, `${parts.length}: ${halved.firstWithin(0.1, 100, 200)} s`)
    t.ok(halved.tally(10, 300).served > 0.88 * (190 * 100 + 100 * 50))
    const light = simulate({ ...steady, offered: () => 30, seconds: 600, parts })
    t.ok(light.rates(300, 600).max < 60, `it does not climb where it does not limit: ${light.rates(300, 600).max}`)
  }
})

t.test('an instance of 50 climbs, though it sends one request of the common rate in 15 s', async t => {
  const rate = new AdaptiveRate({ ...steady.targets, start: 0.005 }, 0, 'shared')
  for (let place = 0; place < 30; place += 1) {
    const at = 15_000 * place
    const sent = rate.sent({ cost: 1, client: `${place}`, isTimed: true, isHeld: true }, at)
    rate.served(sent, at + 50)
  }
  t.ok(rate.rate > 0.005, `${rate.rate * 1_000}/s`)
})

t.test('what another instance has found is taken over, unless it is older', async t => {
  const [one, other] = [0, 0].map(now => new AdaptiveRate(targets({ min: 10, max: 100, p90: 100 }), now, 'shared'))
  const draining = { rate: 0.02, phase: 'draining', falls: 2 } as const
  t.equal(one!.adopt(draining, 1_000), true)
  t.same(one!.state, draining)
  t.equal(one!.adopt(other!.state, 1_001), false, 'it has not heard of the falls')
  t.equal(one!.adopt({ rate: 5, phase: 'climbing', falls: 2 }, 1_100), true)
  t.same(one!.state, { rate: 0.1, phase: 'climbing', falls: 2 }, 'no more than it may be here')
  one!.adopt({ ...draining, falls: 3 }, 2_000)
  one!.sent({ cost: 1, client: '', isTimed: true }, 12_000)
  t.equal(one!.phase, 'draining')
  one!.sent({ cost: 1, client: '', isTimed: true }, 12_201)
  t.equal(one!.phase, 'climbing', 'the instance that measures is gone')
})

t.test('an upstream that refuses what is too much', async t => {
  for (const seed of SEEDS) {
    const run = simulate({ ...steady, queue: 20, seed })
    const { served, failed } = run.tally(10, 300)
    t.ok(served > 0.9 * 290 * 100, `${served} served`)
    t.ok(failed < 0.05 * served, `${failed} refused`)
  }
})

t.test('errors alone are enough to go by', async t => {
  const run = simulate({ ...steady, targets: targets({ min: 5, max: 500 }), queue: 20 })
  const { served, failed } = run.tally(10, 300)
  t.ok(served > 0.9 * 290 * 100, `${served} served`)
  t.ok(failed < 0.05 * served, `${failed} refused`)
})

t.test('errors below the target do not matter, and above it the rate falls', async t => {
  const many: Model = { ...steady, workers: () => 1_000, seconds: 100 }
  t.ok(simulate({ ...many, failing: 0.005 }).rates(20, 100).mean > 400)
  t.ok(simulate({ ...many, failing: 0.1 }).rates(20, 100).mean < 50)
})

t.test('answers that take seconds', async t => {
  const long = { targets: targets({ min: 5, max: 500, p90: 20_000 }), workers: () => 300, service: () => 5_000 }
  const run = simulate({ ...steady, ...long, seconds: 600 })
  const { served, late } = run.tally(100, 600)
  t.ok(served - late > 0.8 * 500 * 60, `${served - late} of ${500 * 60}`)
})

t.test('a bucket that is not what limits does not climb', async t => {
  const run = simulate({ ...steady, offered: () => 3, seconds: 600 })
  t.equal(run.rates(0, 600).max, 5)
  const more = simulate({ ...steady, offered: () => 30, seconds: 600 })
  t.ok(more.rates(300, 600).max < 60, `${more.rates(300, 600).max}`)
})

t.test('the slow answers of one client do not lower the rate of all', async t => {
  const service = (_chance: () => number, client: number): number => (client === 0 ? 5_000 : 50)
  for (const [part, clients] of [
    [0.1, 20],
    [0.4, 20],
    [0.4, 5],
  ] as const) {
    const clientOf = (chance: () => number): number => (chance() < part ? 0 : 1 + Math.floor(chance() * (clients - 1)))
    const run = simulate({ ...steady, workers: () => 5_000, service, clientOf, seconds: 100 })
    t.ok(run.rates(30, 100).mean > 400, `${part} of the requests, ${clients} clients: ${run.rates(30, 100).mean}`)
  }
})

t.test('the errors of one client do not lower the rate of all', async t => {
  const adapted = new AdaptiveRate({ min: 0.01, max: 1, start: 0.1, errors: 0.02 }, 0)
  for (let at = 0; at < 60_000; at += 5) {
    const client = (at / 5) % 10
    const request = adapted.sent({ cost: 1, client: String(client), isTimed: true }, at)
    if (client === 0) adapted.failed(request, at + 1)
    else adapted.served(request, at + 1)
  }
  t.ok(adapted.rate >= 0.2, `${adapted.rate}`)
})

t.test('a single client is judged by its own answers', async t => {
  const run = simulate({ ...steady, clients: 1 })
  t.ok(run.firstWithin(0.1, 100, 0) < 10)
  const { served, late } = run.tally(10, 300)
  t.ok(served - late > 0.95 * 290 * 100)
})

t.test('an upstream that stops answering brings it to min, and it comes back', async t => {
  const workers = (at: number): number => (at >= 30 && at < 60 ? 0 : 10)
  const run = simulate({ ...steady, workers, seconds: 200 })
  t.equal(run.rates(50, 60).min, 5)
  t.ok(run.firstWithin(0.1, 100, 60) < 130, `${run.firstWithin(0.1, 100, 60)}`)
})

t.test('answers whose time is up to the client count for errors only', async t => {
  const rate = new AdaptiveRate(targets({ min: 10, max: 100, p90: 100 }), 0)
  const slow = []
  for (let at = 0; at < 5_000; at += 20) slow.push(rate.sent({ cost: 1, client: 'a', isTimed: false }, at))
  for (const request of slow) rate.served(request, 6_000)
  t.equal(rate.phase, 'doubling')
  for (const request of slow.map((_, at) => rate.sent({ cost: 1, client: 'a', isTimed: false }, 6_000 + at))) {
    rate.failed(request, 7_000)
  }
  t.equal(rate.rate, 0.01)
})

t.test('other targets keep the rate as far as they allow', async t => {
  const rate = new AdaptiveRate(targets({ min: 10, max: 100, p90: 100 }), 0)
  rate.retarget(targets({ min: 20, max: 100, p90: 100 }), 0)
  t.equal(rate.rate, 0.02)
  rate.retarget(targets({ min: 1, max: 100, p90: 100 }), 0)
  t.equal(rate.rate, 0.02)
  rate.retarget(targets({ min: 1, max: 15, p90: 100 }), 0)
  t.equal(rate.rate, 0.015)
})

/** Sends at the rate that is found. `answerOf`: ms until the answer, and whether it is one. */
function pace(seconds: number, answerOf: (number: number, now: number) => { ms: number; isServed: boolean }) {
  const clock = createVirtualClock()
  const found = new AdaptiveRate({ min: 0.005, max: 0.2, start: 0.05, errors: 0.02 }, 0)
  let number = 0
  const next = (): void => {
    number += 1
    const { ms, isServed } = answerOf(number, clock.now())
    const client = ms > 1_000 ? 'slow' : `c${number % 20}`
    const request = found.sent({ cost: 1, client, isTimed: true }, clock.now())
    clock.at(clock.now() + ms, () =>
      isServed ? found.served(request, clock.now()) : found.failed(request, clock.now()),
    )
    clock.at(clock.now() + 1 / found.rate, next)
  }
  next()
  clock.runUntil(seconds * 1_000)
  return found
}

t.test('one client whose requests hang keeps nobody from judging the upstream', async t => {
  // It fails for a second, and then for good from 30 s on.
  const answerOf = (number: number, now: number) => {
    const hangs = number % 12 === 0
    return { ms: hangs ? 3_600_000 : 100, isServed: hangs || now < 3_000 || (now > 4_000 && now < 30_000) }
  }
  t.ok(pace(29, answerOf).rate > 0.15, 'it climbs')
  t.ok(pace(31, answerOf).rate < 0.1, 'it falls within a second')
})

t.test('requests that hang, whoever sent them, do not hide that the upstream fails', async t => {
  const clock = createVirtualClock()
  const found = new AdaptiveRate({ min: 0.005, max: 0.2, start: 0.1, errors: 0.02 }, 0)
  const send = (client: string) => found.sent({ cost: 1, client, isTimed: true }, clock.now())
  for (let number = 0; number < 60; number += 1) {
    clock.runUntil(number * 10)
    const request = send(`c${number}`)
    // Half of them hang, so the window is not over.
    if (number % 2 === 0) found.served(request, clock.now())
  }
  t.equal(found.rate, 0.1)
  for (let number = 0; number < 5; number += 1) found.failed(send(`d${number}`), clock.now())
  t.ok(found.rate < 0.1)
})

t.test('of many clients not all are looked at for each answer', async t => {
  const sample = new Sample()
  let looked = 0
  for (let number = 0; number < 1_600; number += 1) {
    sample.addServed(`c${number}`, number, 100)
    if (sample.takeLook()) looked += 1
  }
  t.ok(looked < 150, `${looked} times`)
})
