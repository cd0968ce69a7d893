/** What `shaper top` shows: a few lines about everything, and one list each of instances, buckets, routes, servers and keys. */
import type {
  BucketRates,
  BucketSnapshot,
  InstanceSnapshot,
  MemberSnapshot,
  RouteSnapshot,
  ServerSnapshot,
  Snapshot,
} from '../../admin/snapshot/snapshot.js'
import { durationText } from '../../core/units.js'
import { age, cellText, decimal, listedRate, listedWait, oldestText } from '../text.js'

export type SectionName = 'instance' | 'bucket' | 'route' | 'server' | 'key'

export interface Column {
  readonly title: string
  /** The title where there is little room. */
  readonly short?: string
  /** Texts begin at the left and are found by a filter. */
  readonly kind: 'text' | 'number'
  /** Where there is too little room, the columns with the highest number are left out first. 0: never. */
  readonly drop: number
}

interface Cell {
  readonly text: string
  readonly value: number | string
}

export interface Section {
  readonly name: SectionName
  /** The first is the name of the row. */
  readonly columns: readonly Column[]
  readonly rows: readonly (readonly Cell[])[]
}

const BAR = 12
/** Columns. An upstream may have chosen the words. */
const LONGEST_TROUBLE = 400
const text = (value: string): Cell => ({ text: cellText(value), value })
const count = (value: number): Cell => ({ text: decimal(value), value })
const nothing: Cell = { text: '', value: -1 }
/** JSON has null for a time without an end. */
const time = (ms: number | null | undefined): Cell =>
  ms === null || ms === undefined ? nothing : { text: durationText(ms), value: ms }

/** The difference of a count to the snapshot before, per second. */
type PerSecond = (now: number, then: number | undefined) => Cell

/** @param before undefined: there are no rates yet */
export function sectionsOf(now: Snapshot, before: Snapshot | undefined): Section[] {
  const seconds = before === undefined ? 0 : Math.max(0.001, (now.at - before.at) / 1_000)
  const perSecond: PerSecond = (present, then) =>
    then === undefined ? nothing : count(Math.max(0, present - then) / seconds)
  return [
    instances(now, before, perSecond),
    buckets(now, before, perSecond),
    routes(now, before, perSecond),
    servers(now),
    keys(now),
  ].filter(({ rows }) => rows.length > 0)
}

/** Empty where there is only one. */
function instances({ members = [] }: Snapshot, before: Snapshot | undefined, perSecond: PerSecond): Section {
  const stateOf = ({ isHere, draining, storeReady, age: silent }: MemberSnapshot): string => {
    if (draining) return 'shutting down'
    if (!storeReady) return 'without the store'
    if (silent > 2_500) return `silent for ${durationText(silent)}`
    return isHere ? 'asked' : ''
  }
  const row = (member: MemberSnapshot): Cell[] => {
    const { name, queued, inFlight, forwarded, rejected, errors, waitP99, cpu, uptime } = member
    const old = before?.members?.find(each => each.name === name)
    const busy = perSecond(cpu * 100, old && old.cpu * 100)
    return [
      text(name),
      count(queued),
      count(inFlight),
      perSecond(forwarded, old?.forwarded),
      perSecond(rejected, old?.rejected),
      perSecond(errors, old?.errors),
      time(waitP99),
      busy === nothing ? nothing : { text: `${Math.round(Number(busy.value))} %`, value: busy.value },
      { text: age(uptime), value: uptime },
      text(stateOf(member)),
    ]
  }
  return {
    name: 'instance',
    columns: [
      { title: 'instance', kind: 'text', drop: 0 },
      { title: 'queued', kind: 'number', drop: 0 },
      { title: 'in flight', short: 'sent', kind: 'number', drop: 5 },
      { title: 'forwarded/s', short: 'out/s', kind: 'number', drop: 1 },
      { title: 'rejected/s', short: 'rej/s', kind: 'number', drop: 2 },
      { title: 'errors/s', short: 'err/s', kind: 'number', drop: 3 },
      { title: 'wait p99', short: 'p99', kind: 'number', drop: 7 },
      { title: 'cpu', kind: 'number', drop: 4 },
      { title: 'up', kind: 'number', drop: 6 },
      { title: 'state', kind: 'text', drop: 1 },
    ],
    rows: members.length > 1 ? members.map(row) : [],
  }
}

