/** What operators see of an upstream with several servers. */
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { upstreamName } from '../../src/admin/snapshot/troubles.js'
import { topLines } from '../../src/cli/commands/top.js'
import { Screen } from '../../src/cli/top/screen.js'
import { parseConfig } from '../../src/config/load.js'
import { until } from '../servers/redis.js'
import { type AdminRig, startAdminRig } from './rig.js'

async function serve(t: Test, answer: RequestListener) {
  const server = createServer(answer)
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const close = () => {
    server.closeAllConnections()
    server.close()
  }
  t.teardown(close)
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close }
}

const ROUTE = { routes: [{ name: 'api', mode: 'off' }] }
const serversOf = async (rig: AdminRig) => (await rig.snapshot()).upstreams[0]!.servers

t.test('each server: in /buckets, in the metrics, and in top', async t => {
  const held: (() => void)[] = []
  const busy = await serve(t, (_req, res) => held.push(() => res.end('ok')))
  const dead = await serve(t, (_req, res) => void res.end())
  const spare = await serve(t, (_req, res) => void res.end('ok'))
  dead.close()
  const servers = [{ url: busy.url, maxInFlight: 8, weight: 3 }, dead.url, { url: spare.url, backup: true }]
  const upstream = { servers, breaker: { failures: 1, probe: '50s', maxProbe: '60s' } }
  const rig = await startAdminRig(t, { upstream, ...ROUTE })
  const answers = [1, 2, 3].map(() => fetch(`${rig.proxy.url}/`))
  await until('the dead one is noticed', async () => (await serversOf(rig))?.[1]?.isUp === false)
  await until('all are with the other', () => held.length === 3)
  const [first, second, third] = (await serversOf(rig))!
  t.same(first, { url: busy.url, isUp: true, inFlight: 3, maxInFlight: 8, weight: 3, backup: false })
  t.match(second, { url: dead.url, isUp: false, inFlight: 0, weight: 1, failure: /refused the connection/ })
  t.ok(second!.probeMs! > 40_000 && second!.probeMs! <= 50_000, `${second!.probeMs} ms`)
  t.same(third, { url: spare.url, isUp: true, inFlight: 0, weight: 1, backup: true })

  const label = (url: string) => `{upstream="${[busy, dead, spare].map(each => each.url).join(' ')}",server="${url}"}`
  t.equal(await rig.metric(`shaper_upstream_up${label(busy.url)}`), 1)
  t.equal(await rig.metric(`shaper_upstream_up${label(dead.url)}`), 0)
  t.equal(await rig.metric(`shaper_upstream_in_flight${label(busy.url)}`), 3)

  const told = JSON.parse(await (await rig.get('/buckets')).text())
  t.match(told.troubles, [
    /^1 of 3 servers is down: \S+ \(the upstream refused the connection .*\); tried again in (?:4\d|50)/,
  ])
  const lines = topLines(told, undefined)
  t.match(lines[0], /^1 of 3 servers is down/)
  const screen = new Screen()
  screen.update(told, undefined)
  const drawn = screen.draw({ columns: 160, rows: 40 }).join('\n')
  t.match(drawn, /server +state +in flight +weight +role +next try +why/)
  t.match(drawn, new RegExp(`${busy.url} +up +3/8 +3`))
  t.match(drawn, new RegExp(`${dead.url} +down +0 +1 +(?:4\\d(?:\\.\\d)?|50) s +the upstream refused`))
  t.match(drawn, new RegExp(`${spare.url} +up +0 +1 +backup`))
  for (const answer of held) answer()
  for (const answer of answers) t.equal((await answer).status, 200)
})

t.test('a server whose check fails says so, and when the next one is', async t => {
  const well = await serve(t, (_req, res) => void res.end('ok'))
  const ill = await serve(t, (req, res) => void res.writeHead(req.url === '/live' ? 404 : 200).end())
  const health = { path: '/live', interval: '20ms', fall: 1 }
  const rig = await startAdminRig(t, { upstream: { servers: [well.url, ill.url], health }, ...ROUTE })
  await until('it is down', async () => (await serversOf(rig))?.[1]?.isUp === false)
  const [first, second] = (await serversOf(rig))!
  t.equal(first!.isUp, true)
  t.equal(second!.failure, 'its check /live was answered 404')
  t.ok(second!.probeMs! <= 20)
})

t.test('all are down: key, top and /buckets say so, and name the first', async t => {
  const dead = [await serve(t, (_req, res) => void res.end()), await serve(t, (_req, res) => void res.end())]
  for (const { close } of dead) close()
  const upstream = { servers: dead.map(({ url }) => url), breaker: { failures: 1, probe: '50s', hold: '1ms' } }
  const rig = await startAdminRig(t, { upstream, buckets: { client: { rate: '5/s' } }, routes: [{ name: 'api' }] })
  const answer = fetch(`${rig.proxy.url}/`)
  const name = `${dead[0]!.url} (and 1 more)`
  await until('it is told', async () => ((await rig.snapshot()).upstreams[0]!.probeMs ?? 0) > 0)
  t.equal((await answer).status, 503)
  const { troubles } = JSON.parse(await (await rig.get('/buckets')).text())
  t.equal(troubles.length, 1)
  t.match(troubles[0], `${name} fails: all 2 servers are down; the upstream refused the connection`)
  const state = JSON.parse(await (await rig.get('/buckets/client/127.0.0.1')).text())
  t.equal(state.routes.api.rejected.reason, `${name} fails`)
})

t.test('a list of one server is shown as a list, and called as its server', async t => {
  const only = await serve(t, (_req, res) => void res.end('ok'))
  const rig = await startAdminRig(t, { upstream: { servers: [only.url] }, ...ROUTE })
  const [upstream] = (await rig.snapshot()).upstreams
  t.equal(upstream!.url, only.url)
  t.same(
    upstream!.servers!.map(({ url, isUp }) => [url, isUp]),
    [[only.url, true]],
  )
  t.equal(upstreamName(upstream!), only.url)
})

t.test('a server that a reload takes away counts until its last answer', async t => {
  const held: (() => void)[] = []
  const gone = await serve(t, (_req, res) => held.push(() => res.end('ok')))
  const stays = await serve(t, (_req, res) => void res.end('ok'))
  const config = (...servers: string[]) => ({ upstream: { servers }, ...ROUTE })
  const rig = await startAdminRig(t, config(gone.url, stays.url))
  const answers = [1, 2, 3].map(() => fetch(`${rig.proxy.url}/`))
  await until('one has them', () => held.length > 0)
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config(stays.url) })))
  const inFlight = async () => {
    const lines = (await (await rig.get('/metrics')).text()).split('\n')
    return lines.filter(line => line.startsWith('shaper_upstream_in_flight{') && line.includes(`server="${gone.url}"`))
  }
  t.match((await inFlight())[0], new RegExp(` ${held.length}$`))
  for (const answer of held) answer()
  for (const answer of answers) t.equal((await answer).status, 200)
  t.same(await inFlight(), [])
})
