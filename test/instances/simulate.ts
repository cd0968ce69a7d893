/**
 * Prints what many instances on one store do, on the virtual clock.
 *
 *     node build/test/instances/simulate.js [PART OF A TITLE]...
 *
 * | column | meaning |
 * | --- | --- |
 * | rate | requests per second, and in % of r |
 * | used | the part of the slots that were used while requests waited, in % |
 * | burst | the most by which any window has more than r * W, and what contract 10 allows |
 * | gap | the smallest gap, and the first percentile, in parts of 1/r |
 * | shares | requests of each instance; of many: the least and the most, in % of an equal share |
 * | calls | operations per second and instance, the most of any; messages: those of one moment count once |
 * | /request | operations and messages for each request |
 * | wait | from arrival to release in ms: median and 99th percentile |
 */
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { limits } from '../core/run.js'
import { type Release, type Simulation, type SimulationOptions, type Source, simulate } from './simulator.js'
import { allowedBurst, countBy, gaps, printTable, quantile, ratePerSecond, spreadOf, worstBurst } from './spacing.js'

interface Row extends SimulationOptions {
  readonly what: string
  /** ms that count, and those before. */
  readonly ms: number
  readonly warmUp?: number
  /** Instances that are compared; default: all. */
  readonly shares?: (release: Release) => string | number | undefined
  /** Whose waits are told; default: all. */
  readonly waits?: (release: Release) => boolean
  /** What happens meanwhile, by time in ms. */
  readonly events?: readonly { at: number; run(simulation: Simulation): void }[]
  /** More figures. */
  more?(simulation: Simulation): Record<string, string | number>
}

type Cells = Record<string, string | number>

const BEAT_VERBS = new Set(['beat', 'exchange', 'leave'])

async function figuresOf(row: Row): Promise<Cells> {
  const began = performance.now()
  const { what, stack, ms, warmUp = 1_000, waits = () => true, events = [] } = row
  const simulation = await simulate(row)
  await simulation.run(warmUp)
  for (const connection of simulation.connections) connection.countAgain()
  for (const { at, run } of events) {
    await simulation.run(at)
    run(simulation)
  }
  const end = warmUp + ms
  await simulation.run(end)
  const { releases } = simulation
  const shared = stack.at(-1)!
  const counted = releases.filter(({ at }) => at > warmUp)
  const times = counted.map(({ at }) => at)
  const rate = ratePerSecond(times, warmUp, end)
  const due = shared.rate * ms
  const waited = counted.filter(waits).map(({ at, arrivedAt }) => at - arrivedAt)
  const period = 1 / shared.rate
  const between = gaps(times)
  return {
    what,
    'rate (% of r)': `${fixed(rate, 1)} (${due < 1 ? '-' : fixed((rate / shared.rate) * 0.1, 2)})`,
    'used %': due < 1 ? '-' : fixed((counted.length / due) * 100, 2),
    'burst (may be)': `${fixed(worstBurst(times, shared.rate), 2)} (${fixed(allowedBurst(shared.rate, row.count), 0)})`,
    'gap 0/1 %': `${fixed(quantile(between, 0) / period, 3)} ${fixed(quantile(between, 0.01) / period, 3)}`,
    shares: sharesOf(row, counted),
    'calls/s (messages)': callsOf(simulation, ms),
    '/request': callsPerRequest(simulation, counted.length),
    'wait p50 p99': `${fixed(quantile(waited, 0.5), 2)} ${fixed(quantile(waited, 0.99), 2)}`,
    more: Object.entries(row.more?.(simulation) ?? {})
      .map(([name, value]) => `${name} ${value}`)
      .join(', '),
    'took s': fixed((performance.now() - began) / 1_000, 1),
  }
}

function sharesOf({ count, shares }: Row, counted: readonly Release[]): string {
  const names = shares ?? (({ source }: Release) => source.instance)
  const counts = countBy(
    counted.flatMap(release => names(release) ?? []),
    name => name,
  )
  if (shares === undefined)
    for (let instance = 0; instance < count; instance += 1) counts.set(instance, counts.get(instance) ?? 0)
  const sorted = [...counts].sort(([one], [other]) => (one < other ? -1 : 1))
  if (sorted.length <= 5) return sorted.map(([name, number]) => (shares ? `${name}: ${number}` : number)).join(' / ')
  const { least, most } = spreadOf(sorted.map(([, number]) => number))
  return `${fixed(least, 0)} to ${fixed(most, 0)} %`
}

