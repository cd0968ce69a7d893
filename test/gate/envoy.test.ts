/**
 * Envoy's filter ext_authz with an `http_service`, which Debian has no package of: its questions as
 * source/extensions/filters/common/ext_authz/ext_authz_http_impl.cc and source/common/http/async_client_impl.cc write them. Status
 * 200 alone lets the request pass, one from 500 on is a failure, and each other answer goes to the client as it is.
 */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { effective } from '../../src/config/report/effective-config.js'
import { askOnce, connect, type Rig, type RigOptions, startRig } from '../proxy/harness.js'
import { deployed } from '../servers/gate-proxies.js'

type Test = Parameters<typeof startRig>[0]

/** The machine that Envoy runs on, as it adds it to X-Forwarded-For. */
const ENVOY = '172.17.0.2'

interface Question {
  readonly method?: string
  readonly path?: string
  /** As Envoy sends it on: what the client sent, then the client. */
  readonly forwardedFor?: string
  /** ms */
  readonly timeout?: number
}

function question({ method = 'GET', path = '/', forwardedFor = '192.0.2.1', timeout = 60_000 }: Question = {}): string {
  const lines = [
    `${method} ${path} HTTP/1.1`,
    'host: shop.example',
    'content-length: 0',
    `x-forwarded-for: ${forwardedFor},${ENVOY}`,
    'x-envoy-internal: true',
    `x-envoy-expected-rq-timeout-ms: ${timeout}`,
  ]
  return `${lines.join('\r\n')}\r\n\r\n`
}

/** The gate of deploy/gate, with one request a minute for each client. */
function start(t: Test, { capacity, routes = [], rig }: { capacity: number; routes?: object[]; rig?: RigOptions }) {
  const config = effective(parseConfig(deployed('shaper-envoy.config.json'))) as {
    buckets: { client: object }
    routes: object[]
  }
  const client = { ...config.buckets.client, rate: '1/m', capacity }
  const all = { ...config, listen: '127.0.0.1:0', buckets: { ...config.buckets, client } }
  return startRig(t, { ...all, routes: [...routes, ...config.routes] }, rig)
}

const routesOf = (rig: Rig) => rig.outcomes.map(outcome => outcome.split(' ')[0])

t.test('200 alone lets a request pass, and its client gets a rejection as it is', async t => {
  const rig = await start(t, { capacity: 1 })
  const passed = await askOnce(t, rig, question())
  t.match(
    { status: passed.status, length: passed.header('content-length'), wait: passed.header('x-shaper-wait') },
    { status: 200, length: '0', wait: '0' },
  )
  t.match(passed.header('ratelimit-policy'), /^"client";q=1;w=60/)
  const rejected = await askOnce(t, rig, question())
  t.match(
    { status: rejected.status, retryAfter: rejected.header('retry-after'), body: rejected.json() },
    { status: 429, retryAfter: '60', body: { 'violated-policies': ['client'] } },
  )
  t.same(rig.outcomes, ['all forwarded 200', 'all rejected 429'])
})

t.test(
  'method, path and host are those of the question, and the client stands before the address of Envoy',
  async t => {
    const match = { path: '/api/*', method: 'POST', host: 'shop.example' }
    const routes = [{ name: 'post', match, gate: { passStatus: 200 } }]
    const rig = await start(t, { capacity: 1, routes, rig: { realPacer: true } })
    const statusOf = async (asked: Question) => (await askOnce(t, rig, question(asked))).status
    t.equal(await statusOf({ method: 'POST', path: '/api/x?y=z' }), 200)
    t.equal(await statusOf({ path: '/healthz' }), 200)
    t.equal(await statusOf({ forwardedFor: '198.51.100.7, 192.0.2.1' }), 429, 'a client that names another one')
    t.equal(await statusOf({ forwardedFor: '192.0.2.2' }), 200, 'another client')
    t.same(routesOf(rig), ['post', 'health', 'all', 'all'])
  },
)

t.test('the time-out of Envoy is a deadline, and a client that hangs up leaves the queue', async t => {
  const rig = await start(t, { capacity: 5, routes: [{ name: 'patient', gate: { passStatus: 200 } }] })
  t.equal((await askOnce(t, rig, question())).status, 200)
  t.equal((await askOnce(t, rig, question({ timeout: 200 }))).status, 429, 'it would wait for a minute')
  const waiting = await connect(t, rig)
  waiting.send(question({ timeout: 90_000 }))
  await rig.until(({ queued }) => queued.length === 1)
  waiting.hangUp()
  await rig.finished(3)
  t.equal(rig.outcomes.at(-1), 'patient cancelled 499')
  t.equal(rig.proxy.context.shaper.queued, 0)
})
