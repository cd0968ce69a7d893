// @ts-check
/**
 * Clients of several servers: each connection sends its next request after the answer to the last one, or `every` ms after it at the
 * earliest. One in ten sends POST. `{ port, connections, every? }` starts it. `stop` ends it: it answers with all answers, in order: when
 * each came (ms since 1970), its status (0: none), whether it is POST, and the first letter of its body, which names the server.
 */
import { connect } from 'node:net'

const POST_IN = 10

/** @type {{ at: number[], status: number[], post: number[], server: string[] }} */
let seen = { at: [], status: [], post: [], server: [] }
/** @type {Set<import('node:net').Socket>} */
const sockets = new Set()
let stopping = false

/** @param {{ port: number, every: number }} options @param {boolean} isPost */
function open({ port, every }, isPost) {
  const head = `${isPost ? 'POST' : 'GET'} / HTTP/1.1\r\nHost: bench\r\n`
  const request = Buffer.from(isPost ? `${head}Content-Length: 4\r\n\r\nbody` : `${head}\r\n`)
  const socket = connect({ port, host: '127.0.0.1', noDelay: true })
  sockets.add(socket)
  let text = ''
  let sentAt = 0
  let isAsked = false
  const ask = () => {
    if (stopping || socket.destroyed) return
    sentAt = performance.now()
    isAsked = true
    socket.write(request)
  }
  /** @param {number} status @param {string} server */
  const told = (status, server) => {
    isAsked = false
    if (stopping) return
    seen.at.push(performance.timeOrigin + performance.now())
    seen.status.push(status)
    seen.post.push(isPost ? 1 : 0)
    seen.server.push(server)
  }
  socket.once('connect', ask)
  socket.on('data', chunk => {
    text += chunk.toString('latin1')
    const end = text.indexOf('\r\n\r\n')
    if (end < 0) return
    const length = /content-length: *(\d+)/i.exec(text)?.[1]
    const isWhole = length === undefined ? text.endsWith('0\r\n\r\n') : text.length >= end + 4 + Number(length)
    if (!isWhole) return
    told(Number(text.slice(9, 12)), length === undefined ? '' : text.slice(end + 4, end + 5))
    text = ''
    const wait = sentAt + every - performance.now()
    if (wait > 1) setTimeout(ask, wait)
    else ask()
  })
  socket.on('error', () => undefined)
  socket.on('close', () => {
    sockets.delete(socket)
    if (stopping) return
    if (isAsked) told(0, '')
    setTimeout(() => stopping || open({ port, every }, isPost), 10)
  })
}

process.on('message', (/** @type {any} */ message) => {
  if (message === 'stop') {
    stopping = true
    for (const socket of sockets) socket.destroy()
    process.send?.(seen)
    return
  }
  stopping = false
  seen = { at: [], status: [], post: [], server: [] }
  const { port, connections, every = 0 } = message
  for (let at = 0; at < connections; at += 1) open({ port, every }, at % POST_IN === 0)
  process.send?.('sent')
})
process.on('disconnect', () => process.exit())
process.send?.('ready')
