/** Encodes calls of the function in decide.sql, and reads its answers. */
import { createHash } from 'node:crypto'
import type {
  Admission,
  AdmitRequest,
  BucketRef,
  ClaimAnswer,
  ClaimRequest,
  GiveBackRequest,
  UpstreamState,
} from '../../core/store.js'
import type { Offset } from '../clock-offset.js'
import { boundNews, describeUpstream } from '../upstream-state.js'

const REASONS = [undefined, 'too-costly', 'blocked', 'overflow', 'max-wait'] as const

/** The verdict on a call that came too late. */
const TOO_LATE = -1

/** A longer key is replaced by its hash. */
const LONGEST_KEY = 200

/** The key of the row that counts the instances that have left, as in decide.sql. No bucket has this name. */
const LEFT = 'left'

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
  write(ops: number[], deadline: number, place: (key: string) => number): void
  /** @param verdict the first number of its answer */
  read(verdict: number, answer: Reader, offset: Offset): T
}

export const isTooLate = (verdict: number): boolean => verdict === TOO_LATE

function operation<T>(
  verb: number,
  stack: readonly BucketRef[],
  [cost, a, b]: readonly [number, number, number],
  read: PostgresOperation<T>['read'],
): PostgresOperation<T> {
  const keys = stack.map(keyOf)
  return {
    keys,
    write(ops, deadline, place) {
      ops.push(verb, deadline, cost, a, b, stack.length)
      for (const [index, { limits }] of stack.entries()) {
        const { rate, capacity, overflow, blockFor, burst = 0 } = limits
        const block = blockFor === 'drain' ? Infinity : (blockFor ?? 0)
        ops.push(place(keys[index]!), rate, capacity, overflow === 'fill' ? 1 : 0, block, burst)
      }
    },
    read,
  }
}

export function admitOperation({ stack, cost, maxWait, claim }: AdmitRequest): PostgresOperation<Admission> {
  return operation(1, stack, [cost, maxWait, claim ? 1 : 0], (verdict, answer, offset) => {
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
  })
}

export function claimOperation({ stack, cost, since, ahead = 0 }: ClaimRequest): PostgresOperation<ClaimAnswer> {
  return operation(2, stack, [cost, since, ahead], (verdict, answer, offset) =>
    readClaim(verdict, answer, offset, stack.length),
  )
}

function readClaim(verdict: number, answer: Reader, offset: Offset, count: number): ClaimAnswer {
  if (verdict !== 0) return { granted: false, freeAt: answer.numbers(count).map(moment => offset.ours(moment)) }
  const token = answer.number()
  return { granted: true, slot: { at: offset.ours(token), token } }
}

export function giveBackOperation({ stack, cost, slot, slotCost = 0 }: GiveBackRequest): PostgresOperation<void> {
  const claimed = slot === undefined ? ([0, -1] as const) : ([slot.token as number, slotCost] as const)
  return operation(3, stack, [cost, ...claimed], () => {})
}

export function resetOperation(bucket: BucketRef): PostgresOperation<void> {
  return operation(4, [bucket], [0, 0, 0], () => {})
}

/** Answers how many instances there are, and how many have left. */
export function beatOperation(id: string): PostgresOperation<readonly [count: number, left: number]> {
  const key = beatKey(id)
  return {
    keys: [key],
    write: (ops, deadline, place) => {
      ops.push(5, deadline, 0, 0, 0, 1, place(key), 1, 0, 0, 0, 0)
    },
    read: (_, answer) => [answer.number(), answer.number()],
  }
}

export function leaveOperation(id: string): PostgresOperation<void> {
  const key = beatKey(id)
  return {
    keys: [key, LEFT],
    write: (ops, deadline, place) => {
      ops.push(7, deadline, 0, 0, 0, 2, place(key), 1, 0, 0, 0, 0, place(LEFT), 1, 0, 0, 0, 0)
    },
    read: () => {},
  }
}

function beatKey(id: string): string {
  return `beat:${short(ascii(id))}`
}

export function exchangeOperation(upstream: string, news?: UpstreamState): PostgresOperation<UpstreamState> {
  const key = `upstream:${short(ascii(upstream))}`
  const { pausedFor, rate = 0, rateFor } = boundNews(news)
  return {
    keys: [key],
    write: (ops, deadline, place) => {
      ops.push(6, deadline, rate, rateFor, pausedFor, 1, place(key), 1, 0, 0, 0, 0)
    },
    read: (_, answer) => describeUpstream(answer.number(), answer.number(), answer.number()),
  }
}

/** Builds the `keys` and `ops` arguments of a batch. Deadlines are by the store's clock. */
export function encodeBatch(
  batch: readonly { operation: PostgresOperation; deadline: number }[],
  roundTrip: { horizon: number; back: number },
): { keys: string[]; ops: string } {
  const keys = [...new Set(batch.flatMap(({ operation }) => operation.keys))].sort()
  // Arrays of PostgreSQL begin at 1.
  const places = new Map(keys.map((key, index) => [key, index + 1]))
  const ops = [roundTrip.horizon, roundTrip.back]
  for (const { operation, deadline } of batch) operation.write(ops, deadline, key => places.get(key)!)
  return { keys, ops: `{${ops.join(',')}}` }
}

/** The key of a bucket instance, unique for name and key. In ASCII, so that JavaScript and PostgreSQL sort it alike. */
function keyOf({ limits, key }: BucketRef): string {
  return short(`${ascii(limits.name)}:${ascii(key)}`)
}

function ascii(text: string): string {
  return JSON.stringify(text).replace(/[^ -~]/g, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

function short(text: string): string {
  return text.length <= LONGEST_KEY ? text : `sha256:${createHash('sha256').update(text).digest('hex')}`
}
