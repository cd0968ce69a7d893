/** One trial: a store, an upstream, instances and load; and the checks that all trials have in common. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { Agent, request } from 'undici'
import {
  longestPause,
  machinePauses,
  overtakings,
  type Pause,
  quietly,
  rateOf,
  type Seen,
  stoodStill,
  worstWindow,
} from './figures.js'
import { clientOf, Load, type LoadOptions, now } from './load.js'
import { type Instance, type Notes, startInstances, startUpstream, type Upstream } from './system.js'

/** Whether trials are long. */
export const LONG = process.env.SHAPER_DEEP === '1'

/** The warm-up that is left out of a trial, in ms: connections are made, and code is compiled. */
const WARM_UP = 1_000

const WARM = '/warm'

export interface TrialOptions extends LoadOptions {
  readonly store: object | string
  readonly buckets: Record<string, object>
  readonly route?: object
  readonly count?: number
  readonly args?: readonly string[]
  /** How many processes share the load, if that is not the number of instances. */
  readonly processes?: number
}

export interface Trial {
  readonly upstream: Upstream
  readonly instances: readonly Instance[]
  readonly load: Load
  readonly processes: number
  /** The start of the load, in ms. */
  readonly begin: number
  /** Waits until a time in ms after the start. */
  at(ms: number): Promise<void>
}

export async function startTrial(t: Test, options: TrialOptions): Promise<Trial> {
  const { store, buckets, route, count = 4, args, processes = count, ...load } = options
  const upstream = await startUpstream()
  t.teardown(() => upstream.close())
  const warm = { name: 'warm', match: { path: WARM }, mode: 'off' }
  const routes = [warm, { name: 'api', mode: 'shape', buckets: Object.keys(buckets), maxWait: '10s', ...route }]
  const instances = await startInstances(count, { upstream: upstream.url, store, buckets, routes }, args)
  t.teardown(async () => void (await Promise.all(instances.map(instance => instance.close()))))
  // Else what was released in its slots would leave together once the first connections are open and the code is compiled.
  await Promise.all(instances.map(({ url }) => warmUp(url)))
  const begin = now()
  return {
    ...{ upstream, instances, load: new Load(load), processes, begin },
    at: async ms => void (await sleep(Math.max(0, begin + ms - now()))),
  }
}

/** Without those of the warm-up. */
export function measured(all: readonly Seen[]): Seen[] {
  return all.filter(({ path }) => path !== WARM)
}

async function warmUp(url: string): Promise<void> {
  const dispatcher = new Agent()
  for (let round = 0; round < 10; round += 1) {
    const some = Array.from({ length: 10 }, () => request(url + WARM, { dispatcher }))
    await Promise.all(some.map(async each => (await each).body.dump()))
  }
  await dispatcher.close()
}

export interface Outcome {
  /** The requests seen by the upstream and those sent by the instances, in order. */
  readonly seen: readonly Seen[]
  readonly sent: readonly Seen[]
  readonly notes: readonly Notes[]
  readonly pauses: readonly Pause[]
  readonly upstreamPauses: readonly Pause[]
  /** The end of the load, in ms. */
  readonly end: number
}

/** Ends the load and collects the records. */
export async function finish({ upstream, instances, load }: Trial): Promise<Outcome> {
  const end = now()
  await load.stop()
  const seen = measured(await upstream.seen())
  const notes = instances
    .flatMap(instance => instance.notes())
    .map(({ read, released, sent, ...rest }) => ({
      ...rest,
      read: measured(read),
      released: measured(released),
      sent: measured(sent),
    }))
  const sent = notes.flatMap(note => note.sent).sort((one, other) => one.at - other.at)
  const pauses = machinePauses(notes.flatMap(note => note.pauses))
  return { seen, sent, notes, pauses, upstreamPauses: machinePauses(upstream.notes().pauses), end }
}

export interface Part {
  /** The expected rate, per second. */
  readonly rate: number
  /** A span in ms from the start of the trial; default: all after the warm-up. */
  readonly from?: number
  readonly to?: number
  /** The tolerance of the rate. */
  readonly within?: number
}

/**
 * Checks the rate in a part of a trial, as the upstream sees it.
 *
 * In quiet spans it has to be the configured rate, give or take a request at either end. Less is allowed by what the machine has
 * taken, which is little in those: the pauses of each instance for its share, and those of the upstream, which stands for the store,
 * for all of it. What was due in a pause just before a quiet span is seen in it.
 */
