/** Spans of requests and metrics, as an SDK of OpenTelemetry gets them, and as a collector does. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import {
  InMemorySpanExporter,
  NodeTracerProvider,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-node'
import type { Test } from 'tap'
import t from 'tap'
import { request } from 'undici'
import { Tracing } from '../../src/cli/serving/tracing.js'
import { parseConfig } from '../../src/config/load.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { createTimerClock } from '../../src/pacing/timer.js'
import { combineObservers } from '../../src/proxy/observe/observer.js'
import { startProxy } from '../../src/proxy/server/server.js'
import { blocks } from '../docs-code.js'
import { httpUpstream, turns } from '../proxy/harness.js'
import { until } from '../servers/redis.js'
import { shaper } from './command.js'

const CLIENT = '0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331'

t.test('without an SDK nothing is traced', async t => {
  t.equal(Tracing.create(createVirtualClock()), undefined)
})

const exporter = new InMemorySpanExporter()

/** A traced proxy on a virtual clock. */
async function startTraced(t: Test, config: object) {
  const settings = parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config }))
  const pacer = createVirtualClock()
  const tracing = Tracing.create(pacer)!
  const over: string[] = []
  let queued = 0
  const observer = combineObservers([
    {
      queued() {
        queued += 1
      },
      unqueued() {
        queued -= 1
      },
      finished: (record, outcome) => void over.push(`${outcome} ${tracing.traceOf(record)}`),
    },
    tracing,
  ])
  const proxy = await startProxy({
    ...{ settings, pacer, clock: createTimerClock(), observer, propagate: tracing.propagate },
  })
  exporter.reset()
  t.teardown(() => proxy.drain(0))
  return {
    ...{ proxy, pacer, over },
    async untilQueued(count: number) {
      while (queued !== count) await turns()
    },
    async untilOver(count: number) {
      while (over.length !== count) await turns()
    },
  }
}

/** The spans of one kind in the order of their ends. */
function spansOf(kind: 'held' | 'server' | 'client'): ReadableSpan[] {
  const number = { held: 0, server: 1, client: 2 }[kind]
  return exporter.getFinishedSpans().filter(span => span.kind === number)
}

/** In ms. */
function durationOf({ duration: [seconds, nanoseconds] }: ReadableSpan): number {
  return Math.round(seconds * 1e3 + nanoseconds / 1e6)
}

