/** What an OpenTelemetry SDK gets that is loaded (`node --import`): spans of requests, and the metrics. */
import type { Meter } from '@opentelemetry/api'
import type { Logger } from 'pino'
import type { Clock } from '../../core/clock.js'
import { packageVersion } from '../command.js'
import type { Tracing } from './tracing.js'

/** Every copy of OpenTelemetry's API, version 1, keeps here what an SDK has given it. Reading it here needs no copy of the API. */
const OPEN_TELEMETRY = Symbol.for('opentelemetry.js.api.1')
/** How long the last spans and metrics may take to leave at the end, in ms. */
const FLUSH = 1_000

interface Given {
  readonly version?: string
  readonly trace?: object
  readonly metrics?: object
}

/** What an SDK's provider has besides the API. */
interface Provider {
  forceFlush?(): Promise<void>
}

function given(): Given {
  return (globalThis as { [OPEN_TELEMETRY]?: Given })[OPEN_TELEMETRY] ?? {}
}

/** Undefined: no SDK for traces is loaded. */
export async function findTracing(clock: Clock, log: Pick<Logger, 'warn'>): Promise<Tracing | undefined> {
  if (given().trace === undefined) return undefined
  const tracing = (await import('./tracing.js')).Tracing.create(clock)
  if (tracing === undefined) log.warn(`no traces: ${tooOld()}`)
  return tracing
}

/** Undefined: no SDK for metrics is loaded. */
export async function findMeter(log: Pick<Logger, 'warn'>): Promise<Meter | undefined> {
  if (given().metrics === undefined) return undefined
  const { createNoopMeter, metrics } = await import('@opentelemetry/api')
  const meter = metrics.getMeter('leaky-shaper', packageVersion())
  if (meter !== createNoopMeter()) return meter
  log.warn(`no metrics for OpenTelemetry: ${tooOld()}`)
  return undefined
}

function tooOld(): string {
  return `the OpenTelemetry SDK has version ${given().version} of @opentelemetry/api, which is too old`
}

/** Resolves when the SDK has sent what it has, or takes too long. */
export async function flushTelemetry(): Promise<void> {
  if (given().trace === undefined && given().metrics === undefined) return
  const { metrics, trace } = await import('@opentelemetry/api')
  const traced = trace.getTracerProvider() as Provider & { getDelegate?(): Provider }
  const providers: Provider[] = [traced.getDelegate?.() ?? traced, metrics.getMeterProvider() as Provider]
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>(resolve => {
    timer = setTimeout(resolve, FLUSH)
  })
  const flushed = Promise.allSettled(providers.map(async provider => provider.forceFlush?.()))
  await Promise.race([flushed, late])
  clearTimeout(timer)
}