function operations({ verbs }: { verbs: Map<string, number> }): number {
  return [...verbs].reduce((sum, [verb, count]) => sum + (BEAT_VERBS.has(verb) ? 0 : count), 0)
}

function callsOf({ connections }: Simulation, ms: number): string {
  const most = (counts: number[]): string => fixed((Math.max(...counts) / ms) * 1_000, 1)
  return `${most(connections.map(({ calls }) => operations(calls)))} (${most(connections.map(({ calls }) => calls.messages))})`
}

function callsPerRequest({ connections }: Simulation, requests: number): string {
  const sum = (counts: number[]): number => counts.reduce((total, count) => total + count, 0)
  const all = sum(connections.map(({ calls }) => operations(calls)))
  const messages = sum(connections.map(({ calls }) => calls.messages))
  return `${fixed(all / requests, 2)} (${fixed(messages / requests, 2)})`
}

function fixed(value: number, digits: number): string {
  return Number.isFinite(value) ? value.toFixed(digits) : '-'
}

function shared(perSecond: number, capacity = perSecond): BucketLimits {
  return limits(perSecond, capacity, 'everyone')
}

/** The same load on each instance. */
function each(count: number, source: Omit<Source, 'instance' | 'keys'>): Source[] {
  return Array.from({ length: count }, (_, instance) => ({ ...source, instance, keys: ['all'] }))
}

function saturated(count: number, depth = 24): Source[] {
  return each(count, { load: { kind: 'saturated', depth } })
}

const RELEASES_200 = { stack: [shared(200, 400)], ms: 10_000 }

function distances(): Row[] {
  return [0.25, 2, 4, 15, 30, 50, 100].map(far => ({
    ...RELEASES_200,
    what: `1 of 4 is ${far} ms away (round trip ${2 * far})`,
    ...{ count: 4, sources: saturated(4, 60), warmUp: 2_000 },
    distance: (instance: number) => (instance === 0 ? far : 0.25),
  }))
}

function mixedDistances(): Row[] {
  return [
    { what: '0.25, 2, 15, 50 ms away', distance: (instance: number) => [0.25, 2, 15, 50][instance]! },
    { what: 'all 15 ms away', distance: () => 15 },
    { what: 'all 15 ms away, up to 10 ms jitter', distance: () => 15, jitter: 10 },
    { what: 'all near, up to 2 ms jitter', jitter: 2 },
  ].map(row => ({ ...RELEASES_200, count: 4, sources: saturated(4), warmUp: 2_000, ...row }))
}

function idle(): Row[] {
  return [0.25, 7.5, 15, 50].map(far => ({
    what: `idle, round trip ${2 * far} ms, 4 instances, 5/s of 200/s`,
    ...{ stack: [shared(200)], count: 4, ms: 20_000, distance: () => far },
    sources: each(4, { load: { kind: 'every', ms: 800 } }),
  }))
}

function callCounts(): Row[] {
  const rows = [1, 4, 16, 50].map(count => ({ count, perSecond: 200 }))
  return [...rows, { count: 50, perSecond: 20 }, { count: 4, perSecond: 1_000 }].flatMap(({ count, perSecond }) => [
    {
      what: `r = ${perSecond}, ${count} instances, saturated`,
      ...{ stack: [shared(perSecond, 4_000)], count, ms: 10_000 },
      sources: saturated(count, 2 + Math.ceil(96 / count)),
    },
    {
      what: `r = ${perSecond}, ${count} instances, Poisson at 0.9 r`,
      ...{ stack: [shared(perSecond, 4_000)], count, ms: 10_000 },
      sources: each(count, { load: { kind: 'poisson', ms: count / (0.9e-3 * perSecond) } }),
    },
  ])
}

