// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { WebSocket } from 'ws'
import { SEEN } from './ledger.js'
import { KEY_MARK } from './plan.js'

/** How long to wait for anything, in ms. */
const PATIENCE = 15_000

/** A WebSocket through the queue: some messages both ways, then one of several endings. @param {import('./slot.js').Slot} slot */
export async function webSocket(slot) {
  const { ledger, port } = slot
  const id = ledger.next()
  const route = slot.pick(['api', 'meter'])
  const url = `ws://127.0.0.1:${port}/${route}/ws?id=${id}`
  const socket = new WebSocket(url, { headers: { 'x-key': `${KEY_MARK}-${Math.floor(slot.random() * 100)}` } })
  socket.on('error', () => undefined)
  const patience = setTimeout(() => socket.terminate(), PATIENCE)
  // `once` of node:events would end at an error.
  const closed = new Promise(resolve => socket.once('close', resolve))
  const answer = await handshake(socket)
  if (answer === undefined) {
    // A restart of the upstream may break the tunnel before its answer is out.
    ledger.guesses(route, ['forwarded', 'failed', 'cancelled'], id)
  } else if (answer === 'open') {
    ledger.knows(route, 'forwarded', id, SEEN.once)
    await talk(slot, socket)
  } else ledger.settle(route, id, answer)
  if (answer !== 'open' && socket.readyState !== WebSocket.CLOSED) socket.terminate()
  await closed
  clearTimeout(patience)
}

/** @param {WebSocket} socket @returns {Promise<'open' | import('./ledger.js').Answer | undefined>} */
function handshake(socket) {
  return new Promise(resolve => {
    socket.once('open', () => resolve('open'))
    socket.once('close', () => resolve(undefined))
    socket.once('unexpected-response', async (_request, response) => {
      const pieces = []
      for await (const piece of response) pieces.push(piece)
      const headers = new Map(Object.entries(response.headers).map(([name, value]) => [name, String(value)]))
      resolve({ status: response.statusCode ?? 0, headers, body: Buffer.concat(pieces), complete: response.complete })
    })
  })
}

/** @param {import('./slot.js').Slot} slot @param {WebSocket} socket */
async function talk(slot, socket) {
  for (let count = 0; count < 3 && socket.readyState === WebSocket.OPEN; count += 1) {
    const sent = 'm'.repeat(Math.floor(slot.random() * 50_000) + 10)
    const echoed = new Promise(resolve => {
      socket.once('message', data => resolve(String(data))).once('close', () => resolve(undefined))
    })
    socket.send(sent)
    const came = await echoed
    if (came !== undefined && came !== sent) slot.ledger.surprise('a WebSocket message came back as another')
    await sleep(slot.random() * 50)
  }
  const end = slot.pick(['close', 'terminate', 'ask', 'reset'])
  if (end === 'close') socket.close(1_000)
  else if (end === 'terminate') socket.terminate()
  else if (socket.readyState === WebSocket.OPEN) socket.send(end === 'ask' ? 'close' : 'reset')
}
