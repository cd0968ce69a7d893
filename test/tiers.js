// @ts-check
/**
 * Which test belongs where, in the order in which the tiers run. A file is in the tier with the longest path that it begins with.
 *
 * @type {readonly { name: string, holds: string, jobs: number, paths: readonly string[] }[]}
 */
export const TIERS = [
  {
    name: 'browser',
    holds: 'the dashboard, the replay page and waiting pages in Chromium',
    jobs: 2,
    paths: ['admin/dashboard', 'replay/page', 'proxy/waiting-browser'],
  },
  {
    name: 'unit',
    holds: 'core, configuration, replay, memory store, on the virtual clock',
    jobs: 2,
    paths: [
      'core/',
      'config/',
      'http/',
      'sharing/',
      'replay/',
      'stores/memory',
      'instances/simulator',
      'floors',
      'setup',
      'stores/redis-shards',
    ],
  },
  {
    name: 'integration',
    holds: 'proxy, admin server and library over real sockets',
    jobs: 3,
    paths: ['proxy/', 'admin/', 'outbound/', 'hardening/', 'gate/'],
  },
  {
    name: 'timing',
    holds: 'what real time is the subject of, one file at a time',
    jobs: 1,
    paths: ['pacing/', 'outbound/connecting', 'outbound/interceptor', 'proxy/trace', 'hardening/bounds'],
  },
  { name: 'stores', holds: 'Redis and PostgreSQL', jobs: 2, paths: ['stores/'] },
  {
    name: 'cli',
    holds: 'the command line, the documents, the package',
    jobs: 3,
    paths: ['cli/', 'docs', 'examples', 'package'],
  },
  {
    name: 'system',
    holds:
      'several instances, outages, rude traffic, ten thousand held, upstreams of few workers and on PostgreSQL; alone on the machine',
    jobs: 1,
    paths: ['instances/', 'soak/', 'upstreams/', 'hardening/held', 'cli/store', 'cli/workers.test', 'gate/hang-ups'],
  },
]

/** These files run in `npm run test:all` only, as does the whole tier `system`. */
export const EXTENDED = new Set([
  'admin/dashboard-pictures.test.ts',
  'cli/replay.test.ts',
  'outbound/examples.test.ts',
  'package-core.test.ts',
  'package.test.ts',
  'proxy/loop.test.ts',
  'stores/postgres-server.test.ts',
  'stores/redis-cluster.test.ts',
  'stores/redis-failure.test.ts',
  'stores/redis-traffic.test.ts',
])
