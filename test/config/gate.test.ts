/** `"upstream": "gate:"`: what it needs, and what does not go together with it. */
import t from 'tap'
import { effective } from '../../src/config/report/effective-config.js'
import { warnings } from '../../src/config/warnings/index.js'
import { faults, parse } from './sample.js'

const buckets = { client: { key: 'ip', rate: '5/s', capacity: 10 } }
const file = (route: object = {}, more: object = {}) => ({
  upstream: 'gate:',
  trustProxy: ['loopback'],
  buckets,
  routes: [{ name: 'gate', ...route }],
  ...more,
})

t.test('a gate needs a trusted proxy', async t => {
  const missing = [/^trustProxy: a route has "upstream": "gate:".*name the proxies/]
  for (const trustProxy of [undefined, false, 0, []]) {
    t.match(faults({ ...file(), trustProxy }), missing)
    t.match(faults({ upstream: 'gate:', buckets, trustProxy }), missing, 'without a list of routes')
    t.match(faults({ upstream: 'echo:', buckets, trustProxy, routes: [{ upstream: 'gate:' }] }), missing)
  }
  for (const trustProxy of [true, 1, ['10.0.0.0/8']]) t.same(faults({ ...file(), trustProxy }), [])
  t.same(faults({ upstream: 'echo:', buckets, routes: [{}] }), [], 'other routes need none')
})

t.test('`gate` goes with the upstream "gate:" alone', async t => {
  t.equal(parse(file({ gate: { rejectStatus: 403 } })).routes[0]!.gate?.rejectStatus, 403)
  t.same(parse(file()).routes[0]!.gate, {})
  t.equal(parse({ upstream: 'echo:', buckets }).routes[0]!.gate, undefined)
  t.match(faults({ upstream: 'echo:', buckets, routes: [{ gate: {} }] }), [
    /^routes\[0\]\.gate: only goes with "upstream": "gate:"/,
  ])
  t.equal(parse(file({ gate: { passStatus: 200 } })).routes[0]!.gate?.passStatus, 200)
  t.match(faults(file({ gate: { passStatus: 206 } })), [/^routes\[0\]\.gate\.passStatus: 206 is not a status; use 200/])
  t.match(faults(file({ gate: { rejectStatus: 200 } })), [/^routes\[0\]\.gate\.rejectStatus: .*400 to 599/])
  t.match(faults(file({ gate: { status: 403 } })), [/^routes\[0\]\.gate\.status: unknown key.*rejectStatus/])
})

t.test('a gate has no options of an upstream', async t => {
  t.match(faults({ ...file(), upstream: { url: 'gate:', maxInFlight: 5 } }), [
    /^upstream\.url: "gate:" takes no options/,
  ])
  const { breaker, via, requestBuffer } = parse(file()).routes[0]!.upstream
  t.same({ breaker, via, requestBuffer }, { breaker: undefined, via: false, requestBuffer: 0 })
})

t.test('no cost is read in bodies', async t => {
  const cost = { buckets: { client: { estimate: 'body/4', max: 'max_tokens', after: 'usage.total_tokens' } } }
  t.match(faults(file({ cost })), [
    /^routes\[0\]\.cost\.buckets\.client\.estimate: reads a body/,
    /^routes\[0\]\.cost\.buckets\.client\.max: reads a body/,
    /^routes\[0\]\.cost\.buckets\.client\.after: reads a body/,
  ])
  t.same(faults(file({ cost: { buckets: { client: { estimate: 5 } } } })), [])
})

t.test('the effective configuration is in the words of the file, and parses to the same', async t => {
  const settings = parse(file({ gate: { rejectStatus: 403, passStatus: 200 } }))
  const shown = effective(settings) as { upstream: unknown; routes: { gate: unknown; upstream: unknown }[] }
  t.equal(shown.upstream, 'gate:')
  t.same(shown.routes[0]!.gate, { rejectStatus: 403, passStatus: 200 })
  t.same(parse(shown), settings)
  const beside = parse({ ...file(), routes: [{ name: 'a', upstream: 'echo:' }, { name: 'b' }] })
  const { routes } = effective(beside) as typeof shown
  t.equal(routes[1]!.upstream, 'gate:')
  t.same(parse(effective(beside) as object), beside)
  t.same(warnings(settings), [])
})

t.test('a configuration that still has `listen.grpc` is told what to do', async t => {
  const listen = { address: '127.0.0.1:8080', grpc: '127.0.0.1:50051' }
  t.same(faults({ ...file(), listen }), [
    'listen.grpc: unknown key; gates are asked over HTTP alone: remove it, and see docs/gate.md#envoy for Envoy',
  ])
})

t.test('`maxInFlight` of buckets bounds nothing at gates', async t => {
  const bounded = { client: { ...buckets.client, maxInFlight: 5 } }
  t.match(warnings(parse({ ...file(), buckets: bounded })), [{ path: 'buckets.client.maxInFlight', message: /gate:/ }])
  const beside = [{ name: 'gate' }, { name: 'proxy', match: { path: '/p' }, upstream: 'echo:' }].reverse()
  t.same(warnings(parse({ ...file(), buckets: bounded, routes: beside })), [])
})
