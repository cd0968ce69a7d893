/**
 * Hears the news on a connection of its own. It is opened again whenever it breaks, does not answer, or leads to a server
 * that has left the cluster. What is told meanwhile is lost.
 */
import { Redis } from 'ioredis'
import type { Address } from './address.js'
import { OPTIONS } from './node.js'

/** ms between two attempts to connect, and between two looks at the connection. */
const AGAIN = 250
const LOOK = 1_000
/** A server that has not answered for so many looks is left. */
const MOST_SILENT = 3

export interface SubscriberOptions {
  /** Where to listen: at any of these. There is at least one. */
  addresses(): readonly Address[]
  readonly channel: string
  received(message: Buffer): void
}

export class Subscriber {
  readonly #options: SubscriberOptions
  #redis: Redis | undefined
  #name = ''
  /** How many connections were opened. */
  #attempts = 0
  /** How many looks ago the server answered. */
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
    const redis = new Redis({
      ...OPTIONS,
      ...options,
      db: 0,
      replyMapping: 'legacy',
      retryStrategy: () => null,
      sentinelRetryStrategy: () => null,
    })
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
