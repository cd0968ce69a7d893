/** Encodes calls of the function in decide.sql, and reads its answers. */
import { createHash } from 'node:crypto'
import { DEFAULT_MIN_SHARE } from '../../core/priority.js'
import type {
  Admission,
  AdmitRequest,
  BucketRef,
  ClaimAnswer,
  ClaimRequest,
  GiveBackRequest,
  LeaseAnswer,
  LeaseRequest,
  PromiseAnswer,
  PromiseRequest,
  Roll,
  SettleRequest,
} from '../../core/store.js'
import type { UpstreamState } from '../../core/upstream-state.js'
import type { Offset } from '../clock-offset.js'
import { boundNews, describeUpstream } from '../upstream-state.js'

const REASONS = [undefined, 'too-costly', 'blocked', 'overflow', 'max-wait'] as const

/** The verdict on a call that came too late. */
const TOO_LATE = -1

/** A longer key is replaced by its hash. */
const LONGEST_KEY = 200

/** The key of the row that counts the instances that have left, as in decide.sql. No bucket has this name. */
const LEFT = 'left'

/** Before the name of an upstream. */
export const UPSTREAM = 'upstream:'

/** Reads an answer's numbers one by one. */
export class Reader {
  readonly #numbers: readonly number[]
  #next = 0

  /** @param text an array of PostgreSQL, e.g. "{1,Infinity}" */
  constructor(text: string) {
    this.#numbers = text.slice(1, -1).split(',').map(Number)
  }

  number(): number {
    const number = this.#numbers[this.#next]
    this.#next += 1
    if (number === undefined || Number.isNaN(number)) throw new Error('the answer of the function is not understood')
    return number
  }

  numbers(count: number): number[] {
    return Array.from({ length: count }, () => this.number())
  }
}

/** One operation of a batch. */
export interface PostgresOperation<T = unknown> {
  readonly keys: readonly string[]
  /** Appends the operation's numbers to `ops`. */
  write(ops: number[], deadline: number, place: (key: string) => number, offset: Offset): void
  /** @param verdict the first number of its answer */
  read(verdict: number, answer: Reader, offset: Offset): T
}

export const isTooLate = (verdict: number): boolean => verdict === TOO_LATE

/** Cost, a and b of decide.sql, and what follows the buckets. */
type Numbers = readonly [cost: number, a: number, b: number, ...more: number[]]

function operation<T>(
  verb: number,
  stack: readonly BucketRef[],
  numbers: Numbers | ((offset: Offset) => Numbers),
  read: PostgresOperation<T>['read'],
): PostgresOperation<T> {
  const keys = stack.map(keyOf)
  return {
    keys,
    write(ops, deadline, place, offset) {
      const [whole, a, b, ...more] = typeof numbers === 'function' ? numbers(offset) : numbers
      ops.push(verb, deadline, whole, a, b, stack.length)
      for (const [index, { limits, cost }] of stack.entries()) {
        const { rate, capacity, overflow, blockFor, burst = 0 } = limits
        // NaN stands for none, so one that is given is told as another that no bucket can count.
        const own = Number.isNaN(cost) ? Infinity : (cost ?? NaN)
        const block = blockFor === 'drain' ? Infinity : (blockFor ?? 0)
        ops.push(place(keys[index]!), rate, capacity, overflow === 'fill' ? 1 : 0, block, burst, own)
      }
      ops.push(...more)
    },
    read,
  }
}

export function admitOperation(request: AdmitRequest): PostgresOperation<Admission> {
  const { stack, cost, maxWait, ahead = 0, booked } = request
  const claim = request.claim && booked === undefined
  const unbooked: Numbers = claim ? [cost, maxWait, 1, ahead, Infinity] : [cost, maxWait, 0]
  return operation(
    booked === undefined ? 1 : 11,
    stack,
    booked === undefined ? unbooked : [cost, maxWait, booked.place, booked.client, booked.booking],
    (verdict, answer, offset) => {
      if (verdict === 0) {
        const levels = answer.numbers(stack.length)
        if (!claim) return { admitted: true, levels }
        return { admitted: true, levels, claim: readClaim(answer.number(), answer, offset, stack.length) }
      }
      const retryAfterMs = answer.number()
      const bits = answer.number()
      return {
        admitted: false,
        reason: REASONS[verdict]!,
        retryAfterMs: retryAfterMs < 0 ? undefined : retryAfterMs,
        refusing: [...stack.keys()].filter(place => Math.floor(bits / 2 ** place) % 2 === 1),
        levels: answer.numbers(stack.length),
      }
    },
  )
}

export function claimOperation({
  stack,
  cost,
  since,
  notBefore,
  within = Infinity,
  ahead = 0,
}: ClaimRequest): PostgresOperation<ClaimAnswer> {
  const from = (offset: Offset): number => (notBefore === undefined ? -Infinity : offset.theirs(notBefore))
  return operation(
    2,
    stack,
    offset => [cost, since, from(offset), ahead, within],
    (verdict, answer, offset) => readClaim(verdict, answer, offset, stack.length),
  )
}

function readClaim(verdict: number, answer: Reader, offset: Offset, count: number): ClaimAnswer {
  if (verdict !== 0) return { granted: false, freeAt: answer.numbers(count).map(moment => offset.ours(moment)) }
  const token = answer.number()
  return { granted: true, slot: { at: offset.ours(token), from: offset.ours(answer.number()), token } }
}

