import t from 'tap'
import { graceAt } from '../../src/core/bucket/queued-bucket.js'
import { limits, random, run, worstExcess } from './run.js'

const SECONDS = 100

/** One client that always has requests waiting, beside light clients with one request each, behind a shared bucket with room. */
const ROWS = [
  { own: 20, shared: 60, others: 30 },
  { own: 50, shared: 100, others: 40 },
  { own: 20, shared: 25, others: 4 },
  { own: 100, shared: 200, others: 80 },
  { own: 10, shared: 30, others: 16 },
]

for (const { own, shared, others } of ROWS) {
  t.test(
    `${own > 20 ? 'long: ' : ''}${own}/s behind ${shared}/s, ${others}/s of others: a busy client gets its own rate`,
    async t => {
      for (const lateness of [() => 0, random(5)]) {
        const next = random(own * shared)
        const arrivals = Array.from({ length: own * SECONDS }, () => ({ at: 0, keys: ['busy', 'all'] }))
        for (let at = 0, count = 0; at < SECONDS * 1_000; count += 1) {
          arrivals.push({ at, keys: [`light ${count}`, 'all'] })
          at += (-Math.log(1 - next()) * 1_000) / others
        }
        arrivals.sort((one, other) => one.at - other.at)
        const stack = [limits(own, 1e9), limits(shared, 1e9, 'everyone')]
        const { released } = run(stack, arrivals, { lateness })
        const busy = released.filter(({ arrival }) => arrival.keys![0] === 'busy')
        const seconds = (busy.at(-1)!.releasedAt! - busy[0]!.releasedAt!) / 1_000
        const part = (busy.length - 1) / seconds / own
        t.ok(part >= 0.99, `${(part * 100).toFixed(1)} % of its rate`)
        t.ok(worstExcess(stack[0]!, busy, graceAt(stack[0]!, 0, 2)) <= 1e-6)
        t.ok(worstExcess(stack[1]!, released) <= 1e-6)
      }
    },
  )
}
