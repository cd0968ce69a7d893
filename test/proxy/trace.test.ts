/**
 * Real requests through the real proxy to an upstream in its own process, judged by the core on the virtual clock: the
 * model gets the arrivals with the times of the proxy, and computes which are admitted and their slots.
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { gunzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { Agent, request } from 'undici'
import { parseConfig } from '../../src/config/load.js'
import type { Clock } from '../../src/core/clock.js'
import { createTimerClock } from '../../src/pacing/timer.js'
import type { Outcome } from '../../src/proxy/observe/observer.js'
import { startProxy } from '../../src/proxy/server/server.js'
import { limits, random, run } from '../core/run.js'

const REQUESTS = 1_600
const SPAN = 8_000
const RATE = 4
const CAPACITY = 8

interface Sent {
  address: string
  method: string
  path: string
  at: number
}

/** The log's requests, at the times of a bursty process: bursts of 1 to 60, then silence, over SPAN. */
function readTrace(): Sent[] {
  const log = fileURLToPath(new URL('../fixtures/apache-access.log.gz', import.meta.url))
  const next = random(20_150_517)
  const trace: Sent[] = []
  let at = 0
  let left = 0
  for (const line of gunzipSync(readFileSync(log)).toString().split('\n').slice(0, REQUESTS)) {
    const [, address, method, path] = /^(\S+) .*?"(\S+) (\S+) HTTP/.exec(line)!
    if (left === 0) {
      left = 1 + Math.floor(next() ** 2 * 60)
      at += -Math.log(1 - next()) * left
    }
    left -= 1
    trace.push({ address: address!, method: method!, path: path!, at })
  }
  return trace.map(sent => ({ ...sent, at: (sent.at / at) * SPAN }))
}

/** A slot is lost above this, in ms, which the model does not know. */
const GRACE = 250

/** Sends the trace through a proxy of its own. */
async function replay(t: Test, trace: readonly Sent[]) {
  const upstream = fork(fileURLToPath(new URL('../fixtures/upstream.js', import.meta.url)), { silent: true })
  t.teardown(() => upstream.disconnect())
  const [port] = (await once(upstream.stdout!, 'data')) as [Buffer]
  const upstreamUrl = `http://127.0.0.1:${Number(port)}`

  const timers = createTimerClock()
  let asking = -1
  // Stands still during a decision: the shaper may read it again after a collection of garbage, and the model knows one time.
  let arrivedAt: number | undefined
  const pacer: Clock = {
    now: () => arrivedAt ?? timers.now(),
    at: timers.at,
  }
  const outcomes: Record<Outcome, number> = {
    forwarded: 0,
    rejected: 0,
    cancelled: 0,
    expired: 0,
    failed: 0,
    refused: 0,
    accepted: 0,
  }
  let latest = 0
  const proxy = await startProxy({
    settings: parseConfig(
      JSON.stringify({
        listen: '127.0.0.1:0',
        upstream: upstreamUrl,
        trustProxy: ['loopback'],
        buckets: { client: { key: 'ip', rate: `${RATE}/s`, capacity: CAPACITY } },
        routes: [{ name: 'all', buckets: ['client'] }],
      }),
    ),
    pacer,
    clock: timers,
    observer: {
      arrived: request => {
        asking = Number(request.header('x-id'))
      },
      released: (_request, lateness) => {
        latest = Math.max(latest, lateness)
      },
      finished: (_route, outcome) => {
        outcomes[outcome] += 1
      },
    },
  })
  t.teardown(() => proxy.drain(1_000))
  const arrivals: { id: number; at: number }[] = []
  const { shaper } = proxy.context
  const admit = shaper.admit.bind(shaper)
  shaper.admit = (arrival, waiter, maxWait) => {
    arrivedAt = timers.now()
    const verdict = admit(arrival, waiter, maxWait)
    arrivals.push({ id: asking, at: arrivedAt })
    arrivedAt = undefined
    return verdict
  }

  const agent = new Agent({ connections: 512 })
  t.teardown(() => agent.close())
  const statuses = new Array<number>(trace.length)
  const start = performance.now() + 100
  await Promise.all(
    trace.map(async ({ address, method, path, at }, id) => {
      await sleep(start + at - performance.now())
      const headers = { 'x-forwarded-for': address, 'x-id': String(id) }
      const answer = await request(proxy.url + path, { dispatcher: agent, method: method as 'GET', headers })
      await answer.body.dump()
      statuses[id] = answer.statusCode
    }),
  )

  const reported = await request(`${upstreamUrl}/report`)
  const seen = (await reported.body.json()) as { id: number; at: number }[]
  const toMonotonic = Number(process.hrtime.bigint()) / 1e6 - performance.now()
  const reached = new Map(seen.map(({ id, at }) => [id, at - toMonotonic]))
  return { arrivals, latest, outcomes, reached, seen, statuses }
}

