/** All instances of a store as one: those of this program, asked now, and the others as they show themselves. */
import type { View, ViewKind } from '../../sharing/board.js'
import { mergeSnapshots } from '../snapshot/merge-snapshots.js'
import type { InstanceSnapshot, MemberSnapshot, Snapshot } from '../snapshot/snapshot.js'
import { fleetHour, type Hour, type HourPart, readHours } from './hour.js'
import { type FleetMember, readView } from './member.js'

/** How long what others show is reused, in ms. They show their present once a second, and parts of their hour each ten. */
const FRESH_VIEWS: Record<ViewKind, number> = { present: 900, hour: 4_000 }

export interface FleetSource {
  members(): Promise<readonly FleetMember[]>
  hours(): Promise<readonly View[]>
  /** What all instances of the store show, these included. Nothing without a store. */
  views(kind: ViewKind): Promise<readonly View[]>
}

export interface Fleet {
  /** All instances together, with one line for each in `members`. */
  all(): Promise<Snapshot>
  one(name: string): Promise<Snapshot | undefined>
  /** The last hour of all instances, or of the one with this name. */
  hour(name?: string): Promise<Hour>
  /** The keys that other programs list among their fullest, as they are there. */
  elsewhere(matches: (bucket: string, key: string) => boolean): Promise<readonly ListedKey[]>
}

export interface ListedKey {
  readonly bucket: string
  readonly instance: InstanceSnapshot
}

export function createFleet(source: FleetSource): Fleet {
  const wallNow = (): number => performance.timeOrigin + performance.now()
  let others: readonly FleetMember[] = []
  let hours: readonly HourPart[] = []
  const readAt: Record<ViewKind, number> = { present: -Infinity, hour: -Infinity }

  function isDue(kind: ViewKind): boolean {
    const now = performance.now()
    if (now - readAt[kind] < FRESH_VIEWS[kind]) return false
    readAt[kind] = now
    return true
  }

  async function readOthers(own: readonly FleetMember[]): Promise<void> {
    if (!isDue('present')) return
    // Without an answer the store is away, and nothing is known of the others.
    const views = await source.views('present').catch(() => [])
    const ids = new Set(own.map(({ id }) => id))
    const found: FleetMember[] = []
    for (const view of views) {
      if (ids.has(view.id)) continue
      const member = readView(view, wallNow())
      if (member !== undefined) found.push(member)
      // Each may be large, and requests are released by this thread, too.
      await new Promise(setImmediate)
    }
    others = found.sort((a, b) => (a.name < b.name || (a.name === b.name && a.id < b.id) ? -1 : 1))
  }

  const gather = remembered(async () => {
    const own = await source.members()
    await readOthers(own)
    const members = withOwnNames([...own, ...others])
    return { members, lines: members.map((member, place) => ({ ...summary(member), isHere: place < own.length })) }
  })

  return {
    all: remembered(async () => {
      const { members, lines } = await gather()
      const merged = mergeSnapshots(members.map(({ snapshot }) => snapshot))
      return { ...merged, at: members[0]!.snapshot.at, members: lines }
    }),

    async one(name) {
      const { members, lines } = await gather()
      const found = members.find(member => member.name === name)
      return found && { ...found.snapshot, members: lines, shown: name }
    },

    async elsewhere(matches) {
      const { members, lines } = await gather()
      const programs = members.filter((_, place) => !lines[place]!.isHere)
      return programs.flatMap(({ snapshot }) =>
        snapshot.buckets.flatMap(({ name, fullest }) =>
          fullest.filter(({ key }) => matches(name, key)).map(instance => ({ bucket: name, instance })),
        ),
      )
    },

    async hour(name) {
      const own = readHours(await source.hours(), wallNow())
      // While the store is away the others are shown as they were.
      if (isDue('hour')) {
        const views = await source.views('hour').catch(() => undefined)
        if (views !== undefined) hours = readHours(views, wallNow())
      }
      return fleetHour([...own, ...hours], wallNow(), name)
    },
  }
}

/** Instances in containers may have the same name. All but the first get a number. */
function withOwnNames(members: readonly FleetMember[]): FleetMember[] {
  const known = new Set<string>()
  return members.map(member => {
    let { name } = member
    for (let number = 2; known.has(name); number += 1) name = `${member.name} (${number})`
    known.add(name)
    return { ...member, name }
  })
}

function summary({ name, age, snapshot, passed, cpu }: FleetMember): Omit<MemberSnapshot, 'isHere'> {
  const { uptime, draining, store, queued, inFlight, wait } = snapshot
  return { name, age, uptime, draining, storeReady: store.ready, queued, inFlight, ...passed, cpu, waitP99: wait.p99 }
}

/** How long a snapshot is reused, in ms, so that many clients do not delay releases. */
const FRESH = 200

/** Gives the same answer to all callers within `FRESH` ms. */
export function remembered<Answer>(take: () => Promise<Answer>): () => Promise<Answer> {
  const only = rememberedByKey(take)
  return () => only('', '')
}

/** Gives the same answer to all who ask for the same key of a bucket within `FRESH` ms. */
export function rememberedByKey<Answer>(
  take: (bucket: string, key: string) => Promise<Answer>,
): (bucket: string, key: string) => Promise<Answer> {
  const last = new Map<string, { readonly answer: Promise<Answer>; readonly takenAt: number }>()
  return (bucket, key) => {
    const now = performance.now()
    for (const [name, { takenAt }] of last) if (now - takenAt >= FRESH) last.delete(name)
    const name = JSON.stringify([bucket, key])
    const answer = last.get(name)?.answer ?? take(bucket, key)
    if (!last.has(name)) last.set(name, { answer, takenAt: now })
    return answer
  }
}
