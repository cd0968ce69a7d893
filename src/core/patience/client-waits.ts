/**
 * The most recent waits of one client, and whether its hang-ups tell of its patience.
 *
 * Clients that lose their patience leave after about the same wait, whenever they came. A load tool that ends its run, a
 * program that is killed and a tab that is closed leave with all their requests at one moment, whenever these came. That says
 * nothing about patience, except that it was longer than these waits. So such waits count as those that ended with an answer.
 *
 * The hang-ups of a client within TOGETHER of the first of them are a group. A group is a stop if two things hold.
 *
 * 1. Fewer than MOST of its waits are alike. A wait is alike if a MANY part of the others in its group are within ALIKE of it. So requests that came together and time out
 *    together are no stop, nor are those that came one after another and time out one after another, nor is one that leaves
 *    alone. What a queue holds has waits from 0 to the longest, evenly: less than a fifth of these are within ALIKE of any.
 * 2. The group is at least MOST of what the client had waiting. The rest is what came before the group and ended after it, with
 *    an answer or a hang-up. Behind an address with many programs of different patience somebody leaves at any moment. But
 *    many others stay.
 *
 * The rest is seen only later. Until then the group is taken for a stop, because a load tool may start again at once. If the
 * rest turns out to be too large, the group counts as hang-ups again. For STEADY from then on no group of this client is taken for
 * a stop: with thousands of hang-ups per second all waits that are kept may be so new that their rest is not seen yet.
 */
import type { Wait } from './departures.js'

/** Hang-ups of a client, or of all, from which on they decide. */
export const LEAST_HANG_UPS = 20

/** The most recent waits of a client that are kept. */
const KEPT_WAITS = 100

/** ms. A busy process takes so long to notice that all connections of a client are closed. */
const TOGETHER = 100

/** The part of a group that has to be alike, and the part of what the client has waiting that a stop is at least. */
const MOST = 0.75

/** The part of a wait by which others may differ to be like it. */
const ALIKE = 0.1

/** The part of the others in its group that has to be like a wait. */
const MANY = 0.25

/** ms */
const STEADY = 1_000

/** The most groups whose rest is looked for. */
const KEPT_GROUPS = 4

export interface TimedWait extends Wait {
  /** When it ended, in ms. */
  readonly at: number
  left: boolean
}

/** Hang-ups at one moment. */
interface Group {
  readonly from: number
  readonly waits: TimedWait[]
  /** Its waits differ, and its rest is not known to be too large. */
  differs: boolean
  isStop: boolean
  /** How many came before and ended after it. */
  outlived: number
}

export class ClientWaits {
  readonly #waits: TimedWait[] = []
  #next = 0
  /** The last hang-ups that are no stop, the oldest first. */
  #hangUps: TimedWait[] = []
  /** The last is the newest. Those before it differ. */
  #groups: Group[] = []
  /** Until then no new group is taken for a stop. */
  #steadyUntil = -Infinity
  /** Goes up when older waits count differently. */
  revision = 0

  /** A request was answered, or counts as one that left. */
  add(wait: TimedWait): void {
    this.revision += 1
    if (wait.left) {
      this.#hangUps.push(wait)
      const most = LEAST_HANG_UPS + (this.#groups.at(-1)?.waits.length ?? 0)
      while (this.#hangUps.length > most) this.#hangUps.shift()
    }
    this.#waits[this.#next] = wait
    this.#next = (this.#next + 1) % KEPT_WAITS
  }

  /** Its client was seen to leave. */
  addHangUp(wait: TimedWait): void {
    let group = this.#groups.at(-1)
    if (group === undefined || wait.at > group.from + TOGETHER) {
      group = { from: wait.at, waits: [], differs: false, isStop: false, outlived: 0 }
      this.#groups = [...this.#groups.filter(({ differs }) => differs).slice(-KEPT_GROUPS), group]
    }
    group.waits.push(wait)
    wait.left = !group.isStop
    this.add(wait)
    if (group.waits.length > KEPT_WAITS) return
    group.differs = alike(group.waits) < MOST * group.waits.length
    this.#judge(group, group.differs && group.from >= this.#steadyUntil ? 'stop' : 'hang-ups')
  }

  /** A request is over that came at `arrivedAt`: it has outlived the groups since then. */
  ended(arrivedAt: number, now: number): void {
    for (const group of this.#groups) {
      if (!group.differs || arrivedAt >= group.from || now <= group.from + TOGETHER) continue
      group.outlived += 1
      const { length } = group.waits
      if (length >= MOST * (length + group.outlived)) continue
      group.differs = false
      this.#judge(group, 'hang-ups')
      this.#steadyUntil = now + STEADY
    }
  }

  #judge(group: Group, verdict: 'stop' | 'hang-ups'): void {
    const isStop = verdict === 'stop'
    if (isStop === group.isStop) return
    this.revision += 1
    group.isStop = isStop
    for (const wait of group.waits) wait.left = !isStop
    if (isStop) this.#hangUps = this.#hangUps.filter(({ left }) => left)
    else this.#hangUps = [...this.#hangUps, ...group.waits].sort((a, b) => a.at - b.at)
  }

  hasLeftSince(time: number): boolean {
    return (this.#hangUps.at(-1)?.at ?? -Infinity) >= time
  }

  /** Whether so many have left since then that its own waits decide. */
  decides(time: number): boolean {
    return (this.#hangUps.at(-LEAST_HANG_UPS)?.at ?? -Infinity) >= time
  }

  /** Its waits that ended since `time`, the newest first, `most` at most. */
  since(time: number, most = KEPT_WAITS): TimedWait[] {
    const found: TimedWait[] = []
    const size = this.#waits.length
    for (let back = 1; back <= size && found.length < most; back += 1) {
      const wait = this.#waits[(this.#next - back + KEPT_WAITS) % KEPT_WAITS]
      if (wait === undefined || wait.at < time) break
      found.push(wait)
    }
    return found
  }
}

/** How many of the waits have many like them. One alone has. */
function alike(waits: readonly TimedWait[]): number {
  const isLike = (a: TimedWait, b: TimedWait): boolean => Math.abs(a.ms - b.ms) <= ALIKE * a.ms
  const like = (wait: TimedWait): number => waits.filter(other => isLike(wait, other)).length - 1
  return waits.filter(wait => like(wait) >= MANY * (waits.length - 1)).length
}