export function checkRate(t: Test, trial: Trial, outcome: Outcome, part: Part): void {
  const { rate: expected, from = WARM_UP, to = outcome.end - trial.begin, within = 0.01 } = part
  const [begin, end] = [trial.begin + from, trial.begin + to]
  const { seen, pauses, upstreamPauses } = outcome
  const stood = (first: number, last: number): number =>
    stoodStill(pauses, first, last, trial.processes) + stoodStill(upstreamPauses, first, last, 1)
  const rate = rateOf(seen, begin, end)
  const lost = stood(begin, end)
  const span = `${Math.round(from)} to ${Math.round(to)} ms`
  const told = `${rate.toFixed(3)} per second from ${span}; the machine took up to ${(lost * 100).toFixed(2)} % of the time`
  const quiet = quietly(seen, { from: begin, to: end }, stood, [...pauses, ...upstreamPauses])
  const due = (expected * quiet.ms) / 1_000
  const [missed, delayed] = [quiet.stood, quiet.delayed].map(ms => (expected * ms) / 1_000) as [number, number]
  const toldQuiet = `${quiet.count} of ${due} in ${quiet.spans} quiet half seconds, less ${missed} and with ${delayed} of before`
  if (LONG) t.comment(`${told}; ${toldQuiet}`)
  t.ok(rate <= expected * (1 + within) && rate >= expected * (1 - within - lost), told)
  t.ok(quiet.count >= due * (1 - within) - 2 - missed && quiet.count <= due * (1 + within) + 2 + delayed, toldQuiet)
}

/** Some of the requests, for a bound of their own. */
interface Some {
  readonly what?: string
  readonly of?: (request: Seen) => boolean
}

/**
 * Checks the bound on windows, for the requests sent by the instances and for those seen by the upstream.
 *
 * The only allowance is for the longest pause of the machine. For sent requests that is at most one request of each
 * instance, because an instance forfeits what it is late by more than a period. Pauses of the upstream count only for what
 * the upstream sees.
 */
export function checkBound(
  t: Test,
  outcome: Outcome,
  rate: number,
  { what = 'everyone', of = () => true }: Some = {},
): void {
  const { sent, seen, pauses, upstreamPauses } = outcome
  const check = (where: string, all: readonly Seen[], known: readonly Pause[], most: number): void => {
    const checked = all.filter(of)
    t.ok(checked.length > 0, `${what}, ${where}: ${checked.length} requests`)
    const worst = worstWindow(checked, rate / 1_000)
    const pause = longestPause(known, worst)
    const named = pause > 0 ? `, with a pause of the machine of ${pause.toFixed(1)} ms` : ''
    const told = `${what}, ${where}: the worst window is ${worst.excess.toFixed(2)} from the bound${named}`
    if (LONG || worst.excess > 0) t.comment(told)
    t.ok(worst.excess <= Math.min(most, (pause * rate) / 1_000), told)
  }
  check('sent', sent, pauses, outcome.notes.length)
  check('seen', seen, [...pauses, ...upstreamPauses], Infinity)
}

export function checkOrder(t: Test, { notes }: Outcome, laneOf = clientOf): void {
  t.ok(
    notes.some(({ released }) => released.length > 0),
    'releases were noted',
  )
  for (const { read, released, pid } of notes) {
    const known = new Set(read.map(({ path }) => path))
    t.same(
      released.filter(({ path }) => !known.has(path)),
      [],
      `what ${pid} released it has read`,
    )
    t.equal(overtakings(read, released, laneOf), 0, `in order in ${pid}`)
  }
}

/** Every request has one outcome. The upstream sees an answered request once, and a rejected one never. */
export function checkAccount(t: Test, { load }: Trial, { seen }: Outcome, known: { hung?: number } = {}): void {
  const times = new Map<string, number>()
  for (const { path } of seen) times.set(path, (times.get(path) ?? 0) + 1)
  const { sent, outcomes } = load
  const count = (outcome: string): number => [...outcomes.values()].filter(it => it === outcome).length
  const told = [...new Set(outcomes.values())].map(outcome => `${count(outcome)} ${outcome}`).join(', ')
  if (LONG) t.comment(`${sent} requests: ${told}`)
  t.equal(outcomes.size, sent, `each has an end: ${told}`)
  t.ok(count('hung') <= (known.hung ?? 0), `${count('hung')} hung`)
  t.equal(count('other'), 0, 'no other answers')
  const twice = [...times].filter(([, number]) => number > 1)
  t.same(twice, [], 'none is sent twice')
  const wrong = [...outcomes].filter(([path, outcome]) => {
    if (outcome === 'ok') return !times.has(path)
    return outcome !== 'cut' && outcome !== 'left' && times.has(path)
  })
  t.same(wrong, [], 'answered requests were sent, rejected ones were not')
  t.same(
    [...times.keys()].filter(path => !outcomes.has(path)),
    [],
    'nothing else was sent',
  )
}
