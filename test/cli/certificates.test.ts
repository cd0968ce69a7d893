/** Certificates, keys and authorities that are renewed while the command runs. */
import { once } from 'node:events'
import { copyFileSync, mkdirSync, readFileSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { connect, type TLSSocket } from 'node:tls'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { request } from 'undici'
import { WebSocket } from 'ws'
import { type Certificate, makeCertificate, signCertificate } from '../servers/certificate.js'
import { freePort } from '../servers/free-port.js'
import { startNginx } from '../servers/gate-proxies.js'
import { startRedis, until } from '../servers/redis.js'
import { type Command, shaper } from './command.js'

type Tap = Pick<typeof t, 'testdir' | 'teardown'>

const LIMITS = { buckets: { all: { key: 'all', rate: '1000/s', capacity: 1_000 } }, accessLog: false }

function start(t: Tap, cwd: string, config: object, ...args: string[]): Command {
  writeFileSync(`${cwd}/shaper.config.json`, JSON.stringify({ listen: '127.0.0.1:0', ...LIMITS, ...config }))
  const command = shaper(['start', ...args], { cwd })
  t.teardown(() => void command.child.kill('SIGKILL'))
  return command
}

/** What was logged since the last call, once something matches. */
function reader(command: Command): (pattern: RegExp) => Promise<string> {
  let at = 0
  return async pattern => {
    const news = (): string[] => command.stderr().slice(at).split('\n').slice(0, -1)
    await until(`${pattern} is logged`, () => news().some(line => pattern.test(line)))
    const lines = news()
    const found = lines.findIndex(line => pattern.test(line))
    at += lines.slice(0, found + 1).reduce((sum, line) => sum + line.length + 1, 0)
    return lines[found]!
  }
}

async function secure(t: Tap, url: string): Promise<TLSSocket> {
  const socket = connect({ port: Number(new URL(url).port), host: '127.0.0.1', rejectUnauthorized: false })
  t.teardown(() => void socket.destroy())
  await once(socket, 'secureConnect')
  return socket
}

/** The names of the certificate that a new connection gets. */
async function presented(t: Tap, url: string): Promise<string> {
  const socket = await secure(t, url)
  const names = socket.getPeerCertificate().subjectaltname ?? ''
  socket.destroy()
  return names
}

const install = (from: Certificate, to: Certificate): void => {
  copyFileSync(from.key, to.key)
  copyFileSync(from.cert, to.cert)
}

// They are independent, and mostly wait.
t.jobs = 3

t.test('a renewed certificate is served to new connections', { buffered: true }, async t => {
  const cwd = t.testdir()
  const made = ['a', 'b', 'c', 'd'].map(name => makeCertificate(`${cwd}/${name}`, `DNS:${name}.example`))
  const [a, b, c, d] = made as [Certificate, Certificate, Certificate, Certificate]
  const files = { cert: `${cwd}/cert.pem`, key: `${cwd}/key.pem` }
  install(a, files)
  const command = start(t, cwd, { listen: { address: '127.0.0.1:0', tls: files }, upstream: 'echo:' })
  const url = await command.url
  const logged = reader(command)
  t.equal(await presented(t, url), 'DNS:a.example')
  const old = await secure(t, url)

  install(b, files)
  const line = await logged(/"reloaded"/)
  t.match(line, `listen.tls.cert: ${files.cert} was read again`)
  t.match(line, `listen.tls.key: ${files.key} was read again`)
  t.notMatch(line, 'next start')
  t.equal(await presented(t, url), 'DNS:b.example')
  old.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n')
  t.match(String((await once(old, 'data'))[0]), /^HTTP\/1\.1 200/, 'a connection from before goes on')

  // While it is copied, it may be read empty. That is told, too.
  copyFileSync(c.cert, files.cert)
  const half = await logged(/listen\.tls\.key.*not reloaded/)
  t.equal(JSON.parse(half).level, 40, 'it may be a renewal whose key comes next')
  t.equal(await presented(t, url), 'DNS:b.example', 'the old one stays')
  writeFileSync(files.cert, readFileSync(c.cert).subarray(0, 300))
  await logged(/listen\.tls\.cert.*not reloaded/)
  t.equal(await presented(t, url), 'DNS:b.example')
  install(c, files)
  await logged(/"reloaded"/)
  t.equal(await presented(t, url), 'DNS:c.example')

  command.child.kill('SIGHUP')
  await logged(/nothing has changed/)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)

  mkdirSync(`${cwd}/elsewhere`)
  const real = { cert: `${cwd}/elsewhere/cert.pem`, key: `${cwd}/elsewhere/key.pem` }
  install(c, real)
  const links = { cert: `${cwd}/link-cert.pem`, key: `${cwd}/link-key.pem` }
  symlinkSync(real.cert, links.cert)
  symlinkSync(real.key, links.key)
  const linked = start(t, cwd, { listen: { address: '127.0.0.1:0', tls: links }, upstream: 'echo:' })
  const linkedUrl = await linked.url
  const linkedLog = reader(linked)
  t.equal(await presented(t, linkedUrl), 'DNS:c.example')
  install(d, real)
  linked.child.kill('SIGHUP')
  t.match(await linkedLog(/reloaded/), 'listen.tls.cert', 'SIGHUP reads a file that is not watched')
  t.equal(await presented(t, linkedUrl), 'DNS:d.example')
})

