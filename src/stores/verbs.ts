/**
 * The verbs of stores, in one table: what each is about, how its request and its answer travel, and what is answered where it is
 * missing. Batches, wrappers, the pipe of workers and the tests of stores are made of it. sharing/store.ts says what each verb means.
 *
 * A process of ours gets a request as it is, and an answer comes as it is, but for the moments in them (`theirs`, `ours`). A
 * server that decides by a script gets and gives doubles (`encode`, `decode`).
 */

import type { MaybePromise } from '../core/maybe-promise.js'
import { DEFAULT_MIN_SHARE } from '../core/priority.js'
import type { BucketRef } from '../decider/record.js'
import type { Board } from '../sharing/board.js'
import { type ClaimAnswer, HORIZON, type Store, StoreError, type StoreVerb } from '../sharing/store.js'
import { type Answers, type Operation, operation } from './doubles.js'
import { boundNews, describeUpstream } from './news.js'

export type Input<V extends StoreVerb> = Parameters<NonNullable<Store[V]>>
export type Answer<V extends StoreVerb> = Awaited<ReturnType<NonNullable<Store[V]>>>
/** A moment of one clock by another, in ms. */
type Mapping = (moment: number) => number

interface Verb<V extends StoreVerb> {
  /** The buckets that it is about. Absent: it is about the instance, or the upstream, that its input begins with. */
  stack?(...input: Input<V>): readonly BucketRef[]
  /** Its doubles beside those of the buckets. */
  encode(...input: Input<V>): Operation
  /** Moments stay those of the store's clock. */
  decode(answers: Answers, ...input: Input<V>): Answer<V>
  /** Its input with moments by the store's clock. Absent: it has none. */
  theirs?(map: Mapping, ...input: Input<V>): Input<V>
  /** Its answer with moments by our clock. Absent: it has none. */
  ours?(answer: Answer<V>, map: Mapping): Answer<V>
  /** What is answered where no store has it. Absent: the question fails. */
  missing?(...input: Input<V>): Answer<V>
}

const nothing = (): void => {}
const ofStack = ({ stack }: { readonly stack: readonly BucketRef[] }): readonly BucketRef[] => stack
const ofBucket = ({ bucket }: { readonly bucket: BucketRef }): readonly BucketRef[] => [bucket]
const noDoubles = (): Operation => operation(0)

export const VERBS: { readonly [V in StoreVerb]: Verb<V> } = {
  admit: {
    stack: ofStack,
    encode({ stack, cost, maxWait, claim, ahead = 0, booked }) {
      if (booked !== undefined) return operation(cost, maxWait, [booked.place, booked.client, booked.booking])
      return operation(cost, maxWait, claim ? [0, ahead, Infinity, stack.length - 1] : [])
    },
    decode(answers, { stack, claim, booked }) {
      if (!answers.granted()) return answers.rejection(stack.length)
      const levels = answers.list(stack.length)
      if (!claim || booked !== undefined) return { admitted: true, levels }
      return { admitted: true, levels, claim: decodeClaim(answers, stack.length) }
    },
    ours(answer, map) {
      if (!answer.admitted || answer.claim === undefined) return answer
      return { admitted: true, levels: answer.levels, claim: claimOurs(answer.claim, map) }
    },
  },

  claim: {
    stack: ofStack,
    encode({ cost, since, notBefore = -Infinity, within = Infinity, ahead = 0, own = 0 }) {
      return operation(cost, since, [0, ahead, within, own], notBefore)
    },
    decode: (answers, { stack }) => decodeClaim(answers, stack.length),
    theirs: (map, { notBefore, ...rest }) => [notBefore === undefined ? rest : { ...rest, notBefore: map(notBefore) }],
    ours: claimOurs,
  },

  giveBack: {
    stack: ofStack,
    encode({ cost, slot, slotCost = 0, own = 0 }) {
      return slot === undefined ? operation(cost, 0, [0]) : operation(cost, slotCost, [own], slot.token as number)
    },
    decode: nothing,
    missing: nothing,
  },

  settle: {
    stack: ofStack,
    encode: ({ cost }) => operation(cost),
    decode: (answers, { stack }) => answers.list(stack.length),
    missing: ({ stack }) => stack.map(() => 0),
  },

  appoint: {
    stack: ofBucket,
    encode({ cost, more, client, booking, maxWait, fit }) {
      return operation(cost, maxWait, [client, booking, fit, more])
    },
    decode(answers) {
      const [after, booking, window, made, more] = answers.list(5) as [number, number, number, number, number]
      return { after, booking, window, made: made === 1, more }
    },
  },

  lease: {
    stack: ofBucket,
    encode({ bucket, instance, demand, largest, lead, late, pace, lacks, held, drained, kept, want, ahead, returned }) {
      const { minShare = DEFAULT_MIN_SHARE } = bucket.limits
      const numbers = [instance, held, want, minShare, ahead, lacks, late, pace, drained, kept, demand.length]
      for (const { priority, weight, cost } of demand) numbers.push(priority, weight, cost)
      for (const { token, cost } of returned) numbers.push(token as number, cost)
      return operation(largest, lead, numbers)
    },
    decode(answers) {
      const [nextAt, until, room, roomRate, roomFrom, roomUntil] = answers.list(6) as SixNumbers
      const [filled, spare, level, instances, lateBy] = answers.list(5) as [number, number, number, number, number]
      const slots = Array.from({ length: answers.next() }, () => {
        const token = answers.next()
        return { at: token, cost: answers.next(), token }
      })
      const others = Array.from({ length: answers.next() }, () => {
        const [priority, weight, cost] = answers.list(3) as [number, number, number]
        return { priority, weight, cost }
      })
      const rooms = { room, filled, roomRate, roomFrom, roomUntil }
      return { nextAt, until, ...rooms, spare, level, instances, lateBy, slots, others }
    },
    theirs(map, { demand, ...rest }) {
      const mapped = demand.map(({ arrivals, ...each }) =>
        arrivals === undefined ? each : { ...each, arrivals: { ...arrivals, times: arrivals.times.map(map) } },
      )
      return [{ ...rest, demand: mapped }]
    },
    ours({ slots, nextAt, until, roomFrom, roomUntil, ...rest }, map) {
      const times = { nextAt: map(nextAt), until: map(until), roomFrom: map(roomFrom), roomUntil: map(roomUntil) }
      return { ...rest, ...times, slots: slots.map(slot => ({ ...slot, at: map(slot.at) })) }
    },
  },

  reset: { stack: bucket => [bucket], encode: noDoubles, decode: nothing, missing: nothing },

  beat: {
    encode: noDoubles,
    decode(answers) {
      const [count, left, rank] = answers.list(3) as [number, number, number]
      return { count, left, rank, epoch: 0 }
    },
    ours: (roll, map) => ({ ...roll, epoch: map(roll.epoch) }),
  },

  leave: { encode: noDoubles, decode: nothing, missing: nothing },

  exchange: {
    encode(_, news) {
      const { pausedFor, rate = 0, rateFor } = boundNews(news)
      return operation(rate, rateFor, [], pausedFor)
    },
    decode: answers => describeUpstream(answers.next(), answers.next(), answers.next()),
  },
}