t.test('with an SDK', async t => {
  new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }).register()

  await t.test('a trace goes on: held, then forwarded, and the upstream is told', async t => {
    const seen: string[][] = []
    const upstream = await httpUpstream(t, (req, res) => {
      seen.push(req.rawHeaders)
      res.end('ok')
    })
    const { proxy, pacer, over, untilQueued, untilOver } = await startTraced(t, {
      upstream: upstream.url,
      buckets: { client: { key: 'all', rate: '10/s', capacity: 5 } },
      routes: [{ name: 'api' }],
    })
    await (await request(proxy.url)).body.dump()
    await untilOver(1)
    const headers = { TraceParent: `00-${CLIENT}-01`, TraceState: 'a=1,b=2', Baggage: 'user=a%20b;x=1, other=2' }
    const held = request(`${proxy.url}/secret?token=1`, { headers })
    await untilQueued(1)
    pacer.runUntil(100)
    t.equal((await held).statusCode, 200)
    await untilOver(2)
    const [first, second] = spansOf('server')
    const [forwarded, again] = spansOf('client')
    const [span] = spansOf('held')
    t.equal(spansOf('held').length, 1, 'the first one was not held')
    t.equal(first!.parentSpanContext, undefined)
    const [traceId, parent] = CLIENT.split('-')
    t.same([second!.spanContext().traceId, second!.parentSpanContext!.spanId], [traceId, parent])
    for (const child of [span!, again!]) {
      t.equal(child.spanContext().traceId, traceId)
      t.equal(child.parentSpanContext!.spanId, second!.spanContext().spanId)
    }
    t.equal(durationOf(span!), 100)
    t.equal(durationOf(second!), 100)
    t.same(again!.startTime, span!.endTime)
    t.equal(second!.name, 'GET api')
    t.same(second!.attributes, {
      'http.request.method': 'GET',
      'url.path': '/secret',
      'shaper.route': 'api',
      'shaper.outcome': 'forwarded',
      'http.response.status_code': 200,
    })
    t.same(span!.attributes, { 'shaper.route': 'api', 'shaper.buckets': ['client'] })
    t.same(again!.attributes, {
      'http.request.method': 'GET',
      'server.address': '127.0.0.1',
      'server.port': Number(new URL(upstream.url).port),
      'http.response.status_code': 200,
    })
    const told = (span: ReadableSpan) => `00-${span.spanContext().traceId}-${span.spanContext().spanId}-01`
    const lines = (raw: string[]) => raw.flatMap((name, at) => (at % 2 ? [] : [[name, raw[at + 1]!]]))
    const traced = (raw: string[]) => lines(raw).filter(([name]) => /^(trace|baggage)/i.test(name!))
    t.same(traced(seen[0]!), [['traceparent', told(forwarded!)]])
    t.same(traced(seen[1]!), [
      ['TraceParent', told(again!)],
      ['TraceState', 'a=1,b=2'],
      ['Baggage', 'user=a%20b;x=1, other=2'],
    ])
    t.equal(over[1], `forwarded ${traceId}`, 'the log can tell it')
  })

  await t.test('several lines of traceparent are none, and one is passed on', async t => {
    let seen: string[] = []
    const upstream = await httpUpstream(t, (req, res) => {
      seen = req.headersDistinct.traceparent ?? []
      res.end('ok')
    })
    const { proxy, untilOver } = await startTraced(t, {
      upstream: upstream.url,
      routes: [{ name: 'api', mode: 'off' }],
    })
    const line = `00-${CLIENT}-01`
    await (await request(proxy.url, { headers: ['traceparent', line, 'traceparent', line] })).body.dump()
    await untilOver(1)
    t.equal(seen.length, 1)
    t.notOk(seen[0]!.includes(CLIENT.slice(0, 32)))
    t.equal(spansOf('server')[0]!.parentSpanContext, undefined)
  })

  await t.test('rejected, cancelled, refused: never forwarded', async t => {
    const upstream = await httpUpstream(t)
    const { proxy, untilQueued, untilOver } = await startTraced(t, {
      upstream: upstream.url,
      buckets: { client: { key: 'all', rate: '1/h', capacity: 2 } },
      routes: [{ name: 'api', match: { path: '/api' } }],
    })
    const url = `${proxy.url}/api`
    await (await request(url)).body.dump()
    const abort = new AbortController()
    const waiting = request(url, { signal: abort.signal })
    await untilQueued(1)
    t.equal((await request(url)).statusCode, 429)
    abort.abort()
    await t.rejects(waiting)
    await untilOver(3)
    t.equal((await request(proxy.url)).statusCode, 404)
    await untilOver(4)
    t.equal(spansOf('client').length, 1)
    t.equal(spansOf('held').length, 1)
    t.match(
      spansOf('server').map(({ name, attributes }) => [name, attributes]),
      [
        ['GET api', { 'shaper.outcome': 'forwarded' }],
        [
          'GET api',
          {
            ...{ 'shaper.outcome': 'rejected', 'shaper.reason': 'overflow', 'shaper.bucket': 'client' },
            'http.response.status_code': 429,
          },
        ],
        ['GET api', { 'shaper.outcome': 'cancelled' }],
        ['GET', { 'shaper.outcome': 'refused', 'http.response.status_code': 404 }],
      ],
    )
    t.notOk('http.response.status_code' in spansOf('server')[2]!.attributes, 'it got no answer')
  })

  await t.test('sent again: held and forwarded twice', async t => {
    let asked = 0
    const parents: (string | undefined)[] = []
    const upstream = await httpUpstream(t, (req, res) => {
      asked += 1
      parents.push(req.headers.traceparent as string)
      res.writeHead(asked === 1 ? 503 : 200).end()
    })
    const { proxy, pacer, untilQueued, untilOver } = await startTraced(t, {
      upstream: { url: upstream.url, retry: { status: [503], max: 1 } },
      buckets: { client: { key: 'all', rate: '10/s', capacity: 5 } },
      routes: [{ name: 'api' }],
    })
    const answer = request(proxy.url)
    await untilQueued(1)
    pacer.runUntil(100)
    t.equal((await answer).statusCode, 200)
    await untilOver(1)
    const [first, second] = spansOf('client')
    t.equal(spansOf('client').length, 2)
    t.equal(spansOf('held').length, 1)
    t.equal(spansOf('server').length, 1)
    t.same([first!.status, second!.status], [{ code: 2, message: 'sent again' }, { code: 0 }])
    t.equal(second!.attributes['http.request.resend_count'], 1)
    t.same(
      parents.map(each => each!.split('-')[2]),
      [first, second].map(each => each!.spanContext().spanId),
    )
  })

  await t.test('an upstream that fails, and a connection that breaks', async t => {
    const upstream = await httpUpstream(t, (req, res) => (req.url === '/' ? req.socket.destroy() : res.end()))
    const { proxy, untilOver } = await startTraced(t, {
      upstream: { url: upstream.url, breaker: false },
      routes: [{ name: 'api', mode: 'off' }],
    })
    await (await request(`${proxy.url}/fine`)).body.dump()
    await untilOver(1)
    exporter.reset()
    t.equal((await request(proxy.url)).statusCode, 502)
    await untilOver(2)
    t.same(
      spansOf('client').map(({ status }) => status.code),
      [2, 2],
      'the idle connection broke, and so did a new one',
    )
    t.equal(spansOf('server')[0]!.status.code, 2)
  })
})