t.test('long: a certificate that has expired, and a key that is gone, are warnings', { buffered: true }, async t => {
  const cwd = t.testdir()
  const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url))
  const expired = { cert: fixture('expired-cert.pem'), key: fixture('upgrade-key.pem') }
  const good = makeCertificate(`${cwd}/a`, 'DNS:a.example')
  const files = { cert: `${cwd}/cert.pem`, key: `${cwd}/key.pem` }
  install(expired, files)
  const command = start(t, cwd, { listen: { address: '127.0.0.1:0', tls: files }, upstream: 'echo:' })
  await command.url
  const logged = reader(command)
  const line = `listen.tls.cert: "${files.cert}" expired at 2020-02-01T00:00:00Z, so clients refuse it; renew it`
  const atStart = JSON.parse(await logged(/expired at/)) as { level: number; msg: string }
  t.same([atStart.level, atStart.msg], [40, line])
  const { stderr, code } = await shaper(['check'], { cwd }).finished
  t.equal(code, 0)
  t.ok(stderr.includes(`warning: ${line}\n`), stderr)

  install(good, files)
  await logged(/"reloaded"/)
  install(expired, files)
  await logged(/"reloaded"/)
  t.match(await logged(/expired at/), 'listen.tls.cert')
  unlinkSync(files.key)
  const gone = JSON.parse(await logged(/is gone/)) as { level: number; file: string }
  t.same([gone.level, gone.file], [40, files.key])
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('long: a renewed authority of an upstream is believed, and only it', { buffered: true }, async t => {
  const cwd = t.testdir()
  const own = makeCertificate(`${cwd}/own`, 'DNS:localhost')
  const other = makeCertificate(`${cwd}/other`, 'DNS:localhost')
  const server = createServer({ cert: readFileSync(own.cert), key: readFileSync(own.key) }, (_req, res) => {
    res.setHeader('connection', 'close').end('ok')
  })
  server.on('upgrade', (_req, socket) => {
    socket.on('error', () => undefined)
    socket.end('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
  })
  server.listen(0)
  await once(server, 'listening')
  t.teardown(() => void server.close())
  const ca = `${cwd}/ca.pem`
  copyFileSync(other.cert, ca)
  const { port } = server.address() as AddressInfo
  const command = start(t, cwd, { upstream: { url: `https://localhost:${port}`, tls: { ca }, breaker: false } })
  const url = await command.url
  const logged = reader(command)
  const ask = async (): Promise<number> => {
    const { statusCode, body } = await request(url)
    await body.dump()
    return statusCode
  }
  const upgrade = async (): Promise<number> => {
    const socket = new WebSocket(url.replace('http', 'ws'))
    socket.on('error', () => undefined)
    const [code] = await Promise.race([
      once(socket, 'upgrade').then(() => [101]),
      once(socket, 'unexpected-response').then(([, { statusCode }]) => [statusCode as number]),
    ])
    socket.terminate()
    return code!
  }
  t.same([await ask(), await upgrade()], [502, 502])
  copyFileSync(own.cert, ca)
  t.match(await logged(/"reloaded"/), `upstream.tls.ca: ${ca} was read again`)
  t.same([await ask(), await upgrade()], [200, 101])
  for (const bad of ['', 'junk', readFileSync(own.cert, 'utf8').slice(0, 300)]) {
    writeFileSync(ca, bad)
    t.match(await logged(/not reloaded/), 'upstream.tls.ca')
    t.same([await ask(), await upgrade()], [200, 101], 'the old one stays')
  }
  copyFileSync(other.cert, ca)
  await logged(/"reloaded"/)
  t.same([await ask(), await upgrade()], [502, 502])
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('long: workers serve the renewed certificate, all of them', { buffered: true }, async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const cwd = t.testdir()
  const a = makeCertificate(`${cwd}/a`, 'DNS:a.example')
  const b = makeCertificate(`${cwd}/b`, 'DNS:b.example')
  const files = { cert: `${cwd}/cert.pem`, key: `${cwd}/key.pem` }
  install(a, files)
  const listen = { address: '127.0.0.1:0', tls: files }
  const store = { type: 'redis', url: redis.url, timeout: '3s' }
  const command = start(t, cwd, { listen, store, upstream: 'echo:' }, '--workers', '2')
  const url = await command.url
  const all = async (): Promise<string[]> => {
    const names = await Promise.all(Array.from({ length: 20 }, () => presented(t, url)))
    return [...new Set(names)]
  }
  t.same(await all(), ['DNS:a.example'])
  install(b, files)
  t.match(await reader(command)(/"reloaded"/), 'listen.tls.cert')
  t.same(await all(), ['DNS:b.example'])
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('long: nginx asks for a certificate and gets ours, also after it was renewed', { buffered: true }, async t => {
  const cwd = t.testdir()
  const authority = makeCertificate(`${cwd}/authority`, 'DNS:localhost')
  const [a, b] = ['a', 'b'].map(name => signCertificate(`${cwd}/${name}`, authority, name)) as [
    Certificate,
    Certificate,
  ]
  const stranger = makeCertificate(`${cwd}/stranger`, 'DNS:stranger')
  const port = await freePort()
  await startNginx(
    t,
    port,
    `server {
      listen 127.0.0.1:${port} ssl;
      ssl_certificate ${authority.cert}; ssl_certificate_key ${authority.key};
      ssl_client_certificate ${authority.cert}; ssl_verify_client on;
      # Each request opens a connection.
      keepalive_timeout 0;
      location / { return 200 $ssl_client_s_dn; }
    }`,
  )
  const files = { cert: `${cwd}/client.pem`, key: `${cwd}/client-key.pem` }
  install(a, files)
  const upstream = { url: `https://localhost:${port}`, tls: { ca: authority.cert, ...files } }
  const command = start(t, cwd, { upstream })
  const url = await command.url
  const logged = reader(command)
  const ask = async (): Promise<[number, string]> => {
    const { statusCode, body } = await request(url)
    return [statusCode, await body.text()]
  }
  t.same(await ask(), [200, 'CN=a'])

  install(b, files)
  const line = await logged(/"reloaded"/)
  t.match(line, `upstream.tls.cert: ${files.cert} was read again`)
  t.match(line, `upstream.tls.key: ${files.key} was read again`)
  t.same(await ask(), [200, 'CN=b'])

  copyFileSync(a.cert, files.cert)
  const half = await logged(/upstream\.tls\.key.*not reloaded/)
  t.equal(JSON.parse(half).level, 40, 'it may be a renewal whose key comes next')
  t.same(await ask(), [200, 'CN=b'], 'the old one stays')
  install(stranger, files)
  await logged(/"reloaded"/)
  t.equal((await ask())[0], 400, 'nginx refuses one of another authority')

  const { tls } = upstream
  for (const [given, missing] of [
    ['cert', 'key'],
    ['key', 'cert'],
  ] as const) {
    const config = { upstream: { ...upstream, tls: { ca: tls.ca, [given]: tls[given] } }, ...LIMITS }
    writeFileSync(`${cwd}/half.json`, JSON.stringify(config))
    const { code, stderr } = await shaper(['check', '-c', 'half.json'], { cwd }).finished
    t.equal(code, 2)
    t.match(
      stderr,
      `upstream.tls.${missing}: missing, as "${given}" is set; name the PEM file of the ${missing}, or remove "${given}"`,
    )
  }
})

t.test('long: clients need a certificate of the authority, also of a renewed one', { buffered: true }, async t => {
  const cwd = t.testdir()
  const own = makeCertificate(`${cwd}/own`, 'DNS:localhost')
  const [old, renewed] = ['old', 'new'].map(name => makeCertificate(`${cwd}/${name}`, `DNS:${name}`)) as [
    Certificate,
    Certificate,
  ]
  const a = signCertificate(`${cwd}/a`, old, 'a')
  const b = signCertificate(`${cwd}/b`, renewed, 'b')
  const clientCa = `${cwd}/clients.pem`
  copyFileSync(old.cert, clientCa)
  const command = start(t, cwd, { listen: { address: '127.0.0.1:0', tls: { ...own, clientCa } }, upstream: 'echo:' })
  const url = await command.url
  const logged = reader(command)
  let session: Buffer | undefined
  /** The status, or why there is none. */
  const ask = (client?: Certificate, resumed?: Buffer): Promise<string> =>
    new Promise(resolve => {
      const pair = client && { cert: readFileSync(client.cert), key: readFileSync(client.key) }
      const port = Number(new URL(url).port)
      const socket = connect({ port, host: '127.0.0.1', rejectUnauthorized: false, ...pair, session: resumed })
      socket.on('session', received => {
        session = received
      })
      socket.once('data', chunk => resolve(String(chunk).slice(9, 12)))
      socket.once('error', ({ code }: NodeJS.ErrnoException) => resolve(code!))
      socket.once('close', () => resolve('closed'))
      socket.write('GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
    })
  t.equal(await ask(a), '200')
  const resumed = session
  t.equal(await ask(a, resumed), '200')
  t.equal(await ask(), 'ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED')
  t.match(await ask(b), /^(closed|ECONNRESET|EPIPE)$/, 'another authority')

  copyFileSync(renewed.cert, clientCa)
  t.match(await logged(/"reloaded"/), `listen.tls.clientCa: ${clientCa} was read again`)
  t.equal(await ask(b), '200')
  t.match(await ask(a), /^(closed|ECONNRESET|EPIPE)$/)
  t.match(await ask(a, resumed), /^(closed|ECONNRESET|EPIPE)$/, 'a session of the old authority')
  writeFileSync(clientCa, 'junk')
  t.match(await logged(/not reloaded/), 'listen.tls.clientCa')
  t.equal(await ask(b), '200', 'the old one stays')
})
