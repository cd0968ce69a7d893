/** State that instances share through Redis: one server, Sentinels, or a Redis Cluster. */
import { randomUUID } from 'node:crypto'
import type { Clock } from '../../core/clock.js'
import type { BucketRef } from '../../decider/record.js'
import { Listeners } from '../../sharing/board.js'
import { type AdmitRequest, type Store, StoreError, type StoreVerb } from '../../sharing/store.js'
import { type AskedQuestion, Batcher } from '../batch.js'
import { sizeOf } from '../doubles.js'
import { isNews, shortened } from '../news.js'
import { type Answer, type Ask, type Input, readerOf, VERBS, verbsOf } from '../verbs.js'
import { createRedisBoard } from './board.js'
import { ClusterRouter } from './cluster.js'
import {
  appointmentsKey,
  bucketKey,
  leaseKey,
  leftKey,
  newsChannel,
  REGISTRY,
  registryKey,
  UPSTREAMS,
  upstreamKey,
} from './keys.js'
import { parseAddress, type Redirection, RedisNode, type Router, Subscriber, singleRouter, whenKnown } from './link.js'
import { type AskPart, type InSteps, inSteps, partsOfStack } from './multi-slot.js'
import {
  decodeRedisNews,
  encodeRedisReset,
  type RedisAnswers,
  type RedisQuestion,
  readScript,
  reasonOf,
  VERB,
} from './wire.js'

const REDIRECTIONS = 5
/** ms */
const TRY_AGAIN = 20
/** ms. Questions whose deadlines differ by no more share the earliest. */
const SAME_DEADLINE = 5

export interface RedisOptions {
  /** `redis://`, `rediss://` or `redis+sentinel://`; either this or `cluster`. */
  readonly url?: string
  readonly cluster?: readonly string[]
  readonly prefix: string
  /** ms after which a call rejects */
  readonly timeout: number
  readonly clock: Clock
  /** A connection is lost or cannot be made. Called once for each outage and reason, never with a password. */
  onError?(error: Error): void
  /** For tests: a Lua expression for the time in ms since 1970, in place of the server's TIME. */
  readonly timeSource?: string
}

type AskedRedis = AskedQuestion<RedisQuestion, RedisAnswers>

