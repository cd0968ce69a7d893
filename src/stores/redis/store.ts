/** State that instances share through Redis: one server, Sentinels, or a Redis Cluster. */
import { randomUUID } from 'node:crypto'
import { type Board, Listeners, type News } from '../../core/board.js'
import type { Clock } from '../../core/clock.js'
import { DEFAULT_MIN_SHARE } from '../../core/priority.js'
import type {
  Admission,
  AdmitRequest,
  BookingClaim,
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
  Store,
  StoreError,
} from '../../core/store.js'
import type { UpstreamState } from '../../core/upstream-state.js'
import { shortened } from '../news.js'
import { boundNews, describeUpstream, isNews } from '../upstream-state.js'
import { parseAddress } from './address.js'
import { RedisBatcher } from './batcher.js'
import { createRedisBoard } from './board.js'
import { ClusterRouter } from './cluster-router.js'
import {
  bucketKey,
  leaseKey,
  leftKey,
  newsChannel,
  promisesKey,
  REGISTRY,
  registryKey,
  UPSTREAMS,
  upstreamKey,
} from './keys.js'
import { admitInSteps, claimInSteps, giveBackInSteps, type OnePlace, type Part, spread } from './multi-slot.js'
import { decodeRedisNews, encodeRedisReset } from './news.js'
import { RedisNode } from './node.js'
import { type Router, SingleRouter } from './router.js'
import { Subscriber } from './subscriber.js'
import { type Answer, NO_SLOT, REASONS, type RedisOperation, readScript, VERB } from './wire.js'

export interface RedisOptions {
  /** `redis://`, `rediss://` or `redis+sentinel://`; either this or `cluster`. */
  readonly url?: string
  /** URLs of some servers of a Redis Cluster. */
  readonly cluster?: readonly string[]
  /** The prefix of all keys. */
  readonly prefix: string
  /** ms after which a call rejects */
  readonly timeout: number
  readonly clock: Clock
  /** A connection is lost or cannot be made. Called once for each outage and reason, never with a password. */
  onError?(error: Error): void
  /** For tests: a Lua expression for the time in ms since 1970, in place of the server's TIME. */
  readonly timeSource?: string
}

/** @throws TypeError: not a URL */
export function createRedisStore(options: RedisOptions): Store {
  const { url, cluster, clock, timeSource } = options
  const nodeOptions = { script: readScript(timeSource), clock, onError: options.onError ?? (() => {}) }
  if ((url === undefined) === (cluster === undefined || cluster.length === 0)) {
    throw new TypeError('give either the url of a Redis server or those of a cluster')
  }
  const router =
    url === undefined
      ? new ClusterRouter(cluster!, nodeOptions)
      : new SingleRouter(new RedisNode(parseAddress(url), nodeOptions))
  return new RedisStore(router, options)
}

type Verb = RedisOperation['verb']

/** An operation without its keys. What is left out means nothing to its verb. */
type Question = Pick<RedisOperation, 'verb' | 'deadline'> &
  Partial<Pick<RedisOperation, 'cost' | 'x' | 'slot' | 'notBefore' | 'numbers' | 'id' | 'stack'>>

/** A question about buckets. */
type StackQuestion = Question & Pick<RedisOperation, 'stack'>

class RedisStore implements Store {
  readonly #router: Router
  readonly #batcher: RedisBatcher
  readonly #options: RedisOptions
  readonly #listeners = new Listeners()
  readonly #channel: string
  /** The author of our own news. */
  readonly #author = randomUUID()
  #subscriber: Subscriber | undefined
  readonly board: Board

