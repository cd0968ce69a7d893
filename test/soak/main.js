#!/usr/bin/env node
// @ts-check
/**
 * A soak: mixed, rude and broken traffic through a real proxy. Afterwards all counts have to match.
 *
 *     npm run soak [-- --quick] [--seconds N] [--seed N] [--json]
 *
 * Ten minutes by default, a minute with --quick. Ends with status 1 and the reasons if a check fails.
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { configuration, LIMITS, planFor } from './plan.js'
import { ProxyProcess, sumOf } from './proxy.js'
import { compareIds, compareOutcomes, judgeIds, judgeMemory, megabytes, OUTCOMES, total } from './verdict.js'

/** How long everything may take to come to rest after the traffic, or to end, in ms. */
const PATIENCE = 60_000

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    seconds: { type: 'string' },
    seed: { type: 'string', default: '1' },
    json: { type: 'boolean', default: false },
  },
})
const seconds = Number(values.seconds ?? (values.quick ? 60 : 600))
if (!(seconds >= 3 && seconds <= 86_400)) throw new RangeError('--seconds is a number from 3 to 86400')
const plan = planFor(seconds, Number(values.seed))

/** @type {string[]} */
const reasons = []
/** @param {boolean} holds @param {string} reason */
const check = (holds, reason) => {
  if (!holds) reasons.push(reason)
}

const proxy = new ProxyProcess()
const upstream = start('upstream.js')
const clients = start('clients.js')
const watchdog = setTimeout(
  () => {
    process.stderr.write('the soak itself does not come to its end\n')
    discard()
    process.exit(1)
  },
  seconds * 1_000 + 3 * PATIENCE,
)
try {
  report(await soak())
} finally {
  clearTimeout(watchdog)
  discard()
}
process.exitCode = reasons.length > 0 ? 1 : 0

async function soak() {
  const [[{ port }]] = await Promise.all([once(upstream, 'message'), once(clients, 'message')])
  await proxy.start(configuration(plan, port, 0))
  await proxy.metrics()
  const socketsBefore = proxy.sockets()

  const finished = once(clients, 'message')
  clients.send({ verb: 'go', port: proxy.port, plan })
  const samples = await traffic(port)
  clients.send({ verb: 'stop' })
  const [told] = await within(finished, 'the clients do not end')

  const atRest = await quiesce(socketsBefore)
  const counted = once(upstream, 'message')
  upstream.send({ verb: 'report' })
  const [{ requests, seen }] = await within(counted, 'the upstream does not answer')

  const { entries, actions, surprises, surprised, expected, keys } = told
  check(surprised === 0, `${surprised} surprises of clients: ${surprises.join('\n    ')}`)
  reasons.push(...compareOutcomes(entries, atRest.metrics))
  const outcomes = Object.fromEntries(
    OUTCOMES.map(outcome => [
      outcome,
      sumOf(
        new Map([...atRest.metrics].filter(([line]) => line.includes(`outcome="${outcome}"`))),
        'shaper_requests_total',
      ),
    ]),
  )
  const ids = compareIds(expected, seen)
  reasons.push(...judgeIds(ids, outcomes))
  const { growth, ...memory } = judgeMemory(samples, plan)
  if (growth !== undefined) reasons.push(growth)
  check(
    samples.every(({ keys }) => keys <= plan.maxKeys),
    `more keys than maxKeys (${plan.maxKeys})`,
  )
  check(
    samples.every(({ queued }) => queued <= LIMITS.maxQueued),
    'more queued than maxQueued',
  )
  const sum = total(outcomes)
  const code = await end()
  check(code === 0, `after SIGTERM it ended with ${code}`)
  check(total(proxy.lines) === sum, `${total(proxy.lines)} access lines for ${sum} requests`)
  for (const outcome of OUTCOMES) {
    const lines = proxy.lines[outcome] ?? 0
    check(lines === outcomes[outcome], `${lines} access lines, ${outcomes[outcome]} requests counted as ${outcome}`)
  }
  check(proxy.unexpected.length === 0, `unexpected in the log:\n    ${proxy.unexpected.join('\n    ')}`)
  return {
    seconds,
    seed: plan.seed,
    requests: sum,
    ...outcomes,
    keysUsed: keys,
    keysMost: Math.max(...samples.map(({ keys }) => keys)),
    queuedMost: Math.max(...samples.map(({ queued }) => queued)),
    inFlightMost: Math.max(...samples.map(({ inFlight }) => inFlight)),
    upstreamRequests: requests,
    upstreamDistinct: ids.distinct,
    sentAgain: ids.repeated,
    reloads: proxy.reloads,
    actions: total(actions),
    kindsOfActions: Object.keys(actions).length,
    socketsBefore,
    socketsAfter: atRest.sockets,
    ...memory,
    megabytesAtRest: megabytes(atRest.metrics.get('process_resident_memory_bytes') ?? 0),
    cpuSeconds: Math.round(sumOf(atRest.metrics, 'process_cpu_seconds_total')),
    exitCode: code,
  }
}