function buckets(now: Snapshot, before: Snapshot | undefined, perSecond: PerSecond): Section {
  const row = (bucket: BucketSnapshot): Cell[] => {
    const { name, rate, configured, quotaEnds, keys, waiting, oldestMs, fullest } = bucket
    const old = before?.buckets.find(each => each.name === name)
    const flow = (figure: keyof BucketRates): Cell =>
      bucket.perSecond === undefined ? perSecond(bucket[figure], old?.[figure]) : count(bucket.perSecond[figure])
    const isLowered = rate !== null && configured !== null && rate < configured
    const fullness = Math.max(0, ...fullest.map(({ level, capacity }) => level / (capacity ?? Infinity)))
    return [
      text(name),
      {
        text: `${listedRate(rate, quotaEnds)}${isLowered ? ` of ${decimal(configured)}` : ''}`,
        value: rate ?? Infinity,
      },
      count(keys),
      { text: `${Math.round(fullness * 100)} %`, value: fullness },
      count(waiting),
      time(oldestMs),
      flow('offered'),
      flow('released'),
      flow('rejected'),
    ]
  }
  return {
    name: 'bucket',
    columns: [
      { title: 'bucket', kind: 'text', drop: 0 },
      { title: 'rate', kind: 'number', drop: 4 },
      { title: 'keys', kind: 'number', drop: 5 },
      { title: 'fullest', short: 'full', kind: 'number', drop: 3 },
      { title: 'queued', kind: 'number', drop: 0 },
      { title: 'oldest', kind: 'number', drop: 1 },
      { title: 'in/s', kind: 'number', drop: 6 },
      { title: 'released/s', short: 'out/s', kind: 'number', drop: 1 },
      { title: 'rejected/s', short: 'rej/s', kind: 'number', drop: 2 },
    ],
    rows: now.buckets.map(row),
  }
}

function routes(now: Snapshot, before: Snapshot | undefined, perSecond: PerSecond): Section {
  const isAnyShared = now.routes.some(({ coalesced = 0 }) => coalesced > 0)
  const row = (route: RouteSnapshot): Cell[] => {
    const { name, queued, outcomes, coalesced = 0, upstreamResponses } = route
    const old = before?.routes.find(each => each.name === name)
    return [
      text(name === '' ? '(no route)' : name),
      count(queued),
      perSecond(outcomes.forwarded, old?.outcomes.forwarded),
      ...(isAnyShared ? [perSecond(coalesced, old && (old.coalesced ?? 0))] : []),
      perSecond(upstreamResponses['5xx'], old?.upstreamResponses['5xx']),
      perSecond(outcomes.failed, old?.outcomes.failed),
      perSecond(outcomes.rejected, old?.outcomes.rejected),
      text(reasons(route, old, perSecond)),
      text(patience(route)),
    ]
  }
  return {
    name: 'route',
    columns: [
      { title: 'route', kind: 'text', drop: 0 },
      { title: 'queued', kind: 'number', drop: 0 },
      { title: 'forwarded/s', short: 'out/s', kind: 'number', drop: 3 },
      ...(isAnyShared ? [{ title: 'shared/s', kind: 'number', drop: 4 } as const] : []),
      { title: '5xx/s', kind: 'number', drop: 1 },
      { title: 'failed/s', short: 'fail/s', kind: 'number', drop: 2 },
      { title: 'rejected/s', short: 'rej/s', kind: 'number', drop: 4 },
      { title: 'why', kind: 'text', drop: 5 },
      { title: 'clients', kind: 'text', drop: 6 },
    ],
    rows: now.routes.map(row),
  }
}

/** Why requests are rejected, the most frequent reason first. */
function reasons({ rejections }: RouteSnapshot, old: RouteSnapshot | undefined, perSecond: PerSecond): string {
  if (old === undefined) return ''
  const entries = Object.entries(rejections) as [keyof typeof rejections, number][]
  return entries
    .map(([reason, total]) => ({ reason, rate: Number(perSecond(total, old.rejections[reason] ?? 0).value) }))
    .filter(({ rate }) => rate > 0)
    .sort((a, b) => b.rate - a.rate)
    .map(({ reason, rate }) => (entries.length > 1 ? `${reason} ${decimal(rate)}` : reason))
    .join(', ')
}

function patience({ patience }: RouteSnapshot): string {
  if (patience === undefined) return ''
  const { learntMs, lastMinute } = patience
  return [
    ...(learntMs === undefined ? [] : [`leave after ${durationText(learntMs)}`]),
    ...(lastMinute === 0 ? [] : [`${lastMinute} given up/min`]),
  ].join(', ')
}

