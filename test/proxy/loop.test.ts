/** Requests that come back to the instance that sent them. */
import { once } from 'node:events'
import { type AddressInfo, createServer, connect as tcpConnect } from 'node:net'
import t from 'tap'
import { Agent, request } from 'undici'
import { shaper } from '../cli/command.js'
import { startRedis } from '../servers/redis.js'
import { answering, askOnce, get, OK, rawUpstream, startRig } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const ROUTES = { routes: [{ name: 'all', mode: 'off' }] }
const WEBSOCKET = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
]

/** A balancer that passes bytes to the given port. */
async function balancer(t: Teardown): Promise<{ url: string; target: number; connections: number }> {
  const server = createServer(socket => {
    state.connections += 1
    const onward = tcpConnect(state.target, '127.0.0.1')
    socket.on('error', () => onward.destroy()).pipe(onward)
    onward.on('error', () => socket.destroy()).pipe(socket)
    socket.on('close', () => onward.destroy())
    onward.on('close', () => socket.destroy())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const state = { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, target: 0, connections: 0 }
  t.teardown(() => void server.close())
  return state
}

for (const [what, headers] of [
  ['a request', []],
  ['a WebSocket', WEBSOCKET],
] as const) {
  t.test(`${what} that comes back is answered 508, and costs nothing the second time`, async t => {
    const behind = await balancer(t)
    const buckets = { all: { key: 'all', rate: '1/s', capacity: 2 } }
    const rig = await startRig(t, { upstream: behind.url, buckets, routes: [{ name: 'all', buckets: ['all'] }] })
    behind.target = rig.port
    const answer = await askOnce(t, rig, get('/', ...headers))
    t.equal(answer.status, 508)
    const { status, title, detail } = answer.json()
    t.match({ status, title }, { status: 508, title: 'Loop Detected' })
    t.match(detail, /passed this shaper/)
    t.same(await rig.finished(2), ['all refused 508', 'all forwarded 508'])
    t.equal(behind.connections, 1)
    t.match(answer.header('ratelimit'), /"all";r=1/, 'one cost unit')
  })
}

t.test('a loop through two shapers is answered 508 by the first', async t => {
  const behind = await balancer(t)
  const second = await startRig(t, { upstream: behind.url, ...ROUTES })
  const first = await startRig(t, { upstream: `http://127.0.0.1:${second.port}`, ...ROUTES })
  behind.target = first.port
  const answer = await askOnce(t, first, get('/'))
  t.equal(answer.status, 508)
  t.same(await first.finished(2), ['all refused 508', 'all forwarded 508'])
  t.same(await second.finished(1), ['all forwarded 508'])
  t.equal(behind.connections, 1)
})

t.test('other instances and similar values of Via pass', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const last = await startRig(t, { upstream: upstream.url, ...ROUTES })
  const middle = await startRig(t, { upstream: `http://127.0.0.1:${last.port}`, ...ROUTES })
  const first = await startRig(t, { upstream: `http://127.0.0.1:${middle.port}`, ...ROUTES })
  const seen = (): string[] => {
    const lines = upstream.text.slice(upstream.text.lastIndexOf('GET /')).split('\r\n')
    return lines.filter(line => /^via:/i.test(line)).map(line => line.slice(5))
  }
  t.equal((await askOnce(t, first, get('/'))).status, 200)
  const own = seen()
  t.equal(own.length, 3)
  for (const value of own) t.match(value, /^1\.1 shaper \([0-9a-f]{6}\)$/)
  t.equal(new Set(own).size, 3, 'each has an id of its own')
  t.equal((await askOnce(t, first, get('/again'))).status, 200)
  t.same(seen(), own, 'which stays')
  const id = /\((.*)\)/.exec(own[2]!)![1]!
  for (const other of [
    '1.1 shaper',
    `1.1 other (${id})`,
    `1.1 shaper (${id}0)`,
    `1.1 shaper (0${id})`,
    `1.1 other (1.1 shaper (${id}))`,
    '1.1 shaper ()',
    ','.repeat(5_000),
  ]) {
    t.equal((await askOnce(t, last, get('/', `Via: ${other}`))).status, 200, other.slice(0, 60))
  }
  for (const mine of [
    `1.1 shaper (${id})`,
    `1.0 shaper (${id})`,
    `1.0 a, 1.1 shaper (${id}) , 1.1 nginx (x)`,
    `1.1 nginx\r\nVia: 1.1 shaper (${id})`,
  ]) {
    t.equal((await askOnce(t, last, get('/', `Via: ${mine}`))).status, 508, mine)
  }
  const old = await askOnce(t, last, 'GET /old HTTP/1.0\r\n\r\n')
  t.equal(old.status, 200)
  t.same(seen(), [`1.0 shaper (${id})`])
})

t.test('via: false turns off the header and the check', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, {
    upstream: upstream.url,
    routes: [
      { name: 'silent', match: { path: '/silent' }, mode: 'off', upstream: { url: upstream.url, via: false } },
      { name: 'all', mode: 'off' },
    ],
  })
  await askOnce(t, rig, get('/'))
  const [, own] = /^Via: (.*)\r$/m.exec(upstream.text)!
  t.equal((await askOnce(t, rig, get('/silent', `Via: ${own}`))).status, 200)
  const text = upstream.text.slice(upstream.text.indexOf('GET /silent'))
  t.equal(text.match(/^via:/gim)?.length, 1, "only the client's")
  t.equal((await askOnce(t, rig, get('/', `Via: ${own}`))).status, 508)
})

