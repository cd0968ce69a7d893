/** Sends the same requests through a running proxy with a fast clock. The replay has the same outcome for each of them. */
import t from 'tap'
import { Agent, request } from 'undici'
import { limitsOfFlags } from '../../src/replay/plan/limits-file.js'
import { replay } from '../../src/replay/replay.js'
import { MeterRun } from '../../src/replay/runs/meter-run.js'
import { startRig } from '../proxy/harness.js'
import { bytes, fixtureText, planOf, readAll } from './logs.js'

const REQUESTS = 2_000
const [RATE, CAPACITY] = ['12/m', 4]

t.test('the same requests are admitted, and wait as long', async t => {
  const text = fixtureText().split('\n').slice(0, REQUESTS).join('\n')
  const { seen } = await readAll(bytes(text), { seed: 1 })
  const run = new MeterRun(
    limitsOfFlags({ rate: RATE, capacity: String(CAPACITY) }, {}).settings.buckets[0]!.limits,
    1,
    'shape',
  )
  const clients = new Map<string, number>()
  const predicted = seen.map(({ at, address }) => {
    if (!clients.has(address)) clients.set(address, clients.size)
    const { rejected } = run.tally
    run.arrive(at, clients.get(address)!, 0)
    return run.tally.rejected === rejected
  })
  run.end()

  const rig = await startRig(t, {
    upstream: 'echo:',
    trustProxy: ['loopback'],
    buckets: { client: { key: 'ip', rate: RATE, capacity: CAPACITY } },
  })
  const { shaper } = rig.proxy.context
  const admitted: boolean[] = []
  let decided = (): void => undefined
  const admit = shaper.admit.bind(shaper)
  shaper.admit = (arrival, waiter, maxWait) => {
    const verdict = admit(arrival, waiter, maxWait)
    admitted.push(verdict === 'released' || !('reason' in verdict))
    decided()
    return verdict
  }
  const agent = new Agent({ connections: 512 })
  t.teardown(() => agent.close())
  const answers: Promise<number>[] = []
  // The clock of the proxy begins at 0.
  const start = seen[0]!.at
  for (const { at, address } of seen) {
    rig.pacer.runUntil(at - start)
    const heard = new Promise<void>(resolve => {
      decided = resolve
    })
    const headers = { 'x-forwarded-for': address }
    const answer = request(rig.proxy.url, { dispatcher: agent, headers, headersTimeout: 0 })
    answers.push(answer.then(({ statusCode, body }) => body.dump().then(() => statusCode)))
    await heard
  }
  rig.pacer.runAll()
  const statuses = await Promise.all(answers)
  const rejected = predicted.filter(is => !is).length
  t.ok(rejected > 100, `${rejected} of ${seen.length} are rejected`)
  t.same(admitted, predicted, 'each by itself')
  t.same(
    statuses.map(status => status === 200),
    predicted,
    'and answered so',
  )
  const waits = rig.released.map(({ wait }) => wait).filter(wait => wait > 1e-6)
  const report = await replay(planOf(bytes(text), { rate: RATE, capacity: String(CAPACITY) }))
  t.match(report, { requests: REQUESTS, rejected, delayed: waits.length })
  t.ok(waits.length > 100)
  t.ok(Math.abs(report.wait.max - Math.max(...waits)) < 0.01)
  const exact = waits.sort((a, b) => a - b)[Math.ceil(waits.length / 2) - 1]!
  t.ok(Math.abs(report.wait.p50 - exact) < 0.01, 'half of them waited as long')
})
