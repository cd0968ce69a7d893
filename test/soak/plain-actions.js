// @ts-check
/** Actions of well-behaved clients, quick and slow ones. */
import { setTimeout as sleep } from 'node:timers/promises'

/** @typedef {import('./slot.js').Slot} Slot */

const ROUTES = ['api', 'api', 'slow', 'meter', 'off', 'dry']

/** @param {Slot} slot */
export async function get(slot) {
  const peer = await slot.peer()
  const page = slot.pick(['get', 'get', 'get', 'late', 'none'])
  const headers = slot.random() < 0.1 ? { Prefer: 'wait=0' } : {}
  const route = slot.pick(ROUTES)
  const method = route === 'off' && slot.random() < 0.3 ? 'HEAD' : 'GET'
  const request = slot.request(route, page, { method, headers })
  peer.write(request.text)
  const { answer, outcome } = await slot.settle(peer, request)
  if (outcome !== 'forwarded' || method === 'HEAD' || page === 'none') return
  const body = String(answer?.body)
  if (body !== `ok ${request.id}`) slot.ledger.surprise(`${request.id} got the answer ${body}`)
}

/** @param {Slot} slot */
export async function burst(slot) {
  await Promise.all(
    Array.from({ length: 12 }, async () => {
      const peer = await slot.fresh()
      const request = slot.request('slow', 'get', { keys: 8 })
      peer.write(request.text)
      await slot.settle(peer, request)
      peer.close()
    }),
  )
}

/** @param {Slot} slot */
export async function post(slot) {
  const peer = await slot.peer()
  const size = Math.floor(slot.random() ** 3 * 200_000)
  await upload(slot, peer, { body: Buffer.alloc(size, 'b'), isChunked: slot.random() < 0.5 })
}

/**
 * @param {Slot} slot @param {import('./peer.js').Peer} peer
 * @param {{ body: Buffer, isChunked: boolean, pause?: number }} upload pause: ms between two of ten pieces
 */
async function upload(slot, peer, { body, isChunked, pause = 0 }) {
  const framing = isChunked ? { 'Transfer-Encoding': 'chunked' } : { 'Content-Length': body.length }
  const request = slot.request(slot.pick(ROUTES), 'echo', { method: 'POST', headers: framing })
  peer.write(request.text)
  const step = Math.max(1, Math.ceil(body.length / 10))
  for (let at = 0; at < body.length; at += step) {
    const piece = body.subarray(at, at + step)
    if (pause > 0) await sleep(pause)
    if (isChunked) peer.write(`${piece.length.toString(16)}\r\n`)
    peer.write(piece)
    if (isChunked) peer.write('\r\n')
  }
  if (isChunked) peer.write('0\r\n\r\n')
  const { answer, outcome } = await slot.settle(peer, request)
  if (outcome !== 'forwarded') return peer.close()
  const told = `${body.length} ${(body.length * 'b'.charCodeAt(0)) % 65_521}`
  if (String(answer?.body) !== told) slot.ledger.surprise(`an upload of ${told} came as ${answer?.body}`)
}

/** @param {Slot} slot */
export async function expectContinue(slot) {
  const peer = await slot.fresh()
  const body = Buffer.alloc(20_000, 'e')
  const request = slot.request('api', 'echo', {
    method: 'POST',
    headers: { 'Content-Length': body.length, Expect: '100-continue' },
  })
  peer.write(request.text)
  const first = await peer.answer({ interim: true })
  if (first?.status === 100) {
    peer.write(body)
    await slot.settle(peer, request)
  } else slot.ledger.settle(request.route, request.id, first)
  peer.close()
}

/** @param {Slot} slot */
export async function slowReader(slot) {
  const peer = await slot.fresh()
  const size = 3_000_000
  const request = slot.request('off', 'big', { query: `&size=${size}` })
  peer.write(request.text)
  const { answer, outcome } = await slot.settle(peer, request, { pause: () => sleep(5) })
  if (outcome === 'forwarded' && answer?.body.length !== size) slot.ledger.surprise('a large answer came short')
  peer.close()
}

/** @param {Slot} slot */
export async function slowWriter(slot) {
  const peer = await slot.fresh()
  const request = slot.request('meter', 'get')
  for (let at = 0; at < request.text.length; at += 20) {
    peer.write(request.text.slice(at, at + 20))
    await sleep(30)
  }
  await slot.settle(peer, request)
  await upload(slot, await slot.peer(), { body: Buffer.alloc(5_000, 'b'), isChunked: slot.random() < 0.5, pause: 60 })
  peer.close()
}

/** The upstream never answers. @param {Slot} slot */
export async function hang(slot) {
  const peer = await slot.fresh()
  const request = slot.request(slot.pick(['meter', 'off']), 'hang')
  peer.write(request.text)
  await slot.settle(peer, request)
  peer.close()
}

/** The upstream breaks off its answer. @param {Slot} slot */
export async function breakOff(slot) {
  const peer = await slot.fresh()
  const request = slot.request(slot.pick(['meter', 'off', 'dry']), slot.pick(['break', 'half']))
  peer.write(request.text)
  await slot.settle(peer, request)
  peer.close()
}

/** Many requests in one write, answers in order. @param {Slot} slot */
export async function pipeline(slot) {
  const peer = await slot.fresh()
  const requests = Array.from({ length: 2 + Math.floor(slot.random() * 20) }, () =>
    slot.request(slot.pick(ROUTES), 'get'),
  )
  peer.write(requests.map(({ text }) => text).join(''))
  for (const [place, request] of requests.entries()) {
    const { answer, outcome } = await slot.settle(peer, request)
    if (outcome === 'forwarded' && String(answer?.body) !== `ok ${request.id}`) {
      slot.ledger.surprise(`answers are out of order: ${answer?.body} for ${request.id}`)
    }
    if (peer.open) continue
    // Pipelined requests are lost with their connection.
    for (const { route, id } of requests.slice(place + 1)) slot.ledger.abandons(route, id)
    break
  }
  peer.close()
}
