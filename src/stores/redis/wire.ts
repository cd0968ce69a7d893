/** The script, its input and its output. decide.lua, which follows exchange.lua and includes promise.lua and lease.lua, says how they are laid out. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { endianness } from 'node:os'
import type { BucketRef, StoreError } from '../../core/store.js'
import { CLOCK_ORIGIN, fillConstants } from '../constants.js'

export const VERB = {
  admit: 1,
  admitAndClaim: 2,
  judge: 3,
  claim: 4,
  giveBack: 5,
  reset: 6,
  beat: 7,
  exchange: 8,
  leave: 9,
  lease: 10,
  settle: 11,
  promise: 12,
  admitBooked: 13,
} as const

export const REASONS = ['too-costly', 'blocked', 'overflow', 'max-wait'] as const

/** No slot is given back. */
export const NO_SLOT = -Infinity

/** `late`, `early`: the script has done nothing. */
export type Status = 'done' | 'late' | 'early'

/** Where decide.lua includes promise.lua and lease.lua. */
const PROMISE = /^@promise@$/m
const LEASE = /^@lease@$/m

const CLOCK = /^local now = clock\(\)$/m

export interface Script {
  readonly text: string
  readonly sha: string
}

/** @param timeSource Lua that yields the time in ms since 1970, instead of the server's */
export function readScript(timeSource?: string): Script {
  const [upstream, lease, promise, rest] = ['exchange', 'lease', 'promise', 'decide'].map(name =>
    readFileSync(new URL(`./scripts/${name}.lua`, import.meta.url), 'utf8'),
  ) as [string, string, string, string]
  const whole = rest.replace(PROMISE, () => promise).replace(LEASE, () => lease)
  const file = fillConstants(`${upstream}\n${whole}`)
  const origin = CLOCK_ORIGIN * 1_000
  const text = timeSource === undefined ? file : file.replace(CLOCK, () => `local now = (${timeSource}) - ${origin}`)
  return { text, sha: createHash('sha1').update(text).digest('hex') }
}

/** One operation of the script. */
export interface RedisOperation {
  readonly verb: (typeof VERB)[keyof typeof VERB]
  readonly cost: number
  /** `maxWait`, `since`, `slotCost` and others, in ms or cost units. */
  readonly x: number
  /** ms of the store's clock; decide.lua says what else. */
  readonly slot: number
  /** Sent in place of `slot`, in ms of our clock. */
  readonly notBefore: number | undefined
  /** decide.lua says what they are. */
  readonly numbers: readonly number[]
  readonly keys: readonly string[]
  /** The bucket of each of the first keys. Other keys have none. */
  readonly stack: readonly BucketRef[]
  /** Of an instance that beats or leaves. */
  readonly id: string | undefined
  /** When nobody waits for it any more, by our clock. */
  readonly deadline: number
  /** @throws RangeError: it is not an answer */
  done(answer: Answer): void
  failed(error: StoreError): void
}

const HEADER = 5
const PER_OPERATION = 6
const PER_PLACE = 7

/** How many numbers describe it. */
export function sizeOf({ keys, numbers }: RedisOperation): number {
  return PER_OPERATION + PER_PLACE * keys.length + numbers.length
}

const BIG_ENDIAN = endianness() === 'BE'

/** In ms of the store's clock. */
export interface Terms {
  readonly deadline: number
  readonly earliest: number
  readonly horizon: number
  /** How far back a slot may lie. */
  readonly back: number
  /** Maps ms of our clock to the store's. */
  theirs(ours: number): number
}

/** A call that only asks for the time. */
export const GREETING: Terms = { deadline: Infinity, earliest: -Infinity, horizon: 0, back: 0, theirs: ours => ours }

/** The arguments of EVALSHA after the script's: the number of keys, the keys, ARGV. */
export function encodeCall(
  operations: readonly RedisOperation[],
  { deadline, earliest, horizon, back, theirs }: Terms,
): (string | Buffer)[] {
  const places = new Map<string, number>()
  const ids: string[] = []
  let size = HEADER
  for (const operation of operations) size += sizeOf(operation)
  const input = new Float64Array(size)
  input.set([deadline, earliest, horizon, back, operations.length])
  let at = HEADER
  for (const { verb, cost, x, slot, notBefore, numbers, keys, stack, id } of operations) {
    input[at] = verb
    input[at + 1] = cost
    // The first argument is this input itself.
    input[at + 2] = id === undefined ? x : ids.push(id) + 1
    input[at + 3] = notBefore === undefined ? slot : theirs(notBefore)
    input[at + 4] = keys.length
    input[at + 5] = numbers.length
    at += PER_OPERATION
    for (let index = 0; index < keys.length; index += 1) {
      input[at] = placeOf(keys[index]!, places)
      const bucket = stack[index]
      if (bucket !== undefined) encodeBucket(bucket, input, at + 1)
      at += PER_PLACE
    }
    input.set(numbers, at)
    at += numbers.length
  }
  const bytes = Buffer.from(input.buffer)
  if (BIG_ENDIAN) bytes.swap64()
  return [String(places.size), ...places.keys(), bytes, ...ids]
}

/** The number of a key in the call, from 1. Adds new ones. */
function placeOf(key: string, places: Map<string, number>): number {
  const known = places.get(key)
  if (known !== undefined) return known
  places.set(key, places.size + 1)
  return places.size
}

function encodeBucket({ limits, cost }: BucketRef, input: Float64Array, at: number): void {
  const { rate, capacity, overflow, blockFor = 0, burst = 0 } = limits
  input[at] = rate
  input[at + 1] = capacity
  input[at + 2] = overflow === 'fill' ? 1 : 0
  input[at + 3] = blockFor === 'drain' ? Infinity : blockFor
  input[at + 4] = burst
  // NaN stands for none, so one that is given is told as another that no bucket can count.
  input[at + 5] = Number.isNaN(cost) ? Infinity : (cost ?? NaN)
}

/** Reads an answer of the script, number by number. */
export class Answer {
  readonly #numbers: Float64Array
  #at = 2
  /** Maps ms of the store's clock to ours. */
  readonly ours: (theirs: number) => number

  /** @throws RangeError: it is not an answer */
  constructor(reply: unknown, ours: (theirs: number) => number) {
    if (!Buffer.isBuffer(reply) || reply.length < 16) throw new RangeError('the answer is not the script’s')
    this.#numbers = new Float64Array(Math.floor(reply.length / 8))
    const bytes = Buffer.from(this.#numbers.buffer)
    reply.copy(bytes)
    if (BIG_ENDIAN) bytes.swap64()
    this.ours = ours
  }

  /** ms of the store's clock. */
  get time(): number {
    return this.#numbers[0]!
  }

  get status(): Status {
    const status = this.#numbers[1]
    return status === 1 ? 'done' : status === 0 ? 'late' : 'early'
  }

  /** @throws RangeError: there are no more */
  next(): number {
    const value = this.#numbers[this.#at]
    if (value === undefined) throw new RangeError('the answer ends too early')
    this.#at += 1
    return value
  }

  list(length: number): number[] {
    const values: number[] = []
    for (let count = 0; count < length; count += 1) values.push(this.next())
    return values
  }
}

/** Why a server refused a script. It adds which script it ran, and which line of it. */
export function withoutScript({ message }: Error): string {
  return message.replace(/ script: [0-9a-f]{40}, .*$/s, '').replace(/^ERR /, '')
}
