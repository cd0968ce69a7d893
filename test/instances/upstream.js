// A bare upstream in its own process. It records the time and path of each request, answers at once, and sends its
// records to its parent on request. Times are in ms of CLOCK_MONOTONIC.
import { createServer } from 'node:net'

const ANSWER = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'
const END = '\r\n\r\n'

const now = () => Number(process.hrtime.bigint()) / 1e6
const seen = []

const server = createServer({ noDelay: true }, socket => {
  let text = ''
  socket.on('error', () => {})
  socket.on('data', chunk => {
    const at = now()
    text += chunk.toString('latin1')
    for (let end = text.indexOf(END); end >= 0; end = text.indexOf(END)) {
      seen.push([at, text.slice(0, end).split(' ', 2)[1]])
      text = text.slice(end + END.length)
      socket.write(ANSWER)
    }
  })
})
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }))
process.on('message', () => process.send({ seen }))
process.on('disconnect', () => process.exit())