  constructor(router: Router, options: RedisOptions) {
    this.#router = router
    this.#options = options
    this.#batcher = new RedisBatcher(router, options.clock)
    this.#channel = newsChannel(options.prefix, router.addresses[0]!.options.db ?? 0)
    this.board = createRedisBoard({ ...options, router, channel: this.#channel })
  }

  /** The horizon while no other is known. */
  get horizon(): number {
    return this.#router.horizonOf(this.#router.partitionOfTag(REGISTRY))
  }

  horizonOf(stack: readonly BucketRef[]): number {
    return Math.max(...stack.map(({ group }) => this.#router.horizonOf(this.#router.partitionOf(group))))
  }

  latenessOf({ group }: BucketRef): number {
    return this.#router.find(this.#router.partitionOf(group))?.lateness ?? 0
  }

  admit(request: AdmitRequest): Promise<Admission> {
    const deadline = this.#deadline()
    const parts = this.#parts(request.stack)
    if (parts !== undefined) return admitInSteps(parts, request, this.#onePlace(request.stack, deadline))
    return this.#admitHere(request, deadline)
  }

  claim(request: ClaimRequest): Promise<ClaimAnswer> {
    const deadline = this.#deadline()
    const parts = this.#parts(request.stack)
    if (parts !== undefined) return claimInSteps(parts, request, this.#onePlace(request.stack, deadline))
    return this.#claim(request, deadline)
  }

  giveBack(request: GiveBackRequest): Promise<void> {
    const deadline = this.#deadline()
    const parts = this.#parts(request.stack)
    if (parts !== undefined) return giveBackInSteps(parts, request, this.#onePlace(request.stack, deadline))
    return this.#giveBack(request, deadline)
  }

  async settle({ stack, cost }: SettleRequest): Promise<readonly number[]> {
    const deadline = this.#deadline()
    const settlePart = ({ stack }: Pick<Part, 'stack'>): Promise<number[]> =>
      this.#onStack({ verb: VERB.settle, stack, cost, deadline }, answer => answer.list(stack.length))
    const parts = this.#parts(stack)
    return parts === undefined ? settlePart({ stack }) : spread(parts, await Promise.all(parts.map(settlePart)))
  }

  lease(request: LeaseRequest): Promise<LeaseAnswer> {
    const { bucket, instance, demand, largest, lead, late, pace, lacks, used, want, ahead, returned } = request
    const { minShare = DEFAULT_MIN_SHARE } = bucket.limits
    const numbers = [instance, used, want, minShare, ahead, lacks, late, pace, demand.length]
    for (const { priority, weight, cost } of demand) numbers.push(priority, weight, cost)
    for (const { token, cost } of returned) numbers.push(token as number, cost)
    const key = this.#keyOf(bucket)
    const question = { verb: VERB.lease, stack: [bucket], cost: largest, x: lead, numbers, deadline: this.#deadline() }
    return this.#ask(this.#router.partitionOf(bucket.group), [key, leaseKey(key)], question, readLease)
  }

  promise({ bucket, cost, more, client, booking, maxWait, fit }: PromiseRequest): Promise<PromiseAnswer> {
    const key = this.#keyOf(bucket)
    const numbers = [client, booking, fit, more]
    const question = { verb: VERB.promise, stack: [bucket], cost, x: maxWait, numbers, deadline: this.#deadline() }
    return this.#ask(this.#router.partitionOf(bucket.group), [key, promisesKey(key)], question, answer => {
      const [after, booking, window, made, more] = answer.list(5) as [number, number, number, number, number]
      return { after, booking, window, made: made === 1, more }
    })
  }

  async reset(bucket: BucketRef): Promise<void> {
    await this.#onStack({ verb: VERB.reset, stack: [bucket], deadline: this.#deadline() }, () => {})
    const node = this.#router.find(this.#router.partitionOfTag(UPSTREAMS))
    node?.redis.publish(this.#channel, encodeRedisReset(this.#author, bucket.limits.name, bucket.key)).catch(() => {})
  }

  get shards(): readonly string[] | undefined {
    return this.#router.shards
  }

  shardOf({ group }: BucketRef): string {
    return this.#router.shardOf(group)
  }

  beat(id: string, shard = ''): Promise<Roll> {
    return this.#onRegistry(VERB.beat, id, shard, answer => {
      const [count, left, rank] = answer.list(3) as [number, number, number]
      return { count, left, rank, epoch: answer.ours(0) }
    })
  }

  leave(id: string, shard = ''): Promise<void> {
    return this.#onRegistry(VERB.leave, id, shard, () => {})
  }

  exchange(upstream: string, news?: UpstreamState): Promise<UpstreamState> {
    const { pausedFor, rate = 0, rateFor } = boundNews(news)
    const keys = [upstreamKey(this.#options.prefix, upstream), ...(isNews(news) ? [this.#channel] : [])]
    const partition = this.#router.partitionOfTag(UPSTREAMS)
    const question = { verb: VERB.exchange, cost: rate, x: rateFor, slot: pausedFor, deadline: this.#deadline() }
    return this.#ask(partition, keys, question, answer => describeUpstream(answer.next(), answer.next(), answer.next()))
  }

  listen(listener: (news: News) => void): () => void {
    this.#subscriber ??= new Subscriber({
      addresses: () => this.#router.addresses,
      channel: this.#channel,
      received: message => this.#heard(message),
    })
    return this.#listeners.add(listener)
  }

  async close(): Promise<void> {
    this.#subscriber?.close()
    this.#batcher.close()
    this.#router.close()
  }

  #heard(message: Buffer): void {
    const dated = decodeRedisNews(message, this.#options.prefix, this.#author)
    if (dated === undefined) return
    const { tag, at, news } = dated
    const theirs = this.#router.find(this.#router.partitionOfTag(tag))?.ours(at) ?? Infinity
    this.#listeners.tell(shortened(news, this.#options.clock.now() - theirs))
  }

  #admitHere(request: AdmitRequest, deadline: number, aheadOfAll = 0): Promise<Admission> {
    if (request.booked !== undefined) return this.#admitBooked(request, request.booked, deadline)
    return this.#admit(request.claim ? VERB.admitAndClaim : VERB.admit, request, deadline, aheadOfAll)
  }

  #admitBooked(
    { stack, cost, maxWait }: AdmitRequest,
    { place, client, booking }: BookingClaim,
    deadline: number,
  ): Promise<Admission> {
    const keys = stack.map(bucket => this.#keyOf(bucket))
    const numbers = [place, client, booking]
    const question = { verb: VERB.admitBooked, stack, cost, x: maxWait, numbers, deadline }
    const partition = this.#router.partitionOf(stack[0]!.group)
    return this.#ask(partition, [...keys, promisesKey(keys[place]!)], question, answer =>
      readAdmission(answer, stack.length),
    )
  }

  #admit(
    verb: Verb,
    { stack, cost, maxWait, ahead: aheadOfLast = 0 }: AdmitRequest,
    deadline: number,
    aheadOfAll = 0,
  ): Promise<Admission> {
    const { length } = stack
    const numbers = verb === VERB.admitAndClaim ? [aheadOfAll, aheadOfLast, Infinity] : []
    return this.#onStack({ verb, stack, cost, x: maxWait, numbers, deadline }, answer => {
      const admission = readAdmission(answer, length)
      if (!admission.admitted || verb !== VERB.admitAndClaim) return admission
      return { ...admission, claim: readClaim(answer, length) }
    })
  }

  #claim(request: ClaimRequest, deadline: number, aheadOfAll = 0): Promise<ClaimAnswer> {
    const { stack, cost, since, notBefore, within = Infinity, ahead: aheadOfLast = 0 } = request
    const numbers = [aheadOfAll, aheadOfLast, within]
    return this.#onStack({ verb: VERB.claim, stack, cost, x: since, notBefore, numbers, deadline }, answer =>
      readClaim(answer, stack.length),
    )
  }

