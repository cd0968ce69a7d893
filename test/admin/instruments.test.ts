/** The metrics of /metrics as instruments of OpenTelemetry. */
import { readFileSync } from 'node:fs'
import { createNoopMeter, type Meter, type MetricOptions } from '@opentelemetry/api'
import { DataPointType, MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics'
import t from 'tap'
import { ProgramMetrics } from '../../src/admin/counters/metrics.js'
import { httpUpstream, turns } from '../proxy/harness.js'
import { startAdminRig } from './rig.js'

const CONFIG = {
  buckets: { client: { key: 'all', rate: '10/s', capacity: 3 } },
  routes: [{ name: 'api', match: { path: '/api/*' }, priority: 1 }],
}
/** They change from one look to the next. */
const RESTLESS = /^process_(cpu|resident)|^shaper_event_loop_lag/

/** One that is read when it is told to. */
class Reader extends MetricReader {
  protected async onForceFlush() {}
  protected async onShutdown() {}
}

type Shown = Record<string, number>

/** By the names and labels that /metrics has. */
async function exported(reader: Reader): Promise<Shown> {
  const shown: Shown = {}
  const { resourceMetrics, errors } = await reader.collect()
  t.same(errors, [])
  for (const { metrics } of resourceMetrics.scopeMetrics)
    for (const { descriptor, dataPointType, dataPoints } of metrics)
      for (const { attributes, value } of dataPoints) {
        if (dataPointType !== DataPointType.HISTOGRAM) {
          shown[lineOf(descriptor.name, attributes)] = value as number
          continue
        }
        const { buckets, count, sum } = value as {
          buckets: { boundaries: number[]; counts: number[] }
          count: number
          sum: number
        }
        shown[lineOf(`${descriptor.name}_sum`, attributes)] = sum
        shown[lineOf(`${descriptor.name}_count`, attributes)] = count
        let below = 0
        for (const [place, inIt] of buckets.counts.entries()) {
          below += inIt
          const le = buckets.boundaries[place] ?? '+Inf'
          shown[lineOf(`${descriptor.name}_bucket`, { ...attributes, le })] = below
        }
      }
  return shown
}

function lineOf(name: string, labels: object): string {
  const pairs = Object.entries(labels).map(([label, value]) => `${label}=${value}`)
  return `${name} ${pairs.sort().join()}`
}

t.test('each metric has an instrument of its name, kind and unit, and no instrument is beside them', async t => {
  const made: Record<string, { kind: string; unit: string | undefined; bounds: number[] | undefined }> = {}
  const note = (kind: string) => (name: string, options: MetricOptions) => {
    made[name] = { kind, unit: options.unit, bounds: options.advice?.explicitBucketBoundaries }
    t.ok(options.description, name)
    return (createNoopMeter() as never as Record<string, (name: string) => unknown>)[kind]!(name)
  }
  const noting = new Proxy(createNoopMeter(), {
    get: (meter, name: keyof Meter) => (name.startsWith('create') ? note(name) : meter[name].bind(meter)),
  })
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, ...CONFIG }, {}, noting)
  const program = new ProgramMetrics('0.0.0', noting)
  const metrics = [...(await rig.source.metrics()).flat(), ...(await program.values())]
  const kinds: Record<string, string> = {
    counter: 'createObservableCounter',
    gauge: 'createObservableGauge',
    histogram: 'createHistogram',
  }
  t.ok(metrics.length > 25)
  t.same(
    Object.fromEntries(Object.entries(made).map(([name, { kind }]) => [name, kind])),
    Object.fromEntries(metrics.map(({ name, type }) => [name, kinds[type]])),
  )
  for (const [name, { unit }] of Object.entries(made)) {
    const wanted = name.includes('_seconds') ? 's' : name.endsWith('_bytes') ? 'By' : undefined
    t.equal(unit, wanted, name)
  }
  const document = readFileSync('docs/operating.md', 'utf8')
  const [, combined = ''] = /`\/metrics` has their sums;(.*?)Combine them so/s.exec(document)!
  t.same(
    [...combined.matchAll(/`(\w+)`/g)].map(([, name]) => name).sort(),
    metrics
      .filter(({ aggregator }) => aggregator !== 'sum')
      .map(({ name }) => name)
      .sort(),
    'the document names all that are no sums with workers',
  )
})

t.test('all values are those of /metrics', async t => {
  const reader = new Reader()
  const meter = new MeterProvider({ readers: [reader] }).getMeter('test')
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, ...CONFIG }, {}, meter)
  const program = new ProgramMetrics('0.0.0', meter)
  program.reloaded('failed')
  const ask = async () => (await fetch(`${rig.proxy.url}/api/a`)).status
  const some = [ask(), ask(), ask(), ask()]
  while ((await rig.snapshot()).queued < 2) await turns()
  rig.pacer.runUntil(1_000)
  t.same((await Promise.all(some)).sort(), [200, 200, 200, 429])
  t.equal((await fetch(rig.proxy.url)).status, 404)
  const compare = async () => {
    const wanted: Shown = {}
    for (const { type, name, values } of [...(await rig.source.metrics()).flat(), ...(await program.values())])
      for (const { value, labels, ...rest } of values) {
        // /metrics has zeros of those without labels. Their instruments appear with the first value.
        if (type === ('histogram' as never) && name === 'shaper_store_seconds') continue
        wanted[lineOf((rest as { metricName?: string }).metricName ?? name, labels)] = value
      }
    const got = await exported(reader)
    t.same(Object.keys(got).sort(), Object.keys(wanted).sort())
    const calm = (shown: Shown) => Object.fromEntries(Object.entries(shown).filter(([line]) => !RESTLESS.test(line)))
    t.same(calm(got), calm(wanted))
    return got
  }
  const first = await compare()
  t.equal(first['shaper_requests_total outcome=forwarded,route=api'], 3)
  t.equal(first['shaper_queue_wait_seconds_bucket le=0.1,route=api'], 2)
  t.equal(first['shaper_queue_wait_seconds_count route=api'], 3)
  t.equal(first['shaper_config_reloads_total result=failed'], 1)
  t.equal(await ask(), 200)
  const second = await compare()
  t.equal(second['shaper_priority_wait_seconds_count priority=1'], 4)
})
