/**
 * Traefik's forwardAuth, of which Debian has no package: its requests as pkg/middlewares/auth/forward.go writes them, and what it
 * makes of the answers. Any 2xx lets the request pass; each other answer goes to the client as it is.
 */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { effective } from '../../src/config/report/effective-config.js'
import { askOnce, startRig } from '../proxy/harness.js'
import { deployed } from '../servers/gate-proxies.js'

/** @param more what `authRequestHeaders` lets through of the client's headers. Without that list: all */
function forwardAuth({ method = 'GET', uri = '/', client = '192.0.2.1', more = [] as string[] } = {}): string {
  const lines = [
    'GET / HTTP/1.1',
    'Host: shaper:8080',
    'User-Agent: curl/7.88.1',
    ...more,
    `X-Forwarded-For: ${client}`,
    'X-Forwarded-Host: shop.example',
    `X-Forwarded-Method: ${method}`,
    'X-Forwarded-Port: 443',
    'X-Forwarded-Proto: https',
    'X-Forwarded-Server: traefik-1',
    `X-Forwarded-Uri: ${uri}`,
    'Accept-Encoding: gzip',
  ]
  return `${lines.join('\r\n')}\r\n\r\n`
}

t.test('its requests are gated by client, path and method', async t => {
  const config = effective(parseConfig(deployed('shaper.config.json'))) as {
    buckets: { client: object }
    routes: object[]
  }
  const rig = await startRig(
    t,
    {
      ...config,
      listen: '127.0.0.1:0',
      buckets: { ...config.buckets, client: { ...config.buckets.client, rate: '1/m', capacity: 1 } },
      routes: [
        { name: 'post', match: { method: 'POST', path: '/api/*', host: 'shop.example' }, mode: 'off' },
        ...config.routes,
      ],
    },
    { realPacer: true },
  )
  const ask = (question = {}) => askOnce(t, rig, forwardAuth(question))
  const begun = performance.now()
  t.equal((await ask()).status, 204)
  t.equal((await ask({ client: '192.0.2.2' })).status, 204, 'another client')
  t.equal((await ask({ method: 'POST', uri: '/api/x?y=z' })).status, 204)
  t.equal((await ask({ uri: '/healthz' })).status, 204)
  const rejected = await ask()
  t.equal(rejected.status, 429)
  const retryAfter = Number(rejected.header('retry-after'))
  t.ok(retryAfter <= 60 && retryAfter >= 60 - (performance.now() - begun) / 1_000, `${retryAfter} s`)
  t.match(rejected.json(), { 'violated-policies': ['client'] })
  t.equal((await ask({ uri: '/', more: ['X-Original-URI: /healthz'] })).status, 400, 'a client says another thing')
  t.same(
    rig.outcomes.map(each => each.split(' ')[0]),
    ['all', 'all', 'post', 'health', 'all', ''],
  )
})

for (const mode of ['meter', 'shape'] as const) {
  t.test(`${mode}: a method called like a member of objects costs what others do`, async t => {
    const rig = await startRig(
      t,
      {
        listen: '127.0.0.1:0',
        trustProxy: ['loopback'],
        upstream: 'gate:',
        buckets: { everyone: { key: 'all', rate: '1/h', capacity: 20, burst: 20 } },
        routes: [{ name: 'all', mode, cost: { POST: 10, default: 5 }, patience: 'none' }],
      },
      { realPacer: true },
    )
    const methods = ['constructor', 'toString', 'POST', '__proto__']
    const statuses = []
    for (const method of methods) statuses.push((await askOnce(t, rig, forwardAuth({ method }))).status)
    t.same(statuses, [204, 204, 204, 429], '5 + 5 + 10 of 20')
  })
}

t.test('its file lets no header through that could say another thing', async t => {
  const text = deployed('traefik.yml')
  t.match(text, /address: "http:\/\/shaper:8080\/"/)
  t.match(text, /trustForwardHeader: false/)
  t.match(text, /authRequestHeaders:\n(\s+- (?!X-)\S+\n)+\n/)
})
