/** A body that comes in pieces: what it is read as, and what it takes meanwhile. */

import fc from 'fast-check'
import t from 'tap'
import { ClientBody } from '../../src/proxy/client/body.js'
import { ByteBudget } from '../../src/proxy/http/byte-budget.js'
import { runs } from '../runs.js'

function bodyOf(source: { pauseBody?(): void; resumeBody?(): void } = {}): ClientBody {
  const nothing = {
    pauseBody: () => undefined,
    resumeBody: () => undefined,
    bodyTooSlow: () => undefined,
    bodyGoesTo: () => undefined,
  }
  return new ClientBody(
    { ...nothing, ...source },
    { budget: new ByteBudget(2 ** 26), client: '', leastRate: undefined },
  )
}

t.test('bytes that come one by one while nobody reads are read as one piece', async t => {
  const body = bodyOf()
  const pieces: number[] = []
  // The reader has asked for more before it stops.
  body.on('data', (piece: Buffer) => pieces.push(piece.length))
  await new Promise(resolve => setImmediate(resolve))
  body.pause()
  for (let count = 0; count < 60_000; count += 1) body.receive(Buffer.from('x'))
  body.finish()
  body.resume()
  await new Promise(resolve => body.once('end', resolve))
  t.equal(
    pieces.reduce((sum, length) => sum + length, 0),
    60_000,
  )
  t.ok(pieces.length < 5, `${pieces.length} pieces`)
})

t.test('property: whatever comes is read in order and to its end, however the reader pauses', async () => {
  const step = fc.oneof(
    { weight: 3, arbitrary: fc.record({ bytes: fc.constantFrom(1, 1, 7, 5_000, 70_000) }) },
    { weight: 1, arbitrary: fc.constantFrom('pause' as const, 'resume' as const, 'turn' as const) },
  )
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 40 }), async steps => {
      const body = bodyOf()
      const read: Buffer[] = []
      let sent = Buffer.alloc(0)
      body.on('data', (piece: Buffer) => read.push(piece))
      for (const step of steps) {
        if (step === 'pause') body.pause()
        else if (step === 'resume') body.resume()
        else if (step === 'turn') await new Promise(resolve => setImmediate(resolve))
        else {
          const bytes = Buffer.alloc(step.bytes, sent.length & 255)
          sent = Buffer.concat([sent, bytes])
          body.receive(bytes)
        }
      }
      body.finish()
      const ended = new Promise(resolve => body.once('end', resolve))
      body.resume()
      await ended
      if (!Buffer.concat(read).equals(sent)) throw new Error('it is not what came')
    }),
    { numRuns: runs(300) },
  )
})
