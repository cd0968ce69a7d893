/** Tells of single keys with the data of an admin server: of one key all that is known, or which keys have a text in them. */
import type { KeyState, RouteOutlook } from '../../admin/keys/key-state.js'
import type { KeySearch } from '../../admin/keys/search.js'
import { durationText } from '../../core/units.js'
import { CommandError } from '../command.js'
import { aligned, cellText, decimal, listedRate, listedWait, oldestText } from '../text.js'
import { adminAddress, askAdmin } from './admin-client.js'

/** Characters of a key that are shown. No key is longer. */
const LONGEST = 128
/** Characters of a text about an upstream. It may have chosen the words. */
const LONGEST_CAUSE = 400

export interface KeyFlags {
  admin: string
  json?: boolean
}

/**
 * @param args the name of a bucket and the parts of a key, or a text that keys are searched for
 * @throws ConfigError when `--admin` is no URL
 * @throws CommandError when the admin server does not answer, or refuses, or no key has the text
 */
export async function runKey(
  [nameOrText, ...parts]: readonly [string, ...string[]],
  { admin, json = false }: KeyFlags,
  { env, stdout }: { readonly env: NodeJS.ProcessEnv; readonly stdout: NodeJS.WritableStream },
): Promise<void> {
  const address = adminAddress(admin, env)
  const write = (answer: object, lines: readonly string[]): void =>
    void stdout.write(json ? `${JSON.stringify(answer)}\n` : `${lines.join('\n')}\n`)
  if (parts.length === 0) {
    const path = `/buckets?q=${encodeURIComponent(nameOrText)}`
    const found = await askAdmin<KeySearch>(address, path, ({ buckets }) => Array.isArray(buckets))
    if (json || found.buckets.length > 0) write(found, searchLines(found))
    if (found.buckets.length === 0) throw new CommandError('no key has this text or this hash')
    return
  }
  const path = `/buckets/${encodeURIComponent(nameOrText)}/${encodeURIComponent(parts.join('\n'))}`
  const state = await askAdmin<KeyState>(address, path, ({ recent }) => Array.isArray(recent))
  write(state, keyLines(state))
}

export function keyLines(state: KeyState): string[] {
  const { bucket, key, hash, tier, outside, level, capacity, burst, rate, quotaEnds } = state
  const { waiting, oldestMs, inFlight, predictedWaitMs, override, heldBy = [] } = state
  const bursts = burst === undefined ? '' : `, bursts of ${decimal(burst)}`
  return [
    `${bucket}: ${cellText(key, LONGEST)} (${hash} in the log)${tier === undefined ? '' : `, tier ${tier}`}${outside ? ', limits of its own' : ''}`,
    `level ${decimal(level)} of ${capacity === null ? 'any amount' : decimal(capacity)}, ${rate === null ? '' : 'rate '}${listedRate(rate, quotaEnds)}${bursts}; ` +
      `${waiting} waiting${oldestText(oldestMs)}, ${inFlight} in flight${blockText(state)}`,
    `a newcomer waits ${listedWait(predictedWaitMs, heldBy)}`,
    ...causeLines(state),
    ...(override === undefined ? [] : [overrideText(override)]),
    ...routeLines(Object.entries(state.routes)),
    ...recentLines(state),
  ]
}

function causeLines({ routes, heldBy }: KeyState): string[] {
  const [longest] = Object.values(routes).toSorted((a, b) => b.predictedWaitMs - a.predictedWaitMs)
  const causes = heldBy ?? (longest?.waitsFor === undefined ? [] : [longest.waitsFor])
  return causes.map(cause => `because: ${cellText(cause, LONGEST_CAUSE)}`)
}

function blockText({ blockedMs }: KeyState): string {
  if (blockedMs === undefined) return ''
  return blockedMs < 0 ? '; blocked until empty' : `; blocked for ${durationText(blockedMs)}`
}

function overrideText({ rate, capacity, until }: NonNullable<KeyState['override']>): string {
  const limits = [
    ...(rate === undefined ? [] : [`rate ${decimal(rate)}/s`]),
    ...(capacity === undefined ? [] : [`capacity ${decimal(capacity)}`]),
  ]
  return `overridden until ${until}: ${limits.join(', ')}`
}

function routeLines(routes: readonly (readonly [name: string, outlook: RouteOutlook])[]): string[] {
  if (routes.length === 0) return []
  const rows = routes.map(([name, { predictedWaitMs, heldBy, rejected, assumed }]) => [
    cellText(name),
    listedWait(predictedWaitMs, heldBy),
    rejected === undefined ? '' : rejectionText(rejected),
    assumed.join(', '),
  ])
  return ['', ...aligned([['route', 'a newcomer waits', 'is rejected', 'buckets of unknown key'], ...rows])]
}

function rejectionText({ reason, bucket, retryAfterMs }: NonNullable<RouteOutlook['rejected']>): string {
  const by = bucket === '' ? '' : ` of ${bucket}`
  return `${reason}${by}${retryAfterMs === undefined ? '' : `, again in ${durationText(retryAfterMs)}`}`
}

function recentLines({ recent }: KeyState): string[] {
  if (recent.length === 0) return []
  const rows = recent
    .toReversed()
    .map(({ at, route, outcome, status, waitMs, upstreamMs, reason, bucket }) => [
      new Date(at).toISOString(),
      cellText(route),
      reason === undefined ? outcome : `${outcome}: ${reason}${bucket ? ` of ${bucket}` : ''}`,
      status,
      durationText(waitMs),
      upstreamMs === undefined ? '' : durationText(upstreamMs),
    ])
  return ['', ...aligned([['latest requests', 'route', 'outcome', 'status', 'held', 'answered in'], ...rows])]
}

function searchLines({ buckets }: KeySearch): string[] {
  const rows = buckets.flatMap(({ name, fullest }) =>
    fullest.map(({ key, level, capacity, waiting, predictedWaitMs, heldBy }) => [
      name,
      cellText(key, LONGEST),
      `${decimal(level)}/${capacity === null ? 'any' : decimal(capacity)}`,
      waiting,
      listedWait(predictedWaitMs, heldBy),
    ]),
  )
  const more = buckets.flatMap(({ name, hasMore }) =>
    hasMore ? [`${name} has more of them: write more of the key`] : [],
  )
  return [...aligned([['bucket', 'key', 'level', 'waiting', 'a newcomer waits'], ...rows]), ...more]
}
