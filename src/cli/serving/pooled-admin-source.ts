/** The data of the admin server when several workers serve: that of all of them together. */
import type { Worker } from 'node:cluster'
import { AggregatorRegistry, type MetricObjectWithValues, type MetricValue } from 'prom-client'
import { type KeyState, mergeKeyStates } from '../../admin/keys/key-state.js'
import { mergeSearches } from '../../admin/keys/search.js'
import type { AdminSource } from '../../admin/server.js'
import { mergeSnapshots, mergeWatched } from '../../admin/snapshot/merge-snapshots.js'
import type { View } from '../../sharing/board.js'
import type { Asked, Question } from './worker-protocol.js'

type Metrics = MetricObjectWithValues<MetricValue<string>>[]

export interface AskedWorkers {
  /** The answer of each ready worker; undefined: it did not answer in time. */
  question<Answer>(question: Question): Promise<ReadonlyMap<Worker, Answer | undefined>>
  questionOne<Answer>(question: Question): Promise<Answer | undefined>
}

/** Null stands for undefined. */
type AnswerTo<About extends Asked> =
  | Exclude<Awaited<ReturnType<AdminSource[About]>>, undefined>
  | (undefined extends Awaited<ReturnType<AdminSource[About]>> ? null : never)

/** Metrics that only grow. If they fell when a worker ends, a scraper would see a restart. */
const CUMULATIVE = new Set(['counter', 'histogram'])

export function createPooledAdminSource(workers: AskedWorkers): AdminSource {
  /** The last metrics of each running worker. */
  const last = new Map<Worker, Metrics>()
  /** The sums of ended workers, as of the last time they were asked. */
  let ended: Metrics = []

  async function all<About extends Asked>(about: About, ...given: Parameters<AdminSource[About]>) {
    const answers = [...(await workers.question<AnswerTo<About>>({ about, given } as Question)).values()]
    const told = answers.filter(answer => answer !== undefined)
    if (told.length === 0 || told.length < answers.length) throw new Error('a worker does not answer')
    return told
  }

  async function one<About extends Asked>(about: About, ...given: Parameters<AdminSource[About]>) {
    const answer = await workers.questionOne<AnswerTo<About>>({ about, given } as Question)
    if (answer === undefined) throw new Error('a worker does not answer')
    return answer
  }

  async function keyOf(bucket: string, key: string): Promise<KeyState | undefined> {
    const states = (await all('key', bucket, key)).filter(state => state !== null)
    return states.length === 0 ? undefined : mergeKeyStates(states)
  }

  return {
    members: async () => (await all('members')).flat(),
    hours: async () => (await all('hours')).flat(),
    views: async kind => (await workers.questionOne<readonly View[]>({ about: 'views', given: [kind] })) ?? [],
    snapshot: async () => mergeSnapshots(await all('snapshot')),
    async ready() {
      const parts = await all('ready')
      return { draining: parts.every(({ draining }) => draining), admits: parts.some(({ admits }) => admits) }
    },
    async metrics() {
      const answers = await workers.question<Metrics[]>({ about: 'metrics', given: [] })
      for (const [worker, metrics] of last) {
        if (answers.has(worker)) continue
        last.delete(worker)
        ended = await aggregate([ended, metrics.filter(({ type }) => CUMULATIVE.has(String(type)))])
      }
      const present: Metrics[] = []
      for (const [worker, given] of answers) {
        if (given === undefined) throw new Error('a worker does not answer')
        const [metrics = []] = given
        last.set(worker, metrics)
        present.push(metrics)
      }
      if (present.length === 0) throw new Error('no worker answers')
      return ended.length === 0 ? present : [...present, ended]
    },
    async whyNoKey(bucket, key) {
      const reasons = await all('whyNoKey', bucket, key)
      return reasons.includes(null) ? undefined : reasons[0]!
    },
    key: (bucket, key) => keyOf(bucket, key),
    async watch(bucket, key) {
      const parts = await all('watch', bucket, key)
      return mergeWatched(parts.filter(part => part !== null))
    },
    search: async text => mergeSearches(await all('search', text)),
    async override(change) {
      return (await one('override', change)) ?? undefined
    },
    overrides: () => one('overrides'),
    deliveries: async order => (await one('deliveries', order)) ?? undefined,
    // The others hear of it, and tell that one what waits.
    reset: async (bucket, key) => (await one('reset', bucket, key)) ?? undefined,
  }
}

function aggregate(parts: readonly Metrics[]): Promise<Metrics> {
  const list = parts.filter(({ length }) => length > 0)
  if (list.length < 2) return Promise.resolve(list[0] ?? [])
  // The types of the library do not allow the values of different kinds of metrics.
  return AggregatorRegistry.aggregate(list as never).getMetricsAsJSON()
}
