// An API with a hard cap, kept by a token bucket: 20 tokens per second, 5 at most. A request without a token is answered 429.
import { createServer } from 'node:http'

const PER_SECOND = 20
const BURST = 5

let tokens = BURST
let countedAt = performance.now()

const server = createServer((_, response) => {
  const now = performance.now()
  tokens = Math.min(BURST, tokens + ((now - countedAt) * PER_SECOND) / 1_000)
  countedAt = now
  if (tokens < 1) {
    response.writeHead(429, { 'retry-after': '1' }).end()
    return
  }
  tokens -= 1
  response.end('ok')
})
server.listen(Number(process.argv[2] ?? 9000), '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${server.address().port}/\n`)
})
