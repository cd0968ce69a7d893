/**
 * `upstream.adapt` in front of an HTTP service on PostgreSQL, whose capacity halves and comes back. The bounds are wide, because
 * other programs may use the machine: `npm run bench -- adaptive` judges closely.
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import t from 'tap'
import { ROOT, shaper } from '../cli/command.js'
import { freePort } from '../servers/free-port.js'
import { startPostgres } from '../servers/postgres.js'

/** s of each phase, and of its beginning, in which the rate is still sought. */
const SECONDS = 20
const SEEKING = 12

/** More is offered than the service can do, so that the rate decides. */
const OFFERED = 1.15

interface Capacities {
  readonly whole: number
  readonly half: number
}

interface Result {
  readonly phases: readonly { served: number; rates: readonly { at: number; rate: number }[] }[]
  readonly statuses: Record<string, number>
}

t.test('the rate follows what a service on PostgreSQL can do', async t => {
  const postgres = await startPostgres()
  t.teardown(() => postgres.close())
  const service = fork(`${ROOT}/test/bench/programs/adaptive.js`, [postgres.url], {
    env: { ...process.env, NODE_V8_COVERAGE: '' },
  })
  t.teardown(() => service.kill('SIGKILL'))
  const message = async <T>(): Promise<T> => (await once(service, 'message'))[0] as T
  const port = await message<number>()
  const measure = (): Promise<Capacities> => {
    service.send({ do: 'measure', seconds: 3 })
    return message<Capacities>()
  }
  const before = await measure()
  const { whole, half } = before
  t.comment(`it can do ${whole.toFixed(0)}/s, and ${half.toFixed(0)}/s beside another load`)
  const admin = await freePort()
  const directory = t.testdir({
    'shaper.config.json': JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: {
        url: `http://127.0.0.1:${port}`,
        adapt: { min: '5/s', max: '1000/s', latency: { p90: '800ms' }, errors: 0.02 },
      },
      routes: [{ name: 'all', patience: 'none' }],
      admin: { listen: `127.0.0.1:${admin}` },
      accessLog: false,
    }),
  })
  const proxy = shaper(['start', '-c', `${directory}/shaper.config.json`])
  t.teardown(() => proxy.child.kill('SIGKILL'))
  const capacities = [whole, half, whole]
  const phases = capacities.map(capacity => ({
    seconds: SECONDS,
    offered: OFFERED * capacity,
    isHalved: capacity === half,
  }))
  service.send({ do: 'run', port: Number(new URL(await proxy.url).port), admin, phases })
  const { phases: results, statuses } = await message<Result>()
  t.same(Object.keys(statuses), ['200'], 'nothing is rejected, and nothing fails')
  // The machine may have become slower or faster.
  const after = await measure()
  for (const [phase, { served, rates }] of results.entries()) {
    const kind = phase === 1 ? 'half' : 'whole'
    const [least, most] = [Math.min(before[kind], after[kind]), Math.max(before[kind], after[kind])]
    const late = rates.filter(({ at }) => at >= SEEKING).map(({ rate }) => rate)
    const mean = late.reduce((sum, rate) => sum + rate, 0) / late.length
    const seen = `${mean.toFixed(0)}/s, ${(served / SECONDS).toFixed(0)}/s served, of ${least.toFixed(0)} to ${most.toFixed(0)}/s`
    t.comment(seen)
    t.ok(mean > 0.5 * least && mean < 1.5 * most, seen)
    t.ok(served > 0.5 * least * SECONDS, seen)
  }
})
