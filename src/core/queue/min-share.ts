/**
 * The share of the classes behind the one that leaves (priority.ts), so that they are slow and do not starve.
 *
 * A bucket owes `minShare` of its rate to the classes behind the one that leaves, together, while one of them could leave.
 * So for each class it keeps what it owes to those behind it. With a minShare of m, a release of cost c adds m * c, and if it
 * is one of those behind it also pays c:
 *
 *     owed += m * c          the class leaves
 *     owed -= (1 - m) * c    one behind it leaves
 *
 * As soon as `owed` covers the cost of the next request behind, that leaves in place of the class. In the long run one behind
 * leaves with m of all that leaves, to within one request. Of those behind the lowest number goes first, by the same rule: it
 * owes m of what it gets to those behind itself.
 *
 * What is owed is never below 0: what leaves because nobody goes before it is not held against a class. Nor is it kept when
 * nobody waits behind: idle time is not banked. So a request of the first class waits for no more than the slot that is in
 * use, unless its class has used 1 / m slots with hardly a pause.
 *
 * Buckets are asked from everyone's to the client's own. Where a request leaves because its own bucket owes it a slot, it
 * uses the turn of a request of the same bucket, and takes nothing from other keys.
 */

import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { DEFAULT_MIN_SHARE, LAST_PRIORITY } from '../priority.js'
import { costAt, costIn, type SharedBucket, ShareNode, type Source, type Ticket } from './lane.js'

/** The request that leaves next, where some below this root can and none of a class before it. */
export function ticketToLeave(root: ShareNode): Ticket {
  let ticket = firstBelow(root)
  for (let owed = owedInPlaceOf(ticket); owed !== undefined; owed = owedInPlaceOf(ticket)) ticket = owed
  return ticket
}

/** A request is about to pass its buckets. */
export function countShares(ticket: Ticket): void {
  const { stack, priority } = ticket.lane
  for (let place = 0; place < stack.length; place += 1) {
    const { extras, limits, source } = stack[place]!
    const cost = costAt(ticket, place)
    if (extras === undefined) continue
    if (extras.otherSources.length === 0) {
      extras.owed = undefined
      continue
    }
    const { minShare = DEFAULT_MIN_SHARE } = limits
    extras.owed ??= Array.from({ length: LAST_PRIORITY }, () => 0)
    for (let before = 0; before < priority; before += 1) {
      extras.owed[before] = Math.max(0, extras.owed[before]! - (1 - minShare) * cost)
    }
    if (priority === LAST_PRIORITY) continue
    const sources = [source!, ...extras.otherSources].filter(other => other.priority > priority)
    if (sources.length === 0) extras.owed[priority] = 0
    else if (sources.some(canLeave)) extras.owed[priority]! += minShare * cost
  }
}

/** The request that has its turn below a node, whatever is owed. Without a change in between it is the same one. */
export function firstBelow(source: Source): Ticket {
  let at = source
  while (at instanceof ShareNode) at = at.fairQueue.advance() as Source
  return at.tickets.first!
}

/** The request to which a bucket of this one owes its slot. */
function owedInPlaceOf({ lane: { stack, priority } }: Ticket): Ticket | undefined {
  for (let place = stack.length - 1; place >= 0; place -= 1) {
    const owed = owedAt(stack[place]!, priority)
    if (owed !== undefined) return owed
  }
  return undefined
}

function owedAt(bucket: SharedBucket, priority: number): Ticket | undefined {
  const owed = bucket.extras?.owed?.[priority]
  if (owed === undefined || owed <= LEVEL_TOLERANCE) return undefined
  const source = firstBehind(bucket, priority)
  if (source === undefined) return undefined
  const ticket = owedAt(bucket, source.priority) ?? firstBelow(source)
  return owed + LEVEL_TOLERANCE >= costIn(ticket, bucket) ? ticket : undefined
}

/** Of the sources behind a class that can leave, that of the lowest number. The last of them has its turn among gates. */
function firstBehind({ source, extras }: SharedBucket, priority: number): Source | undefined {
  let first: Source | undefined
  for (const other of [source!, ...extras!.otherSources]) {
    if (other.priority <= priority || (first !== undefined && other.priority > first.priority)) continue
    if (canLeave(other)) first = other
  }
  return first
}

/** Whether a request of a source could leave now. */
function canLeave(source: Source): boolean {
  if (!source.gate.open) return false
  for (let at = source; at.parent !== undefined; at = at.parent) if (at.list === undefined) return false
  return true
}
