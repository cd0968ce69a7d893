// @ts-check
/**
 * Clients that all ask for the same page at once, and its upstream, which takes 20 ms.
 *
 * Takes `{ port, requests }` and answers with the ms until all were answered, and how many of them came to the upstream.
 */
import { connect, createServer } from 'node:net'

const SERVICE = 20
const ADDRESSES = 20
const BODY = 'x'.repeat(10_000)
const ANSWER = `HTTP/1.1 200 OK\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`

let served = 0

const upstream = createServer({ noDelay: true }, socket => {
  let rest = ''
  socket.on('error', () => undefined)
  socket.on('data', chunk => {
    const heads = (rest + chunk.toString('latin1')).split('\r\n\r\n')
    rest = heads.pop() ?? ''
    served += heads.length
    for (const _ of heads) setTimeout(() => socket.write(ANSWER), SERVICE)
  })
})

/** @param {number} port @param {number} number @returns {Promise<import('node:net').Socket>} */
function open(port, number) {
  const localAddress = `127.0.0.${2 + (number % ADDRESSES)}`
  return new Promise((resolve, reject) => {
    const socket = connect({ port, host: '127.0.0.1', localAddress, noDelay: true }, () => resolve(socket))
    socket.once('error', reject)
  })
}

/** @param {import('node:net').Socket} socket @returns {Promise<void>} */
function ask(socket) {
  return new Promise((resolve, reject) => {
    let text = ''
    socket.on('data', chunk => {
      text += chunk.toString('latin1')
      if (!text.startsWith('HTTP/1.1 200')) reject(new Error(text.slice(0, 200)))
      else if (text.endsWith(BODY)) resolve()
    })
    socket.write('GET /page HTTP/1.1\r\nHost: bench\r\n\r\n')
  })
}

process.on('message', async message => {
  const { port, requests } = /** @type {{ port: number, requests: number }} */ (message)
  const sockets = await Promise.all(Array.from({ length: requests }, (_, number) => open(port, number)))
  served = 0
  const start = performance.now()
  await Promise.all(sockets.map(ask))
  const ms = performance.now() - start
  for (const socket of sockets) socket.destroy()
  process.send?.({ ms, served })
})
process.once('disconnect', () => process.exit())
upstream.listen(0, '127.0.0.1', () => {
  const address = upstream.address()
  process.send?.(typeof address === 'object' ? address?.port : undefined)
})
