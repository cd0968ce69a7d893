import type { Worker } from 'node:cluster'
import type { MetricObjectWithValues, MetricValue } from 'prom-client'
import { AggregatorRegistry, Counter, Gauge, Registry } from 'prom-client'
import t from 'tap'
import { createPooledAdminSource } from '../../src/cli/serving/pooled-admin-source.js'

type Metrics = MetricObjectWithValues<MetricValue<string>>[]

/** Workers that have counted so much. */
function world(counts: (number | undefined)[]) {
  const workers = counts.map(() => ({}) as Worker)
  const up = new Set(workers)
  const metricsOf = async (count: number): Promise<Metrics> => {
    const registry = new Registry()
    new Counter({ name: 'total', help: 'x', registers: [registry] }).inc(count)
    new Gauge({ name: 'now', help: 'x', registers: [registry] }).set(count)
    return registry.getMetricsAsJSON() as Promise<Metrics>
  }
  const source = createPooledAdminSource({
    async question<Told>() {
      const told = new Map<Worker, Told | undefined>()
      for (const [place, worker] of workers.entries()) {
        const count = counts[place]
        if (up.has(worker)) told.set(worker, count === undefined ? undefined : ([await metricsOf(count)] as Told))
      }
      return told
    },
    questionOne: async () => undefined,
  })
  const read = async (name: string): Promise<number> => {
    const text = await AggregatorRegistry.aggregate((await source.metrics()) as never).metrics()
    return Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)![1])
  }
  return { counts, read, end: (place: number) => up.delete(workers[place]!), source }
}

t.test('the counts of a worker stay after its end; its queue does not', async t => {
  const { read, end, counts } = world([10, 5, 1])
  t.equal(await read('total'), 16)
  t.equal(await read('now'), 16)
  end(0)
  counts[1] = 7
  t.equal(await read('total'), 18)
  t.equal(await read('now'), 8)
  end(1)
  t.equal(await read('total'), 18)
  t.equal(await read('total'), 18)
  t.equal(await read('now'), 1)
})

t.test('while one worker is silent there is no snapshot rather than a partial one', async t => {
  const { source, counts, read } = world([10, 5])
  counts[1] = undefined
  await t.rejects(source.metrics(), { message: 'a worker does not answer' })
  await t.rejects(source.snapshot(), { message: 'a worker does not answer' })
  counts[1] = 6
  t.equal(await read('total'), 16)
  await t.rejects(world([]).source.metrics(), { message: 'no worker answers' })
})
