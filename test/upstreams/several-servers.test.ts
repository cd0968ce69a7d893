/**
 * Real servers behind one queue: nginx, gunicorn on a Unix socket, Apache prefork and Node. One is killed, one is told to end, one is
 * stopped, each under load, and each comes back. By hand at a rate of one's own: `SHAPER_SERVERS_RATE=2000 SHAPER_SERVERS_SPAN=6000`.
 */
import t from 'tap'

interface Run {
  readonly failed: { readonly idempotent: number; readonly others: number }
  /** By method and status. */
  readonly failures: Readonly<Record<string, number>>
  /** Answers, by server. */
  readonly shares: Readonly<Record<string, number>>
  readonly back: readonly { readonly signal: string; readonly ms: number }[]
  /** Requests that were sent in each second. */
  readonly seconds: readonly number[]
  readonly inFlight: { readonly highest: number }
}

// @ts-expect-error: it has no declarations
const { startFleet } = await import('../bench/fleet.js')
// @ts-expect-error: it has no declarations
const { killAll } = await import('../bench/processes.js')
// @ts-expect-error: it has no declarations
const { runFaults, startShaperFor } = await import('../bench/servers-run.js')

/** Requests per second: as many as a busy machine can do. */
const RATE = Number(process.env.SHAPER_SERVERS_RATE ?? 150)
/** ms for which each server is away, and then there again. */
const SPAN = Number(process.env.SHAPER_SERVERS_SPAN ?? 1_500)

t.teardown(killAll)

t.test('servers that are killed, told to end and stopped cost no idempotent request', async t => {
  const fleet: { stop(): Promise<void> }[] = await startFleet()
  t.teardown(() => Promise.all(fleet.map(server => server.stop())))
  const { proxy, admin } = await startShaperFor(fleet, RATE)
  t.teardown(() => proxy.stop())
  const run: Run = await runFaults({ fleet, proxy, rate: RATE, span: SPAN, admin })
  t.comment(JSON.stringify({ ...run, seconds: run.seconds.join(' ') }))
  t.equal(run.failed.idempotent, 0, `${Object.keys(run.failures)}`)
  for (const name of Object.keys(run.failures)) t.equal(name, 'POST 502', 'it had been sent')
  for (const [name, share] of Object.entries(run.shares)) t.ok(share > 0, `${name} took requests`)
  for (const { signal, ms } of run.back) t.ok(ms > 0, `after ${signal} it has traffic again`)
  // Contract 2.4, with requests that were sent again, and as much as the machine delays.
  t.ok(Math.max(...run.seconds) <= RATE * 1.05 + 2, `${run.seconds}`)
  t.ok(run.inFlight.highest <= 16, 'no server has more than its bound')
})
