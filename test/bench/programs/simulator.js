// @ts-check
/**
 * An API with strict limits, in its own process: `simulator.js DIALECT`. What a call costs is in its query. It answers 429 to
 * what its rules do not accept (../dialects.js). With `model` as DIALECT it is a model API instead: the length of an answer is
 * known when it comes, and nothing is refused, but counted. With `counter` it only notes when calls come.
 *
 * It sends its port, and for each message what it has seen.
 */
import { createServer } from 'node:http'
import { createJudge, DIALECTS, MODEL } from '../dialects.js'
import { random } from '../statistics.js'

const [dialect] = process.argv.slice(2)
const judge = dialect in DIALECTS ? createJudge(DIALECTS[dialect]) : () => 0
const draw = random(1)

let refused = 0
/** @type {{ at: number, cost: number }[]} */
const accepted = []

/** @param {import('node:http').ServerResponse} res */
function answerModel(res) {
  const tokens = Math.round(MODEL.least + draw() * (MODEL.most - MODEL.least))
  accepted.push({ at: performance.now(), cost: tokens })
  const body = JSON.stringify({ usage: { total_tokens: tokens } })
  setTimeout(
    () => res.setHeader('content-type', 'application/json').end(body),
    MODEL.latency + tokens * MODEL.msPerToken,
  )
}

const server = createServer((req, res) => {
  const url = new URL(req.url ?? '/', 'http://localhost')
  // Opens connections and loads code before the measurement.
  if (url.pathname === '/warm-up') return void res.end('{}')
  if (dialect === 'model') return answerModel(res)
  const at = performance.now()
  const wait = judge(at, Object.fromEntries(Array.from(url.searchParams, ([name, cost]) => [name, Number(cost)])))
  res.setHeader('content-type', 'application/json')
  if (wait === 0) {
    accepted.push({ at, cost: 1 })
    res.end('{}')
    return
  }
  refused += 1
  // The words by which octokit's plugin knows such an answer.
  res.writeHead(429, { 'retry-after': Math.max(1, Math.ceil(wait / 1_000)) })
  res.end('{"message":"You have exceeded a secondary rate limit."}')
})
server.keepAliveTimeout = 120_000
server.listen(0, '127.0.0.1', () =>
  process.send?.(/** @type {import('node:net').AddressInfo} */ (server.address()).port),
)
process.on('message', () => process.send?.({ refused, accepted }))
process.on('disconnect', () => process.exit())