t.test('check and start refuse an address that is its own upstream', async t => {
  const routes = [{ match: { path: '/a' }, upstream: { url: 'http://localhost:8123' } }, {}]
  const config = { listen: '0.0.0.0:8123', upstream: 'http://127.0.0.1:8123', buckets: { all: { rate: 5 } }, routes }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config), empty: {} })
  const remedy = 'so every request would come back; name the address of the upstream, or listen elsewhere'
  for (const command of ['check', 'start']) {
    const { code, stdout, stderr } = await shaper([command], { cwd }).finished
    t.equal(code, 2, command)
    t.equal(stdout, '')
    t.same(stderr.trim().split('\n'), [
      `shaper: upstream: "http://127.0.0.1:8123" is where shaper itself listens ("listen": "0.0.0.0:8123"), ${remedy}`,
      `shaper: routes[0].upstream.url: "http://localhost:8123" is where shaper itself listens ("listen": "0.0.0.0:8123"), ${remedy}`,
    ])
  }
  const flags = ['--listen', '127.0.0.1:8124', '--upstream', 'http://localhost:8124', '--rate', '5/s']
  const { code, stderr } = await shaper(['start', ...flags], { cwd: `${cwd}/empty` }).finished
  t.equal(code, 2)
  t.match(stderr, /^shaper: --upstream: "http:\/\/localhost:8124" is where shaper itself listens/)
})

t.test('all workers of a program count as one', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const behind = await balancer(t)
  const seen = await rawUpstream(t, answering(OK))
  const config = {
    listen: '127.0.0.1:0',
    store: { type: 'redis', url: redis.url, timeout: '3s' },
    routes: [
      { match: { path: '/loop' }, mode: 'off', upstream: behind.url },
      { mode: 'off', upstream: seen.url },
    ],
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const command = shaper(['start', '--workers', '3'], { cwd })
  t.teardown(() => void command.child.kill('SIGKILL'))
  const url = await command.url
  behind.target = Number(new URL(url).port)
  const ask = async (path: string): Promise<number> => {
    const dispatcher = new Agent({ pipelining: 0 })
    const { statusCode, body } = await request(`${url}${path}`, { dispatcher })
    await body.dump()
    await dispatcher.close()
    return statusCode
  }
  const all = (path: string) => Promise.all(Array.from({ length: 20 }, () => ask(path)))
  t.same(new Set(await all('/')), new Set([200]))
  t.equal(new Set(seen.text.match(/^Via: .*\r$/gm)).size, 1)
  t.same(new Set(await all('/loop')), new Set([508]))
  // A request may use the connection of one that was answered before. A loop would open more.
  t.ok(behind.connections > 0 && behind.connections <= 20, `${behind.connections}: each came back once`)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})
