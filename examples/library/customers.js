// Calls of a program of your own, without a proxy: each customer's calls leave in order, 20 per second.
import { createShaper, OverflowError } from 'leaky-shaper'

const shaper = createShaper({ rate: '20/s', capacity: 10 })
const startedAt = performance.now()

async function charge(customer) {
  process.stdout.write(`${customer}: sent after ${Math.round(performance.now() - startedAt)} ms\n`)
}

async function chargeInTurn(customer) {
  try {
    await shaper.run(customer, () => charge(customer))
  } catch (error) {
    if (!(error instanceof OverflowError)) throw error
    process.stdout.write(`${customer}: refused, try again in ${error.retryAfterMs} ms\n`)
  }
}

const customers = Array.from({ length: 12 }, () => ['ann', 'bob']).flat()
await Promise.all(customers.map(chargeInTurn))
await shaper.drain()
