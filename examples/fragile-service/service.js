// A service that falls over in a burst: it works on 4 requests at a time, 50 ms each. A fifth at the same moment breaks it, and
// everything is answered 500 for the next second.
import { createServer } from 'node:http'

const WORK_MS = 50
const MOST_AT_ONCE = 4
const BROKEN_MS = 1_000

let working = 0
let brokenUntil = 0

const server = createServer((_, response) => {
  if (working === MOST_AT_ONCE) brokenUntil = performance.now() + BROKEN_MS
  working += 1
  setTimeout(() => {
    working -= 1
    response.writeHead(performance.now() < brokenUntil ? 500 : 200).end()
  }, WORK_MS)
})
server.listen(Number(process.argv[2] ?? 9000), '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${server.address().port}/\n`)
})