/** Empty where each upstream has one. */
function servers({ upstreams }: Snapshot): Section {
  const row = (server: ServerSnapshot): Cell[] => {
    const { url, inFlight, maxInFlight, weight, backup, probeMs } = server
    return [
      text(url),
      text(serverState(server)),
      {
        text: maxInFlight === undefined ? decimal(inFlight) : `${decimal(inFlight)}/${decimal(maxInFlight)}`,
        value: inFlight,
      },
      count(weight),
      text(backup ? 'backup' : ''),
      time(probeMs),
      text(server.failure ?? ''),
    ]
  }
  return {
    name: 'server',
    columns: [
      { title: 'server', kind: 'text', drop: 0 },
      { title: 'state', kind: 'text', drop: 0 },
      { title: 'in flight', short: 'sent', kind: 'number', drop: 1 },
      { title: 'weight', kind: 'number', drop: 4 },
      { title: 'role', kind: 'text', drop: 3 },
      { title: 'next try', kind: 'number', drop: 2 },
      { title: 'why', kind: 'text', drop: 5 },
    ],
    rows: upstreams.flatMap(({ servers = [] }) => servers.map(row)),
  }
}

function serverState({ isUp, part }: ServerSnapshot): string {
  if (!isUp) return 'down'
  return part === undefined ? 'up' : `warms up, ${Math.round(part * 100)} %`
}

/** The fullest keys of all buckets, those that wait first. */
function keys({ buckets }: Snapshot): Section {
  const all = buckets.flatMap(({ name, fullest }) => fullest.map(instance => ({ name, instance })))
  const rank = ({ level, capacity, waiting, blockedMs }: InstanceSnapshot): number =>
    level / (capacity ?? Infinity) + (waiting > 0 ? 2 : 0) + (blockedMs === undefined ? 0 : 1)
  const row = ({ name, instance }: (typeof all)[number]): Cell[] => {
    const { key, tier = '', level, capacity, waiting, oldestMs, predictedWaitMs, heldBy } = instance
    return [
      { text: cellText(key === '' ? '(no key)' : key), value: key },
      text(name),
      text(tier),
      { text: bar(level / (capacity ?? Infinity)), value: level / (capacity ?? Infinity) },
      { text: `${decimal(level)}/${capacity === null ? 'any' : decimal(capacity)}`, value: level },
      count(waiting),
      time(oldestMs),
      { text: listedWait(predictedWaitMs, heldBy), value: predictedWaitMs },
      text(stateOf(instance)),
    ]
  }
  return {
    name: 'key',
    columns: [
      { title: 'key', kind: 'text', drop: 0 },
      { title: 'bucket', kind: 'text', drop: 2 },
      { title: 'tier', kind: 'text', drop: 6 },
      { title: '', kind: 'text', drop: 5 },
      { title: 'level', kind: 'number', drop: 1 },
      { title: 'queued', kind: 'number', drop: 0 },
      { title: 'oldest', kind: 'number', drop: 4 },
      { title: 'a newcomer waits', short: 'newcomer', kind: 'number', drop: 0 },
      { title: 'state', kind: 'text', drop: 3 },
    ],
    rows: all.sort((a, b) => rank(b.instance) - rank(a.instance)).map(row),
  }
}

function bar(fullness: number): string {
  const filled = Math.min(BAR, Math.round(fullness * BAR))
  return '#'.repeat(filled) + '.'.repeat(BAR - filled)
}

function stateOf({ blockedMs, overriddenUntil }: InstanceSnapshot): string {
  const blocked = blockedMs !== undefined && (blockedMs < 0 ? 'blocked' : `blocked ${durationText(blockedMs)}`)
  return [blocked, overriddenUntil !== undefined && 'overridden'].filter(Boolean).join(', ')
}

export function troublesOf({ troubles = [] }: Snapshot): string[] {
  return troubles.map(trouble => cellText(trouble, LONGEST_TROUBLE))
}

export function summaryOf(snapshot: Snapshot): string[] {
  const { queued, oldestMs, inFlight, wait, lateness, store, processes, draining } = snapshot
  return [
    ...(draining ? ['shutting down'] : []),
    `${decimal(queued)} queued${oldestText(oldestMs)}`,
    `${decimal(inFlight)} in flight`,
    // Without a release there are no waits.
    ...(wait.count === 0
      ? []
      : [
          `wait p50 ${durationText(wait.p50)}, p99 ${durationText(wait.p99)}, max ${durationText(wait.max)}`,
          `late p99 ${durationText(lateness.p99)}`,
        ]),
    ...(store.type !== 'memory' && store.ready ? [`${store.type}: ${store.instances} instances`] : []),
    ...(processes > 1 && store.type === 'memory' ? [`${processes} processes`] : []),
  ]
}
