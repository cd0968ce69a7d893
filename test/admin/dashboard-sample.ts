/** A believable stream of snapshots: clients burst into a leaky bucket of 5/s that holds 10, simulated to the event. */
import type { BucketSnapshot, InstanceSnapshot, RouteSnapshot, Snapshot } from '../../src/admin/snapshot/snapshot.js'

export const RATE = 5
export const CAPACITY = 10
const PERIOD = 1_000 / RATE
/** The key that is shown. The others send requests now and then. */
export const BUSY = '203.0.113.7'
const OTHERS = ['198.51.100.23', '2001:db8:12::/64', '192.0.2.77', '<b>not a tag</b>', '192.0.2.140', '198.51.100.9']

/** Nothing at all yet: what every other snapshot is made from. */
export function quiet(at: number, more: Partial<Snapshot> = {}): Snapshot {
  const none = { count: 0, p50: 0, p90: 0, p99: 0, max: 0 }
  return {
    at,
    uptime: 90,
    processes: 1,
    draining: false,
    store: { type: 'memory', ready: true, instances: 1 },
    queued: 0,
    inFlight: 0,
    buckets: [bucket()],
    routes: [route()],
    upstreams: [{ url: 'http://127.0.0.1:9000', inFlight: 0, pausedMs: 0 }],
    wait: none,
    lateness: none,
    ...more,
  }
}

export function bucket(more: Partial<BucketSnapshot> = {}): BucketSnapshot {
  return {
    name: 'client',
    key: 'ip',
    rate: RATE,
    configured: RATE,
    capacity: CAPACITY,
    routes: ['api'],
    keys: 0,
    offered: 0,
    released: 0,
    rejected: 0,
    queued: 0,
    waiting: 0,
    fullest: [],
    ...more,
  }
}

/** A bucket of six logins in 30 s. */
export const LOGIN = { name: 'login', key: 'ip + route', rate: 0.2, configured: 0.2, capacity: 6 }

export function instance(key: string, level: number, more: Partial<InstanceSnapshot> = {}): InstanceSnapshot {
  const queued = more.waiting ?? 0
  return { key, rate: RATE, capacity: CAPACITY, level, waiting: 0, queued, predictedWaitMs: 0, ...more }
}

export function route(more: Partial<RouteSnapshot> = {}): RouteSnapshot {
  return {
    name: 'api',
    mode: 'shape',
    dryRun: false,
    queued: 0,
    outcomes: { forwarded: 0, rejected: 0, cancelled: 0, expired: 0, failed: 0, refused: 0, accepted: 0 },
    upstreamResponses: { '2xx': 0, '3xx': 0, '4xx': 0, '5xx': 0 },
    rejections: {},
    rehearsed: { would_reject: 0, would_delay: 0 },
    ...more,
  }
}

/** One client's bucket, and the outcome of each of its requests. */
class Client {
  /** When it runs dry, and when the next may leave. */
  #dry = 0
  readonly arrivals: number[] = []
  readonly releases: number[] = []
  readonly rejections: number[] = []
  longestWait = 0

  constructor(readonly key: string) {}

