/** `dns` and `resolver` of an upstream and its servers. */
import t from 'tap'
import { effective } from '../../src/config/report/effective-config.js'
import { faults, least, parse } from './sample.js'

const withUpstream = (upstream: object) => ({ ...least(), upstream })

t.test('dns beside a url, or beside that of a server', async t => {
  const resolver = ['10.0.0.2:53', '[fd00::2]:53', '10.0.0.3']
  for (const upstream of [
    { url: 'http://app.internal:9000', dns: true },
    { url: 'https://app.internal', dns: true, resolver, pick: 'round-robin' },
    { url: 'http://_http._tcp.app.internal', dns: 'srv', resolver },
    { servers: ['http://10.0.0.1:9000', { url: 'http://app.internal:9000', dns: true, resolver, weight: 2 }] },
    { servers: [{ url: 'http://app.internal', dns: 'srv', maxInFlight: 3 }] },
  ]) {
    const settings = parse(withUpstream(upstream))
    const printed = JSON.parse(JSON.stringify(effective(settings)))
    t.match(printed.upstream, upstream)
    t.same(parse(printed).routes[0]!.upstream, settings.routes[0]!.upstream)
  }
})

t.test('what cannot be followed is told with its place', async t => {
  const name = 'has no name that DNS could resolve; remove "dns", or use a name'
  const server = 'is not the address of a DNS server; use e.g. "10.0.0.2:53" or "[fd00::2]:53"'
  const url = 'http://app.internal:9000'
  for (const [upstream, ...expected] of [
    [{ url, dns: 'yes' }, 'upstream.dns: "yes" is not a way to follow DNS; use true or "srv"'],
    [{ url: 'http://10.0.0.1:9000', dns: true }, `upstream.dns: "http://10.0.0.1:9000" ${name}`],
    [{ url: 'http://[fd00::1]:9000', dns: true }, `upstream.dns: "http://[fd00::1]:9000" ${name}`],
    [{ url: 'unix:/run/app.sock', dns: true }, `upstream.dns: "unix:/run/app.sock" ${name}`],
    [{ url: 'echo:', dns: true }, `upstream.dns: "echo:" ${name}`],
    [{ servers: [url, { url: 'http://10.0.0.1', dns: true }] }, `upstream.servers[1].dns: "http://10.0.0.1" ${name}`],
    [{ url, dns: 'srv' }, 'upstream.dns: SRV records say the port; write "url": "http://app.internal"'],
    [
      { servers: [{ url, dns: 'srv' }] },
      'upstream.servers[0].dns: SRV records say the port; write "url": "http://app.internal"',
    ],
    [
      { servers: [url], dns: true, resolver: ['10.0.0.2'] },
      'upstream.dns: is for the upstream\'s "url"; write it beside the "url" of a server',
      'upstream.resolver: is for the upstream\'s "url"; write it beside the "url" of a server',
    ],
    [{ url, resolver: ['10.0.0.2'] }, 'upstream.resolver: counts beside "dns" only; set "dns": true, or remove it'],
    [{ url, dns: true, resolver: [] }, 'upstream.resolver: the list is empty; use e.g. ["10.0.0.2:53"]'],
    [
      { url, dns: true, resolver: '10.0.0.2' },
      'upstream.resolver: "10.0.0.2" is not a list of DNS servers; use e.g. ["10.0.0.2:53"]',
    ],
    [{ url, dns: true, resolver: ['dns.internal'] }, `upstream.resolver[0]: "dns.internal" ${server}`],
    [{ url, dns: true, resolver: ['10.0.0.2:99999'] }, `upstream.resolver[0]: "10.0.0.2:99999" ${server}`],
    [{ url, dns: true, resolver: [53] }, `upstream.resolver[0]: 53 ${server}`],
  ] as const) {
    t.same(faults(withUpstream(upstream)), expected, JSON.stringify(upstream))
  }
})
