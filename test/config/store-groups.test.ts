/** What a store is told of the buckets of a configuration. */
import t from 'tap'
import { bucketsOfSeveralLanes } from '../../src/config/derived/store-groups.js'
import { parseConfig } from '../../src/config/load.js'

t.test('buckets of several routes or classes have several lanes', async t => {
  const rate = '5/s'
  const { routes } = parseConfig(
    JSON.stringify({
      upstream: 'echo:',
      trustProxy: ['loopback'],
      buckets: {
        everyone: { key: 'all', rate },
        client: { key: 'ip', rate },
        user: { key: 'header:x-user', rate, tiers: [{ name: 'gold', keys: ['a'], priority: 1 }] },
        token: { key: 'header:x-token', rate },
      },
      routes: [
        { name: 'a', match: { path: '/a/*' }, buckets: ['client', 'everyone'] },
        { name: 'b', match: { path: '/b/*' }, buckets: ['everyone'] },
        { name: 'c', match: { path: '/c/*' }, buckets: ['user'] },
        { name: 'd', buckets: ['token'], priority: { header: true } },
      ],
    }),
  )
  t.same([...bucketsOfSeveralLanes(routes)].sort(), ['everyone', 'token', 'user'])
})
