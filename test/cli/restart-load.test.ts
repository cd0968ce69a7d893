/**
 * Restarts while many wait: seen from the upstream nobody is lost, refused or passed, and nothing leaves above the rate (contract 15.6).
 * By hand: `SHAPER_RESTARTS=100 SHAPER_WAITING=10000 TAP_TIMEOUT=3600 node build/test/cli/restart-load.test.js`.
 */
import { once } from 'node:events'
import { connect } from 'node:net'
import { Worker } from 'node:worker_threads'
import t from 'tap'
import { freePort } from '../servers/free-port.js'
import { shaper } from './command.js'

const DEEP = process.env.SHAPER_DEEP !== undefined
const RESTARTS = Number(process.env.SHAPER_RESTARTS ?? (DEEP ? 100 : 2))
const WAITING = Number(process.env.SHAPER_WAITING ?? (DEEP ? 10_000 : 1_000))
/** Requests per second. */
const RATE = 200
/** ms */
const PERIOD = 1_000 / RATE
/** ms. From one connection to the next one, so that the order in which they are read is that in which they are opened. */
const APART = 1

/** By the upstream. Times in ms. */
interface Seen {
  readonly order: readonly number[]
  readonly times: readonly number[]
  /** How late a timer was there. */
  readonly late: number
}

/** A thread of its own: so many clients keep theirs busy. */
const UPSTREAM = `const { parentPort } = require('node:worker_threads')
const seen = { order: [], times: [], late: 0 }
let due = performance.now() + 5
setInterval(() => {
  seen.late = Math.max(seen.late, performance.now() - due)
  due = performance.now() + 5
}, 5)
const server = require('node:http').createServer((req, res) => {
  seen.order.push(Number(req.url.slice(1)))
  seen.times.push(performance.now())
  res.end('ok')
})
server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port))
parentPort.on('message', () => parentPort.postMessage(seen))`

/** Clients on connections of their own. A request that is answered is followed by another one until the end. */
class Crowd {
  readonly failures = new Map<string, number>()
  asked = 0
  answered = 0
  #isOver = false
  readonly #port: number

  constructor(port: number) {
    this.#port = port
  }

  ask(): void {
    const socket = connect(this.#port, '127.0.0.1')
    let text = ''
    socket.on('error', ({ message }) => this.#count(message)).on('data', (part: Buffer) => (text += part))
    socket.on('close', () => {
      this.answered += 1
      if (!text.startsWith('HTTP/1.1 200')) this.#count(text.slice(0, 12))
      if (!this.#isOver) this.ask()
    })
    socket.write(`GET /${this.asked} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`)
    this.asked += 1
  }

  #count(what: string): void {
    this.failures.set(what, (this.failures.get(what) ?? 0) + 1)
  }

  async end(): Promise<void> {
    this.#isOver = true
    while (this.answered < this.asked) await new Promise(resolve => setTimeout(resolve, 50))
  }
}

/** How much more came in some window than contract 2.4 allows, in requests. @param g the grace in ms @param most requests at once */
function excessOf(times: readonly number[], g: number, most: number): number {
  let excess = -Infinity
  /** The least of `time * r - count` before each arrival. */
  let start = Infinity
  for (const [at, time] of times.entries()) {
    start = Math.min(start, at - time / PERIOD)
    excess = Math.max(excess, at + 1 - time / PERIOD - start - g / PERIOD - most)
  }
  return excess
}

function orderOf(order: readonly number[]) {
  let highest = -1
  let passed = 0
  let places = 0
  for (const [place, number] of order.entries()) {
    if (number < highest) passed += 1
    highest = Math.max(highest, number)
    places = Math.max(places, place - number)
  }
  return { passed, places }
}

for (const workers of [0, 2]) {
  const name = workers === 0 ? 'one process' : `--workers ${workers}`
  t.test(`${RESTARTS} restarts with ${WAITING} waiting (${name})`, { timeout: 3_600_000 }, async t => {
    const upstream = new Worker(UPSTREAM, { eval: true })
    t.teardown(() => upstream.terminate())
    const told = async (): Promise<unknown> => (await once(upstream, 'message'))[0]
    const look = (): Promise<Seen> => {
      upstream.postMessage('look')
      return told() as Promise<Seen>
    }
    const upstreamPort = await told()
    const [port, admin] = [await freePort(), `127.0.0.1:${await freePort()}`]
    const most = 2 * WAITING
    const config = {
      listen: `127.0.0.1:${port}`,
      upstream: `http://127.0.0.1:${upstreamPort}`,
      buckets: { all: { key: 'all', rate: `${RATE}/s`, capacity: most } },
      routes: [{ name: 'all', patience: 'none' }],
      limits: { maxQueued: 2 * most, maxConnections: most, connectionsPerClient: 2 * most },
      admin: { listen: admin },
      accessLog: false,
    }
    const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
    const command = shaper(['start', ...(workers > 0 ? ['--workers', `${workers}`] : [])], { cwd })
    await command.url
    const crowd = new Crowd(port)
    while (crowd.asked < WAITING) {
      crowd.ask()
      await new Promise(resolve => setTimeout(resolve, APART))
    }
    const began = (await look()).times.length
    for (let done = 0; done < RESTARTS; done += 1) {
      const { code, stderr } = await shaper(['restart', '--admin', `http://${admin}`]).finished
      if (code !== 0) t.fail(stderr)
    }
    const during = (await look()).times.slice(began)
    await crowd.end()
    const seen = await look()
    command.child.kill('SIGTERM')
    t.equal((await command.finished).code, 0)
    t.same([...crowd.failures], [], 'none is refused')
    t.same(
      [...seen.order].sort((a, b) => a - b),
      [...seen.order.keys()].slice(0, crowd.asked),
      'none is lost or sent twice',
    )
    const { passed, places } = orderOf(seen.order)
    // A busy upstream reads what came on several connections in another order. Two workers keep it as their frames do.
    if (workers === 0) t.ok(places <= WAITING / 20, `one is passed by ${places}`)
    const gaps = during.slice(1).map((time, at) => time - during[at]!)
    const wide = gaps.filter(gap => gap > 2 * PERIOD).length
    const excess = excessOf(seen.times, workers === 0 ? PERIOD : 10, Math.max(1, workers))
    t.comment(
      `${during.length} during the restarts, ${((during.length - 1) / ((during.at(-1)! - during[0]!) / PERIOD)).toFixed(3)} of the rate, the widest gap ${Math.max(...gaps).toFixed(1)} ms, ${wide} above two periods; a timer at the upstream was ${seen.late.toFixed(1)} ms late; ` +
        `${passed} passed by a later one, by ${places} places at most; ${excess.toFixed(1)} above the bound`,
    )
    const span = seen.times.at(-1)! - seen.times[0]!
    t.ok(seen.times.length <= (span + 10) / PERIOD + 1 + workers, 'the rate holds over the whole time')
  })
}
