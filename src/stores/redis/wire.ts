/** The script, its input and its output. decide.lua, which includes the decider, says how they are laid out. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { endianness } from 'node:os'
import { type Admission, StoreError, type StoreVerb } from '../../sharing/store.js'
import { CLOCK_ORIGIN, fillConstants } from '../constants.js'
import { describeTrouble } from '../describe-error.js'
import { Answers, type ServerQuestion, sizeOf, writeBucket } from '../doubles.js'
import { type DatedNews, decodeNews, KIND } from '../news.js'
import { BOARD, UPSTREAMS, upstreamOf } from './keys.js'

/** The verbs of decide.lua. An admission may be one of four. */
export const VERB: Readonly<Record<StoreVerb | 'admitAndClaim' | 'judge' | 'admitBooked', number>> = {
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
  appoint: 12,
  admitBooked: 13,
}

const CLOCK = /^local now = clock\(\)$/m

export interface Script {
  readonly text: string
  readonly sha: string
}

/** @param timeSource Lua that yields the time in ms since 1970, instead of the server's */
export function readScript(timeSource?: string): Script {
  const read = (name: string): string => readFileSync(new URL(`./scripts/${name}.lua`, import.meta.url), 'utf8')
  const whole = read('decide').replace(/^@([a-z/-]+)@$/gm, (_, name: string) => read(name))
  const file = fillConstants(whole)
  const origin = CLOCK_ORIGIN * 1_000
  const text = timeSource === undefined ? file : file.replace(CLOCK, () => `local now = (${timeSource}) - ${origin}`)
  return { text, sha: createHash('sha1').update(text).digest('hex') }
}

export interface RedisQuestion extends ServerQuestion {
  readonly verb: number
  /** Of an instance that beats or leaves. */
  readonly id: string | undefined
}

const HEADER = 5

const BIG_ENDIAN = endianness() === 'BE'

/** In ms of the store's clock. */
export interface Terms {
  readonly deadline: number
  readonly earliest: number
  readonly horizon: number
  readonly back: number
  theirs(ours: number): number
}

/** A call that only asks for the time. */
export const GREETING: Terms = { deadline: Infinity, earliest: -Infinity, horizon: 0, back: 0, theirs: ours => ours }

/** The arguments of EVALSHA after the script's: the number of keys, the keys, ARGV. */
export function encodeCall(
  questions: readonly RedisQuestion[],
  { deadline, earliest, horizon, back, theirs }: Terms,
): (string | Buffer)[] {
  const places = new Map<string, number>()
  const ids: string[] = []
  let size = HEADER
  for (const question of questions) size += sizeOf(question)
  const input = new Float64Array(size)
  input.set([deadline, earliest, horizon, back, questions.length])
  let at = HEADER
  for (const { verb, operation, keys, stack, id } of questions) {
    const { cost, x, numbers } = operation
    input[at] = verb
    input[at + 1] = cost
    // The first argument is this input itself.
    input[at + 2] = id === undefined ? x : ids.push(id) + 1
    input[at + 3] = verb === VERB.claim ? theirs(operation.at) : operation.at
    input[at + 4] = keys.length
    input[at + 5] = numbers.length
    at += 6
    for (let index = 0; index < keys.length; index += 1) {
      input[at] = placeOf(keys[index]!, places)
      const bucket = stack[index]
      if (bucket !== undefined) writeBucket(bucket, input, at + 1)
      at += 7
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

export class RedisAnswers extends Answers {
  /** ms of the store's clock. */
  readonly time: number
  /** False: the script has done nothing, as it came too late or the server's clock was set back. */
  readonly isDone: boolean
  /** @throws RangeError: it is not an answer */
  constructor(reply: unknown, ours: (theirs: number) => number) {
    if (!Buffer.isBuffer(reply) || reply.length < 16) throw new RangeError('the answer is not the script’s')
    const numbers = new Float64Array(Math.floor(reply.length / 8))
    const bytes = Buffer.from(numbers.buffer)
    reply.copy(bytes)
    if (BIG_ENDIAN) bytes.swap64()
    super(numbers, 2, ours)
    this.time = numbers[0]!
    this.isDone = numbers[1] === 1
  }

  granted(): boolean {
    return this.next() === 1
  }

  rejection(length: number): Admission {
    const [reason, retryAfter, levels] = [this.next(), this.next(), this.list(length)]
    const flags = this.list(length)
    return this.rejectionOf(reason, retryAfter, levels, place => flags[place] === 1)
  }
}

/** Why a call failed. A server that refuses a script adds which one it ran, and which line of it. */
export function reasonOf(error: Error): string {
  const text = error instanceof StoreError ? error.message : describeTrouble(error)
  return text.replace(/ script: [0-9a-f]{40}, .*$/s, '').replace(/^ERR /, '')
}

/** @param author the instance that has reset it, which does not listen to itself */
export function encodeRedisReset(author: string, bucket: string, key: string): string {
  return `${KIND.reset}${JSON.stringify([author, bucket, key])}`
}

/** Undefined: nobody here is concerned. Its time is by the clock of the server that has the tag. */
export function decodeRedisNews(
  message: Buffer,
  prefix: string,
  author: string,
): (DatedNews & { tag: string }) | undefined {
  const kind = message.toString('latin1', 0, 1)
  const read = (count: number) => ({
    numbers: Array.from({ length: count }, (_, place) => message.readDoubleLE(1 + 8 * place)),
    text: message.toString('utf8', 1 + 8 * count),
  })
  const dated = decodeNews({ kind, read, upstreamOf: key => upstreamOf(prefix, key) }, author)
  return dated && { ...dated, tag: kind === KIND.upstream ? UPSTREAMS : BOARD }
}
