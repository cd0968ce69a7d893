/** The program as a gate: its files, its ready line, gRPC, workers. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { Client, credentials } from '@grpc/grpc-js'
import t from 'tap'
import { request } from 'undici'
import { parseConfig } from '../../src/config/load.js'
import { warnings } from '../../src/config/warnings/index.js'
import { ROOT, shaper } from '../cli/command.js'
import { blocks } from '../docs-code.js'
import { freePort } from '../servers/free-port.js'
import { deployed } from '../servers/gate-proxies.js'

const CHECK = '/envoy.service.auth.v3.Authorization/Check'

function check(address: string): Promise<Buffer> {
  const client = new Client(address, credentials.createInsecure())
  return new Promise<Buffer>((resolve, reject) => {
    const asIs = (bytes: Buffer): Buffer => bytes
    client.makeUnaryRequest(CHECK, asIs, asIs, Buffer.alloc(0), (error, answer) =>
      error === null ? resolve(answer!) : reject(error),
    )
  }).finally(() => client.close())
}

t.test('the files of deploy/gate are valid, and nothing is to be warned of', async t => {
  const files = readdirSync(`${ROOT}/deploy/gate`)
  const configs = files.filter(name => name.endsWith('.config.json'))
  t.equal(configs.length, 3)
  for (const name of configs) t.same(warnings(parseConfig(deployed(name))), [], name)
  t.match(
    deployed('envoy.yaml'),
    new RegExp(`port_value: ${parseConfig(deployed('shaper-envoy.config.json')).listen.grpc!.port} `),
  )
  t.match(deployed('envoy.yaml'), /timeout: 60s/)
})

t.test('the ready line tells where gRPC is', async t => {
  const file = deployed('shaper-envoy.config.json').replaceAll(/:(8080|50051)"/g, ':0"')
  const { child, ready, url, finished } = shaper(['start'], { cwd: t.testdir({ 'shaper.config.json': file }) })
  const [, address] =
    /^shaper listening on http:\/\/127\.0\.0\.1:\d+ -> gate:, gRPC on (127\.0\.0\.1:[1-9]\d*)$/.exec(await ready) ?? []
  t.ok(address, await ready)
  t.equal((await request(await url)).statusCode, 204)
  t.match(await check(address!), /RateLimit/)
  child.kill('SIGTERM')
  const { code, stderr } = await finished
  t.equal(code, 0)
  t.match(stderr, /"path":"\/"/)
})

t.test('an address of gRPC that is taken', async t => {
  const port = await freePort()
  const file = deployed('shaper-envoy.config.json').replace('8080', '0').replace('50051', String(port))
  const cwd = t.testdir({ 'shaper.config.json': file })
  const first = shaper(['start'], { cwd })
  await first.ready
  const { code, stderr } = await shaper(['start'], { cwd }).finished
  t.equal(code, 1)
  t.match(stderr, new RegExp(`^shaper: cannot listen on 127\\.0\\.0\\.1:${port} for gRPC: .*EADDRINUSE`, 'm'))
  first.child.kill('SIGTERM')
  t.equal((await first.finished).code, 0)
})

t.test('workers share the port of gRPC, and the buckets', async t => {
  const port = await freePort()
  const config = {
    listen: { address: '127.0.0.1:0', grpc: `127.0.0.1:${port}` },
    upstream: 'gate:',
    trustProxy: ['loopback'],
    buckets: { all: { key: 'all', rate: '1/h', capacity: 4 } },
    routes: [{ name: 'gate', mode: 'meter' }],
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const { child, ready, url, finished } = shaper(['start', '--workers', '2'], { cwd })
  t.match(await ready, new RegExp(`-> gate:, gRPC on 127\\.0\\.0\\.1:${port}$`))
  const byGrpc = []
  for (let count = 0; count < 6; count += 1) byGrpc.push(/Retry-After/.test(String(await check(`127.0.0.1:${port}`))))
  t.same(byGrpc.filter(isRejected => !isRejected).length, 4)
  t.equal((await request(await url)).statusCode, 429)
  child.kill('SIGTERM')
  t.equal((await finished).code, 0)
})

t.test('docs/gate.md quotes the files that the tests run', async t => {
  const files = readdirSync(`${ROOT}/deploy/gate`).map(deployed)
  const quoted = ['nginx', 'haproxy', 'caddyfile', 'yaml'].flatMap(language => blocks('docs/gate.md', language))
  t.equal(quoted.length, 6)
  // The second of nginx is what test/gate/proxies.test.ts adds.
  for (const block of quoted.filter(text => !text.includes('@open')))
    t.ok(
      files.some(text => text.includes(block)),
      block,
    )
  for (const [, linked] of readFileSync(`${ROOT}/docs/gate.md`, 'utf8').matchAll(/\(\.\.\/(deploy\/gate\/[^)]+)\)/g)) {
    t.ok(existsSync(`${ROOT}/${linked}`), linked!)
  }
})
