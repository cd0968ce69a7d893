// @ts-check
/** Compares the counts of clients, proxy and upstream. */
import { REPEATABLE, SEEN } from './ledger.js'

/** The allowed growth of memory. */
const GROWTH = 1.1

export const OUTCOMES = ['forwarded', 'rejected', 'cancelled', 'expired', 'failed', 'refused']

/** @param {Map<string, number>} metrics @param {string} route @param {string} outcome */
function counted(metrics, route, outcome) {
  return (
    metrics.get(`shaper_requests_total{route="${route}",outcome="${outcome}"}`) ??
    metrics.get(`shaper_requests_total{outcome="${outcome}",route="${route}"}`) ??
    0
  )
}

/**
 * By route: each request was counted once, with an outcome that its client knows or allows.
 *
 * @param {Record<string, import('./ledger.js').Entry>} entries @param {Map<string, number>} metrics
 * @returns {string[]} what does not hold
 */
export function compareOutcomes(entries, metrics) {
  const reasons = []
  const all = { counted: 0, begun: 0, perhaps: 0 }
  const strays = Object.values(entries).reduce((sum, { ahead }) => sum + ahead, 0)
  for (const [route, { known, unsure, perhaps: doubted, ahead }] of Object.entries(entries)) {
    const sum = OUTCOMES.reduce((total, outcome) => total + counted(metrics, route, outcome), 0)
    const begun = total(known) + total(unsure)
    const perhaps = doubted + ahead + (route === '(none)' ? strays : 0)
    all.counted += sum
    all.begun += begun
    // Nobody counts a pipelined request that was not reached.
    all.perhaps += doubted + ahead
    if (!isWithin(sum, begun, begun + perhaps)) {
      const range = perhaps === 0 ? begun : `${begun} to ${begun + perhaps}`
      reasons.push(`route ${route}: clients began ${range} requests, ${sum} were counted`)
    }
    for (const outcome of OUTCOMES) {
      const { least, most } = rangeOf(outcome, { known, unsure, perhaps })
      const count = counted(metrics, route, outcome)
      if (!isWithin(count, least, most)) {
        reasons.push(`route ${route}: ${count} were counted as ${outcome}, clients know of ${least} to ${most}`)
      }
    }
  }
  if (!isWithin(all.counted, all.begun, all.begun + all.perhaps)) {
    reasons.push(`clients began ${all.begun} to ${all.begun + all.perhaps} requests, ${all.counted} were counted`)
  }
  return [...reasons, ...unexpected(entries, metrics)]
}

/** @param {Record<string, unknown>} entries @param {Map<string, number>} metrics @returns {string[]} counts of unknown routes */
function unexpected(entries, metrics) {
  const strange = [...metrics.keys()].filter(line => {
    const [, route] = /^shaper_requests_total\{.*route="([^"]*)"/.exec(line) ?? []
    return route !== undefined && entries[route] === undefined && metrics.get(line) !== 0
  })
  return strange.map(line => `unexpected: ${line}`)
}

/**
 * The possible counts of an outcome.
 *
 * @param {string} outcome @param {Pick<import('./ledger.js').Entry, 'known' | 'unsure' | 'perhaps'>} entry
 */
function rangeOf(outcome, { known, unsure, perhaps }) {
  const least = known[outcome] ?? 0
  const guessed = Object.entries(unsure).filter(([names]) => names.split('|').includes(outcome))
  return { least, most: least + perhaps + guessed.reduce((all, [, count]) => all + count, 0) }
}

/**
 * By id: the upstream has seen each request that it answered once, and no rejected one.
 *
 * @param {Uint8Array} expected @param {Uint8Array} seen
 */
export function compareIds(expected, seen) {
  const found = { distinct: 0, missing: 0, unwanted: 0, unknown: 0, repeated: 0, wronglyRepeated: 0 }
  for (let id = 0; id < Math.max(expected.length, seen.length); id += 1) {
    const [flags, times] = [expected[id] ?? 0, seen[id] ?? 0]
    if (times > 0) countSeen(found, flags, times)
    else if ((flags & 3) === SEEN.once) found.missing += 1
  }
  return found
}

/** @param {ReturnType<typeof compareIds>} found @param {number} flags @param {number} times */
function countSeen(found, flags, times) {
  found.distinct += 1
  if ((flags & 3) === SEEN.never) found.unwanted += 1
  if ((flags & 3) === SEEN.nothing) found.unknown += 1
  if (times < 2) return
  found.repeated += 1
  if ((flags & REPEATABLE) === 0 || times > 2) found.wronglyRepeated += 1
}

/** @param {ReturnType<typeof compareIds>} found @param {Record<string, number>} outcomes @returns {string[]} what does not hold */
export function judgeIds(found, { forwarded, failed, cancelled }) {
  const reasons = []
  const { distinct, missing, unwanted, unknown, wronglyRepeated } = found
  if (missing > 0) reasons.push(`${missing} requests were answered by the upstream, but not seen by it`)
  if (unwanted > 0) reasons.push(`${unwanted} requests were rejected, but sent to the upstream`)
  if (unknown > 0) reasons.push(`${unknown} requests came to the upstream that no client sent`)
  if (wronglyRepeated > 0) reasons.push(`${wronglyRepeated} requests came to the upstream more often than allowed`)
  if (!isWithin(distinct, forwarded, forwarded + failed + cancelled)) {
    reasons.push(
      `the upstream has seen ${distinct}: not ${forwarded} (forwarded) to ${forwarded + failed + cancelled} (and failed and cancelled)`,
    )
  }
  return reasons
}

/** @param {number} value @param {number} least @param {number} most */
function isWithin(value, least, most) {
  return value >= least && value <= most
}

/** @param {Record<string, number>} counts */
export function total(counts) {
  return Object.values(counts).reduce((sum, count) => sum + count, 0)
}

/**
 * Compares the memory in the third quarter of the time with that in the last tenth: the lower quartile of the samples, because
 * garbage comes and goes. It is a third of the memory with a million keys.
 *
 * @param {readonly { at: number, bytes: number }[]} samples
 * @param {Pick<import('./plan.js').Plan, 'seconds' | 'judgesMemory'>} plan
 */
export function judgeMemory(samples, { seconds, judgesMemory }) {
  /** @param {number} from @param {number} to */
  const between = (from, to) =>
    lowerQuartile(samples.filter(({ at }) => at >= from * seconds && at <= to * seconds).map(({ bytes }) => bytes))
  const [plateau, last] = [between(0.5, 0.75), between(0.9, Number.POSITIVE_INFINITY)]
  const grown = `memory has grown from ${megabytes(plateau)} to ${megabytes(last)} MB`
  return {
    megabytesPlateau: megabytes(plateau),
    megabytesLast: megabytes(last),
    memory: judgesMemory ? 'judged' : 'too short a run to judge: indicative only',
    growth: judgesMemory && last > plateau * GROWTH ? grown : undefined,
  }
}

/** @param {number} bytes */
export function megabytes(bytes) {
  return Math.round(bytes / 1e5) / 10
}

/** @param {readonly number[]} values */
function lowerQuartile(values) {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 4)] ?? 0
}
