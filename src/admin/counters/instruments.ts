/**
 * The metrics of Prometheus as instruments of OpenTelemetry. The registry is the only list of them. Names stay as they are
 * (https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics, "Prometheus Metric points to OTLP").
 */
import type { Meter, MetricOptions, Observable } from '@opentelemetry/api'
import { Counter, Histogram, type Registry } from 'prom-client'

/** prom-client's types do not name them. */
interface Bounded {
  readonly upperBounds: number[]
}

/** Units by the last word of a name. */
const UNITS: readonly (readonly [name: RegExp, unit: string])[] = [
  [/_seconds(_total)?$/, 's'],
  [/_bytes$/, 'By'],
]

/** Makes an instrument of each metric. Counters and gauges are read when they are exported, histograms are recorded twice. */
export function makeInstruments(registry: Registry, meter: Meter): void {
  const observed = new Map<string, Observable>()
  for (const metric of registry.getMetricsAsArray()) {
    const { name, help } = metric
    const unit = UNITS.find(([pattern]) => pattern.test(name))?.[1]
    const options = { description: help, ...(unit !== undefined && { unit }) }
    if (metric instanceof Histogram) recordToo(metric, meter, options)
    else
      observed.set(
        name,
        metric instanceof Counter
          ? meter.createObservableCounter(name, options)
          : meter.createObservableGauge(name, options),
      )
  }
  const observables = [...observed.values()]
  meter.addBatchObservableCallback(async result => {
    for (const { name, values } of await registry.getMetricsAsJSON()) {
      const instrument = observed.get(name)
      if (instrument === undefined) continue
      for (const { labels, value } of values) result.observe(instrument, value, labels)
    }
  }, observables)
}

/** There are no histograms that are read. Without an SDK nothing of this is in the way of a request. */
function recordToo(metric: { readonly name: string } & Histogram, meter: Meter, options: MetricOptions): void {
  const { upperBounds } = metric as unknown as Bounded
  const advice = { explicitBucketBoundaries: [...upperBounds] }
  const histogram = meter.createHistogram(metric.name, { ...options, advice })
  const observe = metric.observe.bind(metric)
  metric.observe = ((labels: Record<string, string>, value: number): void => {
    observe(labels, value)
    histogram.record(value, labels)
  }) as typeof metric.observe
}
