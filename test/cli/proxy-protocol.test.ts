/** HAProxy in front of the command, with the PROXY protocol. */
import { writeFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { connect as tlsConnect } from 'node:tls'
import t from 'tap'
import { makeCertificate } from '../servers/certificate.js'
import { freePort } from '../servers/free-port.js'
import { startHaproxy } from '../servers/gate-proxies.js'
import { until } from '../servers/redis.js'
import { shaper } from './command.js'

const VERSIONS = ['send-proxy', 'send-proxy-v2', 'send-proxy-v2-ssl-cn'] as const
const GET = 'GET /api HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'

/** The status, and the client's address as the upstream gets it. */
async function ask(socket: Socket): Promise<string> {
  let answer = ''
  socket.on('data', chunk => {
    answer += chunk
  })
  socket.on('error', () => undefined).write(GET)
  await new Promise(resolve => socket.once('close', resolve))
  return `${answer.slice(9, 12)} ${/"x-forwarded-for":"([^"]*)"/.exec(answer)?.[1] ?? ''}`.trim()
}

/** HAProxy with a port for each version. Its checks ask for /healthz, and announce themselves. One that takes longer than `inter` would fail. */
async function startBalancer(t: Parameters<typeof startHaproxy>[0], server: string): Promise<number[]> {
  const ports: number[] = []
  for (const _ of VERSIONS) ports.push(await freePort())
  const parts = VERSIONS.map(
    (version, at) => `
listen ${version}
    bind 127.0.0.1:${ports[at]}
    option httpchk GET /healthz
    server shaper ${server} ${version} check inter 30s`,
  )
  const times = ['connect', 'client', 'server'].map(what => `    timeout ${what} 30s`).join('\n')
  await startHaproxy(t, ports.at(-1)!, `defaults\n    mode tcp\n${times}\n${parts.join('\n')}\n`)
  return ports
}

for (const how of ['plain', 'TLS', 'workers'] as const) {
  t.test(`${how === 'plain' ? '' : 'long: '}HAProxy says who its client is: ${how}`, async t => {
    const cwd = t.testdir()
    const tls = how === 'TLS' ? { tls: makeCertificate(`${cwd}/own`, 'DNS:localhost') } : {}
    const listen = { address: '127.0.0.1:0', proxyProtocol: ['127.0.0.1/32'], ...tls }
    const routes = [{ name: 'health', match: { path: '/healthz' }, mode: 'off' }, { mode: 'meter' }]
    const buckets = { client: { key: 'ip', rate: '1/h', capacity: VERSIONS.length } }
    writeFileSync(`${cwd}/shaper.config.json`, JSON.stringify({ listen, upstream: 'echo:', buckets, routes }))
    const command = shaper(['start', ...(how === 'workers' ? ['--workers', '2'] : [])], { cwd })
    t.teardown(() => void command.child.kill('SIGKILL'))
    const port = Number(new URL(await command.url).port)
    const ports = await startBalancer(t, `127.0.0.1:${port}${how === 'TLS' ? ' check-ssl verify none' : ''}`)
    const open = (to: number, localAddress: string): Socket => {
      const options = { port: to, host: '127.0.0.1', localAddress }
      return how === 'TLS' ? tlsConnect({ ...options, rejectUnauthorized: false }) : connect(options)
    }
    for (const client of ['127.0.0.5', '127.0.0.6']) {
      for (const [at, version] of VERSIONS.entries())
        t.equal(await ask(open(ports[at]!, client)), `200 ${client}`, `${version} from ${client}`)
      t.equal(await ask(open(ports[0]!, client)), '429', 'the limit is that of the client')
    }
    t.equal(await ask(open(port, '127.0.0.7')), '200 127.0.0.7', 'another peer sends none')
    await until('HAProxy has looked', () => command.stderr().includes('/healthz'))
    t.notMatch(command.stderr(), /PROXY/)

    const silent = open(port, '127.0.0.1')
    t.equal(await ask(silent), '', 'a balancer without a header')
    await until('it is logged', () => command.stderr().includes('PROXY'))
    const line = command
      .stderr()
      .split('\n')
      .find(each => each.includes('PROXY'))!
    const { level, peer, cause, msg } = JSON.parse(line)
    t.same([level, peer, cause], [40, '127.0.0.1', 'there is no PROXY header'])
    t.match(msg, /^a connection without a good PROXY header was closed; .*"proxyProtocol"$/)
    if (how === 'TLS') {
      const unlisted = connect({ port, host: '127.0.0.1', localAddress: '127.0.0.8' })
      unlisted.on('error', () => undefined).write('PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n')
      await until('that is logged, too', () => command.stderr().includes('does not list'))
      const { level, peer } = JSON.parse(
        command
          .stderr()
          .split('\n')
          .find(each => each.includes('does not list'))!,
      )
      t.same([level, peer], [40, '127.0.0.8'])
    }
    command.child.kill('SIGTERM')
    t.equal((await command.finished).code, 0)
  })
}
