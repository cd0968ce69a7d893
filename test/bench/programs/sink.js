// @ts-check
/**
 * The upstream, as fast as possible. It answers `GET /.../N`. While recording, it keeps the time of each request and the
 * last digit of its path.
 */
import { createServer } from 'node:net'

const ANSWER = 'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, world!'
const answers = [1, 2, 3, 4].map(count => Buffer.from(ANSWER.repeat(count)))

const times = new Float64Array(1 << 20)
const clients = new Uint8Array(1 << 20)
let count = 0
let recording = false

const server = createServer({ noDelay: true }, socket => {
  /** The beginning of an incomplete head. @type {Buffer | undefined} */
  let rest
  socket.on('data', chunk => {
    const now = performance.now()
    if (rest !== undefined) chunk = Buffer.concat([rest, chunk])
    let requests = 0
    let from = 0
    for (;;) {
      const end = chunk.indexOf('\r\n\r\n', from)
      if (end < 0) break
      if (recording) {
        times[count] = now
        clients[count] = chunk[chunk.indexOf(32, from + 5) - 1] - 48
        count += 1
      }
      requests += 1
      from = end + 4
    }
    rest = from === chunk.length ? undefined : chunk.subarray(from)
    for (; requests > 0; requests -= 4) socket.write(answers[Math.min(requests, 4) - 1])
  })
  socket.on('error', () => undefined)
})

process.on('message', message => {
  if (message === 'record') {
    count = 0
    recording = true
    process.send?.('recording')
  } else {
    recording = false
    process.send?.({ times: times.slice(0, count), clients: clients.slice(0, count) })
  }
})
process.on('disconnect', () => process.exit())

server.listen({ port: Number(process.argv[2]), host: '127.0.0.1', backlog: 4096 }, () => {
  process.send?.(/** @type {import('node:net').AddressInfo} */ (server.address()).port)
})
