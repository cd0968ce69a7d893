import t from 'tap'
import { workerShare } from '../../src/config/derived/worker-share.js'
import { loadConfig } from '../../src/config/load.js'
import { least, linesOf, parse } from './sample.js'

const FILE = {
  upstream: { url: 'http://127.0.0.1:9000', maxInFlight: 8, connections: 10 },
  buckets: {
    client: {
      rate: '5/s',
      maxInFlight: 4,
      tiers: [{ name: 'gold', keys: ['a'], maxInFlight: 5 }],
      key: 'header:x-key',
    },
    everyone: { key: 'all', rate: '100/s' },
  },
  routes: [
    { name: 'one', match: { path: '/one' }, buckets: ['client', 'everyone'] },
    { name: 'own', buckets: ['everyone'], upstream: { url: 'http://127.0.0.1:9001', connections: 3 } },
  ],
  limits: { maxQueued: 100, connectionsPerClient: 8, bufferMemory: 1_000_000 },
}

t.test('the parts of all workers are the whole, and rates are not divided', async t => {
  const settings = parse(FILE)
  const before = structuredClone(settings)
  const parts = [1, 2, 3].map(number => workerShare(settings, number, 3))
  t.same(settings, before, 'the whole stays as it is')
  const figures = ({ limits, routes, buckets }: typeof settings) => ({
    maxQueued: limits.maxQueued,
    maxConnections: limits.maxConnections,
    connectionsPerClient: limits.connectionsPerClient,
    bufferMemory: limits.bufferMemory,
    maxKeys: limits.maxKeys,
    oneInFlight: routes[0]!.upstream.maxInFlight,
    oneConnections: routes[0]!.upstream.connections,
    ownInFlight: routes[1]!.upstream.maxInFlight,
    ownConnections: routes[1]!.upstream.connections,
    clientInFlight: buckets[0]!.limits.maxInFlight,
    goldInFlight: buckets[0]!.tiers[0]!.limits.maxInFlight,
    everyoneInFlight: buckets[1]!.limits.maxInFlight,
  })
  const expected = {
    maxQueued: [34, 33, 33],
    maxConnections: [6_667, 6_667, 6_666],
    connectionsPerClient: [3, 3, 2],
    bufferMemory: [333_334, 333_333, 333_333],
    maxKeys: [100_000, 100_000, 100_000],
    oneInFlight: [3, 3, 2],
    oneConnections: [4, 3, 3],
    ownInFlight: [Infinity, Infinity, Infinity],
    ownConnections: [1, 1, 1],
    clientInFlight: [2, 1, 1],
    goldInFlight: [2, 2, 1],
    everyoneInFlight: [undefined, undefined, undefined],
  }
  for (const [name, values] of Object.entries(expected)) {
    t.same(
      parts.map(part => figures(part)[name as keyof typeof expected]),
      values,
      name,
    )
  }
  for (const { buckets, routes } of parts) {
    t.equal(routes[0]!.buckets[1], buckets[1], 'routes share their buckets')
    t.same(buckets[1], settings.buckets[1])
  }
})

t.test('each worker has one at least', async t => {
  t.equal(workerShare(parse({ ...least(), limits: { maxQueued: 2 } }), 3, 3).limits.maxQueued, 1)
})

t.test('bounds that are too small for the workers are found, wherever they stand', async t => {
  const faults = (workers: string, file: object) => {
    const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(file) })
    return linesOf(() => loadConfig({ flags: {}, env: {}, cwd, workers })).map(line => line.replace(/; use.*/, ''))
  }
  t.same(faults('4', FILE).sort(), [
    'routes[1].upstream.connections: the workers divide it, and 3 is less than one for each of 4',
  ])
  t.same(faults('16', FILE).sort(), [
    'buckets.client.maxInFlight: the workers divide it, and 4 is less than one for each of 16',
    'buckets.client.tiers[0].maxInFlight: the workers divide it, and 5 is less than one for each of 16',
    'limits.bufferMemory: the workers divide it, and 1000000 is less than 65536 for each of 16',
    'limits.connectionsPerClient: the workers divide it, and 8 is less than one for each of 16',
    'routes[1].upstream.connections: the workers divide it, and 3 is less than one for each of 16',
    'upstream.connections: the workers divide it, and 10 is less than one for each of 16',
    'upstream.maxInFlight: the workers divide it, and 8 is less than one for each of 16',
  ])
  const adapt = { min: '5/s', max: '9/s', errors: 0.1 }
  t.same(faults('2', { ...least(), upstream: { url: 'http://127.0.0.1:9000', adapt } }), [], 'they share its rate')
  t.same(
    faults('2', { ...least(), upstream: { url: 'echo:', maxInFlight: 'x' }, limits: 5 }).length,
    2,
    'what is invalid is reported once',
  )
})
