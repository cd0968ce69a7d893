/** What waits for a bucket in other instances, and goes before a newcomer. */
import { DEFAULT_MIN_SHARE } from '../priority.js'
import type { BucketLimits } from './limits.js'

export interface OtherClass {
  readonly priority: number
  readonly weight: number
  /** Cost units. */
  readonly cost: number
  /** All of it leaves before the newcomer: it is of the same lane, and the store keeps the order of arrival. */
  readonly isBefore: boolean
}

/** What is known of the others at a bucket that instances share. Times in ms. */
export interface Elsewhere {
  readonly others: readonly OtherClass[]
  /** Cost units of what waits here that has a slot, or for which one is there. */
  readonly covered: number
  /** When the slot of a newcomer is, with this much before it. Only if that has slots and the newcomer as well. */
  slotAfter(ahead: number): number
  /** When the first cost without a slot can leave. */
  readonly until: number
}

/** Names a lane in all instances, as far as its route and its keys do. */
export interface LaneName {
  readonly route: { readonly name: string }
  readonly stack: readonly object[]
}

export function laneNameOf({ route, stack }: LaneName): string {
  return [route.name, ...(stack as readonly { readonly key: string }[]).map(({ key }) => key)].join('\0')
}

/** What contends for a bucket without a slot, up to a newcomer and with it. Costs are in cost units. */
interface Contention {
  readonly priority: number
  /** Of the contender here to which the newcomer belongs, and of what that sends. */
  readonly weight: number
  readonly cost: number
  /** With what others here send before. */
  readonly all: number
}

/** Cost units that leave from other instances before a newcomer. Lanes take turns by their weight, wherever they are. */
export function costElsewhere(others: readonly OtherClass[], here: Contention, limits: BucketLimits): number {
  const { priority } = here
  const isBefore = (other: OtherClass): boolean => other.isBefore && other.priority === priority
  let { cost, weight } = here
  for (const other of others) {
    if (!isBefore(other)) continue
    cost += other.cost
    weight += other.weight
  }
  const classes = { alike: cost - here.cost, before: 0, behind: 0 }
  for (const other of others) {
    if (other.priority < priority) classes.before += other.cost
    else if (other.priority > priority) classes.behind += other.cost
    else if (!isBefore(other)) classes.alike += Math.min(other.cost, (cost * other.weight) / weight)
  }
  return costOfClasses(classes, here.all, limits)
}

export interface CostByClass {
  /** Of this only what leaves before. */
  readonly alike: number
  readonly before: number
  readonly behind: number
}

/** Cost units that leave before a cost of one class: what is alike, all that goes before it, and the share of those behind it. */
export function costOfClasses({ alike, before, behind }: CostByClass, cost: number, limits: BucketLimits): number {
  const { minShare = DEFAULT_MIN_SHARE } = limits
  const most = minShare === 0 ? Infinity : ((cost + alike) * (1 - minShare)) / minShare
  return alike + Math.min(before, most) + Math.min(behind, ((cost + alike) * minShare) / (1 - minShare))
}
