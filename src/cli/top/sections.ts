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

/** What a row has in a column. */
interface Source<Row> extends Column {
  readonly cell: (row: Row) => Cell
}

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

function sectionOf<Row>(name: SectionName, rows: readonly Row[], columns: readonly Source<Row>[]): Section {
  return { name, columns, rows: rows.map(row => columns.map(({ cell }) => cell(row))) }
}

function instances({ members = [] }: Snapshot, before: Snapshot | undefined, perSecond: PerSecond): Section {
  const stateOf = ({ isHere, draining, storeReady, age: silent }: MemberSnapshot): string => {
    if (draining) return 'shutting down'
    if (!storeReady) return 'without the store'
    if (silent > 2_500) return `silent for ${durationText(silent)}`
    return isHere ? 'asked' : ''
  }
  const rate = (member: MemberSnapshot, figure: 'forwarded' | 'rejected' | 'errors' | 'cpu', times = 1): Cell => {
    const old = before?.members?.find(each => each.name === member.name)
    return perSecond(member[figure] * times, old && old[figure] * times)
  }
  const busy = (member: MemberSnapshot): Cell => {
    const { text, value } = rate(member, 'cpu', 100)
    return text === '' ? nothing : { text: `${Math.round(Number(value))} %`, value }
  }
  // One is the whole.
  return sectionOf('instance', members.length > 1 ? members : [], [
    { title: 'instance', kind: 'text', drop: 0, cell: ({ name }) => text(name) },
    { title: 'queued', kind: 'number', drop: 0, cell: ({ queued }) => count(queued) },
    { title: 'in flight', short: 'sent', kind: 'number', drop: 5, cell: ({ inFlight }) => count(inFlight) },
    { title: 'forwarded/s', short: 'out/s', kind: 'number', drop: 1, cell: member => rate(member, 'forwarded') },
    { title: 'rejected/s', short: 'rej/s', kind: 'number', drop: 2, cell: member => rate(member, 'rejected') },
    { title: 'errors/s', short: 'err/s', kind: 'number', drop: 3, cell: member => rate(member, 'errors') },
    { title: 'wait p99', short: 'p99', kind: 'number', drop: 7, cell: ({ waitP99 }) => time(waitP99) },
    { title: 'cpu', kind: 'number', drop: 4, cell: busy },
    { title: 'up', kind: 'number', drop: 6, cell: ({ uptime }) => ({ text: age(uptime), value: uptime }) },
    { title: 'state', kind: 'text', drop: 1, cell: member => text(stateOf(member)) },
  ])
}

function buckets(now: Snapshot, before: Snapshot | undefined, perSecond: PerSecond): Section {
  const flow = (bucket: BucketSnapshot, figure: keyof BucketRates): Cell => {
    const old = before?.buckets.find(each => each.name === bucket.name)
    return bucket.perSecond === undefined ? perSecond(bucket[figure], old?.[figure]) : count(bucket.perSecond[figure])
  }
  const rateOf = ({ rate, configured, quotaEnds }: BucketSnapshot): Cell => {
    const isLowered = rate !== null && configured !== null && rate < configured
    const most = isLowered ? ` of ${decimal(configured)}` : ''
    return { text: `${listedRate(rate, quotaEnds)}${most}`, value: rate ?? Infinity }
  }
  const fullestOf = ({ fullest }: BucketSnapshot): Cell => {
    const fullness = Math.max(0, ...fullest.map(({ level, capacity }) => level / (capacity ?? Infinity)))
    return { text: `${Math.round(fullness * 100)} %`, value: fullness }
  }
  return sectionOf('bucket', now.buckets, [
    { title: 'bucket', kind: 'text', drop: 0, cell: ({ name }) => text(name) },
    { title: 'rate', kind: 'number', drop: 4, cell: rateOf },
    { title: 'keys', kind: 'number', drop: 5, cell: ({ keys }) => count(keys) },
    { title: 'fullest', short: 'full', kind: 'number', drop: 3, cell: fullestOf },
    { title: 'queued', kind: 'number', drop: 0, cell: ({ waiting }) => count(waiting) },
    { title: 'oldest', kind: 'number', drop: 1, cell: ({ oldestMs }) => time(oldestMs) },
    { title: 'in/s', kind: 'number', drop: 6, cell: bucket => flow(bucket, 'offered') },
    { title: 'released/s', short: 'out/s', kind: 'number', drop: 1, cell: bucket => flow(bucket, 'released') },
    { title: 'rejected/s', short: 'rej/s', kind: 'number', drop: 2, cell: bucket => flow(bucket, 'rejected') },
  ])
}