export function giveBackOperation({ stack, cost, slot, slotCost = 0 }: GiveBackRequest): PostgresOperation<void> {
  const claimed = slot === undefined ? ([0, -1] as const) : ([slot.token as number, slotCost] as const)
  return operation(3, stack, [cost, ...claimed], () => {})
}

export function settleOperation({ stack, cost }: SettleRequest): PostgresOperation<readonly number[]> {
  return operation(9, stack, [cost, 0, 0], (_, answer) => answer.numbers(stack.length))
}

export function promiseOperation(request: PromiseRequest): PostgresOperation<PromiseAnswer> {
  const { bucket, cost, more, client, booking, maxWait, fit } = request
  return operation(10, [bucket], [cost, maxWait, fit, client, booking, more], (_, answer) => {
    const [after, booking, window, made, more] = answer.numbers(5) as [number, number, number, number, number]
    return { after, booking, window, made: made === 1, more }
  })
}

export function leaseOperation(request: LeaseRequest): PostgresOperation<LeaseAnswer> {
  const { bucket, instance, demand, largest, lead, late, pace, lacks, used, want, ahead, returned } = request
  const { minShare = DEFAULT_MIN_SHARE } = bucket.limits
  const more = [lead, used, want, minShare, ahead, lacks, late, pace, demand.length]
  for (const { priority, weight, cost } of demand) more.push(priority, weight, cost)
  for (const { token, cost } of returned) more.push(token as number, cost)
  return operation(8, [bucket], [largest, instance, more.length, ...more], (_, answer, offset) => {
    const moment = (): number => offset.ours(answer.number())
    const roomFrom = moment()
    const nextAt = moment()
    const until = moment()
    const room = answer.number()
    const roomRate = answer.number()
    const roomUntil = moment()
    const spare = answer.number()
    const level = answer.number()
    const instances = answer.number()
    const lateBy = answer.number()
    const slots = Array.from({ length: answer.number() }, () => {
      const token = answer.number()
      return { at: offset.ours(token), cost: answer.number(), token }
    })
    const others = Array.from({ length: answer.number() }, () => {
      const [priority, weight, cost] = answer.numbers(3) as [number, number, number]
      return { priority, weight, cost }
    })
    return { slots, nextAt, until, room, roomRate, roomFrom, roomUntil, spare, level, instances, lateBy, others }
  })
}

export function resetOperation(bucket: BucketRef): PostgresOperation<void> {
  return operation(4, [bucket], [0, 0, 0], () => {})
}

/** Answers how many instances there are, how many have left, the rank of this one, and when the server's clock showed 0. */
export function beatOperation(id: string): PostgresOperation<Roll> {
  const key = beatKey(id)
  return {
    keys: [key],
    write: (ops, deadline, place) => {
      ops.push(5, deadline, 0, 0, 0, 1, place(key), 1, 0, 0, 0, 0, NaN)
    },
    read(_, answer, offset) {
      const [count, left, rank] = answer.numbers(3) as [number, number, number]
      return { count, left, rank, epoch: offset.ours(0) }
    },
  }
}

export function leaveOperation(id: string): PostgresOperation<void> {
  const key = beatKey(id)
  return {
    keys: [key, LEFT],
    write: (ops, deadline, place) => {
      ops.push(7, deadline, 0, 0, 0, 2, place(key), 1, 0, 0, 0, 0, NaN, place(LEFT), 1, 0, 0, 0, 0, NaN)
    },
    read: () => {},
  }
}

function beatKey(id: string): string {
  return `beat:${short(ascii(id))}`
}

export function exchangeOperation(upstream: string, news?: UpstreamState): PostgresOperation<UpstreamState> {
  const key = `${UPSTREAM}${short(ascii(upstream))}`
  const { pausedFor, rate = 0, rateFor } = boundNews(news)
  return {
    keys: [key],
    write: (ops, deadline, place) => {
      ops.push(6, deadline, rate, rateFor, pausedFor, 1, place(key), 1, 0, 0, 0, 0, NaN)
    },
    read: (_, answer) => describeUpstream(answer.number(), answer.number(), answer.number()),
  }
}

/** Builds the `keys` and `ops` arguments of a batch. Calls expire in ms of our clock. */
export function encodeBatch(
  batch: readonly { operation: PostgresOperation; expires: number }[],
  roundTrip: { horizon: number; back: number },
  offset: Offset,
): { keys: string[]; ops: string } {
  const keys = [...new Set(batch.flatMap(({ operation }) => operation.keys))].sort()
  // Arrays of PostgreSQL begin at 1.
  const places = new Map(keys.map((key, index) => [key, index + 1]))
  const ops = [roundTrip.horizon, roundTrip.back]
  for (const { operation, expires } of batch)
    operation.write(ops, offset.theirs(expires), key => places.get(key)!, offset)
  return { keys, ops: `{${ops.join(',')}}` }
}

/** The key of a bucket instance, unique for name and key. In ASCII, so that JavaScript and PostgreSQL sort it alike. */
function keyOf({ limits, key }: BucketRef): string {
  return short(`${ascii(limits.name)}:${ascii(key)}`)
}

/** The text as JSON in ASCII. */
export function ascii(text: unknown): string {
  return JSON.stringify(text).replace(/[^ -~]/g, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

/** The text, or its hash if it is long. */
export function short(text: string): string {
  return text.length <= LONGEST_KEY ? text : `sha256:${createHash('sha256').update(text).digest('hex')}`
}
