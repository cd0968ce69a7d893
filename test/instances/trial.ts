/** One trial: a store, an upstream, instances and load; and the checks that all trials have in common. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
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

/** How much longer than in the suite a trial by hand is: SHAPER_LONG=1. */
export const LONG = process.env.SHAPER_LONG !== undefined

/** What is left out at the begin of a trial, in ms: connections are made, and code is compiled. */
const WARM_UP = 1_000

export interface TrialOptions extends LoadOptions {
  readonly store: object | string
  readonly buckets: Record<string, object>
  readonly route?: object
  readonly count?: number
  readonly args?: readonly string[]
  /** How many processes share the load, where that is not the count. */
  readonly processes?: number
}

export interface Trial {
  readonly upstream: Upstream
  readonly instances: readonly Instance[]
  readonly load: Load
  readonly processes: number
  /** When the load began, in ms. */
  readonly begin: number
  /** Waits until so many ms after the begin. */
  at(ms: number): Promise<void>
}

export async function startTrial(t: Test, options: TrialOptions): Promise<Trial> {
  const { store, buckets, route, count = 4, args, processes = count, ...load } = options
  const upstream = await startUpstream()
  t.teardown(() => upstream.close())
  const routes = [{ name: 'api', mode: 'shape', buckets: Object.keys(buckets), maxWait: '10s', ...route }]
  const instances = await startInstances(count, { upstream: upstream.url, store, buckets, routes }, args)
  t.teardown(async () => void (await Promise.all(instances.map(instance => instance.close()))))
  const begin = now()
  return {
    ...{ upstream, instances, load: new Load(load), processes, begin },
    at: async ms => void (await sleep(Math.max(0, begin + ms - now()))),
  }
}

export interface Outcome {
  /** What the upstream has seen, and what the instances have sent, in order. */
  readonly seen: readonly Seen[]
  readonly sent: readonly Seen[]
  readonly notes: readonly Notes[]
  readonly pauses: readonly Pause[]
  readonly upstreamPauses: readonly Pause[]
  /** When the load ended, in ms. */
  readonly end: number
}

/** Ends the load and collects what was seen. */
export async function finish({ upstream, instances, load }: Trial): Promise<Outcome> {
  const end = now()
  await load.stop()
  const seen = await upstream.seen()
  const notes = instances.flatMap(instance => instance.notes())
  const sent = notes.flatMap(note => note.sent).sort((one, other) => one.at - other.at)
  const pauses = machinePauses(notes.flatMap(note => note.pauses))
  return { seen, sent, notes, pauses, upstreamPauses: machinePauses(upstream.notes().pauses), end }
}

export interface Part {
  /** ms from the begin of the trial; absent: without the warm-up, to the end. */
  readonly from?: number
  readonly to?: number
  /** How far the rate may be off. */
  readonly within?: number
}

/**
 * The rate in a part of a trial, as the upstream sees it: while the machine is quiet it is what it should be, with a request
 * at either end. What is missing in all may be what the machine has taken: each instance's part while it stood still, and
 * all of it while the upstream did, which stands for the store here.
 */
export function checkRate(t: Test, trial: Trial, outcome: Outcome, expected: number, part: Part = {}): void {
  const { from = WARM_UP, to = outcome.end - trial.begin, within = 0.01 } = part
  const [begin, end] = [trial.begin + from, trial.begin + to]
  const { seen, pauses, upstreamPauses } = outcome
  const stood = (first: number, last: number): number =>
    stoodStill(pauses, first, last, trial.processes) + stoodStill(upstreamPauses, first, last, 1)
  const rate = rateOf(seen, begin, end)
  const lost = stood(begin, end)
  const span = `${Math.round(from)} to ${Math.round(to)} ms`
  const told = `${rate.toFixed(3)} per second from ${span}; the machine took up to ${(lost * 100).toFixed(2)} % of the time`
  const quiet = quietly(seen, begin, end, stood)
  const due = (expected * quiet.ms) / 1_000
  const toldQuiet = `${quiet.count} of ${due} in ${quiet.spans} quiet half seconds`
  if (LONG) t.comment(`${told}; ${toldQuiet}`)
  t.ok(rate <= expected * (1 + within) && rate >= expected * (1 - within - lost), told)
  t.ok(Math.abs(quiet.count - due) <= due * within + 2, toldQuiet)
}

/**
 * The window bound, on what the instances send and on what the upstream sees: to the letter, but for what the longest
 * pause makes of it that the machine has put there. Of what is sent that is one request of each instance at most: what
 * it is late by more than a period it forfeits. The upstream's own pauses count only for what it sees.
 */
export function checkBound(t: Test, outcome: Outcome, rate: number, what = 'everyone', of = (_: Seen) => true): void {
  const { sent, seen, pauses, upstreamPauses } = outcome
  const check = (where: string, all: readonly Seen[], known: readonly Pause[], most: number): void => {
    const worst = worstWindow(all.filter(of), rate / 1_000)
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
  for (const { read, released, pid } of notes) t.equal(overtakings(read, released, laneOf), 0, `in order in ${pid}`)
}

/** Every request has one end, and the upstream sees it once if it was answered, and not if it was turned away. */
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
  t.same(wrong, [], 'what is answered was sent, what is rejected was not')
  t.same(
    [...times.keys()].filter(path => !outcomes.has(path)),
    [],
    'nothing else was sent',
  )
}
