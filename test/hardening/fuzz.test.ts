/** Random mutants of the corpus: each gets one answer or a closed connection, and nothing is left open. */

import fc from 'fast-check'
import t from 'tap'
import { type Client, connect, get, turns } from '../proxy/harness.js'
import { runs } from '../runs.js'
import { CORPUS } from './corpus.js'
import { NOTHING, sendPieces, startStage } from './stage.js'

const SEED = 20_261
const RUNS = runs(40)
const CLIENTS = 25

/** Bytes that parsers stumble over. */
const SPICES = [
  '\r',
  '\n',
  '\r\n',
  '\r\n\r\n',
  '\x00',
  ' ',
  '\t',
  ':',
  ',',
  ';',
  '0',
  'ffffffff',
  '\xff',
  '%',
  '"',
  'chunked',
]

const ENTRIES = CORPUS.flatMap(({ cases }) => cases.map(({ bytes }) => bytes)).filter(bytes => bytes.length < 2_000)

type Change = (bytes: string) => string

const place = fc.double({ min: 0, max: 1, noNaN: true })
const at = (bytes: string, share: number): number => Math.floor(share * bytes.length)

const change: fc.Arbitrary<Change> = fc.oneof(
  fc.tuple(place, fc.constantFrom(...SPICES)).map(
    ([where, spice]): Change =>
      bytes =>
        bytes.slice(0, at(bytes, where)) + spice + bytes.slice(at(bytes, where)),
  ),
  fc.tuple(place, fc.integer({ min: 1, max: 20 })).map(
    ([where, length]): Change =>
      bytes =>
        bytes.slice(0, at(bytes, where)) + bytes.slice(at(bytes, where) + length),
  ),
  fc.tuple(place, fc.integer({ min: 0, max: 255 })).map(
    ([where, byte]): Change =>
      bytes =>
        bytes.slice(0, at(bytes, where)) + String.fromCharCode(byte) + bytes.slice(at(bytes, where) + 1),
  ),
  fc.tuple(place, place).map(
    ([from, to]): Change =>
      bytes =>
        bytes + bytes.slice(Math.min(at(bytes, from), at(bytes, to)), Math.max(at(bytes, from), at(bytes, to))),
  ),
  place.map(
    (where): Change =>
      bytes =>
        bytes.slice(0, at(bytes, where)),
  ),
  fc.constantFrom(...ENTRIES).map(
    (other): Change =>
      bytes =>
        bytes + other,
  ),
)

const request = fc
  .tuple(fc.constantFrom(...ENTRIES), fc.array(change, { maxLength: 4 }), fc.array(place, { maxLength: 3 }))
  .map(([bytes, changes, cuts]) => {
    const changed = changes.reduce((text, apply) => apply(text), bytes)
    const places = [0, ...cuts.map(share => at(changed, share)).sort((a, b) => a - b), changed.length]
    return places.slice(1).map((end, index) => changed.slice(places[index], end))
  })

const STATUSES = new Set([100, 200, 400, 405, 413, 417, 431, 501, 505])

/** What is wrong with what a client has got: it has to be a number of whole answers, of known kinds. */
function faultOf({ rest }: Client): string | undefined {
  const heads = rest.match(/HTTP\/1\.1 \d{3}/g) ?? []
  if (rest !== '' && !rest.startsWith('HTTP/1.1 ')) return `no answer: ${rest.slice(0, 100)}`
  const unknown = heads.find(line => !STATUSES.has(Number(line.slice(9))))
  return unknown === undefined ? undefined : `a status that is not to be expected: ${unknown}`
}

t.test('property: mutants of the corpus', async t => {
  const stage = await startStage(t)
  const { rig, seen, faults } = stage
  let sent = 0
  await fc.assert(
    fc.asyncProperty(fc.array(request, { minLength: CLIENTS, maxLength: CLIENTS }), async batch => {
      const clients = await Promise.all(batch.map(() => connect(t, rig)))
      await Promise.all(batch.map((pieces, index) => sendPieces(clients[index]!, pieces)))
      await turns(20)
      // A FIN ends what is not whole.
      for (const { socket } of clients) socket.end()
      await Promise.all(clients.map(client => client.end()))
      for (const client of clients) {
        client.hangUp()
        const fault = faultOf(client)
        if (fault !== undefined) throw new Error(fault)
      }
      sent += batch.length
      if (faults.length > 0) throw new Error(`the upstream got: ${faults.splice(0).join('; ')}`)
      const left = await stage.rest()
      if (JSON.stringify(left) !== JSON.stringify(NOTHING)) throw new Error(`left: ${JSON.stringify(left)}`)
      const plain = await connect(t, rig)
      const { status } = await plain.ask(get('/plain'))
      plain.hangUp()
      if (status !== 200) throw new Error(`a plain request got ${status}`)
    }),
    { seed: SEED, numRuns: RUNS, endOnFailure: true },
  )
  t.ok(sent >= RUNS * CLIENTS)
  const passed = seen.filter(({ target }) => target !== '/plain').length
  t.ok(passed > sent / 10, `${passed} of ${sent} got through, so the mutants are not all nonsense`)
  const answered = rig.outcomes.filter(outcome => outcome.includes('refused')).length
  t.ok(answered > sent / 10, `${answered} were refused`)
})