/** @throws TypeError: not a URL */
export function createRedisStore(options: RedisOptions): Store {
  const { url, cluster, prefix, timeout, clock, timeSource } = options
  const nodeOptions = { script: readScript(timeSource), clock, onError: options.onError ?? (() => {}) }
  if ((url === undefined) === (cluster === undefined || cluster.length === 0)) {
    throw new TypeError('give either the url of a Redis server or those of a cluster')
  }
  const router: Router =
    url === undefined
      ? new ClusterRouter(cluster!, nodeOptions)
      : singleRouter(new RedisNode(parseAddress(url), nodeOptions))
  const batcher: Batcher<RedisQuestion, RedisAnswers> = new Batcher<RedisQuestion, RedisAnswers>({
    ...{ clock, timeout, sizeOf, sameDeadline: SAME_DEADLINE, who: 'Redis' },
    sender: () => send,
    reasonOf: error => new StoreError(`Redis: ${reasonOf(error)}`),
    silent: partition => router.suspect(partition),
    together: send => router.together(send),
  })

  async function send(asked: readonly AskedRedis[], partition: number): Promise<void> {
    const answers = await carryOut(router, asked, partition)
    if (answers?.isDone) for (const each of asked) each.answered(answers)
    // The script did nothing, as the clock was set. It is known now, so one more attempt can succeed.
    else for (const each of asked) batcher.again(each, partition, new StoreError('Redis got a call too late'))
  }

  const listeners = new Listeners()
  const channel = newsChannel(prefix, router.addresses[0]!.options.db ?? 0)
  const author = randomUUID()
  let subscriber: Subscriber | undefined

  const placeOf = ({ group }: BucketRef): number => router.partitionOf(group)
  const horizonOf = (stack: readonly BucketRef[]): number =>
    Math.max(...stack.map(bucket => router.horizonOf(placeOf(bucket))))

  /** On one server all buckets live together: a key keeps its name when its group changes. */
  const keyOf = (bucket: BucketRef): string => bucketKey(prefix, cluster ? bucket : { ...bucket, group: '' })

  /** The names of buckets, and of what is kept beside them for a verb. */
  function keysOf(verb: StoreVerb, stack: readonly BucketRef[], { booked }: Pick<AdmitRequest, 'booked'>): string[] {
    const keys = stack.map(keyOf)
    if (verb === 'lease') keys.push(leaseKey(keys[0]!))
    if (verb === 'appoint') keys.push(appointmentsKey(keys[0]!))
    if (booked !== undefined) keys.push(appointmentsKey(keys[booked.place]!))
    return keys
  }

  /** The tag and the names of what is no bucket. */
  function othersOf(verb: StoreVerb, input: readonly unknown[]): [tag: string, keys: string[]] {
    if (verb === 'exchange') {
      const [upstream, news] = input as Input<'exchange'>
      return [UPSTREAMS, [upstreamKey(prefix, upstream), ...(isNews(news) ? [channel] : [])]]
    }
    const [, shard = ''] = input as Input<'beat' | 'leave'>
    const tag = router.registryOf(shard)
    return [tag, [registryKey(prefix, tag), leftKey(prefix, tag)]]
  }

  function placeAndKeys<V extends StoreVerb>(
    verb: V,
    stack: readonly BucketRef[],
    input: Input<V>,
  ): [number, string[]] {
    if (stack.length > 0) return [placeOf(stack[0]!), keysOf(verb, stack, input[0] as AdmitRequest)]
    const [tag, keys] = othersOf(verb, input)
    return [router.partitionOfTag(tag), keys]
  }

  /** Asks the server on which all buckets of the input are. */
  const askPart: AskPart = (verb, input, { deadline, aheadOfAll = 0, isTrial = false } = {}) => {
    const { stack: stackOf, encode } = VERBS[verb]
    const stack = stackOf?.(...input) ?? []
    const [place, keys] = placeAndKeys(verb, stack, input)
    const operation = encode(...input)
    const kind = verb !== 'admit' ? verb : isTrial ? 'judge' : kindOf(input[0] as AdmitRequest)
    if (kind === 'claim' || kind === 'admitAndClaim') operation.numbers[0] = aheadOfAll
    const id = verb === 'beat' || verb === 'leave' ? (input[0] as string) : undefined
    return batcher.ask({ verb: VERB[kind], operation, keys, stack, id }, readerOf(verb, input), place, deadline)
  }

  const ask: Ask = (verb, input) => {
    const stack = VERBS[verb].stack?.(...input) ?? []
    const first = stack[0] && placeOf(stack[0])
    if (stack.every(bucket => placeOf(bucket) === first)) return askPart(verb, input)
    const parts = partsOfStack(stack, placeOf)
    const steps = inSteps({ parts, ask: askPart, horizonOf, deadline: clock.now() + timeout })
    return (steps[verb as keyof InSteps] as unknown as (...input: Input<typeof verb>) => Promise<Answer<typeof verb>>)(
      ...input,
    )
  }

  function received(message: Buffer): void {
    const dated = decodeRedisNews(message, prefix, author)
    if (dated === undefined) return
    const { tag, at, news } = dated
    const theirs = router.find(router.partitionOfTag(tag))?.offset.ours(at) ?? Infinity
    listeners.tell(shortened(news, clock.now() - theirs))
  }

  return {
    ...verbsOf(ask),
    async reset(bucket) {
      await ask('reset', [bucket])
      const node = router.find(router.partitionOfTag(UPSTREAMS))
      node?.redis.publish(channel, encodeRedisReset(author, bucket.limits.name, bucket.key)).catch(() => {})
    },
    /** While no other is known. */
    get horizon() {
      return router.horizonOf(router.partitionOfTag(REGISTRY))
    },
    horizonOf,
    latenessOf: bucket => router.find(placeOf(bucket))?.offset.lateness ?? 0,
    get shards() {
      return router.shards
    },
    shardOf: ({ group }) => router.shardOf(group),

    listen(listener) {
      subscriber ??= new Subscriber({ addresses: () => router.addresses, channel, received })
      return listeners.add(listener)
    },
    board: createRedisBoard({ prefix, timeout, router, channel }),

    async close() {
      subscriber?.close()
      batcher.close()
      router.close()
    },
  }
}

function kindOf({ claim, booked }: AdmitRequest): keyof typeof VERB {
  if (booked !== undefined) return 'admitBooked'
  return claim ? 'admitAndClaim' : 'admit'
}

/**
 * Carries out a batch at the server that has its partition, wherever that is now. It is sent again only if a server says that it
 * is not the right one.
 *
 * @returns undefined: no question waits for it any longer
 */
async function carryOut(router: Router, asked: readonly AskedRedis[], partition: number) {
  const questions = asked.map(({ question }) => question)
  const deadline = Math.min(...asked.map(each => each.deadline))
  let target: Redirection | undefined
  let redirections = 0
  while (asked.some(({ isOver }) => !isOver)) {
    const node = target?.node ?? router.find(partition)
    if (!node?.ready) {
      await whenKnown(node ?? router)
      if (target?.asking === false) target = undefined
      continue
    }
    const outcome = await node
      .carryOut(questions, deadline, { asking: target?.asking === true })
      .catch((error: Error) => error)
    if (!(outcome instanceof Error)) return outcome
    if (redirections === REDIRECTIONS) throw outcome
    redirections += 1
    target = router.redirect(outcome, partition, node) ?? (await tryAgain(outcome, target))
  }
  return undefined
}

/** At the same server. @throws if that is of no use */
async function tryAgain(error: Error, target: Redirection | undefined): Promise<Redirection | undefined> {
  if (!error.message.startsWith('TRYAGAIN')) throw error
  await new Promise(resolve => setTimeout(resolve, TRY_AGAIN))
  return target
}
