/** The program as a gate: its files, its ready line, workers. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { request } from 'undici'
import { parseConfig } from '../../src/config/load.js'
import { formatListen } from '../../src/config/schema/address.js'
import { warnings } from '../../src/config/warnings/index.js'
import { ROOT, shaper } from '../cli/command.js'
import { blocks } from '../docs-code.js'
import { deployed } from '../servers/gate-proxies.js'

t.test('the files of deploy/gate are valid, and nothing is to be warned of', async t => {
  const files = readdirSync(`${ROOT}/deploy/gate`)
  const configs = files.filter(name => name.endsWith('.config.json'))
  t.equal(configs.length, 3)
  for (const name of configs) t.same(warnings(parseConfig(deployed(name))), [], name)
  const envoy = deployed('envoy.yaml')
  const [, port] = parseConfig(deployed('shaper-envoy.config.json')).listen.map(formatListen)[0]!.split(':')
  t.ok(envoy.includes(`port_value: ${port} `) && envoy.includes(`uri: "http://127.0.0.1:${port}"`))
})

t.test('the ready line tells that it is a gate, and workers share its buckets', async t => {
  const config = {
    listen: '127.0.0.1:0',
    upstream: 'gate:',
    trustProxy: ['loopback'],
    buckets: { all: { key: 'all', rate: '1/h', capacity: 4 } },
    routes: [{ name: 'gate', mode: 'meter' }],
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const { child, ready, url, finished } = shaper(['start', '--workers', '2'], { cwd })
  t.match(await ready, /^shaper listening on http:\/\/127\.0\.0\.1:\d+ -> gate:$/)
  const statuses = []
  for (let count = 0; count < 6; count += 1) statuses.push((await request(await url)).statusCode)
  t.same(statuses, [204, 204, 204, 204, 429, 429])
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