/** Runs the time of the traffic: faults of the upstream, reloads, samples. @param {number} upstreamPort */
async function traffic(upstreamPort) {
  const samples = []
  const start = performance.now()
  const elapsed = () => (performance.now() - start) / 1_000
  let [troubles, reloads] = [0, 0]
  while (elapsed() < seconds) {
    await sleep(500)
    if (proxy.child?.exitCode !== null) throw new Error('the proxy has ended')
    const at = elapsed()
    if (at > (troubles + 1) * plan.episode) {
      troubles += 1
      if (at < seconds - 1)
        upstream.send(troubles % 2 === 1 ? { verb: 'restart', ms: 400 } : { verb: 'hang', ms: 1_800 })
    }
    if (at > (reloads + 1) * plan.reload) {
      reloads += 1
      proxy.configure(configuration(plan, upstreamPort, reloads))
      proxy.signal('SIGHUP')
    }
    const metrics = await proxy.metrics()
    samples.push({
      at,
      bytes: metrics.get('process_resident_memory_bytes') ?? 0,
      keys: sumOf(metrics, 'shaper_keys'),
      queued: sumOf(metrics, 'shaper_queued'),
      inFlight: sumOf(metrics, 'shaper_upstream_in_flight'),
    })
  }
  return samples
}

/** Waits until everything is at rest. @param {number | undefined} socketsBefore */
async function quiesce(socketsBefore) {
  const until = performance.now() + PATIENCE
  for (;;) {
    const metrics = await proxy.metrics()
    const sockets = proxy.sockets()
    const queued = sumOf(metrics, 'shaper_queued')
    const inFlight = sumOf(metrics, 'shaper_upstream_in_flight')
    const isBack = sockets === undefined || sockets <= (socketsBefore ?? 0)
    const isQuiet = queued === 0 && inFlight === 0 && isBack
    if (isQuiet || performance.now() > until) {
      check(queued === 0, `${queued} are still queued`)
      check(inFlight === 0, `${inFlight} are still in flight`)
      check(isBack, `${sockets} sockets are open, ${socketsBefore} were at the start`)
      return { metrics, sockets }
    }
    await sleep(250)
  }
}

/** Ends the proxy by a signal while a client is connected. */
async function end() {
  const idle = connect(proxy.port, '127.0.0.1')
  idle.on('error', () => undefined)
  await once(idle, 'connect')
  proxy.signal('SIGTERM')
  const [code] = await within(/** @type {Promise<any[]>} */ (proxy.ended), 'the proxy does not end')
  await proxy.logged
  idle.destroy()
  return code
}

/** @param {string} program */
function start(program) {
  return fork(fileURLToPath(new URL(program, import.meta.url)), {
    serialization: 'advanced',
    env: { ...process.env, NODE_V8_COVERAGE: '' },
  })
}

/** @template T @param {Promise<T>} promise @param {string} reason @returns {Promise<T>} */
function within(promise, reason) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(reason)), PATIENCE)
  })
  return /** @type {Promise<T>} */ (Promise.race([promise, late])).finally(() => clearTimeout(timer))
}

function discard() {
  proxy.discard()
  upstream.kill('SIGKILL')
  clients.kill('SIGKILL')
}

/** @param {Record<string, unknown>} figures */
function report(figures) {
  if (values.json) process.stdout.write(`${JSON.stringify({ ...figures, reasons })}\n`)
  else {
    for (const [name, value] of Object.entries(figures)) process.stdout.write(`${name.padEnd(20)} ${value}\n`)
    for (const reason of reasons) process.stdout.write(`DOES NOT HOLD: ${reason}\n`)
    if (reasons.length === 0) process.stdout.write('everything holds\n')
  }
}
