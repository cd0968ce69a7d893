/** A question of each verb, about a new bucket, instance or upstream. A new verb does not compile until it has one. */
import { IDLE_REPORT, type Store, type StoreVerb } from '../../src/sharing/store.js'
import { type Input, STORE_VERBS } from '../../src/stores/verbs.js'
import { bucket } from './conformance.js'

let names = 0
const name = (): string => `sample ${names++} of ${process.pid}`
const stack = () => [bucket(1, 1_000), bucket(1, 1_000)]

export const SAMPLES: { readonly [V in StoreVerb]: () => Input<V> } = {
  admit: () => [{ stack: stack(), cost: 1, maxWait: Infinity, claim: true }],
  claim: () => [{ stack: stack(), cost: 1, since: 0 }],
  giveBack: () => [{ stack: stack(), cost: 1 }],
  settle: () => [{ stack: stack(), cost: 1 }],
  appoint: () => [{ bucket: bucket(1, 10), cost: 1, more: 2, client: 1, booking: 0, maxWait: Infinity, fit: 0 }],
  lease: () => [
    {
      ...{ ...IDLE_REPORT, bucket: bucket(1, 10), instance: 0.5, largest: 1, want: 1 },
      demand: [{ priority: 3, weight: 1, cost: 1 }],
    },
  ],
  reset: () => [bucket(1, 10)],
  beat: () => [name()],
  leave: () => [name()],
  exchange: () => [name(), { pausedFor: 5_000, rate: 1, rateFor: 1_000 }],
}

/** Asks a store a sample of each verb. */
export function askAll(store: Store): [verb: StoreVerb, ask: () => Promise<unknown>][] {
  return STORE_VERBS.map(verb => [
    verb,
    async () => (store[verb] as (...input: unknown[]) => unknown)(...SAMPLES[verb]()),
  ])
}

/** The names of what an answer has, and the kinds of their values. */
export function shapeOf(answer: unknown): unknown {
  if (Array.isArray(answer)) return answer.map(shapeOf)
  if (typeof answer !== 'object' || answer === null) return typeof answer
  const members = Object.entries(answer).sort(([one], [other]) => (one < other ? -1 : 1))
  return members.map(([name, value]) => [name, name === 'token' ? 'its own' : shapeOf(value)])
}
