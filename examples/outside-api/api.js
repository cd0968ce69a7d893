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
const port = Number(process.argv[2] ?? 9000)
server.on('error', error => {
  if (error.code !== 'EADDRINUSE') throw error
  process.stderr.write(`127.0.0.1:${port} is in use; stop what uses it, e.g. another example (kill %1 %2)\n`)
  process.exit(1)
})
server.listen(port, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${server.address().port}/\n`)
})