/** What a collector has got. */
interface Received {
  readonly name: string
  readonly kind: number
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly startTimeUnixNano: string
  readonly endTimeUnixNano: string
}

/** The last value of each metric with its labels, of each instance. */
type Metrics = Map<string, Record<string, number>>

interface Point {
  readonly attributes: readonly { readonly key: string; readonly value: { readonly stringValue: string } }[]
  readonly asInt?: number
  readonly asDouble?: number
  readonly count?: number
}

/** As a collector gets them over HTTP. */
interface ReceivedMetrics {
  readonly resourceMetrics: readonly {
    readonly resource: Pick<Point, 'attributes'>
    readonly scopeMetrics: readonly {
      readonly scope: { readonly name: string; readonly version: string }
      readonly metrics: readonly {
        readonly name: string
        readonly sum?: { readonly dataPoints: readonly Point[]; readonly isMonotonic: boolean }
        readonly gauge?: { readonly dataPoints: readonly Point[] }
        readonly histogram?: { readonly dataPoints: readonly Point[] }
      }[]
    }[]
  }[]
}

function collect(metrics: Metrics, { resourceMetrics }: ReceivedMetrics): void {
  for (const { resource, scopeMetrics } of resourceMetrics) {
    const id = resource.attributes.find(({ key }) => key === 'service.instance.id')!.value.stringValue
    const values = metrics.get(id) ?? {}
    metrics.set(id, values)
    for (const each of scopeMetrics.flatMap(scope => scope.metrics)) {
      for (const { attributes, asInt, asDouble, count } of (each.sum ?? each.gauge ?? each.histogram)!.dataPoints) {
        const labels = attributes.map(({ key, value }) => `${key}=${value.stringValue}`)
        values[[each.name, ...labels].join(' ')] = (asInt ?? asDouble ?? count)!
      }
    }
  }
}

