// @ts-check
/** Actions of rude clients: they leave early, send nonsense or stop in the middle. */
import { ANY, SEEN } from './ledger.js'

/** @typedef {import('./slot.js').Slot} Slot */

/** The possible outcomes of a request whose client leaves before its answer. */
const LEFT = ['forwarded', 'rejected', 'cancelled', 'expired', 'failed']

/** @param {Slot} slot */
export async function leaveQueue(slot) {
  const peer = await slot.fresh()
  const { id, route, text } = slot.request('slow', 'get', { keys: 8 })
  peer.write(text)
  await slot.linger(80)
  peer.close()
  slot.ledger.guesses(route, LEFT, id)
}

/** The client closes its sending side only, which counts as leaving. @param {Slot} slot */
export async function closeHalf(slot) {
  const peer = await slot.fresh()
  const { id, route, text } = slot.request('slow', 'late', { keys: 8 })
  peer.socket.end(text)
  await peer.answer()
  peer.close()
  slot.ledger.guesses(route, LEFT, id)
}

/** The client leaves after the first answer to pipelined requests, which the proxy may have read together. @param {Slot} slot */
export async function resetQueue(slot) {
  const peer = await slot.fresh()
  const first = slot.request('nowhere', 'get')
  const second = slot.request('slow', 'get', { keys: 8 })
  peer.write(first.text + second.text)
  slot.ledger.settle(NO_ROUTE, first.id, await peer.answer())
  peer.reset()
  slot.ledger.guesses(second.route, LEFT, second.id)
}

/** The reset may overtake the request. @param {Slot} slot */
export async function resetEarly(slot) {
  const peer = await slot.fresh()
  const { id, route, text } = slot.request('early', 'get')
  peer.write(text)
  peer.reset()
  slot.ledger.doubts(route, id)
}

/** @param {Slot} slot */
export async function leaveUpload(slot) {
  const peer = await slot.fresh()
  const { id, route, text } = slot.request(slot.pick(['api', 'slow', 'off']), 'echo', {
    method: 'POST',
    headers: { 'Content-Length': 200_000 },
  })
  peer.write(Buffer.concat([Buffer.from(text), Buffer.alloc(Math.floor(slot.random() * 100_000), 'u')]))
  await slot.linger(60)
  peer.close()
  slot.ledger.guesses(route, ANY, id)
}

/** @param {Slot} slot */
export async function leaveAnswer(slot) {
  const peer = await slot.fresh()
  const request = slot.request(slot.pick(['off', 'meter']), 'big', { query: '&size=8000000' })
  peer.write(request.text)
  const head = await peer.head()
  if (head?.headers.has('x-upstream')) {
    slot.ledger.guesses(request.route, ['forwarded', 'cancelled', 'failed'], request.id, SEEN.once)
  } else slot.ledger.guesses(request.route, ['rejected', 'failed'], request.id)
  if (slot.random() < 0.5) peer.reset()
  else peer.close()
}

/** @param {Slot} slot */
export async function leavePipeline(slot) {
  const peer = await slot.fresh()
  const requests = Array.from({ length: 20 }, () => slot.request('slow', 'get', { keys: 8 }))
  peer.write(requests.map(({ text }) => text).join(''))
  const [first, ...others] = requests
  await slot.settle(peer, first)
  if (slot.random() < 0.5) peer.reset()
  else peer.close()
  for (const { route, id } of others) slot.ledger.abandons(route, id)
}

/** The body stops in the middle. @param {Slot} slot */
export async function stopUpload(slot) {
  const peer = await slot.fresh()
  const request = slot.request('off', 'echo', { method: 'POST', headers: { 'Content-Length': 1_000 } })
  peer.write(`${request.text}not all of it`)
  await slot.settle(peer, request)
  peer.close()
}

/** The head stops in the middle, or never begins. @param {Slot} slot */
export async function stopHead(slot) {
  const peer = await slot.fresh()
  const isSilent = slot.random() < 0.3
  if (!isSilent) peer.write('GET /off/get HTTP/1.1\r\nHost: soak.test\r\nX-Slow')
  const answer = await peer.answer()
  if (isSilent) {
    if (answer !== undefined) slot.ledger.surprise(`silence was answered with ${answer.status}`)
  } else slot.ledger.settle(NO_ROUTE, slot.ledger.next(), answer)
  peer.close()
}

/** The route label of requests without a route. */
const NO_ROUTE = '(none)'

/** @type {[status: number, bytes: string][]} */
const NONSENSE = [
  [400, 'GET /off/get HTTP/1.1\r\n\r\n'],
  [400, 'GARBAGE\r\n\r\n'],
  [400, 'GET /off/get HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n'],
  [400, 'POST /off/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'],
  [400, 'POST /off/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc'],
  [400, 'GET /off/get HTTP/1.1\nHost: a\n\n'],
  [400, `GET /off/get HTTP/1.1\r\nHost: a\r\nConnection: ${'close,'.repeat(2_000)}x\r\n\r\n`],
  [400, 'POST /off/echo HTTP/1.1\r\nHost: a\r\nContent_Length: 3\r\n\r\n'],
  [400, 'GET /off/get HTTP/1.1\r\nHost : a\r\n\r\n'],
  [400, 'GET /off/get HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n'],
  [404, 'GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n'],
  [405, 'CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n'],
  [417, 'GET /off/get HTTP/1.1\r\nHost: a\r\nExpect: the-best\r\n\r\n'],
  [431, `GET /off/get HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`],
  [501, 'POST /off/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n'],
  [501, 'OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n'],
]

/** @param {Slot} slot */
export async function nonsense(slot) {
  const peer = await slot.fresh()
  const [status, bytes] = slot.pick(NONSENSE)
  peer.write(bytes)
  const answer = await peer.answer()
  if (slot.ledger.settle(NO_ROUTE, slot.ledger.next(), answer) !== '' && answer?.status !== status) {
    slot.ledger.surprise(`${JSON.stringify(bytes.slice(0, 80))} was answered ${answer?.status}`)
  }
  peer.close()
}

/** A request without the key that its bucket requires. @param {Slot} slot */
export async function keyless(slot) {
  const peer = await slot.fresh()
  const request = slot.request('churn', 'get', { headers: { 'X-Key': '' } })
  peer.write(request.text)
  await slot.settle(peer, request)
  peer.close()
}