  #giveBack({ stack, cost, slot, slotCost = 0 }: GiveBackRequest, deadline: number): Promise<void> {
    const theirs = slot === undefined ? NO_SLOT : (slot.token as number)
    return this.#onStack({ verb: VERB.giveBack, stack, cost, x: slotCost, slot: theirs, deadline }, () => {})
  }

  #onePlace(whole: readonly BucketRef[], deadline: number): OnePlace {
    const horizon = this.horizonOf(whole)
    // All servers grant as far ahead as the farthest one. Only for the last bucket of the whole stack they may go beyond.
    const aheadOfAll = ({ stack }: { readonly stack: readonly BucketRef[] }): number => horizon - this.horizonOf(stack)
    const bounded = <T extends { readonly stack: readonly BucketRef[]; readonly ahead?: number }>(request: T): T =>
      request.stack.at(-1) === whole.at(-1) ? request : { ...request, ahead: 0 }
    return {
      admit: request => this.#admitHere(bounded(request), deadline, aheadOfAll(request)),
      judge: request => this.#admit(VERB.judge, request, deadline),
      claim: request => this.#claim(bounded(request), deadline, aheadOfAll(request)),
      // Undoing has a deadline of its own: it matters most when no time is left.
      giveBack: request => this.#giveBack(request, this.#deadline()),
    }
  }

  #onRegistry<T>(verb: Verb, id: string, shard: string, read: (answer: Answer) => T): Promise<T> {
    const { prefix } = this.#options
    const tag = this.#router.registryOf(shard)
    const keys = [registryKey(prefix, tag), leftKey(prefix, tag)]
    return this.#ask(this.#router.partitionOfTag(tag), keys, { verb, id, deadline: this.#deadline() }, read)
  }

  /** Undefined: all buckets live in one place. */
  #parts(stack: readonly BucketRef[]): readonly Part[] | undefined {
    if (stack.length === 1) return undefined
    const first = this.#router.partitionOf(stack[0]!.group)
    if (stack.every(({ group }) => this.#router.partitionOf(group) === first)) return undefined
    const parts = new Map<number, { stack: BucketRef[]; at: number[] }>()
    for (const [at, bucket] of stack.entries()) {
      const partition = this.#router.partitionOf(bucket.group)
      const part = parts.get(partition) ?? { stack: [], at: [] }
      parts.set(partition, part)
      part.stack.push(bucket)
      part.at.push(at)
    }
    return [...parts.values()]
  }

  #onStack<T>(question: StackQuestion, read: (answer: Answer) => T): Promise<T> {
    const { stack } = question
    const keys = stack.map(bucket => this.#keyOf(bucket))
    return this.#ask(this.#router.partitionOf(stack[0]!.group), keys, question, read)
  }

  /** On one server all buckets live together: a key keeps its name when its group changes. */
  #keyOf(bucket: BucketRef): string {
    const { prefix, cluster } = this.#options
    return bucketKey(prefix, cluster ? bucket : { ...bucket, group: '' })
  }

  #ask<T>(
    partition: number,
    keys: readonly string[],
    { verb, cost = 0, x = 0, slot = NO_SLOT, notBefore, numbers = [], stack = [], id, deadline }: Question,
    read: (answer: Answer) => T,
  ): Promise<T> {
    return new Promise<T>((resolve, reject: (error: StoreError) => void) => {
      this.#batcher.add(partition, {
        verb,
        cost,
        x,
        slot,
        notBefore,
        numbers,
        keys,
        stack,
        id,
        deadline,
        done: answer => resolve(read(answer)),
        failed: reject,
      })
    })
  }

  #deadline(): number {
    return this.#options.clock.now() + this.#options.timeout
  }
}

