// @ts-check
/**
 * An HTTP service in front of PostgreSQL, and the clients that ask for it through a proxy. The service has eight connections
 * to the database, and a query takes some 50 ms. A second load takes half of the connections, when it is told to.
 *
 * Takes `{ do: 'measure', seconds }` and answers with the requests per second that the service can do, asked directly. Takes
 * `{ do: 'run', port, admin, phases }` and answers with what came of each phase.
 */
import { Agent, createServer, get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const CONNECTIONS = 8
const QUERY = 'SELECT pg_sleep(0.05), sum(n) FROM generate_series(1, 2000) AS n'
const ADDRESSES = 40
/** ms */
const LOOK = 250

const pool = new pg.Pool({ connectionString: process.argv[2], max: CONNECTIONS })
/** The latency of each answer of the service, in ms. @type {number[]} */
let latencies = []

const service = createServer((_req, res) => {
  const from = performance.now()
  pool.query(QUERY).then(
    () => {
      latencies.push(performance.now() - from)
      res.end('ok')
    },
    () => {
      res.statusCode = 500
      res.end()
    },
  )
})

/** Ends the second load. @type {() => void} */
let endSecondLoad = () => undefined

/** Takes half of the connections, and keeps them busy. */
async function startSecondLoad() {
  let isOver = false
  const clients = await Promise.all(Array.from({ length: CONNECTIONS / 2 }, () => pool.connect()))
  endSecondLoad = () => {
    isOver = true
    endSecondLoad = () => undefined
  }
  for (const client of clients) {
    void (async () => {
      while (!isOver) await client.query(QUERY)
      client.release()
    })()
  }
}

const agents = Array.from(
  { length: ADDRESSES },
  (_, number) => new Agent({ keepAlive: true, maxSockets: Infinity, localAddress: `127.0.0.${2 + number}` }),
)

/** @param {number} port @param {number} number @returns {Promise<string>} the status, or the code of the error */
function ask(port, number) {
  return new Promise(resolve => {
    get({ host: '127.0.0.1', port, agent: agents[number % ADDRESSES] }, answer => {
      answer.resume()
      answer.once('end', () => resolve(String(answer.statusCode)))
    }).once('error', error => resolve('code' in error ? String(error.code) : error.message))
  })
}

/** Requests per second, with more at a time than the service can do. @param {number} seconds */
async function measure(seconds) {
  const from = performance.now()
  let served = 0
  await Promise.all(
    Array.from({ length: 4 * CONNECTIONS }, async (_, number) => {
      while (performance.now() - from < seconds * 1_000) {
        await ask(port(), number)
        served += 1
      }
    }),
  )
  return served / ((performance.now() - from) / 1_000)
}

/** @param {number} admin */
async function adaptiveRate(admin) {
  const text = await (await fetch(`http://127.0.0.1:${admin}/metrics`)).text()
  return Number(/^shaper_limit\{bucket="adaptive"\} (\S+)$/m.exec(text)?.[1])
}

/**
 * @param {{ port: number, admin: number, phases: { seconds: number, offered: number, isHalved: boolean }[] }} plan
 */
async function run({ port, admin, phases }) {
  /** @type {Record<string, number>} */
  const statuses = {}
  let number = 0
  let served = 0
  const results = []
  for (const { seconds, offered, isHalved } of phases) {
    if (isHalved) await startSecondLoad()
    else endSecondLoad()
    const from = performance.now()
    const before = served
    latencies = []
    /** @type {{ at: number, rate: number }[]} */
    const rates = []
    let sent = 0
    let look = 0
    for (;;) {
      const elapsed = performance.now() - from
      if (elapsed >= seconds * 1_000) break
      for (; sent < (offered * elapsed) / 1_000; sent += 1) {
        number += 1
        void ask(port, number).then(status => {
          statuses[status] = (statuses[status] ?? 0) + 1
          if (status === '200') served += 1
        })
      }
      if (elapsed >= look) {
        look = elapsed + LOOK
        void adaptiveRate(admin).then(rate => rates.push({ at: elapsed / 1_000, rate }))
      }
      await sleep(5)
    }
    const p90 = latencies.sort((a, b) => a - b)[Math.ceil(latencies.length * 0.9) - 1]
    results.push({ served: served - before, rates, p90 })
  }
  return { phases: results, statuses: { ...statuses } }
}

process.on('message', async message => {
  const task = /** @type {any} */ (message)
  if (task.do === 'run') return process.send?.(await run(task))
  const whole = await measure(task.seconds)
  await startSecondLoad()
  const half = await measure(task.seconds)
  endSecondLoad()
  process.send?.({ whole, half })
})
process.once('disconnect', () => process.exit())

function port() {
  const address = service.address()
  return typeof address === 'object' && address !== null ? address.port : 0
}

service.listen(0, '127.0.0.1', () => process.send?.(port()))
