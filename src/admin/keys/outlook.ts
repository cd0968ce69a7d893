/** What newcomers would meet: how long they would wait, and whether they would be rejected. */
import { decide, placeless, shutOut } from '../../core/admission/decide.js'
import { causeOfWait } from '../../core/admission/predicted-wait.js'
import type { ProxyContext } from '../../proxy/context.js'
import { currentUpstream } from '../../proxy/routing/route.js'
import { upstreamSnapshot, upstreamTrouble } from '../snapshot/troubles.js'
import { heldByOn } from './held-by.js'
import type { RouteOutlook } from './key-state.js'
import type { RouteNewcomer } from './newcomer.js'

/** How long each would wait, in ms. In `meter` nobody does. */
export async function waitsOf(context: ProxyContext, newcomers: readonly RouteNewcomer[]): Promise<number[]> {
  const now = context.clock.now()
  const shaped = newcomers.filter(({ route }) => route.settings.mode === 'shape')
  const waits = await inBreaks(
    context.shaper.exactWaits(shaped.map(({ arrival }) => ({ arrival, pause: arrival.route.gate.shutFor(now) }))),
  )
  const byNewcomer = new Map(shaped.map((newcomer, place) => [newcomer, waits[place]!]))
  return newcomers.map(newcomer => byNewcomer.get(newcomer) ?? 0)
}

export function outlookOf(
  context: ProxyContext,
  { route, arrival, assumed }: RouteNewcomer,
  predictedWaitMs: number,
): RouteOutlook {
  const rejected = rejectionOf(context, { route, arrival, assumed })
  const heldBy = heldByOn({ route, arrival })
  const waitsFor = predictedWaitMs > 0 ? causeText(context, { route, arrival }) : undefined
  return {
    predictedWaitMs: rounded(predictedWaitMs),
    ...(waitsFor !== undefined && { waitsFor }),
    ...(heldBy.length > 0 && { heldBy }),
    assumed,
    ...(rejected && { rejected }),
  }
}

function causeText(
  { clock }: ProxyContext,
  { route, arrival }: Pick<RouteNewcomer, 'route' | 'arrival'>,
): string | undefined {
  const now = clock.now()
  const cause = causeOfWait(arrival, now, arrival.route.gate.shutFor(now))
  if (cause !== 'pause') return cause && `bucket ${cause.limits.name}`
  const { url } = route.upstream.settings
  return `${url} ${upstreamTrouble(upstreamSnapshot(route.upstream, now))?.what ?? 'fails'}`
}

function rejectionOf(context: ProxyContext, { route, arrival }: RouteNewcomer): RouteOutlook['rejected'] {
  const { settings, lane, waits } = route
  const now = context.clock.now()
  const isShaped = settings.mode === 'shape'
  const { breaker } = currentUpstream(route, context.routes)
  if (breaker?.refuses(isShaped))
    return { reason: `${route.upstream.settings.url} fails`, bucket: '', retryAfterMs: rounded(breaker.retryAfter) }
  const patience = typeof settings.patience === 'number' ? settings.patience : waits.patience.longest('', now)
  const longest = Math.min(settings.maxWait, settings.patience === 'none' ? Infinity : patience - waits.service.of(''))
  const rejection = isShaped
    ? decide(arrival, longest, now, lane.gate.shutFor(now))
    : (shutOut(lane.gate, now) ?? decide(arrival, Infinity, now) ?? placeless(arrival))
  if (rejection === undefined) return undefined
  const { reason, buckets, retryAfterMs } = rejection
  const bucket = buckets[0]?.limits.name ?? ''
  return { reason, bucket, ...(retryAfterMs !== undefined && { retryAfterMs: rounded(retryAfterMs) }) }
}

/** To µs. */
export function rounded(ms: number): number {
  return Math.round(ms * 1_000) / 1_000
}

/** Runs a generator to its end. Other work is done in its breaks. */
async function inBreaks<T>(steps: Generator<void, T>): Promise<T> {
  for (let step = steps.next(); ; step = steps.next()) {
    if (step.done) return step.value
    await new Promise(setImmediate)
  }
}