function readAdmission(answer: Answer, length: number): Admission {
  return answer.next() === 0 ? readRejection(answer, length) : { admitted: true, levels: answer.list(length) }
}

function readRejection(answer: Answer, length: number): Admission {
  const reason = REASONS[answer.next() - 1]
  if (reason === undefined) throw new RangeError('no such reason')
  const retryAfter = answer.next()
  const levels = answer.list(length)
  const flags = answer.list(length)
  const refusing = flags.flatMap((flag, place) => (flag === 1 ? [place] : []))
  return { admitted: false, levels, reason, refusing, retryAfterMs: reason === 'too-costly' ? undefined : retryAfter }
}

function readClaim(answer: Answer, length: number): ClaimAnswer {
  if (answer.next() === 0) return { granted: false, freeAt: answer.list(length).map(answer.ours) }
  const slot = answer.next()
  return { granted: true, slot: { at: answer.ours(slot), from: answer.ours(answer.next()), token: slot } }
}

function readLease(answer: Answer): LeaseAnswer {
  const { ours } = answer
  const [nextAt, until, room, roomRate, roomFrom, roomUntil, spare, level, instances, lateBy, count] = answer.list(
    11,
  ) as [number, number, number, number, number, number, number, number, number, number, number]
  const slots = Array.from({ length: count }, () => {
    const [token, cost] = answer.list(2) as [number, number]
    return { at: ours(token), cost, token }
  })
  const others = Array.from({ length: answer.next() }, () => {
    const [priority, weight, cost] = answer.list(3) as [number, number, number]
    return { priority, weight, cost }
  })
  return {
    slots,
    nextAt: ours(nextAt),
    until: ours(until),
    room,
    roomRate,
    roomFrom: ours(roomFrom),
    roomUntil: ours(roomUntil),
    spare,
    level,
    instances,
    lateBy,
    others,
  }
}
