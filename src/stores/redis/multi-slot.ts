/**
 * Stacks that live in several places. Each place decides in the order of the stack, and all is undone if one refuses: all or
 * none, but not at one moment. Until it is undone others see the cost. If a place does not answer, the others give back what
 * they have taken, and what it may have taken itself leaks away.
 */

import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import { costOfRef } from '../../decider/costs.js'
import type { BucketRef } from '../../decider/record.js'
import type {
  Admission,
  AdmitRequest,
  ClaimAnswer,
  ClaimRequest,
  GiveBackRequest,
  SettleRequest,
  Slot,
  StoreVerb,
} from '../../sharing/store.js'
import { REASONS } from '../constants.js'
import type { Answer, Input } from '../verbs.js'

/** Buckets of one place, and where in the stack they are. */
export interface StackPart {
  readonly stack: readonly BucketRef[]
  readonly at: readonly number[]
}

/** In the order of the stack. */
export function partsOfStack(
  stack: readonly BucketRef[],
  placeOf: (bucket: BucketRef) => number,
): readonly StackPart[] {
  const parts = new Map<number, { stack: BucketRef[]; at: number[] }>()
  for (const [at, bucket] of stack.entries()) {
    const place = placeOf(bucket)
    const part = parts.get(place) ?? { stack: [], at: [] }
    parts.set(place, part)
    part.stack.push(bucket)
    part.at.push(at)
  }
  return [...parts.values()]
}

export interface PartManner {
  /** ms. Absent: that of a new question. */
  readonly deadline?: number
  /** ms by which slots may be ahead of the horizon of this part. */
  readonly aheadOfAll?: number
  /** An admission that changes nothing, and claims nothing. */
  readonly isTrial?: boolean
}

/** Asks about buckets of one part. */
export type AskPart = <V extends StoreVerb>(verb: V, input: Input<V>, manner?: PartManner) => Promise<Answer<V>>

export interface StepsOptions {
  readonly parts: readonly StackPart[]
  readonly ask: AskPart
  horizonOf(stack: readonly BucketRef[]): number
  readonly deadline: number
}

/** The verbs that are about several buckets. */
export type InSteps = {
  readonly [V in 'admit' | 'claim' | 'giveBack' | 'settle']: (...input: Input<V>) => Promise<Answer<V>>
}

type Rejected = Extract<Admission, { admitted: false }>