/** One instance has 90 % of the load. */
function skewed(count: number, offered: number): Source[] {
  return Array.from({ length: count }, (_, instance) => {
    const part = instance === 0 ? 0.9 : 0.1 / (count - 1)
    return { instance, keys: ['all'], load: { kind: 'poisson', ms: 1_000 / (offered * part) } }
  })
}

function fast(): Row[] {
  const base = { count: 50, ms: 2_000, warmUp: 1_500 }
  const stack = [shared(100_000, 100_000)]
  return [
    { ...base, stack, what: '100,000/s, 50 instances, skewed, 1.1 r offered', sources: skewed(50, 110_000) },
    { ...base, stack, what: '100,000/s, 50 instances, skewed, 0.9 r offered', sources: skewed(50, 90_000) },
    { ...base, stack, what: '100,000/s, 50 instances, saturated', sources: saturated(50, 400) },
    {
      ...{ ...base, stack, what: '100,000/s, 50 instances, saturated, 0 to 49 ms away' },
      ...{ sources: saturated(50, 1_200), distance: (instance: number) => instance },
    },
    {
      ...base,
      stack: [shared(1_000, 4_000)],
      ms: 10_000,
      what: '1,000/s, 50 instances, skewed, 1.1 r',
      sources: skewed(50, 1_100),
    },
  ]
}

function stacks(): Row[] {
  const stack = [limits(20, 100, 'client'), shared(200, 2_000)]
  const of = (count: number, keys: number): Source[] =>
    Array.from({ length: count * keys }, (_, place) => ({
      ...{ instance: place % count, keys: [`key ${Math.floor(place / count)}`, 'all'] },
      load: { kind: 'saturated', depth: 4 },
    }))
  const worstKey = ({ releases }: Simulation): Cells => {
    const byKey = new Map<string, number[]>()
    for (const { source, at } of releases) byKey.set(source.keys[0]!, [...(byKey.get(source.keys[0]!) ?? []), at])
    return { 'worst burst of a key': fixed(Math.max(...[...byKey.values()].map(times => worstBurst(times, 0.02))), 2) }
  }
  const base = { stack, count: 4, ms: 10_000, warmUp: 2_000, more: worstKey }
  const byKey = ({ source }: Release): string => source.keys[0]!
  return [
    { ...base, what: '20/s of each of 20 keys, 200/s of all; near', sources: of(4, 20), shares: byKey },
    {
      ...base,
      what: 'the same, one of 4 instances 15 ms away',
      sources: of(4, 20),
      distance: at => (at === 0 ? 15 : 0.25),
    },
    { ...base, what: 'the same, all 15 ms away, shares by key', sources: of(4, 20), shares: byKey, distance: () => 15 },
    {
      ...{ ...base, what: 'the same, near, half of the requests hang up' },
      sources: of(4, 20).map(source => ({ ...source, hangUp: { part: 0.5, after: 200 } })),
    },
    { ...base, what: '8 keys at 20/s: their own buckets bind (160/s)', sources: of(4, 8), shares: byKey },
  ]
}

function bursts(): Row[] {
  return [1, 60_000].map(far => ({
    what: far === 1 ? '100 at once on 4 instances, b = 40, r = 1/h' : 'the same, one of them 15 ms away',
    ...{ stack: [{ ...shared(1, 40), rate: 1 / 3_600_000 }], count: 4, ms: 5_000, warmUp: 0 },
    sources: each(4, { load: { kind: 'at-once', count: 25 } }),
    distance: instance => (far > 1 && instance === 0 ? 15 : 0.25),
    more: ({ admitted, rejected }) => ({ admitted, rejected }),
  }))
}

