/** What the log says at start of the limits and the longest wait. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { summary } from '../../src/config/report/longest-waits.js'

const CLIENT = { key: 'ip', rate: '5/s', capacity: 10 }

for (const [what, config, limits, wait] of [
  [
    'several buckets',
    {
      buckets: {
        client: CLIENT,
        everyone: { key: 'all', rate: '100/s', capacity: 200, burst: 5 },
        unused: { key: 'all', rate: '1/s' },
        tiered: { key: 'ip', rate: '1/s', capacity: 2, tiers: [{ name: 'gold', keys: ['192.0.2.1'], rate: '2/s' }] },
      },
      routes: [
        { name: 'login', match: { path: '/login' }, mode: 'meter', buckets: ['tiered'] },
        { name: 'api', buckets: ['client', 'everyone'] },
      ],
    },
    'client 5/s, capacity 10; everyone 100/s, capacity 200, burst 5; tiered 1/s, capacity 2, 1 tier',
    '1.95 s, of route api',
  ],
  [
    'one request may wait',
    { buckets: { client: CLIENT }, routes: [{ name: 'a', maxWait: '1s' }] },
    'client 5/s, capacity 10',
    '1s (maxWait), of route a',
  ],
  [
    'meter',
    { buckets: { client: CLIENT }, routes: [{ name: 'a', mode: 'meter' }] },
    'client 5/s, capacity 10',
    'none, no route holds requests',
  ],
  [
    'a dry run',
    { dryRun: true, buckets: { client: CLIENT }, routes: [{ name: 'a' }] },
    'client 5/s, capacity 10 (a dry run: nothing is held or rejected)',
    'none, no route holds requests',
  ],
  [
    'off',
    { routes: [{ name: 'a', mode: 'off' }] },
    'none, every request is forwarded at once',
    'none, no route holds requests',
  ],
  [
    'an adaptive rate',
    {
      upstream: { url: 'http://a', adapt: { min: '5/s', max: '200/s', latency: { p90: '1s' } } },
      routes: [{ name: 'a' }],
    },
    'adaptive 5/s to 200/s',
    'no bound, of route a',
  ],
  [
    'many',
    {
      buckets: Object.fromEntries(Array.from({ length: 10 }, (_, n) => [`b${n}`, { ...CLIENT, rate: `${n + 1}/s` }])),
      routes: [{ name: 'a' }],
    },
    'b0 1/s, capacity 10; b1 2/s, capacity 10; b2 3/s, capacity 10; b3 4/s, capacity 10; b4 5/s, capacity 10; b5 6/s, capacity 10; b6 7/s, capacity 10; b7 8/s, capacity 10; 2 more',
    '9 s, of route a',
  ],
] as const) {
  t.test(what, async t => {
    const settings = parseConfig(JSON.stringify({ listen: '127.0.0.1:0', upstream: 'http://a', ...config }))
    t.same(summary(settings), [`limits: ${limits}`, `longest wait: ${wait}`])
  })
}
