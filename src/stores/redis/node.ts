/**
 * One connection to one Redis server, with that server's clock and round trip.
 *
 * Nothing is sent before the server's time is known. Without it a call has no deadline by the server's clock, and a delayed
 * call would be carried out when nobody waits for it. Nothing is sent twice: a call that was on its way when the connection
 * broke may have been carried out.
 */
import { Redis, type RedisOptions } from 'ioredis'
import type { Clock } from '../../core/clock.js'
import { StoreError } from '../../core/store.js'
import { Offset } from '../clock-offset.js'
import { describeTrouble } from '../describe-error.js'
import { RoundTrip } from '../round-trip.js'
import type { Address } from './address.js'
import { Answer, encodeCall, GREETING, type RedisOperation, type Script } from './wire.js'

/** ms */
const CONNECT = 1_000
const RECONNECT = 250
const GREET_AGAIN = 100
/** ms. A server that was asked and is silent for longer is asked on another connection. */
const SILENCE = 1_000
/** ms. If our estimate of its clock is further ahead, that clock was set. */
const SLACK = 50

/** Calls that may be on their way. */
const MOST = 1_000

export const OPTIONS: RedisOptions = {
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
  /** It has become ready, or has ceased to be. */
  onChange?(): void
}

/** How a server is asked. */
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
  /** Which connection this is. */
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

  /** It was tried, and does not answer. */
  get down(): boolean {
    return this.#state === 'down'
  }

  /** How far ahead a slot may be claimed, in ms. */
  get horizon(): number {
    return this.#roundTrip.horizon
  }

  /** About how late moments of its clock are by ours, in ms. */
  get lateness(): number {
    return this.#offset.lateness
  }

  /** A moment of the server's clock by ours, in ms. Infinity: nothing is known of its clock. */
  ours(theirs: number): number {
    return this.#offset.ours(theirs)
  }

  /** Resolves when it is known whether it is ready. Undefined: it is known. */
  get pending(): Promise<void> | undefined {
    return this.#state === 'connecting' ? this.#changed.promise : undefined
  }

  /** Why it is not ready. */
  get error(): StoreError {
    return new StoreError(`Redis at ${this.name}: ${this.#trouble}`)
  }

  /**
   * Has operations carried out, unless they arrive later than `deadline`, by our clock.
   *
   * @throws the server's error, or that the connection broke
   */
  async carryOut(operations: readonly RedisOperation[], deadline: number, manner: Manner): Promise<Answer> {
    if (this.#unanswered >= MOST) throw new Error(`${MOST} calls are on their way`)
    const offset = this.#offset
    const earliest = offset.theirs(this.#options.clock.now()) - SLACK
    const terms = {
      deadline: offset.theirs(deadline),
      earliest,
      horizon: this.horizon,
      back: this.#roundTrip.back,
      theirs: (ours: number) => offset.theirs(ours),
    }
    const input = encodeCall(operations, terms)
    try {
      return await this.#call(['evalsha', this.#options.script.sha], input, manner)
    } catch (error) {
      if (!(error as Error).message.startsWith('NOSCRIPT')) throw error
      return await this.#call(['eval', this.#options.script.text], input, manner)
    }
  }

  /** Writes what `send` sends at once. */
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
  ): Promise<Answer> {
    const { clock } = this.#options
    const session = this.#session
    const sent = clock.now()
    if (this.#unanswered === 0) this.#silentSince = sent
    this.#unanswered += 1
    try {
      if (asking) this.redis.asking().catch(() => {})
      const reply = await this.redis.callBuffer(command, [script, ...input])
      const received = clock.now()
      if (session !== this.#session) throw new Error('another connection has taken its place')
      const offset = this.#offset
      const answer = new Answer(reply, theirs => offset.ours(theirs))
      offset.learn(sent, received, answer.time)
      if (answer.status === 'done') this.#roundTrip.learn(received - sent, received - offset.ours(answer.time))
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

  #greetOnce(): Promise<Answer> {
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
