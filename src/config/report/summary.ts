import { adaptedUpstreams } from '../derived/adapted-upstreams.js'
import type { Settings } from '../settings.js'
import { exactRate } from './exact-units.js'
import { type LongestWait, longestWaitOf, longestWaits, longestWaitText } from './longest-waits.js'

/** How many buckets one line names. */
const NAMED = 8

/** What the limits are, and how long they let requests wait: one line each. */
export function summary(settings: Settings): string[] {
  return [`limits: ${limitsText(settings)}`, `longest wait: ${waitText(settings)}`]
}

function limitsText(settings: Settings): string {
  const limited = settings.routes.filter(({ mode }) => mode !== 'off')
  const used = new Set(limited.flatMap(({ buckets }) => buckets.map(({ name }) => name)))
  const adapted = adaptedUpstreams(limited.map(({ upstream }) => upstream))
  const all = [
    ...longestWaits(settings)
      .filter(({ name }) => used.has(name))
      .map(limitText),
    ...[...adapted.values()].map(({ name, targets: { min, max } }) => `${name} ${exactRate(min)} to ${exactRate(max)}`),
  ]
  if (all.length === 0) return 'none, every request is forwarded at once'
  const named = all.length > NAMED ? [...all.slice(0, NAMED), `${all.length - NAMED} more`] : all
  const isDry = limited.every(({ dryRun }) => dryRun)
  return `${named.join('; ')}${isDry ? ' (a dry run: nothing is held or rejected)' : ''}`
}

function limitText({
  name,
  rate,
  capacity,
  burst,
  tiers,
}: LongestWait & { readonly tiers: readonly unknown[] }): string {
  const parts = [`${name} ${rate}`]
  if (capacity < Infinity) parts.push(`capacity ${capacity}`)
  if (burst !== undefined) parts.push(`burst ${burst}`)
  if (tiers.length > 0) parts.push(`${tiers.length} tier${tiers.length === 1 ? '' : 's'}`)
  return parts.join(', ')
}

function waitText({ routes }: Settings): string {
  const [longest] = routes
    .filter(({ mode, dryRun }) => mode === 'shape' && !dryRun)
    .map(route => ({ route, wait: Math.min(route.maxWait, longestWaitOf(route)) }))
    .sort((one, other) => other.wait - one.wait)
  return longest === undefined
    ? 'none, no route holds requests'
    : `${longestWaitText(longest.route)}, of route ${longest.route.name}`
}