function classes(): Row[] {
  const of = (...priorities: number[]): Source[] =>
    saturated(4).map(source => ({ ...source, priority: priorities[source.instance]! }))
  const shares = ({ source }: Release): string => `class ${source.priority}`
  const base = { ...RELEASES_200, count: 4, shares, warmUp: 2_000 }
  return [
    { ...base, what: 'class 0 on one instance, class 7 on three', sources: of(0, 7, 7, 7) },
    { ...base, what: 'class 0 on three, class 7 on one', sources: of(0, 0, 0, 7) },
    {
      ...{ ...base, what: 'weights 3, 1, 1, 1 (shares by instance)' },
      ...{ sources: saturated(4).map(source => ({ ...source, weight: source.instance === 0 ? 3 : 1 })) },
      shares: ({ source }) => `${source.instance}`,
    },
    {
      ...{ ...base, what: '9 lanes on one instance, 1 on three others' },
      stack: [{ ...limits(10_000, 10_000, 'client') }, shared(200, 2_000)],
      sources: Array.from({ length: 12 }, (_, lane) => ({
        ...{ instance: Math.max(0, lane - 8), keys: [`lane ${lane}`, 'all'] },
        load: { kind: 'saturated', depth: 8 },
      })),
      shares: ({ source }) => (source.instance === 0 ? 'the 9' : 'the 3'),
    },
  ]
}

/** Slots that no request used, in the first and the second half second after a moment. */
function lostAfter(moment: number): (simulation: Simulation) => Cells {
  return ({ releases }) => {
    const times = releases.map(({ at }) => at)
    const lost = (from: number): string => fixed(100 - ratePerSecond(times, from, from + 500) * 0.5, 1)
    const after = gaps(times.filter(at => at > moment - 10 && at < moment + 1_000))
    return {
      'slots lost in 500 ms': lost(moment),
      'the next 500': lost(moment + 500),
      'longest gap ms': fixed(Math.max(...after), 1),
    }
  }
}

function changes(): Row[] {
  const base = { ...RELEASES_200, count: 4, warmUp: 2_000 }
  return [
    {
      ...{ ...base, what: 'an instance is killed at 5 s', sources: saturated(4), more: lostAfter(5_000) },
      events: [{ at: 5_000, run: simulation => simulation.kill(0) }],
    },
    {
      ...{ ...base, what: 'an instance with 90 % of the load is killed at 5 s', more: lostAfter(5_000) },
      sources: each(4, { load: { kind: 'saturated', depth: 1 } }).map((source, at) =>
        at === 0
          ? { ...source, load: { kind: 'saturated', depth: 60 } }
          : { ...source, load: { kind: 'saturated', depth: 8 } },
      ),
      events: [{ at: 5_000, run: simulation => simulation.kill(0) }],
    },
    {
      ...{ ...base, what: 'one always asks, three 500 ms on and 500 off' },
      sources: saturated(4).map((source, at) => (at === 0 ? source : { ...source, onOff: { on: 500, off: 500 } })),
    },
    {
      ...{ ...base, what: 'all 150 ms on and 150 off, in turns of two' },
      sources: saturated(4).map((source, at) => ({
        ...source,
        ...{ from: at % 2 === 0 ? 0 : 150, onOff: { on: 150, off: 150 } },
      })),
    },
    {
      ...{ ...base, what: 'one always asks, three ask once a second (their waits)' },
      ...{ stack: [shared(200, 40)], waits: ({ source }) => source.instance > 0 },
      sources: saturated(4, 16).map((source, at) =>
        at === 0 ? source : { ...source, load: { kind: 'every', ms: 1_000 } },
      ),
    },
    {
      ...{ ...base, what: 'half of the requests hang up' },
      sources: saturated(4).map(source => ({ ...source, hangUp: { part: 0.5, after: 100 } })),
      more: ({ cancelled }) => ({ 'hung up': cancelled }),
    },
  ]
}

const PARTS: Readonly<Record<string, () => Row[]>> = {
  'shares by distance': distances,
  'mixed distances, gaps': mixedDistances,
  'idle latency': idle,
  'calls to the store': callCounts,
  'fast: 100,000/s': fast,
  'stacks of two buckets': stacks,
  'bursts: exactly b': bursts,
  'classes and weights': classes,
  'changes of load and instances': changes,
}

const wanted = process.argv.slice(2)
for (const [title, rows] of Object.entries(PARTS)) {
  if (wanted.length > 0 && !wanted.some(word => title.includes(word))) continue
  const figures: Cells[] = []
  for (const row of rows()) figures.push(await figuresOf(row))
  printTable(title, figures)
}
