// @ts-check
/** The cost of a shared decision: through Redis, compared with a script that does nothing, and through PostgreSQL. */
import { DIST } from '../participants.js'
import { postgresPrograms, startPostgres } from '../postgres.js'
import { freePort, hasProgram, output, result, start } from '../processes.js'
import { entry, median, quantile } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

const TARGETS = { ratio: 0.6, rate: 100_000 }

/** The numbers of simultaneous callers. */
const CALLERS = [1, 64, 256]
const JUDGED = 64

const MEMORY_KEYS = 100_000

const NO_OP = 'no-op EVALSHA'

/**
 * @typedef {object} Participant
 * @property {string} name
 * @property {string} kind of programs/store.js
 * @property {string} url
 */

async function startRedis() {
  const port = await freePort()
  const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no']
  const server = start('redis-server', args, { name: 'redis-server' })
  server.port = port
  await server.listening()
  return server
}

/** Memory per key: the difference between an empty server and one with keys. @param {number} keys @returns {Promise<number>} bytes per key */
async function bytesPerKey(keys) {
  const server = await startRedis()
  const { port } = server
  const used = async () => {
    const info = await output('redis-cli', ['-p', String(port), 'INFO', 'memory'], 5_000)
    return Number(/^used_memory:(\d+)/m.exec(info)?.[1])
  }
  // The script and the first tables exist before the measurement.
  await result('store.js', [DIST, 'redis', `redis://127.0.0.1:${port}`, 'keys', '100'])
  const before = await used()
  // Keys expire a second after their levels have drained, so the rate is slow.
  await output('redis-cli', ['-p', String(port), 'DEBUG', 'SET-ACTIVE-EXPIRE', '0'], 5_000)
  await result('store.js', [DIST, 'redis', `redis://127.0.0.1:${port}`, 'keys', String(keys)])
  const bytes = ((await used()) - before) / (keys - 100)
  await server.stop()
  return bytes
}

/** @param {import('../main.js').Context} context */
export async function store({ quick, rounds: wanted, missing, progress }) {
  /** @type {Participant[]} */
  const participants = []
  const redis = hasProgram('redis-server') ? await startRedis() : undefined
  if (redis === undefined) missing.add('redis-server')
  else {
    const url = `redis://127.0.0.1:${redis.port}`
    participants.push(
      { name: NO_OP, kind: 'no-op', url },
      { name: 'Redis', kind: 'redis', url },
      { name: 'Redis, two buckets', kind: 'redis, two buckets', url },
    )
  }
  const programs = postgresPrograms()
  const postgres = programs === undefined ? undefined : await startPostgres(programs)
  if (postgres === undefined) missing.add('postgres')
  else participants.push({ name: 'PostgreSQL', kind: 'postgres', url: postgres.url })
  const rounds = wanted ?? (quick ? 1 : 5)
  const latencies = quick ? 1_000 : 5_000
  /** @type {Record<string, Record<string, number[]>>} */
  const rates = {}
  /** @type {Record<string, { p50: number[], p99: number[] }>} */
  const times = {}
  /** @type {number[]} */
  const bytes = []
  for (let round = 0; round < rounds; round += 1) {
    for (const { name, kind, url } of participants) {
      const ask = async (/** @type {string} */ what, /** @type {number} */ number) => {
        progress(`store: ${name}, ${what} ${number}, round ${round + 1} of ${rounds}`)
        return await result('store.js', [DIST, kind, url, what, String(number)])
      }
      const figures = entry(rates, name, () => ({}))
      for (const callers of CALLERS) entry(figures, String(callers), () => []).push(await ask('rate', callers))
      const each = await ask('latency', latencies)
      const { p50, p99 } = entry(times, name, () => ({ p50: [], p99: [] }))
      p50.push(quantile(each, 0.5))
      p99.push(quantile(each, 0.99))
    }
    if (redis !== undefined && hasProgram('redis-cli')) {
      progress(`store: keys, round ${round + 1} of ${rounds}`)
      bytes.push(await bytesPerKey(quick ? MEMORY_KEYS / 10 : MEMORY_KEYS))
    }
  }
  await redis?.stop()
  await postgres?.stop()

  /** @param {string} name @param {number} callers */
  const of = (name, callers) => median(rates[name]?.[callers] ?? [])
  const checks = []
  if (redis !== undefined) {
    const value = of('Redis', JUDGED) / of(NO_OP, JUDGED)
    const most = Math.max(...CALLERS.map(callers => of('Redis', callers)))
    checks.push(
      {
        figure: `admit + claim through Redis against a ${NO_OP} for each, ${JUDGED} callers`,
        value: ratio(value),
        target: `>= ${TARGETS.ratio}x`,
        met: value >= TARGETS.ratio,
      },
      {
        figure: 'decisions/s of one Redis',
        value: fixed(most, 0),
        target: `>= ${TARGETS.rate}`,
        met: most >= TARGETS.rate,
      },
    )
  }
  return {
    checks,
    tables: [
      {
        title: `Decisions per second by how many ask at once, and ms for one who asks alone (${fixed(median(bytes), 0)} bytes of Redis per key)`,
        columns: ['store', ...CALLERS.map(String), `against the no-op, ${CALLERS.join(' / ')}`, 'p50', 'p99'],
        rows: participants.map(({ name }) => [
          name,
          ...CALLERS.map(callers => fixed(of(name, callers), 0)),
          CALLERS.map(callers => ratio(of(name, callers) / of(NO_OP, callers))).join(' / '),
          fixed(median(times[name].p50), 3),
          fixed(median(times[name].p99), 3),
        ]),
      },
    ],
    raw: { rates, times, bytes },
  }
}
