// An API with a hard limit, in a process of its own: `strict-server.js RATE SLACK`. It answers 429 to a request that comes
// sooner than one period less SLACK ms after the one before, and to one that is more than RATE in a second less SLACK ms.
// On request it sends its parent the time of each request, in ms, and its status.
import { createServer } from 'node:net'

const [rate, slack] = process.argv.slice(2).map(Number)
const period = 1_000 / rate
const END = '\r\n\r\n'

/** @param {number} status */
const answer = status => `HTTP/1.1 ${status} Whatever\r\nContent-Length: 2\r\n\r\nok`

const seen = []

function judge() {
  const at = Number(process.hrtime.bigint()) / 1e6
  const times = seen.map(([time]) => time)
  const tooClose = at - (times.at(-1) ?? -Infinity) < period - slack
  const tooMany = at - (times.at(-Math.ceil(rate)) ?? -Infinity) < 1_000 - slack
  const status = tooClose || tooMany ? 429 : 200
  seen.push([at, status])
  return status
}

const server = createServer({ noDelay: true }, socket => {
  let text = ''
  socket.on('error', () => {})
  socket.on('data', chunk => {
    text += chunk.toString('latin1')
    for (let end = text.indexOf(END); end >= 0; end = text.indexOf(END)) {
      text = text.slice(end + END.length)
      socket.write(answer(judge()))
    }
  })
})
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }))
process.on('message', () => process.send({ seen }))
process.on('disconnect', () => process.exit())
