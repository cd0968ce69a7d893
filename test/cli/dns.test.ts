/** The program follows a real DNS server (contract 14.4). */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { request } from 'undici'
import { startDns } from '../servers/dns.js'
import { freePort } from '../servers/free-port.js'
import { until } from '../servers/redis.js'
import { shaper } from './command.js'

type Teardown = Parameters<typeof startDns>[0]

async function serverAt(t: Teardown, address: string, port = 0): Promise<number> {
  const server = createServer((_req, res) => res.end(address)).listen(port, address)
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return (server.address() as AddressInfo).port
}

const fileOf = (upstream: object) =>
  JSON.stringify({
    listen: '127.0.0.1:0',
    upstream: { dns: true, ...upstream },
    buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
    routes: [{ name: 'all', mode: 'meter' }],
  })

t.test('requests follow the addresses of a name, and keep the last ones', { buffered: true }, async t => {
  const port = await serverAt(t, '127.0.0.2', await freePort())
  await serverAt(t, '127.0.0.3', port)
  const dns = await startDns(t)
  dns.set('A', 'app.test', ['127.0.0.2'], 1)
  const upstream = { url: `http://app.test:${port}`, resolver: [dns.address] }
  const command = shaper(['start'], { cwd: t.testdir({ 'shaper.config.json': fileOf(upstream) }) })
  const url = await command.url
  const statuses = new Set<number>()
  const ask = async (): Promise<string> => {
    const { statusCode, body } = await request(url)
    statuses.add(statusCode)
    return body.text()
  }
  t.equal(await ask(), '127.0.0.2')
  dns.set('A', 'app.test', ['127.0.0.3'], 1)
  await until('its new address serves', async () => (await ask()) === '127.0.0.3')
  dns.mode = 'servfail'
  await until('DNS fails', () => command.stderr().includes('its servers stay as they are'))
  t.equal(await ask(), '127.0.0.3')
  t.same([...statuses], [200])
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
  const told = command
    .stderr()
    .split('\n')
    .filter(line => line.includes('DNS'))
    .map(line => JSON.parse(line) as Record<string, unknown>)
  t.match(told, [
    { upstream: upstream.url, addresses: ['127.0.0.2'], msg: 'DNS says where the upstream is' },
    { upstream: upstream.url, addresses: ['127.0.0.3'] },
    { level: 40, upstream: upstream.url, known: 1, cause: /ESERVFAIL/, msg: /its servers stay as they are/ },
  ])
})

t.test('long: it starts while DNS is silent, and serves once that speaks', { buffered: true }, async t => {
  const port = await serverAt(t, '127.0.0.2', await freePort())
  const dns = await startDns(t)
  dns.mode = 'silent'
  const upstream = { url: `http://app.test:${port}`, resolver: [dns.address], connectTimeout: '200ms' }
  const command = shaper(['start'], { cwd: t.testdir({ 'shaper.config.json': fileOf(upstream) }) })
  const url = await command.url
  const { statusCode, headers, body } = await request(url)
  await body.dump()
  t.equal(statusCode, 503)
  t.match(headers['retry-after'], /^\d+$/)
  dns.set('A', 'app.test', ['127.0.0.2'], 1)
  dns.mode = 'usual'
  await until('it serves', async () => {
    const answer = await request(url)
    await answer.body.dump()
    return answer.statusCode === 200
  })
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})
