/** What one client may take of what the proxy has for all. */
import { connect as tcpConnect } from 'node:net'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createTrust, peerOf } from '../../src/proxy/http/client-address.js'
import type { ClientConnection } from '../../src/proxy/http/client-connection.js'
import { OpenConnections } from '../../src/proxy/http/open-connections.js'
import { type Client, connect, get, httpUpstream, OFF, startRig, TLS, turns } from './harness.js'

const OTHER = { from: '127.0.0.2' }

for (const http of ['own', 'node']) {
  t.test(`${http}: connectionsPerClient bounds the connections of one address, and of no other`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, http, limits: { connectionsPerClient: 3 }, ...OFF })
    const early: Client[] = []
    for (let count = 0; count < 3; count += 1) early.push(await connect(t, rig))
    for (const client of early) t.equal((await client.ask(get())).status, 200)
    const late = await connect(t, rig)
    const answer = await late.ask(get('/late'))
    t.equal(answer.status, 503)
    t.equal(answer.header('retry-after'), '1')
    t.equal(answer.header('connection'), 'close')
    t.equal(answer.json().detail, 'there are too many connections')
    await late.end()
    for (let count = 0; count < 3; count += 1) {
      t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 200, 'another address has its own share')
    }
    t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 503)
    for (const client of early) t.equal((await client.ask(get())).status, 200, 'those that are open stay')
    early[0]!.hangUp()
    await turns(50)
    t.equal((await (await connect(t, rig)).ask(get())).status, 200, 'one has left')
    t.notOk(upstream.requests.includes('GET /late'))
  })

  t.test(`${http}: connectionsPerClient follows a reload, and does not apply to trusted hops`, async t => {
    const upstream = await httpUpstream(t)
    const config = (connectionsPerClient: number, trustProxy: unknown = false) => {
      const limits = { connectionsPerClient }
      return { listen: '127.0.0.1:0', upstream: upstream.url, http, trustProxy, limits, ...OFF }
    }
    const rig = await startRig(t, config(1))
    const reload = (next: object) => rig.proxy.reload(parseConfig(JSON.stringify(next)))
    const ask = async () => (await (await connect(t, rig)).ask(get())).status
    t.equal(await ask(), 200)
    t.equal(await ask(), 503)
    await reload(config(2))
    t.equal(await ask(), 200)
    t.equal(await ask(), 503)
    await reload(config(2, ['loopback']))
    for (let count = 0; count < 5; count += 1) t.equal(await ask(), 200)
    await reload(config(2, 1))
    t.equal(await ask(), 200)
    await reload(config(2))
    t.equal(await ask(), 503, 'those that came while it was trusted count')
  })

  t.test(`${http}: far above connectionsPerClient, connections of that address are closed unread`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, http, limits: { connectionsPerClient: 2 }, ...OFF })
    const silent = await Promise.all(Array.from({ length: 2 + 256 }, () => connect(t, rig)))
    await turns(50)
    const unheard = await connect(t, rig)
    await unheard.end()
    t.equal(unheard.bytes, 0)
    t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 200)
    for (const client of silent) client.hangUp()
    await turns(50)
    t.equal((await (await connect(t, rig)).ask(get())).status, 200)
  })

  t.test(`${http}: far above connectionsPerClient, TLS handshakes of that address are not begun`, async t => {
    const upstream = await httpUpstream(t)
    const limits = { connectionsPerClient: 2, headersTimeout: '5m' }
    const rig = await startRig(t, { ...TLS, upstream: upstream.url, http, limits, ...OFF })
    const silent = await Promise.all(Array.from({ length: 2 + 256 }, () => connect(t, rig)))
    await turns(50)
    const ended = new Promise<void>(resolve => {
      const socket = tcpConnect({ port: rig.port, host: '127.0.0.1' }).on('error', () => undefined)
      socket.resume().once('close', () => resolve())
    })
    await ended
    t.equal((await (await connect(t, rig, { tls: true, ...OTHER })).ask(get())).status, 200)
    for (const client of silent) client.hangUp()
    await turns(50)
    for (const status of [200, 200, 503]) {
      t.equal((await (await connect(t, rig, { tls: true })).ask(get())).status, status)
    }
  })
}

t.test('IPv6 connections are counted by /64, and clients without any take no memory', async t => {
  const open = new OpenConnections<ClientConnection>()
  const limits = { maxConnections: 100, connectionsPerClient: 2, trust: createTrust(['2001:db8:9::/48']) }
  const from = (remoteAddress: string) => peerOf({ remoteAddress } as never)
  const roomFor = (address: string) => open.roomFor(from(address), limits)
  const connections = ['2001:db8::1', '2001:db8::2'].map(address => from(address) as ClientConnection)
  for (const connection of connections) open.add(connection)
  t.equal(roomFor('2001:db8::3'), 'excess')
  t.equal(roomFor('2001:db8:0:1::3'), 'free', 'another network')
  open.delete(connections[0]!)
  open.delete(connections[0]!)
  t.equal(roomFor('2001:db8::3'), 'free')
  for (let count = 0; count < 50; count += 1) open.add(from('2001:db8:9::1') as ClientConnection)
  t.equal(roomFor('2001:db8:9::1'), 'free', 'a trusted hop')
  for (const connection of open.all) open.delete(connection)
  t.equal(open.clients, 0)
})