function routes(now: Snapshot, before: Snapshot | undefined, perSecond: PerSecond): Section {
  const isAnyShared = now.routes.some(({ coalesced = 0 }) => coalesced > 0)
  const rows = now.routes.map(route => ({ ...route, old: before?.routes.find(({ name }) => name === route.name) }))
  const rate = (of: (route: RouteSnapshot) => number) => (row: (typeof rows)[number]) =>
    perSecond(of(row), row.old && of(row.old))
  const outcome = (name: 'forwarded' | 'failed' | 'rejected') => rate(({ outcomes }) => outcomes[name])
  const shared = rate(({ coalesced = 0 }) => coalesced)
  return sectionOf('route', rows, [
    { title: 'route', kind: 'text', drop: 0, cell: ({ name }) => text(name === '' ? '(no route)' : name) },
    { title: 'queued', kind: 'number', drop: 0, cell: ({ queued }) => count(queued) },
    { title: 'forwarded/s', short: 'out/s', kind: 'number', drop: 3, cell: outcome('forwarded') },
    ...(isAnyShared ? [{ title: 'shared/s', kind: 'number', drop: 4, cell: shared } as const] : []),
    { title: '5xx/s', kind: 'number', drop: 1, cell: rate(({ upstreamResponses }) => upstreamResponses['5xx']) },
    { title: 'failed/s', short: 'fail/s', kind: 'number', drop: 2, cell: outcome('failed') },
    { title: 'rejected/s', short: 'rej/s', kind: 'number', drop: 4, cell: outcome('rejected') },
    { title: 'why', kind: 'text', drop: 5, cell: row => text(reasons(row, row.old, perSecond)) },
    { title: 'clients', kind: 'text', drop: 6, cell: route => text(patience(route)) },
  ])
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
  const inFlightOf = ({ inFlight, maxInFlight }: ServerSnapshot): Cell => {
    const most = maxInFlight === undefined ? '' : `/${decimal(maxInFlight)}`
    return { text: decimal(inFlight) + most, value: inFlight }
  }
  const rows = upstreams.flatMap(({ servers = [] }) => servers)
  return sectionOf('server', rows, [
    { title: 'server', kind: 'text', drop: 0, cell: ({ url }) => text(url) },
    { title: 'state', kind: 'text', drop: 0, cell: server => text(serverState(server)) },
    { title: 'in flight', short: 'sent', kind: 'number', drop: 1, cell: inFlightOf },
    { title: 'weight', kind: 'number', drop: 4, cell: ({ weight }) => count(weight) },
    { title: 'role', kind: 'text', drop: 3, cell: ({ backup }) => text(backup ? 'backup' : '') },
    { title: 'next try', kind: 'number', drop: 2, cell: ({ probeMs }) => time(probeMs) },
    { title: 'why', kind: 'text', drop: 5, cell: ({ failure = '' }) => text(failure) },
  ])
}

function serverState({ isUp, part }: ServerSnapshot): string {
  if (!isUp) return 'down'
  return part === undefined ? 'up' : `warms up, ${Math.round(part * 100)} %`
}

/** The fullest keys of all buckets, those that wait first. */
function keys({ buckets }: Snapshot): Section {
  const all = buckets.flatMap(({ name, fullest }) => fullest.map(instance => ({ ...instance, bucket: name })))
  const fullness = ({ level, capacity }: InstanceSnapshot): number => level / (capacity ?? Infinity)
  const rank = (instance: InstanceSnapshot): number =>
    fullness(instance) + (instance.waiting > 0 ? 2 : 0) + (instance.blockedMs === undefined ? 0 : 1)
  const rows = all.sort((a, b) => rank(b) - rank(a))
  const keyOf = ({ key }: InstanceSnapshot): Cell => ({ text: cellText(key === '' ? '(no key)' : key), value: key })
  const barOf = (instance: InstanceSnapshot): Cell => ({ text: bar(fullness(instance)), value: fullness(instance) })
  const levelOf = ({ level, capacity }: InstanceSnapshot): Cell => {
    return { text: `${decimal(level)}/${capacity === null ? 'any' : decimal(capacity)}`, value: level }
  }
  const newcomer = ({ predictedWaitMs, heldBy }: InstanceSnapshot): Cell => {
    return { text: listedWait(predictedWaitMs, heldBy), value: predictedWaitMs }
  }
  return sectionOf('key', rows, [
    { title: 'key', kind: 'text', drop: 0, cell: keyOf },
    { title: 'bucket', kind: 'text', drop: 2, cell: ({ bucket }) => text(bucket) },
    { title: 'tier', kind: 'text', drop: 6, cell: ({ tier = '' }) => text(tier) },
    { title: '', kind: 'text', drop: 5, cell: barOf },
    { title: 'level', kind: 'number', drop: 1, cell: levelOf },
    { title: 'queued', kind: 'number', drop: 0, cell: ({ waiting }) => count(waiting) },
    { title: 'oldest', kind: 'number', drop: 4, cell: ({ oldestMs }) => time(oldestMs) },
    { title: 'a newcomer waits', short: 'newcomer', kind: 'number', drop: 0, cell: newcomer },
    { title: 'state', kind: 'text', drop: 3, cell: instance => text(stateOf(instance)) },
  ])
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