type SixNumbers = [number, number, number, number, number, number]

function decodeClaim(answers: Answers, length: number): ClaimAnswer {
  if (!answers.granted()) return { granted: false, freeAt: answers.list(length) }
  const at = answers.next()
  return { granted: true, slot: { at, from: answers.next(), token: at } }
}

function claimOurs(claim: ClaimAnswer, map: Mapping): ClaimAnswer {
  if (!claim.granted) return { granted: false, freeAt: claim.freeAt.map(map) }
  const { at, from, token } = claim.slot
  return { granted: true, slot: { at: map(at), from: map(from), token } }
}

/** Reads an answer of doubles, with moments by our clock. */
export function readerOf<V extends StoreVerb>(verb: V, input: Input<V>): (answers: Answers) => Answer<V> {
  const { decode, ours } = VERBS[verb]
  return answers => {
    const answer = decode(answers, ...input)
    return ours === undefined ? answer : ours(answer, answers.ours)
  }
}

export const STORE_VERBS = Object.keys(VERBS) as readonly StoreVerb[]

const OF_BOARD: { readonly [Verb in keyof Board]: true } = {
  ...{
    setOverride: true,
    endOverride: true,
    overrides: true,
    show: true,
    views: true,
    tell: true,
    agreeOnSecret: true,
  },
}
/** The verbs of what instances leave for each other. They have no moments. */
export const BOARD_VERBS = Object.keys(OF_BOARD) as readonly (keyof Board)[]

/** Functions of these names, each of which asks `ask`. */
export function asking<Name extends string, Verbs>(
  names: readonly Name[],
  ask: (name: Name, input: readonly unknown[]) => unknown,
): Verbs {
  return Object.fromEntries(names.map(name => [name, (...input: unknown[]) => ask(name, input)])) as Verbs
}

/** How a store asks. Its other verbs follow from that. */
export type Ask = <V extends StoreVerb>(verb: V, input: Input<V>) => Promise<Answer<V>>

export function verbsOf(ask: Ask): Required<Pick<Store, StoreVerb>> {
  return asking(STORE_VERBS, ask as (name: StoreVerb, input: readonly unknown[]) => unknown)
}

/** How a wrapper calls the store behind it. */
export type Through = <T>(run: () => MaybePromise<T>, verb: StoreVerb) => MaybePromise<T>

/**
 * A store before another one, with those verbs that this one has. Each of them goes through `call`, and all else is answered by
 * this one. It may come later: until then it is taken to have all, and questions to it fail.
 */
export function wrapped(behind: () => Store | undefined, call: Through): Store & Required<Pick<Store, 'listen'>> {
  const has = behind()
  const verbs = STORE_VERBS.filter(verb => has === undefined || has[verb] !== undefined)
  const ask = <V extends StoreVerb>(verb: V, input: Input<V>): MaybePromise<Answer<V>> => {
    const store = behind()
    const run = store?.[verb] as ((...input: Input<V>) => MaybePromise<Answer<V>>) | undefined
    if (run !== undefined) return call(() => run.apply(store, input), verb)
    const { missing } = VERBS[verb]
    return missing === undefined ? Promise.reject(new StoreError('the store is not open')) : missing(...input)
  }
  const horizon = (): number => behind()?.horizon ?? HORIZON.least
  return {
    ...asking<StoreVerb, Pick<Store, StoreVerb>>(verbs, ask as (verb: StoreVerb, input: readonly unknown[]) => unknown),
    get horizon() {
      return horizon()
    },
    horizonOf: stack => behind()?.horizonOf?.(stack) ?? horizon(),
    latenessOf: bucket => behind()?.latenessOf?.(bucket) ?? 0,
    get keepsOrder() {
      return behind()?.keepsOrder === true
    },
    get shards() {
      return behind()?.shards
    },
    shardOf: bucket => behind()?.shardOf?.(bucket) ?? '',
    listen: listener => behind()?.listen?.(listener) ?? nothing,
    get board() {
      return behind()?.board
    },
    close: async () => behind()?.close(),
  }
}
