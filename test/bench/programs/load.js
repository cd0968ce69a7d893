// @ts-check
/**
 * A closed-loop client: each connection sends its next request after the answer to the last one. With enough connections
 * a queue is never empty. `{ port, clients: [{ path, key }], connections, requests?, apart? }` starts it: `connections`
 * for each client, at most `requests` for each connection, and `apart` ms between the starts of two clients.
 * `stop` ends it.
 */
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

/** @type {import('node:net').Socket[]} */
let sockets = []
let answered = 0
let refused = 0
let failed = 0
let stopping = false

/** @param {{ port: number, path: string, key: string, requests: number }} options @param {() => void} sent */
function open({ port, path, key, requests }, sent) {
  const request = Buffer.from(`GET ${path} HTTP/1.1\r\nHost: bench\r\nX-Key: ${key}\r\n\r\n`)
  const socket = connect({ port, host: '127.0.0.1', noDelay: true })
  sockets.push(socket)
  let left = requests
  let text = ''
  socket.once('connect', () => {
    socket.write(request)
    sent()
  })
  socket.on('data', chunk => {
    text += chunk.toString('latin1')
    const head = text.indexOf('\r\n\r\n')
    if (head < 0) return
    if (text.length < head + 4 + Number(/content-length: *(\d+)/i.exec(text)?.[1] ?? 0)) return
    if (text.startsWith('HTTP/1.1 200')) answered += 1
    else refused += 1
    text = ''
    left -= 1
    if (left > 0) socket.write(request)
    else socket.destroy()
  })
  const lost = () => {
    if (!stopping && left > 0) failed += 1
    left = 0
  }
  socket.on('error', lost)
  socket.on('close', lost)
}

process.on('message', async (/** @type {any} */ message) => {
  if (message === 'stop') {
    stopping = true
    for (const socket of sockets) socket.destroy()
    process.send?.({ answered, refused, failed })
    sockets = []
    return
  }
  const { port, clients, connections, requests = Infinity, apart } = message
  stopping = false
  answered = refused = failed = 0
  if (apart !== undefined) {
    for (const { path, key } of clients) {
      for (let at = 0; at < connections; at += 1) open({ port, path, key, requests }, () => undefined)
      await sleep(apart)
    }
    process.send?.('sent')
    return
  }
  const waves = []
  for (let at = 0; at < connections; at += 1) {
    for (const { path, key } of clients) {
      waves.push(new Promise(sent => open({ port, path, key, requests }, () => sent(undefined))))
    }
    // At most as many at once as a listen queue holds.
    if (waves.length >= 200) await Promise.all(waves.splice(0))
  }
  await Promise.all(waves)
  process.send?.('sent')
})
process.on('disconnect', () => process.exit())
process.send?.('ready')
