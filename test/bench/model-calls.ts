/**
 * Concurrent calls of a model API, whose answers have lengths that nobody knows before. The virtual clock, and an API that
 * only counts: it says by how much its limits would have been exceeded, each call counted with its true tokens.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { createVirtualClock } from '../../src/core/clock.js'
import { ClearedError, createShaper } from '../../src/index.js'
// @ts-expect-error: it has no declarations
import { random, worstLevel, worstWindow } from './statistics.js'

/** The limits of the API, for each minute. */
const LIMITS = { requests: 500, tokens: 30_000 }

const MINUTE = 60_000

export const MINUTES = 5

/** Each makes one call after the other. */
const CALLERS = 100

/** The true tokens of a call are spread evenly between these. */
export const TOKENS = { least: 50, most: 550 }

/** ms until an answer: this, and more for each token. */
const LATENCY = 500
const MS_PER_TOKEN = 10

export interface ModelCalls {
  /** Of the limits, what the client says: 0 to 1. */
  readonly margin: number
  /** What may leave without spacing, in tokens. Undefined: one call. */
  readonly burst?: number | undefined
  /** Tokens that are reserved for each call. */
  readonly estimate: number
  /** Whether the true tokens are told. Absent: they are. */
  readonly charges?: boolean
  readonly seed?: number
}

export interface Use {
  readonly calls: number
  /** True tokens of the calls that were sent, as a part of what the limit allows in that time. */
  readonly used: number
  /** The most tokens in any minute above the limit, each call counted when it was sent. Negative: below. */
  readonly overMinute: number
  /** The same, each call counted at its answer. */
  readonly overAnswered: number
  /** The most above a bucket of one minute's tokens that refills evenly. Negative: below. */
  readonly overBucket: number
  /** The most requests in any minute above the limit. */
  readonly overRequests: number
}

interface Entry {
  readonly at: number
  readonly cost: number
}

export async function modelCalls(options: ModelCalls): Promise<Use> {
  const { margin, burst, estimate, charges = true, seed = 1 } = options
  const { least, most } = TOKENS
  const clock = createVirtualClock()
  const shaper = createShaper({
    buckets: {
      requests: { rate: (LIMITS.requests * margin) / 60 },
      tokens: { rate: (LIMITS.tokens * margin) / 60, ...(burst !== undefined && { burst }) },
    },
    clock,
  })
  const draw = random(seed)
  const sent: Entry[] = []
  const answered: Entry[] = []
  const end = MINUTES * MINUTE
  async function caller(): Promise<void> {
    while (clock.now() < end) {
      const tokens = Math.round(least + draw() * (most - least))
      await shaper.run(
        'model',
        ({ charge }) => {
          sent.push({ at: clock.now(), cost: tokens })
          return new Promise<void>(resolve => {
            clock.at(clock.now() + LATENCY + tokens * MS_PER_TOKEN, () => {
              answered.push({ at: clock.now(), cost: tokens })
              if (charges) charge({ tokens })
              resolve()
            })
          })
        },
        { cost: { requests: 1, tokens: estimate } },
      )
    }
  }
  for (let at = 0; at < CALLERS; at += 1) {
    caller().catch((error: unknown) => {
      if (!(error instanceof ClearedError)) throw error
    })
  }
  // Promises settle at least every 20 ms of virtual time.
  while (clock.now() < end) {
    clock.runUntil(clock.now() + 20)
    await turn()
  }
  // Calls that wait would keep the process alive.
  await shaper.clear()
  const counted = sent.filter(({ at }) => at <= end)
  return {
    calls: counted.length,
    used: counted.reduce((sum, { cost }) => sum + cost, 0) / (LIMITS.tokens * MINUTES),
    overMinute: worstWindow(sent, LIMITS.tokens, MINUTE),
    overAnswered: worstWindow(answered, LIMITS.tokens, MINUTE),
    overBucket: worstLevel(sent, LIMITS.tokens, MINUTE),
    overRequests: worstWindow(
      sent.map(({ at }) => ({ at, cost: 1 })),
      LIMITS.requests,
      MINUTE,
    ),
  }
}
