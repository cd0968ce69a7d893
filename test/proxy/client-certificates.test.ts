/** Certificates of clients, their key, and the one of ours towards an upstream. */
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { type ClientHttp2Session, createSecureServer, connect as http2Connect } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname } from 'node:path'
import { connect, type TLSSocket } from 'node:tls'
import t from 'tap'
import { WebSocket, WebSocketServer } from 'ws'
import { parseConfig } from '../../src/config/load.js'
import { warnings } from '../../src/config/warnings/index.js'
import { type Certificate, makeCertificate, signCertificate } from '../servers/certificate.js'
import { OFF, startRig } from './harness.js'

const pairOf = ({ cert, key }: Certificate) => ({ cert: readFileSync(cert), key: readFileSync(key) })
const READ = { rejectUnauthorized: false, host: '127.0.0.1' }

t.test('the key "cert" limits per certificate, over HTTP/1.1 and HTTP/2', async t => {
  const cwd = t.testdir()
  const authority = makeCertificate(`${cwd}/authority`, 'DNS:localhost')
  const [a, b] = ['a', 'b'].map(name => signCertificate(`${cwd}/${name}`, authority, name)) as [
    Certificate,
    Certificate,
  ]
  const rig = await startRig(t, {
    listen: { address: '127.0.0.1:0', tls: { ...authority, clientCa: authority.cert } },
    upstream: 'echo:',
    buckets: { client: { key: 'cert', rate: '1/s', capacity: 1 } },
    routes: [{ name: 'all' }],
  })
  let session: Buffer | undefined
  const http1 = async (client: Certificate, resumed?: Buffer): Promise<number> => {
    const socket: TLSSocket = connect({ ...READ, port: rig.port, ...pairOf(client), session: resumed })
    socket.on('session', received => {
      session = received
    })
    socket.write('GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
    const [first] = await once(socket, 'data')
    t.equal(socket.isSessionReused(), resumed !== undefined)
    socket.destroy()
    return Number(String(first).slice(9, 12))
  }
  const http2 = async (client: Certificate): Promise<number> => {
    const session: ClientHttp2Session = http2Connect(`https://127.0.0.1:${rig.port}`, { ...READ, ...pairOf(client) })
    const stream = session.request({ ':path': '/' })
    const [headers] = await once(stream, 'response')
    session.destroy()
    return headers[':status']
  }
  t.same([await http1(a), await http1(a), await http2(a)], [200, 429, 429])
  t.same([await http2(b), await http1(b), await http2(b)], [200, 429, 429], 'another certificate')
  t.equal(await http1(b, session), 429, 'in a session that is resumed')
  const keys = [...rig.proxy.context.bucketTable.keys('client')]
  t.equal(keys.length, 2)
  for (const key of keys) t.match(key, /^[\da-f]{64}$/)

  const bare = http2Connect(`https://127.0.0.1:${rig.port}`, READ)
  const stream = bare.on('error', () => undefined).request({ ':path': '/' })
  const [error] = await once(
    stream.on('error', () => undefined),
    'error',
  )
  t.match(error.code, /ALERT_CERTIFICATE_REQUIRED|ECONNRESET|ERR_HTTP2/, 'without one, over HTTP/2')
  t.equal(rig.outcomes.length, 7, 'nothing of it is a request')
})

t.test('the key "cert" on a Unix socket', async t => {
  const cwd = t.testdir()
  const authority = makeCertificate(`${cwd}/authority`, 'DNS:localhost')
  const path = `${mkdtempSync(`${tmpdir()}/shaper-`)}/own.sock`
  t.teardown(() => rmSync(dirname(path), { recursive: true }))
  const rig = await startRig(t, {
    listen: ['127.0.0.1:0', { address: `unix:${path}`, tls: { ...authority, clientCa: authority.cert } }],
    upstream: 'echo:',
    buckets: { client: { key: 'cert', rate: '1/s', capacity: 1 } },
    routes: [{ name: 'all' }],
  })
  const socket = connect({ path, rejectUnauthorized: false, ...pairOf(authority) })
  socket.write('GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
  await once(socket, 'data')
  socket.destroy()
  t.match([...rig.proxy.context.bucketTable.keys('client')], [/^[\da-f]{64}$/])
})

t.test('our certificate goes to an upstream of HTTP/2, and with a WebSocket', async t => {
  const cwd = t.testdir()
  const authority = makeCertificate(`${cwd}/authority`, 'DNS:localhost')
  const own = signCertificate(`${cwd}/own`, authority, 'own')
  const server = createSecureServer(
    { ...pairOf(authority), ca: readFileSync(authority.cert), requestCert: true, allowHTTP1: true },
    (req, res) => void res.end(String((req.socket as TLSSocket).getPeerCertificate().subject.CN)),
  )
  const sockets = new WebSocketServer({ noServer: true })
  server.on('upgrade', (req, socket, head) =>
    sockets.handleUpgrade(req, socket, head, ws => ws.send(req.socket.getPeerCertificate().subject.CN)),
  )
  server.listen(0)
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const url = `https://localhost:${(server.address() as AddressInfo).port}`
  for (const http2 of [false, true]) {
    const rig = await startRig(t, { ...OFF, upstream: { url, http2, tls: { ca: authority.cert, ...own } } })
    t.equal(await (await fetch(rig.proxy.url)).text(), 'own')
    if (http2) continue
    const socket = new WebSocket(rig.proxy.url.replace('http', 'ws'))
    t.equal(String((await once(socket, 'message'))[0]), 'own')
    socket.terminate()
  }
  const rig = await startRig(t, { ...OFF, upstream: { url, breaker: false, tls: { ca: authority.cert } } })
  t.equal((await fetch(rig.proxy.url)).status, 502, 'without it')
  t.match(rig.failures.join(), /the upstream wants a certificate from its clients/)
})

t.test('a key "cert" that no client can have is a warning, and so is a tier of no fingerprint', t => {
  const of = (listen: object | string): string[] => {
    const tiers = [{ name: 'gold', keys: ['AB:CD'], rate: '2/s' }]
    const buckets = { client: { key: 'cert', rate: '1/s', capacity: 1, tiers } }
    const settings = parseConfig(JSON.stringify({ listen, upstream: 'echo:', buckets, routes: [{ name: 'all' }] }))
    return warnings(settings).map(({ path, message }) => `${path}: ${message}`)
  }
  const base = t.testdir()
  const authority = makeCertificate(`${base}/authority`, 'DNS:localhost')
  const plain = of('127.0.0.1:0')
  t.match(plain[0], /^buckets\.client\.key: no client is asked for a certificate.*"clientCa": "FILE"/)
  const asked = of({ address: '127.0.0.1:0', tls: { ...authority, clientCa: authority.cert } })
  t.equal(asked.length, plain.length - 1)
  t.match(asked.join('\n'), /^buckets\.client\.tiers\[0\]\.keys\[0\]: .*it is no fingerprint/m)
  t.end()
})
