/** Outside APIs: over TLS, by their own name, on connections that are used again. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer as createPlainServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import type { TLSSocket } from 'node:tls'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { askOnce, get, startRig } from './harness.js'

const file = (name: string) => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url))
const CA = file('upgrade-cert.pem')
const OFF = { routes: [{ name: 'all', mode: 'off' }] }

/** What each request came as: Host, server name asked for, and its connection's number. */
async function outside(t: { teardown(run: () => unknown): void }) {
  const seen: { host: string | undefined; servername: unknown; connection: number }[] = []
  const connections: unknown[] = []
  const server = createServer({ cert: readFileSync(CA), key: readFileSync(file('upgrade-key.pem')) }, (req, res) => {
    if (!connections.includes(req.socket)) connections.push(req.socket)
    const { servername } = req.socket as TLSSocket & { servername?: unknown }
    seen.push({ host: req.headers.host, servername, connection: connections.indexOf(req.socket) })
    res.end('ok')
  })
  server.listen(0)
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { port: (server.address() as AddressInfo).port, seen }
}

t.test(
  'https with the name of the upstream: Host, certificate, and one connection for one after the other',
  async t => {
    const { port, seen } = await outside(t)
    const rig = await startRig(t, {
      upstream: { url: `https://localhost:${port}`, hostHeader: 'upstream', tls: { ca: CA } },
      ...OFF,
    })
    for (let count = 0; count < 5; count += 1) t.equal((await askOnce(t, rig, get())).status, 200)
    t.strictSame(
      seen,
      seen.map(() => ({ host: `localhost:${port}`, servername: 'localhost', connection: 0 })),
    )
  },
)

t.test('an authority that is not trusted: 502, and the request is not sent', async t => {
  const { port, seen } = await outside(t)
  const rig = await startRig(t, { upstream: `https://localhost:${port}`, ...OFF })
  t.equal((await askOnce(t, rig, get())).status, 502)
  t.equal(seen.length, 0)
})

for (const host of ['127.0.0.1', '::1']) {
  t.test(`an address of either kind: ${host}`, async t => {
    const server = createPlainServer((req: IncomingMessage, res: ServerResponse) => res.end(req.headers.host))
    server.listen(0, host)
    await once(server, 'listening')
    t.teardown(() => {
      server.closeAllConnections()
      server.close()
    })
    const { port } = server.address() as AddressInfo
    const written = host.includes(':') ? `[${host}]` : host
    const rig = await startRig(t, { upstream: { url: `http://${written}:${port}`, hostHeader: 'upstream' }, ...OFF })
    t.equal((await askOnce(t, rig, get())).text, `${written}:${port}`)
  })
}