t.test('a day of real requests, compressed', async t => {
  const trace = readTrace()
  let replayed = await replay(t, trace)
  // A machine that stood still for that long says nothing about the proxy.
  for (let again = 0; again < 4 && replayed.latest >= GRACE; again += 1) replayed = await replay(t, trace)
  const { arrivals, latest, outcomes, reached, seen, statuses } = replayed
  const model = run(
    [limits(RATE, CAPACITY)],
    arrivals.map(({ id, at }) => ({ at, keys: [trace[id]!.address] })),
  )
  const admitted = new Set(model.admitted.map(index => arrivals[index]!.id))
  t.equal(arrivals.length, trace.length, 'every request was decided on')
  const rejected = trace.length - admitted.size
  t.ok(rejected > 100 && admitted.size > 500, `the trace tries both: ${admitted.size} admitted, ${rejected} rejected`)
  t.same(
    statuses.map(status => status === 200),
    trace.map((_, id) => admitted.has(id)),
    `admitted and rejected are those of the model; the latest release was ${latest.toFixed(0)} ms late`,
  )
  t.equal(statuses.filter(status => status !== 200 && status !== 429).length, 0, 'no other answers')
  t.same(outcomes, {
    ...outcomes,
    forwarded: admitted.size,
    rejected,
    cancelled: 0,
    expired: 0,
    failed: 0,
    refused: 0,
    accepted: 0,
  })
  t.equal(seen.length, admitted.size, 'nothing reached the upstream twice, nothing was lost')

  const early: string[] = []
  const byClient = new Map<string, { slot: number; at: number }[]>()
  for (const { arrival, slot } of model.released) {
    const { id } = arrivals[model.outcomes.findIndex(outcome => outcome.arrival === arrival)]!
    const at = reached.get(id)!
    if (at < slot! - 0.1) early.push(`${id}: ${slot! - at} ms`)
    const client = trace[id]!.address
    byClient.set(client, [...(byClient.get(client) ?? []), { slot: slot!, at }])
  }
  t.same(early, [], 'no request reached the upstream before its slot')
  const disordered = [...byClient].filter(([, releases]) =>
    releases.some(
      ({ slot, at }, index) => index > 0 && (slot <= releases[index - 1]!.slot || at <= releases[index - 1]!.at),
    ),
  )
  t.same(disordered, [], "every client's requests reached the upstream in the order of their arrival")
  const busiest = [...byClient.values()].map(longestBusyPeriod).sort((a, b) => b.length - a.length)[0]!
  t.ok(busiest.length > 20, `somebody was busy for long: ${busiest.length} requests`)
  const rate = 1_000 / slope(busiest.map(({ at }) => at))
  t.ok(Math.abs(rate / RATE - 1) < 0.01, `its rate was ${rate.toFixed(3)}/s of ${RATE}/s`)
})

/** How far apart neighbours are: the median over all pairs half of them apart. A few that are late do not count. */
function slope(times: readonly number[]): number {
  const half = times.length >> 1
  const slopes = times.slice(half).map((at, place) => (at - times[place]!) / half)
  return slopes.sort((one, other) => one - other)[slopes.length >> 1]!
}

function longestBusyPeriod(releases: { slot: number; at: number }[]): { slot: number; at: number }[] {
  let longest: typeof releases = []
  let current: typeof releases = []
  for (const release of releases) {
    const previous = current.at(-1)
    current =
      previous !== undefined && release.slot - previous.slot < 1_000 / RATE + 0.001 ? [...current, release] : [release]
    if (current.length > longest.length) longest = current
  }
  return longest
}
