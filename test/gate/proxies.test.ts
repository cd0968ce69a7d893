/** Real proxies ask a gate, with the files of deploy/gate. Only their ports and rates differ. */
import { request } from 'node:http'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { effective } from '../../src/config/report/effective-config.js'
import { blocks } from '../docs-code.js'
import { type Client, connect, get, httpUpstream, post, type Rig, slotsOf, startRig } from '../proxy/harness.js'
import { deployed, type GateProxy, type ProxyName, startGateProxy } from '../servers/gate-proxies.js'

type Test = Parameters<typeof startRig>[0]

interface Stage {
  readonly rig: Rig
  readonly proxy: GateProxy
  readonly application: Awaited<ReturnType<typeof httpUpstream>>
  /** What came to the application: the lengths of bodies. */
  readonly bodies: number[]
}

interface Limits {
  readonly rate?: string
  readonly capacity?: number
  /** Requests wait for as long as it takes. */
  readonly patient?: boolean
  readonly cost?: object
  readonly edit?: (text: string) => string
  readonly application?: Parameters<typeof httpUpstream>[1]
}

/** The proxy, its gate and an application. The client's bucket alone limits. */
async function start(
  t: Test,
  name: ProxyName,
  { rate = '20/s', capacity = 100, edit, patient, cost, application: answer }: Limits = {},
) {
  const text = deployed(name === 'nginx' ? 'shaper-nginx.config.json' : 'shaper.config.json')
  const config = effective(parseConfig(text)) as { buckets: Record<string, object>; routes: object[] }
  const buckets = {
    ...config.buckets,
    client: { ...config.buckets.client, rate, capacity },
    everyone: { key: 'all', rate: '10000/s' },
  }
  const routes = config.routes.map(route => ({
    ...route,
    ...(patient && { maxWait: undefined, patience: 'none' }),
    ...(cost && !('mode' in route) && { cost }),
  }))
  const rig = await startRig(t, { ...config, buckets, routes, listen: '127.0.0.1:0' }, { realPacer: 'precise' })
  const bodies: number[] = []
  const application = await httpUpstream(t, (req, res) => {
    if (answer !== undefined) return answer(req, res)
    let length = 0
    req.on('data', chunk => {
      length += chunk.length
    })
    req.on('end', () => {
      bodies.push(length)
      res.end('from the application')
      application.notify()
    })
  })
  const proxy = await startGateProxy(t, name, { shaper: rig.port, application: application.port }, edit)
  const stage: Stage = { rig, proxy, application, bodies }
  return stage
}

interface Got {
  readonly status: number
  readonly headers: Record<string, string | string[] | undefined>
  readonly text: string
}

function ask(
  { proxy }: Pick<Stage, 'proxy'>,
  path = '/',
  { method = 'GET', headers = {}, body = '' } = {},
): Promise<Got> {
  return new Promise((resolve, reject) => {
    const req = request({ host: '127.0.0.1', port: proxy.port, path, method, headers, agent: false }, res => {
      let text = ''
      res.setEncoding('utf8').on('data', chunk => {
        text += chunk
      })
      res.on('end', () => resolve({ status: res.statusCode!, headers: res.headers, text }))
    })
    req.once('error', reject)
    req.end(body)
  })
}

/** Sends requests that wait, each on a connection of its own. */
async function queue(t: Test, { rig, proxy }: Stage, count: number): Promise<Client[]> {
  const clients: Client[] = []
  const before = rig.queued.length
  for (let at = 0; at < count; at += 1) {
    const client = await connect(t, proxy)
    client.send(get(`/${at}`))
    clients.push(client)
    await rig.until(({ queued }) => queued.length > before + at)
  }
  return clients
}