export function inSteps({ parts, ask, horizonOf, deadline }: StepsOptions): InSteps {
  const horizons = parts.map(({ stack }) => horizonOf(stack))
  const last = Math.max(...parts.flatMap(({ at }) => at))
  /** All servers grant as far ahead as the farthest one. Only for the last bucket of the stack they may go beyond. */
  const aheadOf = (part: number, ahead = 0): number => (parts[part]!.at.includes(last) ? ahead : 0)
  const mannerOf = (part: number): PartManner => ({ deadline, aheadOfAll: Math.max(...horizons) - horizons[part]! })

  async function admit(request: AdmitRequest): Promise<Admission> {
    const { cost, booked } = request
    const requests = parts.map(({ stack, at }, part): AdmitRequest => {
      const { booked: _, ...rest } = request
      const place = booked === undefined ? -1 : at.indexOf(booked.place)
      const own = { ...rest, stack, ahead: aheadOf(part, request.ahead) }
      return booked === undefined || place < 0 ? own : { ...own, booked: { ...booked, place } }
    })
    const tooCostly = request.stack.some(ref => costOfRef(ref, cost) - ref.limits.capacity > LEVEL_TOLERANCE)
    const answers = await inTurn(
      tooCostly ? 0 : parts.length,
      part => ask('admit', [requests[part]!], mannerOf(part)),
      ({ admitted }) => admitted,
      undoAdmissions,
    )
    const admitted = answers.filter(answer => answer.admitted)
    if (admitted.length === parts.length) {
      const levels = spread(levelsOf(admitted))
      if (!request.claim) return { admitted: true, levels }
      return {
        admitted: true,
        levels,
        claim: allOrNone(
          admitted.map(({ claim }) => claim!),
          cost,
        ),
      }
    }
    undoAdmissions(answers)
    const before = answers.map((answer, part): Admission => {
      if (!answer.admitted) return answer
      const { stack } = parts[part]!
      return { ...answer, levels: answer.levels.map((level, k) => Math.max(0, level - costOfRef(stack[k]!, cost))) }
    })
    const others = requests.slice(answers.length).map(({ booked: _, ...rest }) => {
      return ask('admit', [{ ...rest, claim: false }], { deadline, isTrial: true })
    })
    return refusal([...before, ...(await Promise.all(others))])

    function undoAdmissions(some: readonly Admission[]): void {
      for (const [part, answer] of some.entries()) if (answer.admitted) undo(part, cost, answer.claim, cost)
    }
  }

  function ownIn(at: readonly number[], ownOfAll: number): number {
    return at.filter(place => place < ownOfAll).length
  }

  async function claim(request: ClaimRequest): Promise<ClaimAnswer> {
    const { cost, own: ownOfAll = 0 } = request
    const claims = await inTurn(
      parts.length,
      part => {
        const { stack, at } = parts[part]!
        return ask(
          'claim',
          [{ ...request, stack, own: ownIn(at, ownOfAll), ahead: aheadOf(part, request.ahead) }],
          mannerOf(part),
        )
      },
      ({ granted }) => granted,
      some => undoClaims(some, cost),
    )
    return allOrNone(claims, cost)
  }

  async function giveBack({ cost, slot, slotCost = 0, own: ownOfAll = 0 }: GiveBackRequest): Promise<void> {
    const slots = slot?.token as readonly Slot[] | undefined
    const given = parts.map(({ stack, at }, part) => {
      const own = ownIn(at, ownOfAll)
      return ask('giveBack', [{ stack, cost, ...(slots?.[part] && { slot: slots[part], slotCost, own }) }])
    })
    for (const result of await Promise.allSettled(given)) if (result.status === 'rejected') throw result.reason
  }

  async function settle({ cost }: SettleRequest): Promise<readonly number[]> {
    return spread(await Promise.all(parts.map(({ stack }) => ask('settle', [{ stack, cost }], { deadline }))))
  }

  /** Puts the answers of the parts in the order of the stack. */
  function spread(values: readonly (readonly number[])[]): number[] {
    const all: number[] = []
    for (const [part, { at }] of parts.entries()) for (const [k, place] of at.entries()) all[place] = values[part]![k]!
    return all
  }

  /** Nobody waits for the answer: later calls come after it, on the same connection. It has a deadline of its own. */
  function undo(part: number, cost: number, taken: ClaimAnswer | undefined, slotCost: number): void {
    const slot = taken?.granted ? { slot: taken.slot, slotCost } : {}
    ask('giveBack', [{ stack: parts[part]!.stack, cost, ...slot }]).catch(() => {})
  }

  function undoClaims(claims: readonly ClaimAnswer[], cost: number): void {
    for (const [part, claim] of claims.entries()) if (claim.granted) undo(part, 0, claim, cost)
  }

  /** If all parts granted one it is the latest slot, after the latest `from`. Otherwise the slots are given back. */
  function allOrNone(claims: readonly ClaimAnswer[], cost: number): ClaimAnswer {
    const slots = claims.flatMap(claim => (claim.granted ? [claim.slot] : []))
    if (slots.length === parts.length) {
      const at = Math.max(...slots.map(slot => slot.at))
      const from = Math.max(...slots.map(slot => slot.from))
      return { granted: true, slot: { at, from, token: slots } }
    }
    undoClaims(claims, cost)
    const known = claims.map((claim, part) => (claim.granted ? parts[part]!.at.map(() => claim.slot.at) : claim.freeAt))
    // Parts that were not asked: they answer when they are asked again.
    const least = Math.min(...known.flat())
    return { granted: false, freeAt: spread(parts.map(({ at }, part) => known[part] ?? at.map(() => least))) }
  }

  /** One refusal for all parts: the first of the reasons, and the longest time. */
  function refusal(answers: readonly Admission[]): Rejected {
    const refused = answers.flatMap((answer, part) => (answer.admitted ? [] : [{ answer, at: parts[part]!.at }]))
    const reason = REASONS.find(it => refused.some(({ answer }) => answer.reason === it))!
    const refusing = refused
      .filter(({ answer }) => answer.reason === reason)
      .flatMap(({ answer, at }) => answer.refusing.map(place => at[place]!))
      .sort((one, other) => one - other)
    const times = refused.map(({ answer }) => answer.retryAfterMs ?? 0)
    const retryAfterMs = reason === 'too-costly' ? undefined : Math.max(...times)
    return { admitted: false, levels: spread(levelsOf(answers)), reason, refusing, retryAfterMs }
  }

  return { admit, claim, giveBack, settle }
}

function levelsOf(answers: readonly Admission[]): readonly number[][] {
  return answers.map(({ levels }) => [...levels])
}

/** Asks one part after the other, until one refuses. If one does not answer, what the others have granted is undone. */
async function inTurn<A>(
  count: number,
  ask: (part: number) => Promise<A>,
  isGranted: (answer: A) => boolean,
  undo: (answers: readonly A[]) => void,
): Promise<A[]> {
  const answers: A[] = []
  try {
    while (answers.length < count && answers.every(isGranted)) answers.push(await ask(answers.length))
  } catch (error) {
    undo(answers)
    throw error
  }
  return answers
}
