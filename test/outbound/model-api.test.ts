/**
 * Model calls whose costs are known only when they have ended, towards an API of 500 requests and 30,000 tokens a minute. On the
 * virtual clock.
 */
import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper } from '../../src/index.js'
import { random } from '../core/run.js'

const MINUTE = 60_000
const TOKENS = 30_000

/** A meter of the API: what it holds may not exceed a minute's worth. It counts what calls really cost, when they come. */
function createMeter(perMinute: number) {
  let level = 0
  let at = 0
  const meter = {
    peak: 0,
    total: 0,
    add(cost: number, now: number) {
      level = Math.max(0, level - ((now - at) * perMinute) / MINUTE) + cost
      at = now
      meter.peak = Math.max(meter.peak, level)
      meter.total += cost
    },
  }
  return meter
}

for (const { estimate, burst } of [
  { estimate: 700, burst: 0 },
  { estimate: 1_000, burst: 5_000 },
  { estimate: 2_200, burst: 5_000 },
]) {
  t.test(`100 callers, estimates of ${estimate} tokens, a burst of ${burst}`, async t => {
    const clock = createVirtualClock()
    const chance = random(7)
    const tokens = createMeter(TOKENS)
    const requests = createMeter(500)
    const shaper = createShaper({
      clock,
      buckets: {
        requests: { rate: '500/m', burst: 10 },
        tokens: { rate: '30000/m', ...(burst > 0 && { burst }) },
      },
    })
    const end = 3 * MINUTE
    let worst = 0
    async function call(): Promise<void> {
      // 200 to 2,200, most of them short.
      const actual = Math.round(200 + 2_000 * chance() * chance())
      worst = Math.max(worst, actual - estimate)
      await shaper.run(
        ({ charge }) => {
          tokens.add(actual, clock.now())
          requests.add(1, clock.now())
          return new Promise<void>(resolve => {
            clock.at(clock.now() + 1_000 + 9_000 * chance(), () => {
              charge({ tokens: actual })
              resolve()
            })
          })
        },
        { cost: { tokens: estimate } },
      )
    }
    const callers = Array.from({ length: 100 }, async () => {
      while (clock.now() < end) await call()
    })
    for (const caller of callers) caller.catch(() => {})
    for (let at = 0; at < end; at += 50) {
      clock.runUntil(at)
      await turn()
    }
    const used = (tokens.total * MINUTE) / TOKENS / end
    const told = `used ${(100 * used).toFixed(1)} %, at most ${tokens.peak.toFixed(0)} of 30,000 tokens and ${requests.peak.toFixed(1)} of 500 requests`
    t.comment(told)
    t.ok(used > 0.95, told)
    t.ok(tokens.peak <= TOKENS && requests.peak <= 500, told)
    // Of the calls in flight at one time some cost more than was reserved, others less.
    t.ok(tokens.peak <= burst + 5 * Math.max(estimate, worst), told)
    await shaper.clear()
  })
}
