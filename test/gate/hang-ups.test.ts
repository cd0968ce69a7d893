/** Ten thousand clients hang up behind nginx. No slot leaks. */
import t from 'tap'
import { connect, get, httpUpstream, startRig } from '../proxy/harness.js'
import { startGateProxy } from '../servers/gate-proxies.js'

const ROUNDS = 50
const CLIENTS = 200

t.test('ten thousand hang-ups behind nginx', { timeout: 180_000 }, async t => {
  const rig = await startRig(
    t,
    {
      upstream: 'gate:',
      trustProxy: ['loopback'],
      buckets: { all: { key: 'all', rate: '1/h', capacity: 20_000 } },
      limits: { maxQueued: 20_000 },
      routes: [{ name: 'gate', patience: 'none', gate: { rejectStatus: 403 } }],
    },
    { realPacer: 'precise' },
  )
  const application = await httpUpstream(t)
  const proxy = await startGateProxy(t, 'nginx', { shaper: rig.port, application: application.port })
  const first = await connect(t, proxy)
  t.equal((await first.ask(get('/first'))).status, 200)
  for (let round = 1; round <= ROUNDS; round += 1) {
    const clients = await Promise.all(Array.from({ length: CLIENTS }, () => connect(t, proxy)))
    for (const client of clients) client.send(get('/waits'))
    await rig.until(({ queued }) => queued.length === round * CLIENTS)
    for (const client of clients) client.hangUp()
    await rig.finished(1 + round * CLIENTS)
  }
  const { shaper, bucketTable, inProgress } = rig.proxy.context
  t.equal(rig.outcomes.filter(outcome => outcome === 'gate cancelled 499').length, ROUNDS * CLIENTS)
  t.equal(shaper.queued, 0)
  t.equal(inProgress, 0)
  const [all] = [...bucketTable.all()]
  t.equal(all!.inFlight, 0)
  t.ok(all!.level(performance.now()) <= 1, 'the bucket holds the first request alone')
  t.same(application.requests, ['GET /first'])
})