  ask(at: number): void {
    this.arrivals.push(at)
    if (this.level(at) + 1 > CAPACITY + 1e-9) {
      this.rejections.push(at)
      return
    }
    const due = Math.max(this.#dry, at)
    this.longestWait = Math.max(this.longestWait, due - at)
    this.releases.push(due)
    this.#dry = due + PERIOD
  }

  level(at: number): number {
    return (Math.max(0, this.#dry - at) * RATE) / 1_000
  }

  instance(at: number): InstanceSnapshot {
    const waiting = this.releases.length - until(this.releases, at)
    const predictedWaitMs = Math.max(0, this.#dry - at)
    return instance(this.key, this.level(at), { waiting, queued: waiting, predictedWaitMs })
  }
}

/** How many of them are not after `at`. */
function until(times: readonly number[], at: number): number {
  let found = times.length
  while (found > 0 && times[found - 1]! > at) found--
  return found
}

/** Always the same numbers of 0..1 (Park and Miller). */
function random(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 48_271) % 2_147_483_647
    return state / 2_147_483_647
  }
}

/** Time begins at `start`, in ms since 1970, and advances with each snapshot. */
export function createSample(start: number): { snapshot(at: number): Snapshot } {
  const next = random(7)
  const busy = new Client(BUSY)
  const others = OTHERS.map(key => new Client(key))
  const clients = [busy, ...others]
  let burstAt = start + 400
  const otherAt = others.map((_, index) => start + index * 300)

  function advance(at: number): void {
    while (burstAt <= at) {
      for (let i = 0; i < 14; i++) busy.ask(burstAt + i)
      burstAt += 1_900 + next() * 900
    }
    others.forEach((client, index) => {
      while (otherAt[index]! <= at) {
        const size = 1 + Math.floor(next() * 7)
        for (let i = 0; i < size; i++) client.ask(otherAt[index]! + i)
        otherAt[index]! += 700 + next() * (1_500 + index * 700)
      }
    })
  }

  return {
    snapshot(at) {
      advance(at)
      const sum = (of: (client: Client) => readonly number[]) =>
        clients.reduce((total, client) => total + until(of(client), at), 0)
      const [offered, released, rejected] = [sum(c => c.arrivals), sum(c => c.releases), sum(c => c.rejections)]
      const fullest = clients
        .map(client => client.instance(at))
        .filter(({ level }) => level > 0)
        .sort((a, b) => b.level - a.level)
      const queued = fullest.reduce((total, { waiting }) => total + waiting, 0)
      const latest = (times: readonly number[]) => times.slice(0, until(times, at)).slice(-256)
      const focus = {
        key: BUSY,
        watchers: 1,
        arrivals: latest(busy.arrivals),
        releases: latest(busy.releases),
        rejections: latest(busy.rejections),
      }
      const counts = { offered, released, rejected, queued }
      const all = { name: 'everyone', key: 'all', rate: 100, configured: 100, capacity: 200 }
      const { rejected: _, ...passed } = counts
      return quiet(at, {
        uptime: (at - start) / 1_000 + 3_600 * 5,
        store: { type: 'redis', ready: true, instances: 3 },
        processes: 2,
        queued,
        inFlight: 2,
        buckets: [
          bucket({
            ...all,
            ...passed,
            keys: 1,
            fullest: [instance('', queued + 1.4, { rate: 100, capacity: 200, waiting: queued })],
          }),
          bucket({ ...counts, keys: clients.length, fullest, focus }),
          bucket({
            ...LOGIN,
            routes: ['login'],
            keys: 2,
            offered: 9,
            released: 7,
            rejected: 2,
            fullest: [
              instance(`${BUSY}\0login`, 5.2, { rate: 0.2, capacity: 6, predictedWaitMs: 4_100, blockedMs: 21_400 }),
              instance(`${OTHERS[0]}\0login`, 0.7, { rate: 0.2, capacity: 6 }),
            ],
          }),
        ],
        routes: [
          route({
            queued,
            outcomes: {
              forwarded: released,
              rejected,
              cancelled: Math.floor(released / 40),
              expired: 1,
              failed: 2,
              refused: 0,
              accepted: 0,
            },
            patience: { learntMs: 2_010, serviceMs: 84, givenUp: 412, lastMinute: 31 },
          }),
          route({ name: 'login', mode: 'meter', outcomes: { ...route().outcomes, forwarded: 7, rejected: 2 } }),
          route({ name: 'health', mode: 'off', outcomes: { ...route().outcomes, forwarded: 812 } }),
        ],
        upstreams: [
          { url: 'http://127.0.0.1:9000', inFlight: 2, pausedMs: 0 },
          { url: 'https://api.example.com', inFlight: 0, pausedMs: 0, allows: 40 },
        ],
        wait: { count: 90, p50: 640, p90: 1_620, p99: 1_800, max: busy.longestWait },
        lateness: { count: 90, p50: 0.06, p90: 0.2, p99: 0.31, max: 1.1 },
      })
    },
  }
}
