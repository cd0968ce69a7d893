// @ts-check
/** Which test files share a process, which run alone, and which `npm test` leaves to `npm run test:all`. Entries are beginnings of paths. */

/** Files that may share a process: they leave no server, no timer and no variable of the environment behind. */
export const SHARED = [
  ...['core/', 'config/', 'http/', 'sharing/', 'replay/', 'proxy/', 'stores/memory', 'stores/schedule'],
  ...[
    'stores/clock-offset',
    'stores/in-time',
    'stores/constants',
    'admin/fleet',
    'admin/keys',
    'admin/merge-snapshots',
  ],
  ...[
    'admin/metrics',
    'admin/remembered',
    'admin/server',
    'admin/stored-level',
    'admin/traffic-tally',
    'admin/troubles',
  ],
  ...['instances/appointments', 'instances/bursts', 'instances/claims', 'instances/latecomer', 'instances/leases'],
  ...['instances/longest-wait', 'instances/lost-answers', 'instances/order', 'instances/random', 'instances/simulator'],
  'world/',
  ...['instances/small-buckets', 'outbound/arguments', 'outbound/context', 'outbound/leaky-bucket', 'outbound/run'],
]

/** What real time is the subject of: one file at a time, after all others. */
export const ALONE = [
  ...['pacing/', 'proxy/trace', 'hardening/bounds', 'hardening/held'],
  ...['instances/adaptive', 'instances/clock-steps', 'instances/cluster-failover', 'instances/distance'],
  ...['instances/hang-ups', 'instances/outage-', 'instances/postgres-rate', 'instances/rate', 'instances/workers.test'],
  'soak/soak',
  'cli/restart',
]

/** Run by `npm run test:all` only. */
export const REST = [
  ...['admin/dashboard-', 'proxy/waiting-browser', 'replay/page'],
  ...[
    'package',
    'examples',
    'docs-migrating',
    'docs-operating',
    'docs-replay',
    'docs-site',
    'docs-tutorial',
    'docs-wrong',
  ],
  ...[
    'deliver/processes',
    'cli/drain-delay',
    'cli/hash-pick',
    'cli/key-limits',
    'cli/hang-up',
    'cli/levels-file',
    'cli/pretty',
    'cli/quotas',
    'cli/replay',
    'cli/restart',
    'cli/store',
    'cli/tracing',
    'cli/systemd',
    'cli/unix',
    'cli/workers.test',
  ],
  ...['core/patience', 'core/newcomers', 'core/adaptive', 'gate/hang-ups', 'gate/command'],
  ...['outbound/connecting', 'outbound/examples', 'outbound/interceptor', 'outbound/process', 'outbound/types'],
  ...['hardening/bounds', 'hardening/held', 'hardening/slow', 'instances/', 'soak/soak', 'upstreams/'],
  ...['proxy/buffer-memory', 'proxy/connection-limit', 'proxy/loop', 'proxy/protection', 'proxy/slow-readers'],
  ...['pacing/burst', 'proxy/trace', 'replay/proxy', 'replay/target', 'cli/import.test'],
  ...[
    'stores/pgbouncer',
    'stores/postgres-reports',
    'stores/postgres-server',
    'stores/redis-cluster',
    'stores/redis-failure',
    'stores/redis-traffic',
  ],
]
