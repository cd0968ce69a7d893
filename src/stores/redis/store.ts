/** State that instances share through Redis: one server, Sentinels, or a Redis Cluster. */
import type { Clock } from '../../core/clock.js'
import type {
  Admission,
  AdmitRequest,
  BucketRef,
  ClaimAnswer,
  ClaimRequest,
  GiveBackRequest,
  Store,
  StoreError,
  UpstreamState,
} from '../../core/store.js'
import { boundNews, describeUpstream } from '../upstream-state.js'
import { parseAddress } from './address.js'
import { RedisBatcher } from './batcher.js'
import { ClusterRouter } from './cluster-router.js'
import { bucketKey, leftKey, REGISTRY, registryKey, UPSTREAMS, upstreamKey } from './keys.js'
import { admitInSteps, claimInSteps, giveBackInSteps, type OnePlace, type Part } from './multi-slot.js'
import { RedisNode } from './node.js'
import { type Router, SingleRouter } from './router.js'
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
  Partial<Pick<RedisOperation, 'cost' | 'x' | 'slot' | 'id' | 'stack'>>

/** A question about buckets. */
type StackQuestion = Question & Pick<RedisOperation, 'stack'>

class RedisStore implements Store {
  readonly #router: Router
  readonly #batcher: RedisBatcher
  readonly #options: RedisOptions
  left = 0

  constructor(router: Router, options: RedisOptions) {
    this.#router = router
    this.#options = options
    this.#batcher = new RedisBatcher(router, options.clock)
  }

  /** The horizon while no other is known. */
  get horizon(): number {
    return this.#router.horizonOf(this.#router.partitionOfTag(REGISTRY))
  }

  horizonOf(stack: readonly BucketRef[]): number {
    return Math.max(...stack.map(({ group }) => this.#router.horizonOf(this.#router.partitionOf(group))))
  }

  admit(request: AdmitRequest): Promise<Admission> {
    const deadline = this.#deadline()
    const parts = this.#parts(request.stack)
    if (parts !== undefined) return admitInSteps(parts, request, this.#onePlace(request.stack, deadline))
    return this.#admit(request.claim ? VERB.admitAndClaim : VERB.admit, request, deadline)
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

  reset(bucket: BucketRef): Promise<void> {
    return this.#onStack({ verb: VERB.reset, stack: [bucket], deadline: this.#deadline() }, () => {})
  }

  beat(id: string): Promise<number> {
    return this.#onRegistry(VERB.beat, id, answer => {
      const count = answer.next()
      this.left = answer.next()
      return count
    })
  }

  leave(id: string): Promise<void> {
    return this.#onRegistry(VERB.leave, id, () => {})
  }

  exchange(upstream: string, news?: UpstreamState): Promise<UpstreamState> {
    const { pausedFor, rate = 0, rateFor } = boundNews(news)
    const keys = [upstreamKey(this.#options.prefix, upstream)]
    const partition = this.#router.partitionOfTag(UPSTREAMS)
    const question = { verb: VERB.exchange, cost: rate, x: rateFor, slot: pausedFor, deadline: this.#deadline() }
    return this.#ask(partition, keys, question, answer => describeUpstream(answer.next(), answer.next(), answer.next()))
  }

  async close(): Promise<void> {
    this.#batcher.close()
    this.#router.close()
  }

  #admit(verb: Verb, { stack, cost, maxWait }: AdmitRequest, deadline: number): Promise<Admission> {
    const { length } = stack
    return this.#onStack({ verb, stack, cost, x: maxWait, deadline }, answer => {
      if (answer.next() === 0) return readRejection(answer, length)
      const levels = answer.list(length)
      if (verb !== VERB.admitAndClaim) return { admitted: true, levels }
      return { admitted: true, levels, claim: readClaim(answer, length) }
    })
  }

  #claim({ stack, cost, since, ahead = 0 }: ClaimRequest, deadline: number): Promise<ClaimAnswer> {
    const { length } = stack
    return this.#onStack({ verb: VERB.claim, stack, cost, x: since, slot: ahead, deadline }, answer =>
      readClaim(answer, length),
    )
  }

  #giveBack({ stack, cost, slot, slotCost = 0 }: GiveBackRequest, deadline: number): Promise<void> {
    const theirs = slot === undefined ? NO_SLOT : (slot.token as number)
    return this.#onStack({ verb: VERB.giveBack, stack, cost, x: slotCost, slot: theirs, deadline }, () => {})
  }

  #onePlace(whole: readonly BucketRef[], deadline: number): OnePlace {
    const horizon = this.horizonOf(whole)
    return {
      admit: request => this.#admit(request.claim ? VERB.admitAndClaim : VERB.admit, request, deadline),
      judge: request => this.#admit(VERB.judge, request, deadline),
      // All servers grant as far ahead as the farthest one.
      claim: ({ ahead = 0, ...request }) =>
        this.#claim({ ...request, ahead: ahead + horizon - this.horizonOf(request.stack) }, deadline),
      // Undoing has a deadline of its own: it matters most when no time is left.
      giveBack: request => this.#giveBack(request, this.#deadline()),
    }
  }

  #onRegistry<T>(verb: Verb, id: string, read: (answer: Answer) => T): Promise<T> {
    const { prefix } = this.#options
    const keys = [registryKey(prefix), leftKey(prefix)]
    return this.#ask(this.#router.partitionOfTag(REGISTRY), keys, { verb, id, deadline: this.#deadline() }, read)
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
    const { prefix } = this.#options
    // On one server all buckets live together: a key keeps its name when its group changes.
    const keys = stack.map(bucket => bucketKey(prefix, this.#options.cluster ? bucket : { ...bucket, group: '' }))
    return this.#ask(this.#router.partitionOf(stack[0]!.group), keys, question, read)
  }

  #ask<T>(
    partition: number,
    keys: readonly string[],
    { verb, cost = 0, x = 0, slot = NO_SLOT, stack = [], id, deadline }: Question,
    read: (answer: Answer) => T,
  ): Promise<T> {
    return new Promise<T>((resolve, reject: (error: StoreError) => void) => {
      this.#batcher.add(partition, {
        verb,
        cost,
        x,
        slot,
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
  return { granted: true, slot: { at: answer.ours(slot), token: slot } }
}
