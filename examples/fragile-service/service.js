// A service that falls over in a burst. It works on 4 requests at a time, 100 ms each. A fifth at the same moment breaks it: it
// answers 500 until it has nothing left to do.
import { createServer } from 'node:http'

const WORK_MS = 100
const MOST_AT_ONCE = 4

let working = 0
let broken = false

const server = createServer((_, response) => {
  working += 1
  if (working > MOST_AT_ONCE) broken = true
  setTimeout(() => {
    response.writeHead(broken ? 500 : 200).end()
    working -= 1
    if (working === 0) broken = false
  }, WORK_MS)
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
