// @ts-check
/** Actions of clients that take what others need: places, connections, memory, the time of the main thread. */
import { setTimeout as sleep } from 'node:timers/promises'
import { ANY, SEEN } from './ledger.js'
import { KEY_MARK } from './plan.js'

/** @typedef {import('./slot.js').Slot} Slot */

const ROUTES = ['api', 'slow', 'off']

/** A short body that comes too slowly. It is read before its request is sent. @param {Slot} slot */
export async function trickle(slot) {
  const peer = await slot.fresh()
  const request = slot.request(slot.pick(ROUTES), 'echo', { method: 'POST', headers: { 'Content-Length': 1_000 } })
  peer.write(request.text)
  const settled = slot.settle(peer, request)
  for (let sent = 0; sent < 30 && peer.open; sent += 1) {
    peer.write('t')
    await sleep(150)
  }
  await settled
  peer.close()
}

/** A long body that comes slowly. It is sent as it comes. @param {Slot} slot */
export async function trickleOn(slot) {
  const peer = await slot.fresh()
  const { id, route, text } = slot.request('off', 'echo', { method: 'POST', headers: { 'Content-Length': 200_000 } })
  peer.write(text)
  for (let sent = 0; sent < 20 && peer.open; sent += 1) {
    peer.write('t')
    await sleep(150)
  }
  peer.close()
  slot.ledger.guesses(route, ANY, id)
}

/** The client leaves while its short body is incomplete, before or after the turn of its request. @param {Slot} slot */
export async function leaveAside(slot) {
  const peer = await slot.fresh()
  const { id, route, text } = slot.request(slot.pick(ROUTES), 'echo', {
    method: 'POST',
    headers: { 'Content-Length': 20_000 },
  })
  peer.write(Buffer.concat([Buffer.from(text), Buffer.alloc(Math.floor(slot.random() * 19_000), 'a')]))
  await slot.linger(600)
  // A connection that is reset before the proxy accepts it is dropped.
  if (slot.random() < 0.5) {
    peer.reset()
    slot.ledger.doubts(route, id)
  } else {
    peer.close()
    slot.ledger.guesses(route, ANY, id)
  }
}

/** The client does not read its answer. @param {Slot} slot */
export async function neverRead(slot) {
  const peer = await slot.fresh()
  const request = slot.request('off', 'big', { query: '&size=20000000' })
  peer.write(request.text)
  const head = await peer.head()
  if (head?.headers.has('x-upstream')) {
    slot.ledger.guesses(request.route, ['forwarded', 'cancelled', 'failed'], request.id, SEEN.once)
    await sleep(3_000)
  } else slot.ledger.guesses(request.route, ['rejected', 'failed'], request.id)
  peer.close()
}

/** Connections that send nothing. @param {Slot} slot */
export async function hoard(slot) {
  const peers = await Promise.all(Array.from({ length: 60 }, () => slot.fresh()))
  await slot.linger(1_500)
  for (const peer of peers) peer.close()
}

/** Many requests ahead, of whose answers only the first is read. @param {Slot} slot */
export async function flood(slot) {
  const peer = await slot.fresh()
  const requests = Array.from({ length: 200 }, () => slot.request(slot.pick(['meter', 'slow']), 'get', { keys: 8 }))
  peer.write(requests.map(({ text }) => text).join(''))
  const [first, ...others] = requests
  await slot.settle(peer, first)
  await slot.linger(300)
  peer.close()
  for (const { route, id } of others) slot.ledger.abandons(route, id)
}

/** A long upload to a full bucket. Its client sends on and gets its answer nevertheless. @param {Slot} slot */
export async function uploadToFull(slot) {
  const peer = await slot.fresh()
  const body = Buffer.alloc(2_000_000, 'f')
  const request = slot.request('churn', 'echo', {
    method: 'POST',
    headers: { 'Content-Length': body.length, 'X-Key': `${KEY_MARK}-full` },
  })
  peer.write(request.text)
  peer.write(body)
  await slot.settle(peer, request)
  peer.close()
}
