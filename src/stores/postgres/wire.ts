/** Encodes calls of the function in decide.sql, and reads its answers. */
import { createHash } from 'node:crypto'
import type { Override } from '../../sharing/board.js'
import type { Admission, StoreVerb } from '../../sharing/store.js'
import type { AskedQuestion } from '../batch.js'
import { Answers, type ServerQuestion, writeBucket } from '../doubles.js'
import { type DatedNews, decodeNews, KIND, keptParts } from '../news.js'
import type { Offset, RoundTrip } from '../timing.js'
import { type Input, VERBS } from '../verbs.js'

/** The verbs of decide.sql. What it does not have is decided here. */
const VERB: Readonly<Partial<Record<StoreVerb, number>>> = {
  ...{ admit: 1, claim: 2, giveBack: 3, reset: 4, beat: 5, exchange: 6, leave: 7, settle: 9 },
}
const TOO_LATE = -1
/** A longer key is replaced by its hash. */
const LONGEST_KEY = 200
/** The key of the row that counts the instances that have left, as in decide.sql. No bucket has this name. */
const LEFT = 'left'
const UPSTREAM = 'upstream:'

export interface PostgresQuestion extends ServerQuestion {
  readonly verb: StoreVerb
  readonly input: readonly unknown[]
}

export function questionOf<V extends StoreVerb>(verb: V, input: Input<V>): PostgresQuestion {
  const { stack: stackOf, encode } = VERBS[verb]
  const stack = stackOf?.(...input) ?? []
  // In ASCII JavaScript and PostgreSQL sort alike.
  const keys = stack.map(({ limits, key }) => short(`${ascii(limits.name)}:${ascii(key)}`))
  if (stack.length === 0) keys.push(...rowsOf(verb, input[0] as string))
  return { verb, input, operation: encode(...input), keys, stack }
}

function rowsOf(verb: StoreVerb, name: string): string[] {
  const text = short(ascii(name))
  if (verb === 'exchange') return [`${UPSTREAM}${text}`]
  return verb === 'leave' ? [`beat:${text}`, LEFT] : [`beat:${text}`]
}

/** What decide.sql has as a, as b, and behind the buckets. */
function inOrder({ verb, operation }: PostgresQuestion, offset: Offset): readonly number[] {
  const { x, at, numbers } = operation
  if (verb === 'admit') return [x, numbers.length > 0 ? 1 : 0, ...numbers.slice(1)]
  if (verb === 'claim') return [x, offset.theirs(at), ...numbers.slice(1)]
  if (verb === 'giveBack') return [at, x, ...numbers]
  return [x, at]
}

/** The arguments `keys` and `ops` of a batch. */
export function encodeBatch(
  batch: readonly Pick<AskedQuestion<PostgresQuestion, unknown>, 'question' | 'deadline'>[],
  { horizon, back }: Pick<RoundTrip, 'horizon' | 'back'>,
  offset: Offset,
): [keys: string[], ops: string] {
  const keys = [...new Set(batch.flatMap(({ question }) => question.keys))].sort()
  // Arrays of PostgreSQL begin at 1.
  const places = new Map(keys.map((key, index) => [key, index + 1]))
  const ops = [horizon, back]
  for (const { question, deadline } of batch) {
    const [a, b, ...more] = inOrder(question, offset)
    ops.push(VERB[question.verb]!, offset.theirs(deadline), question.operation.cost, a!, b!, question.keys.length)
    for (const [index, key] of question.keys.entries()) {
      const bucket = question.stack[index]
      ops.push(places.get(key)!)
      if (bucket === undefined) ops.push(1, 0, 0, 0, 0, NaN)
      else writeBucket(bucket, ops, ops.length)
    }
    ops.push(...more)
  }
  return [keys, `{${ops.join(',')}}`]
}

export class PostgresAnswers extends Answers {
  /** ms of the server's clock. */
  readonly time: number
  #verdict = 0

  /** @param text an array of PostgreSQL, e.g. "{1,Infinity}" @throws RangeError: it is not */
  constructor(text: string, ours: (theirs: number) => number) {
    super(text.slice(1, -1).split(',').map(Number), 0, ours)
    this.time = this.next()
  }

  /** Begins to read the answer to the next question. False: it came too late, and nothing was done. */
  begin(verb: StoreVerb): boolean {
    const verdict = this.next()
    if (verdict === TOO_LATE) return false
    if (verb === 'admit' || verb === 'claim') this.at -= 1
    return true
  }

  granted(): boolean {
    this.#verdict = this.next()
    return this.#verdict === 0
  }

  rejection(length: number): Admission {
    const [retryAfter, bits, levels] = [this.next(), this.next(), this.list(length)]
    return this.rejectionOf(this.#verdict, retryAfter, levels, place => Math.floor(bits / 2 ** place) % 2 === 1)
  }
}

export function ascii(text: unknown): string {
  return JSON.stringify(text).replace(/[^ -~]/g, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

export function short(text: string): string {
  return text.length <= LONGEST_KEY ? text : `sha256:${createHash('sha256').update(text).digest('hex')}`
}

/** Bytes. PostgreSQL refuses more. */
const LONGEST = 7_900

/** @param author the instance that has reset it, which does not listen to itself */
export function encodePostgresReset(author: string, bucket: string, key: string): string {
  return bounded(`${KIND.reset} ${ascii([author, bucket, key])}`)
}

export function encodePostgresKept(news: Parameters<typeof keptParts>[0]): string {
  return bounded(`${KIND.kept} ${ascii(keptParts(news))}`)
}

/** Without the moment, which comes behind the kind. */
export function encodeOverride({ endsIn, ...override }: Override): { kind: string; rest: string } {
  return { kind: KIND.override, rest: bounded(`${endsIn} ${ascii(override)}`) }
}

/** What is too long is no news: the others find it when they ask. */
function bounded(text: string): string {
  return text.length <= LONGEST ? text : ''
}

/** Undefined: nobody here is concerned. */
export function decodePostgresNews(payload: string, author: string): DatedNews | undefined {
  const [kind = '', ...parts] = payload.split(' ')
  const read = (count: number) => ({ numbers: parts.slice(0, count).map(Number), text: parts.slice(count).join(' ') })
  return decodeNews({ kind, read, upstreamOf }, author)
}

/** A long name cannot be told from its hash. */
function upstreamOf(key: string): string | undefined {
  const name = key.slice(UPSTREAM.length)
  return name.startsWith('"') ? (JSON.parse(name) as string) : undefined
}