/** A collector, and an upstream that notes `traceparent`. */
async function startServers(t: Test) {
  const metrics: Metrics = new Map()
  const spans: Received[] = []
  const parents: string[] = []
  const server = createServer(async (req, res) => {
    if (!/^\/v1\/(traces|metrics)$/.test(req.url!)) {
      parents.push(String(req.headers.traceparent))
      return res.end('ok')
    }
    const chunks: Buffer[] = []
    for await (const chunk of req) chunks.push(chunk as Buffer)
    const { resourceSpans = [], ...rest } = JSON.parse(Buffer.concat(chunks).toString())
    if ('resourceMetrics' in rest) collect(metrics, rest)
    for (const { scopeSpans } of resourceSpans) for (const scope of scopeSpans) spans.push(...scope.spans)
    res.writeHead(200, { 'Content-Type': 'application/json' }).end('{}')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, spans, parents, metrics }
}

for (const workers of [[], ['--workers', '2']]) {
  const how = workers.length === 0 ? 'one process' : 'workers'
  t.test(`the recipe of docs/operating.md: a collector gets each span, ${how}`, async t => {
    const { url: servers, spans, parents, metrics } = await startServers(t)
    const recipe = blocks('docs/operating.md', 'js').find(block => block.includes('OTLPTraceExporter'))!
    const config = {
      listen: '127.0.0.1:0',
      upstream: servers,
      buckets: { client: { key: 'all', rate: '20/s', capacity: 100 } },
      routes: [{ name: 'api' }],
    }
    const cwd = t.testdir({ 'telemetry.mjs': recipe, 'shaper.config.json': JSON.stringify(config) })
    const env = { NODE_OPTIONS: '--import ./telemetry.mjs', OTEL_EXPORTER_OTLP_ENDPOINT: servers }
    const command = shaper(['start', ...workers], { cwd, env })
    t.teardown(() => command.child.kill('SIGKILL'))
    const url = await command.url
    // Some are armed, which is real time.
    const count = 20
    const statuses = await Promise.all(
      Array.from({ length: count }, async () => {
        const { statusCode, body } = await request(url)
        await body.dump()
        return statusCode
      }),
    )
    t.same(new Set(statuses), new Set([200]))
    command.child.kill('SIGTERM')
    const { code, stderr } = await command.finished
    t.equal(code, 0)
    await until('all spans have come', () => spans.filter(({ kind }) => kind === 2).length === count)
    const [own, sent] = [spans.filter(({ kind }) => kind === 2), spans.filter(({ kind }) => kind === 3)]
    const held = spans.filter(({ name }) => name === 'held')
    t.equal(sent.length, count)
    const waits = [...stderr.matchAll(/"waitMs":([\d.]+)/g)].map(([, ms]) => Number(ms))
    t.equal(held.length, waits.filter(ms => ms > 0).length, 'all that were held')
    t.ok(held.length > 0)
    t.same(
      parents.map(each => each.split('-')[2]).sort(),
      sent.map(({ spanId }) => spanId).sort(),
      'the upstream knows the span of each forwarding',
    )
    const ids = new Map(own.map(({ spanId, traceId }) => [spanId, traceId]))
    for (const span of [...sent, ...held]) t.equal(ids.get(span.parentSpanId!), span.traceId)
    for (const span of sent) {
      const before = held.find(({ parentSpanId }) => parentSpanId === span.parentSpanId)
      // It is sent at its slot, and what is armed is noticed a little later.
      if (before !== undefined) t.ok(msBetween(before.startTimeUnixNano, span.startTimeUnixNano) > 0)
      t.ok(msBetween(span.startTimeUnixNano, span.endTimeUnixNano) >= 0)
    }
    const starts = sent.map(({ startTimeUnixNano }) => startTimeUnixNano).sort()
    // A period may be made up, and a store's clock is known to some ms.
    const span = msBetween(starts[0]!, starts.at(-1)!)
    t.ok(span > (count - 2) * 50 - 20, `one every 50 ms: ${Math.round(span)} ms`)
    const logged = [...stderr.matchAll(/"trace":"([0-9a-f]{32})"/g)].map(([, trace]) => trace)
    t.same(logged.sort(), [...ids.values()].sort(), 'the log tells the traces')
    const processes = [...metrics.values()]
    const total = (name: string) => processes.reduce((sum, values) => sum + (values[name] ?? 0), 0)
    t.equal(processes.length, workers.length === 0 ? 1 : 3, 'each process has its own metrics')
    t.equal(total('shaper_requests_total route=api outcome=forwarded'), count)
    t.equal(total('shaper_upstream_seconds route=api'), count)
    t.equal(total('shaper_queue_wait_seconds route=api'), count)
    t.equal(total('shaper_config_last_reload_success'), 1, 'of the first process')
    t.equal(processes.filter(values => values['shaper_limit bucket=client'] === 20).length, workers.length || 1)
  })
}

function msBetween(one: string, other: string): number {
  return Number(BigInt(other) - BigInt(one)) / 1e6
}

t.test('without an SDK the headers of a trace pass as they came', async t => {
  const { url: upstream, parents } = await startServers(t)
  const config = { listen: '127.0.0.1:0', upstream, routes: [{ name: 'api', mode: 'off' }] }
  const command = shaper(['start'], { cwd: t.testdir({ 'shaper.config.json': JSON.stringify(config) }) })
  t.teardown(() => command.child.kill('SIGKILL'))
  const url = await command.url
  for (const headers of [{}, { traceparent: `00-${CLIENT}-01` }]) await (await request(url, { headers })).body.dump()
  t.same(parents, ['undefined', `00-${CLIENT}-01`])
})

t.test('an SDK with an older API gets nothing, and the log says so once', async t => {
  const old = `
    const any = () => new Proxy(() => any(), { get: () => any() })
    globalThis[Symbol.for('opentelemetry.js.api.1')] = { version: '1.2.0', trace: any(), metrics: any() }
  `
  const config = { listen: '127.0.0.1:0', upstream: 'http://127.0.0.1:9', routes: [{ name: 'api', mode: 'off' }] }
  const cwd = t.testdir({ 'old.mjs': old, 'shaper.config.json': JSON.stringify(config) })
  const command = shaper(['start'], { cwd, env: { NODE_OPTIONS: '--import ./old.mjs' } })
  t.teardown(() => command.child.kill('SIGKILL'))
  await command.url
  command.child.kill('SIGTERM')
  const { code, stderr } = await command.finished
  t.equal(code, 0)
  const told = stderr.split('\n').filter(line => line.includes('@opentelemetry/api'))
  t.same(
    told.map(line => JSON.parse(line).msg),
    ['no metrics for OpenTelemetry', 'no traces'].map(
      what => `${what}: the OpenTelemetry SDK has version 1.2.0 of @opentelemetry/api, which is too old`,
    ),
  )
})
