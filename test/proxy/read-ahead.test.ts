/** How long a body is read in search of a hang-up: its request has its slot, and others wait. */
import t from 'tap'
import { ClientBody } from '../../src/proxy/client/body.js'
import { ByteBudget } from '../../src/proxy/http/byte-budget.js'

/** Turns of the event loop that reading ahead takes with a client that sends so many bytes in each. */
async function turnsOf(bytes: number): Promise<number> {
  const source = {
    pauseBody: () => undefined,
    resumeBody: () => undefined,
    bodyTooSlow: () => undefined,
    bodyGoesTo: () => undefined,
  }
  const body = new ClientBody(source, { budget: new ByteBudget(2 ** 26), client: '', leastRate: undefined })
  let isDone = false
  body.readAhead(() => {
    isDone = true
  })
  let turns = 0
  for (; !isDone; turns += 1) {
    if (bytes > 0) body.receive(Buffer.alloc(bytes))
    await new Promise(resolve => setImmediate(resolve))
  }
  body.destroy()
  return turns
}

t.test('a client that sends a few bytes in each turn holds nobody up', async t => {
  t.equal(await turnsOf(0), 4)
  t.equal(await turnsOf(1), 4)
  t.equal(await turnsOf(8_000), 4)
})

t.test('what the kernel has kept is read to its end', async t => {
  t.equal(await turnsOf(64 * 1024), 64)
})
