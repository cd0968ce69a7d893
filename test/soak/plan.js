// @ts-check
/** The plan of a soak: its duration, its configuration, and its amounts. */

/** Distinct keys per second: a million in four minutes. */
export const KEYS_PER_SECOND = 4_200

/** The prefix of every key, which must not appear in any log. */
export const KEY_MARK = 'kx7q'

/** The shortest run whose memory is judged, in s. */
const JUDGED = 240

export const LIMITS = { maxQueued: 2_000, shutdownTimeout: 5_000 }

/**
 * @typedef {object} Plan
 * @property {number} seconds of traffic
 * @property {number} seed
 * @property {number} slots how many clients act at the same time
 * @property {number} maxKeys
 * @property {number} episode s between two faults of the upstream
 * @property {number} reload s between two reloads
 * @property {boolean} judgesMemory
 */

/** @param {number} seconds @param {number} seed @returns {Plan} */
export function planFor(seconds, seed) {
  return {
    seconds,
    seed,
    slots: 48,
    // The limit is reached well before the end, also in a short run.
    maxKeys: Math.min(1_000_000, Math.max(1_000, Math.floor((seconds * KEYS_PER_SECOND) / 2.5))),
    episode: seconds < 30 ? 2 : seconds < 120 ? 6 : 15,
    reload: seconds < 30 ? 1.5 : 4,
    judgesMemory: seconds >= JUDGED,
  }
}

/**
 * The configuration. Its rates change with each turn.
 *
 * @param {Plan} plan @param {number} upstreamPort @param {number} turn
 */
export function configuration({ maxKeys }, upstreamPort, turn) {
  const factor = [1, 0.5, 2, 1.5][turn % 4]
  const key = 'header:x-key'
  return {
    listen: '127.0.0.1:0',
    upstream: {
      url: `http://127.0.0.1:${upstreamPort}`,
      maxInFlight: 100,
      breaker: { probe: '300ms', hold: '2s' },
      connectTimeout: '2s',
      responseTimeout: '1500ms',
      idleTimeout: '2s',
    },
    buckets: {
      client: { key, rate: `${20 * factor}/s`, capacity: 20 },
      everyone: { key: 'all', rate: `${800 * factor}/s`, capacity: 400, overflow: 'fair' },
      slow: { key, rate: `${5 * factor}/s`, capacity: 8 },
      metered: { key, rate: `${50 * factor}/s`, capacity: 20 },
      churn: { key: { from: key, missing: 'reject' }, rate: '1/h', capacity: 2 },
    },
    routes: [
      { name: 'churn', match: { path: '/churn/*' }, mode: 'meter', buckets: ['churn'] },
      { name: 'slow', match: { path: '/slow/*' }, buckets: ['slow', 'everyone'], maxWait: '2s', explain: true },
      { name: 'meter', match: { path: '/meter/*' }, mode: 'meter', buckets: ['metered'] },
      { name: 'dry', match: { path: '/dry/*' }, buckets: ['slow'], dryRun: true },
      { name: 'off', match: { path: '/off/*' }, mode: 'off' },
      { name: 'early', match: { path: '/early/*' }, buckets: ['slow'] },
      { name: 'api', match: { path: '/api/*' }, buckets: ['client', 'everyone'], cost: { POST: 2 }, maxWait: '3s' },
    ],
    limits: {
      maxKeys,
      maxQueued: LIMITS.maxQueued,
      // All clients have one address.
      connectionsPerClient: 20_000,
      // As many files as any machine lets a process open.
      maxConnections: 9_000,
      headersTimeout: '2s',
      bodyTimeout: '1500ms',
      shutdownTimeout: `${LIMITS.shutdownTimeout}ms`,
    },
    admin: { listen: '127.0.0.1:0' },
  }
}

/** Numbers from 0 to 1 that are the same for the same seed. @param {number} seed @returns {() => number} */
export function randomFrom(seed) {
  let state = seed >>> 0
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}
