/**
 * One connection to one Redis server, with that server's clock and round trip.
 *
 * Nothing is sent before the server's time is known. Without it a call has no deadline by the server's clock, and a delayed
 * call would be carried out when nobody waits for it. Nothing is sent twice: a call that was on its way when the connection
 * broke may have been carried out.
 */
import { Redis, type RedisOptions } from 'ioredis'
import type { Clock } from '../../core/clock.js'
import { orElse } from '../../core/structures/or-else.js'
import { StoreError } from '../../sharing/store.js'
import { describeTrouble } from '../describe-error.js'
import { Offset, RoundTrip } from '../timing.js'
import { REGISTRY } from './keys.js'
import { encodeCall, GREETING, RedisAnswers, type RedisQuestion, type Script } from './wire.js'

/** `name` says where it is, without passwords. */
export interface Address {
  readonly name: string
  readonly options: RedisOptions
}

const PORT = 6379
const SENTINEL_PORT = 26_379

/**
 * `redis://user:password@host:port/db`, `rediss://` for TLS (the certificate is verified), or
 * `redis+sentinel://user:password@host:port,host:port/NAME`, where user and password are the servers'.
 *
 * @throws TypeError that does not show the URL
 */
export function parseAddress(url: string): Address {
  const [, scheme = '', user = '', hosts = '', path = ''] =
    /^(rediss?(?:\+sentinel)?):\/\/(?:([^/?#]*)@)?([^/?#]+)(?:\/([^/?#]*))?(?:\?.*)?$/.exec(url) ?? []
  if (hosts === '') throw new TypeError('not a Redis URL; use e.g. "redis://127.0.0.1:6379"')
  const separator = user.indexOf(':')
  const username = decode(separator < 0 ? user : user.slice(0, separator))
  const password = separator < 0 ? '' : decode(user.slice(separator + 1))
  const common: RedisOptions = {
    ...(username !== '' && { username }),
    ...(password !== '' && { password }),
    ...(scheme.startsWith('rediss') && { tls: {} }),
  }
  if (!scheme.endsWith('+sentinel')) {
    const { host, port } = parseHost(hosts, PORT)
    const db = path === '' ? 0 : Number(path)
    return { name: `${host}:${port}`, options: { ...common, host, port, db } }
  }
  const sentinels = hosts.split(',').map(text => parseHost(text, SENTINEL_PORT))
  const tls = common.tls && { enableTLSForSentinelMode: true, sentinelTLS: {} }
  const name = decode(path)
  return { name: `${name} of Sentinel ${hosts}`, options: { ...common, ...tls, sentinels, name } }
}

/** `host:port`, `[::1]:port`; @throws TypeError */
function parseHost(text: string, defaultPort: number): { host: string; port: number } {
  const [, bracketed, plain, port] = /^(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?$/.exec(text) ?? []
  const host = bracketed ?? plain
  if (host === undefined) throw new TypeError(`${JSON.stringify(text)} is not a host and port`)
  return { host, port: port === undefined ? defaultPort : Number(port) }
}

function decode(text: string): string {
  return orElse(() => decodeURIComponent(text), text)
}

/** ms */
const CONNECT = 1_000
const RECONNECT = 250
const GREET_AGAIN = 100
/** ms. A server that was asked and is silent for longer is asked on another connection. */
const SILENCE = 1_000
/** ms. If our estimate of its clock is further ahead, that clock was set. */
const SLACK = 50
const MOST = 1_000

const OPTIONS: RedisOptions = {
  lazyConnect: true,
  protocol: 2,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  maxRetriesPerRequest: 0,
  autoResendUnfulfilledCommands: false,
  autoResubscribe: false,
  disableClientInfo: true,
  connectTimeout: CONNECT,
  // Also of a connection that is gone already, and the process would live on for as long.
  disconnectTimeout: 50,
  retryStrategy: times => Math.min(25 * 2 ** Math.min(times, 5), RECONNECT),
  sentinelRetryStrategy: () => RECONNECT,
  sentinelReconnectStrategy: () => RECONNECT,
}

export interface NodeOptions {
  readonly script: Script
  readonly clock: Clock
  /** Once for each outage and reason. */
  onError(error: Error): void
  onChange?(): void
}

export interface Manner {
  /** It is another server's slot that this one is about to take over. */
  readonly asking: boolean
}

/** A promise that is resolved by `raise`. */
export function signal(): { readonly promise: Promise<void>; raise(): void } {
  let raise = () => {}
  const promise = new Promise<void>(resolve => {
    raise = resolve
  })
  return { promise, raise }
}

type State = 'connecting' | 'ready' | 'down' | 'closed'

export class RedisNode {
  readonly name: string
  readonly address: Address
  readonly redis: Redis
  readonly #options: NodeOptions
  #state: State = 'connecting'
  #changed = signal()
  #offset = new Offset()
  readonly #roundTrip = new RoundTrip()
  #session = 0
  #unanswered = 0
  /** When the server was asked that has been silent since, by our clock. */
  #silentSince = 0
  #trouble = 'not connected'

  constructor(address: Address, nodeOptions: NodeOptions) {
    const { name, options } = address
    this.name = name
    this.address = address
    this.#options = nodeOptions
    this.redis = new Redis({ ...OPTIONS, ...options, replyMapping: 'legacy' })
    this.redis.on('error', (error: Error) => this.#fell(describeTrouble(error)))
    this.redis.on('ready', () => void this.#greet())
    this.redis.on('close', () => this.#fell())
    this.redis.on('end', () => this.#connectAgain())
    this.redis.connect().catch(() => {})
  }

  get ready(): boolean {
    return this.#state === 'ready'
  }

  get down(): boolean {
    return this.#state === 'down'
  }

  get horizon(): number {
    return this.#roundTrip.horizon
  }

  get offset(): Pick<Offset, 'lateness' | 'ours'> {
    return this.#offset
  }

  /** Resolves when it is known whether it is ready. Undefined: it is known. */
  get pending(): Promise<void> | undefined {
    return this.#state === 'connecting' ? this.#changed.promise : undefined
  }

  get error(): StoreError {
    return new StoreError(`Redis at ${this.name}: ${this.#trouble}`)
  }

  /** Unless they arrive after `deadline`, by our clock. @throws the server's error, or that the connection broke */
  async carryOut(questions: readonly RedisQuestion[], deadline: number, manner: Manner): Promise<RedisAnswers> {
    if (this.#unanswered >= MOST) throw new StoreError(`${MOST} calls are on their way`)
    const offset = this.#offset
    const earliest = offset.theirs(this.#options.clock.now()) - SLACK
    const terms = {
      deadline: offset.theirs(deadline),
      earliest,
      horizon: this.horizon,
      back: this.#roundTrip.back,
      theirs: (ours: number) => offset.theirs(ours),
    }
    const input = encodeCall(questions, terms)
    try {
      return await this.#call(['evalsha', this.#options.script.sha], input, manner)
    } catch (error) {
      if (!(error as Error).message.startsWith('NOSCRIPT')) throw error
      return await this.#call(['eval', this.#options.script.text], input, manner)
    }
  }

  together(send: () => void): void {
    const { stream } = this.redis
    if (!this.ready || stream === undefined) return send()
    stream.cork()
    send()
    stream.uncork()
  }

  /** A call had no answer. If the server has been silent for long, another connection is opened. */
  suspect(): void {
    if (this.ready && this.#unanswered > 0 && this.#options.clock.now() - this.#silentSince >= SILENCE) {
      this.reconnect('no answer')
    }
  }

  reconnect(reason: string): void {
    if (this.#state === 'closed') return
    this.#fell(reason)
    this.redis.stream?.destroy()
  }

  close(): void {
    this.#session += 1
    this.#trouble = 'closed'
    this.#enter('closed')
    this.redis.disconnect()
    this.redis.stream?.destroy()
  }

  async #call(
    [command, script]: readonly [command: 'eval' | 'evalsha', script: string],
    input: readonly (string | Buffer)[],
    { asking }: Manner,
  ): Promise<RedisAnswers> {
    const { clock } = this.#options
    const session = this.#session
    const sent = clock.now()
    if (this.#unanswered === 0) this.#silentSince = sent
    this.#unanswered += 1
    try {
      if (asking) this.redis.asking().catch(() => {})
      const reply = await this.redis.callBuffer(command, [script, ...input])
      const received = clock.now()
      if (session !== this.#session) throw new StoreError('another connection has taken its place')
      const offset = this.#offset
      const answer = new RedisAnswers(reply, theirs => offset.ours(theirs))
      offset.learn(sent, received, answer.time)
      if (answer.isDone) this.#roundTrip.learn(received - sent, received - offset.ours(answer.time))
      return answer
    } finally {
      this.#unanswered -= 1
      this.#silentSince = clock.now()
    }
  }

  /** Learns the server's time, and leaves the script there. */
  async #greet(): Promise<void> {
    this.#session += 1
    const session = this.#session
    this.#offset = new Offset()
    this.#roundTrip.forget()
    const impatience = setTimeout(() => {
      if (session === this.#session) this.reconnect('no answer')
    }, SILENCE)
    impatience.unref()
    try {
      // ioredis only reports the failure and goes on with database 0.
      const { db = 0 } = this.redis.options
      if (db > 0) await this.redis.select(db)
      await this.#greetOnce()
      // That took longer than a call does.
      this.#roundTrip.forget()
      await this.#greetOnce()
      if (session !== this.#session) return
      this.#enter('ready')
    } catch (error) {
      if (session !== this.#session) return
      this.#fell(describeTrouble(error as Error))
      // It may be loading its data.
      setTimeout(() => {
        if (session === this.#session && this.redis.status === 'ready') void this.#greet()
      }, GREET_AGAIN).unref()
    } finally {
      clearTimeout(impatience)
    }
  }

  #greetOnce(): Promise<RedisAnswers> {
    return this.#call(['eval', this.#options.script.text], encodeCall([], GREETING), { asking: false })
  }

  /** @param why absent: the connection was closed, after another error or without one */
  #fell(why?: string): void {
    if (this.#state === 'closed') return
    const reason = why ?? (this.ready ? 'the connection was closed' : this.#trouble)
    const isNews = this.ready || reason !== this.#trouble
    this.#trouble = reason
    // Its errors carry the commands that failed, and those may carry a password.
    if (isNews) this.#options.onError(this.error)
    this.#enter('down')
  }

  /** ioredis gives up if Sentinels name no server. */
  #connectAgain(): void {
    if (this.#state === 'closed') return
    setTimeout(() => {
      if (this.#state !== 'closed' && this.redis.status === 'end') this.redis.connect().catch(() => {})
    }, RECONNECT).unref()
  }

  #enter(state: State): void {
    if (state === this.#state) return
    this.#state = state
    this.#changed.raise()
    this.#changed = signal()
    this.#options.onChange?.()
  }
}

export interface Router {
  /** Instances of equal numbers can be decided on in one step. */
  partitionOf(group: string): number
  /** The partition of other keys, by their tag. */
  partitionOfTag(tag: string): number
  /** The masters, by names that outlive them. As in `Store`. */
  readonly shards: readonly string[] | undefined
  shardOf(group: string): string
  /** The tag of the registry of instances at a shard. */
  registryOf(shard: string): string
  find(partition: number): RedisNode | undefined
  readonly addresses: readonly Address[]
  /** Resolves when a server is known. Undefined: waiting is of no use. */
  readonly pending: Promise<void> | undefined
  horizonOf(partition: number): number
  readonly error: StoreError
  /** A server says where to go instead (MOVED, ASK), or that it is not the one (READONLY, CLUSTERDOWN). */
  redirect(error: Error, partition: number, from: RedisNode): Redirection | undefined
  suspect(partition: number): void
  /** Writes to each server what `send` sends at once. */
  together(send: () => void): void
  close(): void
}

export interface Redirection extends Manner {
  readonly node: RedisNode
}

/** Waits until more is known of a server, or of where one is. @throws if waiting is of no use */
export async function whenKnown({ pending, error }: Pick<Router, 'pending' | 'error'>): Promise<void> {
  if (pending === undefined) throw error
  await pending
}

/** One server, or the master that Sentinels name. */
export function singleRouter(node: RedisNode): Router {
  return {
    addresses: [node.address],
    pending: undefined,
    shards: undefined,
    get error() {
      return node.error
    },
    horizonOf: () => node.horizon,
    partitionOf: () => 0,
    partitionOfTag: () => 0,
    shardOf: () => '',
    registryOf: () => REGISTRY,
    find: () => node,
    redirect({ message }) {
      // There is another master, which Sentinels know.
      if (message.startsWith('READONLY')) node.reconnect('it is a replica')
      return undefined
    },
    suspect: () => node.suspect(),
    together: send => node.together(send),
    close: () => node.close(),
  }
}

/** ms between two attempts to connect, and between two looks at the connection. */
const AGAIN = 250
const LOOK = 1_000
/** A server that has not answered for so many looks is left. */
const MOST_SILENT = 3

export interface SubscriberOptions {
  addresses(): readonly Address[]
  readonly channel: string
  received(message: Buffer): void
}

/** Hears the news on a connection of its own. What is told while it is broken is lost. */
export class Subscriber {
  readonly #options: SubscriberOptions
  #redis: Redis | undefined
  #name = ''
  #attempts = 0
  #silent = 0
  #timer: NodeJS.Timeout | undefined
  readonly #look: NodeJS.Timeout

  constructor(options: SubscriberOptions) {
    this.#options = options
    this.#connect()
    this.#look = setInterval(() => this.#examine(), LOOK).unref()
  }

  close(): void {
    clearInterval(this.#look)
    clearTimeout(this.#timer)
    const redis = this.#redis
    this.#redis = undefined
    redis?.disconnect()
    redis?.stream?.destroy()
  }

  #connect(): void {
    const { addresses, channel, received } = this.#options
    const all = addresses()
    const { name, options } = all[this.#attempts % all.length]!
    this.#attempts += 1
    this.#name = name
    this.#silent = 0
    const never = { retryStrategy: () => null, sentinelRetryStrategy: () => null }
    const redis = new Redis({ ...OPTIONS, ...options, ...never, db: 0, replyMapping: 'legacy' })
    this.#redis = redis
    const over = (): void => {
      if (this.#redis !== redis) return
      redis.stream?.destroy()
      clearTimeout(this.#timer)
      this.#timer = setTimeout(() => this.#connect(), AGAIN).unref()
    }
    // Outages are reported by the connection for decisions.
    redis.on('error', () => {})
    redis.on('end', over)
    redis.on('messageBuffer', (_channel: Buffer, message: Buffer) => received(message))
    redis.connect().then(
      () => redis.subscribe(channel).catch(() => redis.disconnect()),
      () => {},
    )
  }

  #examine(): void {
    const redis = this.#redis
    if (redis?.status !== 'ready') return
    this.#silent += 1
    const isLeft = !this.#options.addresses().some(({ name }) => name === this.#name)
    if (isLeft || this.#silent > MOST_SILENT) return redis.disconnect()
    redis.ping().then(
      () => {
        this.#silent = 0
      },
      () => {},
    )
  }
}