for (const name of ['nginx', 'haproxy', 'caddy'] as const) {
  t.test(name === 'nginx' ? name : `long: ${name}`, async t => {
    t.test('passes requests on, with their bodies, of which shaper sees nothing', async t => {
      const stage = await start(t, name)
      const got = await ask(stage, '/a?b=c')
      t.match(got, { status: 200, text: 'from the application' })
      const body = 'x'.repeat(100_000)
      t.equal((await ask(stage, '/upload', { method: 'POST', body })).status, 200)
      t.same(stage.application.requests, ['GET /a?b=c', 'POST /upload'])
      t.same(stage.bodies, [0, 100_000])
      t.same(stage.rig.outcomes, Array(2).fill('all forwarded 204'))
    })

    t.test('a method called like a member of objects costs what others do', async t => {
      const stage = await start(t, name, { rate: '1/h', capacity: 5, cost: { POST: 1, default: 5 } })
      const statuses = []
      for (const method of ['constructor', 'GET', 'GET']) {
        const client = await connect(t, stage.proxy)
        client.send(`${method} / HTTP/1.1\r\nHost: a\r\n\r\n`)
        statuses.push((await client.answer()).status)
      }
      // The application refuses such a method, and nginx does so itself.
      t.same(statuses, [400, name === 'nginx' ? 200 : 429, 429])
    })

    t.test('a rejected request gets 429 and never comes to the application', async t => {
      const stage = await start(t, name, { rate: '1/m', capacity: 1 })
      t.equal((await ask(stage)).status, 200)
      const { status, headers } = await ask(stage)
      t.equal(status, 429)
      t.match(headers['retry-after'], /^(59|60)$/)
      t.match(headers.ratelimit, /^"client";r=0;t=(59|60), "everyone";r=\d+|^"client";r=0;t=(59|60)$/)
      t.match(headers['ratelimit-policy'], /^"client";q=1;w=60/)
      t.equal(stage.application.requests.length, 1)
    })

    t.test('requests come to the application one after another, at the rate', async t => {
      const times: number[] = []
      const stage = await start(t, name, {
        rate: '50/s',
        application: (_req, res) => {
          times.push(performance.now())
          res.end()
        },
      })
      // The first may come late on a busy machine, so the time counts from before it.
      const begun = performance.now()
      const answers = await Promise.all(Array.from({ length: 20 }, () => ask(stage)))
      t.ok(answers.every(({ status }) => status === 200))
      t.equal(times.length, 20)
      const span = times.at(-1)! - begun
      const { late } = slotsOf(stage.rig)
      t.ok(span > 379 && span < 1_500 + 2 * late, `19 gaps of 20 ms, in ${span.toFixed(1)} ms, ${late} ms late`)
    })

    t.test('routes, methods and clients are those of the request', async t => {
      const stage = await start(t, name, { rate: '1/m', capacity: 1 })
      t.equal((await ask(stage, '/x')).status, 200)
      t.equal((await ask(stage, '/healthz')).status, 200)
      t.equal((await ask(stage, '/x')).status, 429)
      t.same(
        stage.rig.outcomes.map(each => each.split(' ')[0]),
        ['all', 'health', 'all'],
      )
    })

    t.test('a client cannot say that it asks for something else, or that it is another', async t => {
      const stage = await start(t, name, { rate: '1/m', capacity: 1 })
      t.equal((await ask(stage)).status, 200)
      for (const headers of [
        { 'X-Original-URI': '/healthz' },
        { 'X-Forwarded-Uri': '/healthz' },
        { 'X-Original-Method': 'OPTIONS', 'X-Forwarded-Method': 'OPTIONS' },
        { 'X-Forwarded-For': '192.0.2.1' },
        { 'X-Forwarded-Host': 'other.example' },
      ]) {
        t.equal((await ask(stage, '/', { headers })).status, 429, JSON.stringify(headers))
      }
    })

    t.test('of 50 that wait 40 hang up, and the application sees the other 10 alone', async t => {
      const stage = await start(t, name, { rate: '1/h', patient: true })
      const { rig, application } = stage
      t.equal((await ask(stage, '/first')).status, 200)
      const clients = await queue(t, stage, 50)
      for (const client of clients.slice(0, 40)) client.hangUp()
      await rig.finished(41)
      t.equal(rig.proxy.context.shaper.queued, 10)
      t.same(new Set(rig.outcomes.slice(1)), new Set(['all cancelled 499']))
      const config = { ...effective(parseConfig(deployed('shaper.config.json'))) } as { buckets: object }
      const client = { key: 'ip', rate: '1000/s', capacity: 100 }
      const faster = { ...config, buckets: { ...config.buckets, client } }
      await rig.proxy.reload(parseConfig(JSON.stringify(faster)))
      for (const client of clients.slice(40)) t.equal((await client.answer()).status, 200)
      t.same(
        application.requests.slice(1).sort(),
        clients
          .slice(40)
          .map((_, at) => `GET /${at + 40}`)
          .sort(),
      )
    })

    if (name !== 'caddy') {
      t.test('a hang-up behind a body that nobody has read gives the slot back', async t => {
        const stage = await start(t, name, { rate: '1/h', patient: true })
        const { rig, application } = stage
        t.equal((await ask(stage, '/first')).status, 200)
        const clients = []
        // HAProxy reads into one buffer of 16 kB while it waits.
        const lengths = name === 'haproxy' ? [10, 10_000] : [10, 10_000, 60_000]
        for (const length of lengths) {
          const client = await connect(t, stage.proxy)
          client.send(post('x'.repeat(length), '/upload'))
          clients.push(client)
          await rig.until(({ queued }) => queued.length === clients.length)
        }
        for (const client of clients) client.hangUp()
        await rig.finished(1 + lengths.length)
        t.same(
          rig.outcomes.slice(1),
          lengths.map(() => 'all cancelled 499'),
        )
        t.same(application.requests, ['GET /first'])
      })
    }

    t.test('without shaper nothing passes', async t => {
      const stage = await start(t, name)
      await stage.rig.proxy.drain(0)
      t.match((await ask(stage)).status, name === 'nginx' ? 500 : name === 'haproxy' ? 503 : 502)
      t.same(stage.application.requests, [])
    })
  })
}

t.test('where they are told to, they let all pass without shaper', async t => {
  for (const [name, edit] of [
    [
      'nginx',
      (text: string) =>
        text.replace('proxy_read_timeout 60s;', `proxy_read_timeout 60s;\n${blocks('docs/gate.md', 'nginx')[1]}`),
    ],
    ['haproxy', (text: string) => text.replace('FAIL_OPEN = false', 'FAIL_OPEN = true')],
  ] as const) {
    const stage = await start(t, name, { edit })
    t.equal((await ask(stage)).status, 200)
    await stage.rig.proxy.drain(0)
    t.equal((await ask(stage)).status, 200, name)
  }
})
