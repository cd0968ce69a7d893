/**
 * Stacks that live in several places. Each place decides in the order of the stack, and all is undone if one refuses: all or
 * none, but not at one moment. Until it is undone others see the cost. If a place does not answer, the others give back what
 * they have taken, and what it may have taken itself leaks away.
 */
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import {
  type Admission,
  type AdmitRequest,
  type BucketRef,
  type ClaimAnswer,
  type ClaimRequest,
  costOfRef,
  type GiveBackRequest,
  type Slot,
} from '../../core/store.js'
import { REASONS } from './wire.js'

/** Buckets of one place, and where in the stack they are. */
export interface Part {
  readonly stack: readonly BucketRef[]
  readonly at: readonly number[]
}

type Admitted = Extract<Admission, { admitted: true }>
type Rejected = Extract<Admission, { admitted: false }>

/** The verbs for buckets of one part. `judge` answers like an admission, and changes nothing. */
export interface OnePlace {
  admit(request: AdmitRequest): Promise<Admission>
  judge(request: AdmitRequest): Promise<Admission>
  claim(request: ClaimRequest): Promise<ClaimAnswer>
  giveBack(request: GiveBackRequest): Promise<void>
}

/** Puts the answers of the parts in the order of the stack. */
export function spread(parts: readonly Part[], values: readonly (readonly number[])[]): number[] {
  const all: number[] = []
  for (const [part, { at }] of parts.entries()) for (const [k, place] of at.entries()) all[place] = values[part]![k]!
  return all
}

export async function admitInSteps(parts: readonly Part[], request: AdmitRequest, place: OnePlace): Promise<Admission> {
  const { booked, ...rest } = request
  const of = ({ stack, at }: Part): AdmitRequest => {
    const place = booked === undefined ? -1 : at.indexOf(booked.place)
    return { ...rest, stack, ...(booked && place >= 0 && { booked: { ...booked, place } }) }
  }
  const tooCostly = request.stack.some(ref => costOfRef(ref, request.cost) - ref.limits.capacity > LEVEL_TOLERANCE)
  const admitted: Admitted[] = []
  let refused: Rejected | undefined
  try {
    for (const part of tooCostly ? [] : parts) {
      const answer = await place.admit(of(part))
      if (!answer.admitted) {
        refused = answer
        break
      }
      admitted.push(answer)
    }
  } catch (error) {
    undoAdmissions(parts, admitted, request.cost, place)
    throw error
  }
  if (admitted.length === parts.length) {
    const levels = spread(parts, levelsOf(admitted))
    if (!request.claim) return { admitted: true, levels }
    const claims = admitted.map(({ claim }) => claim!)
    return { admitted: true, levels, claim: allOrNone(parts, claims, request.cost, place) }
  }
  undoAdmissions(parts, admitted, request.cost, place)
  const answers: Admission[] = admitted.map(({ levels }, part) => ({
    admitted: true,
    levels: levels.map((level, place) => Math.max(0, level - costOfRef(parts[part]!.stack[place]!, request.cost))),
  }))
  if (refused !== undefined) answers.push(refused)
  const others = parts.slice(answers.length).map(part => place.judge(of(part)))
  return refusal(parts, [...answers, ...(await Promise.all(others))])
}

function levelsOf(answers: readonly Admission[]): readonly number[][] {
  return answers.map(({ levels }) => [...levels])
}

/** Nobody waits for the answers: later calls come after it, on the same connections. */
function undoAdmissions(parts: readonly Part[], admitted: readonly Admitted[], cost: number, place: OnePlace): void {
  for (const [part, { claim }] of admitted.entries()) {
    const slot = claim?.granted ? { slot: claim.slot, slotCost: cost } : {}
    place.giveBack({ stack: parts[part]!.stack, cost, ...slot }).catch(() => {})
  }
}

/** One refusal for all parts: the first of the reasons, and the longest time. */
function refusal(parts: readonly Part[], answers: readonly Admission[]): Rejected {
  const refused = answers.flatMap((answer, part) => (answer.admitted ? [] : [{ answer, at: parts[part]!.at }]))
  const reason = REASONS.find(it => refused.some(({ answer }) => answer.reason === it))!
  const refusing = refused
    .filter(({ answer }) => answer.reason === reason)
    .flatMap(({ answer, at }) => answer.refusing.map(place => at[place]!))
    .sort((one, other) => one - other)
  const times = refused.map(({ answer }) => answer.retryAfterMs ?? 0)
  const retryAfterMs = reason === 'too-costly' ? undefined : Math.max(...times)
  return { admitted: false, levels: spread(parts, levelsOf(answers)), reason, refusing, retryAfterMs }
}

export async function claimInSteps(
  parts: readonly Part[],
  request: ClaimRequest,
  place: OnePlace,
): Promise<ClaimAnswer> {
  const claims: ClaimAnswer[] = []
  try {
    for (const { stack } of parts) {
      const claim = await place.claim({ ...request, stack })
      claims.push(claim)
      if (!claim.granted) break
    }
  } catch (error) {
    undoClaims(parts, claims, request.cost, place)
    throw error
  }
  return allOrNone(parts, claims, request.cost, place)
}

/**
 * If all parts granted a slot it is the latest one, which may be used after the latest `from`. So no part is used before its own.
 * Otherwise the slots are given back.
 */
function allOrNone(parts: readonly Part[], claims: readonly ClaimAnswer[], cost: number, place: OnePlace): ClaimAnswer {
  const slots = claims.flatMap(claim => (claim.granted ? [claim.slot] : []))
  if (slots.length === parts.length) {
    const at = Math.max(...slots.map(slot => slot.at))
    const from = Math.max(...slots.map(slot => slot.from))
    return { granted: true, slot: { at, from, token: slots } }
  }
  undoClaims(parts, claims, cost, place)
  const known = claims.map((claim, part) => (claim.granted ? parts[part]!.at.map(() => claim.slot.at) : claim.freeAt))
  // Parts that were not asked: they answer when they are asked again.
  const least = Math.min(...known.flat())
  return {
    granted: false,
    freeAt: spread(
      parts,
      parts.map(({ at }, part) => known[part] ?? at.map(() => least)),
    ),
  }
}

function undoClaims(parts: readonly Part[], claims: readonly ClaimAnswer[], cost: number, place: OnePlace): void {
  for (const [part, claim] of claims.entries()) {
    if (!claim.granted) continue
    place.giveBack({ stack: parts[part]!.stack, cost: 0, slot: claim.slot, slotCost: cost }).catch(() => {})
  }
}

export async function giveBackInSteps(
  parts: readonly Part[],
  request: GiveBackRequest,
  place: OnePlace,
): Promise<void> {
  const slots = request.slot?.token as readonly Slot[] | undefined
  const settled = await Promise.allSettled(
    parts.map(({ stack }, part) => {
      const slot = slots?.[part] && { slot: slots[part], slotCost: request.slotCost ?? 0 }
      return place.giveBack({ stack, cost: request.cost, ...slot })
    }),
  )
  for (const result of settled) if (result.status === 'rejected') throw result.reason
}
