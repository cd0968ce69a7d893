// @ts-check
/**
 * Clients that give up after a while, and the upstream that knows which of them are still there. Both are one process, so
 * that nobody has to be asked. The upstream answers after 300 ms.
 *
 * Takes `{ port, rate, patience, seconds, from }` and answers with what was sent to the upstream from the moment `from` on.
 */
import { connect, createServer } from 'node:net'

const SERVICE = 300
const ADDRESSES = 20
const ANSWER = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'

/** Clients that wait, by the number of their request. @type {Set<number>} */
const waiting = new Set()
/** When each request came to the upstream, and whether its client was there for the answer. @type {{ at: number, good: boolean }[]} */
let served = []
let rejected = 0

const upstream = createServer({ noDelay: true }, socket => {
  let rest = ''
  socket.on('error', () => undefined)
  socket.on('data', chunk => {
    const parts = (rest + chunk.toString('latin1')).split('\r\n\r\n')
    rest = parts.pop() ?? ''
    for (const head of parts) {
      const number = Number(/^GET \/(\d+) /.exec(head)?.[1])
      const entry = { at: performance.now(), good: false }
      served.push(entry)
      setTimeout(() => {
        entry.good = waiting.has(number)
        socket.write(ANSWER)
      }, SERVICE)
    }
  })
})

/** @param {number} port @param {number} number @param {number} patience ms */
function ask(port, number, patience) {
  const socket = connect({
    port,
    host: '127.0.0.1',
    localAddress: `127.0.0.${2 + (number % ADDRESSES)}`,
    noDelay: true,
  })
  waiting.add(number)
  const leave = () => {
    waiting.delete(number)
    socket.destroy()
  }
  const timer = setTimeout(leave, patience)
  socket.write(`GET /${number} HTTP/1.1\r\nHost: bench\r\n\r\n`)
  socket.on('data', chunk => {
    if (!chunk.toString('latin1').startsWith('HTTP/1.1 200')) rejected += 1
    leave()
  })
  socket.on('error', () => undefined)
  socket.on('close', () => clearTimeout(timer))
}

process.on('message', async message => {
  const { port, rate, patience, seconds, from } =
    /** @type {{ port: number, rate: number, patience: number, seconds: number, from: number }} */ (message)
  served = []
  rejected = 0
  const start = performance.now()
  await new Promise(resolve => {
    let number = 0
    const timer = setInterval(() => {
      const due = Math.min(seconds, (performance.now() - start) / 1_000) * rate
      for (; number < due; number += 1) ask(port, number, patience)
      if (due < seconds * rate) return
      clearInterval(timer)
      setTimeout(resolve, patience + SERVICE + 500, undefined)
    }, 1)
  })
  const [first, last] = [start + from * 1_000, start + seconds * 1_000]
  const counted = served.filter(({ at }) => at >= first && at < last)
  process.send?.({ sent: counted.length, good: counted.filter(({ good }) => good).length, rejected })
})
process.once('disconnect', () => process.exit())
upstream.listen(0, '127.0.0.1', () => {
  const address = upstream.address()
  process.send?.(typeof address === 'object' ? address?.port : undefined)
})
