/** Converts rates and durations between text and numbers. Rates are in cost units per ms, durations in ms. */

const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const
/** Ten years, in ms. A rate of less than one unit in ten years is rejected as a mistake. */
const LONGEST_PERIOD = 3_652 * UNIT_MS.d
type Unit = keyof typeof UNIT_MS
/** Each unit is known by its beginning, see `unitMs`. */
const SPELLINGS = 'ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?'
const RATE = new RegExp(`^(\\d+(?:\\.\\d+)?|\\.\\d+)\\s*/\\s*(\\d+(?:\\.\\d+)?)?\\s*(${SPELLINGS})$`)
const DURATION = new RegExp(`^(\\d+(?:\\.\\d+)?|\\.\\d+)\\s*(${SPELLINGS})$`)

/** Reads `"5/s"`, `"6/30s"`, `"0.5/s"`, or units per second. @returns units per ms @throws RangeError */
export function parseRate(text: string | number): number {
  const perMs = typeof text === 'number' ? text / UNIT_MS.s : ratePerMs(text.trim())
  if (!(perMs > 0 && perMs < Infinity)) {
    throw new RangeError(`${JSON.stringify(text)} is not a rate; ${rateRemedy(text)}`)
  }
  if (isTooSlow(perMs)) throw new RangeError(`${JSON.stringify(text)} ${TOO_SLOW}`)
  return perMs
}

/** What is wrong with a rate that is one by its form; undefined: nothing, or it is no rate at all. */
export function rateFault(text: unknown): string | undefined {
  if (typeof text === 'number') return isTooSlow(text / UNIT_MS.s) ? TOO_SLOW : undefined
  return typeof text === 'string' && isTooSlow(ratePerMs(text.trim())) ? TOO_SLOW : undefined
}

const TOO_SLOW = 'is less than one in ten years; use e.g. "5/s", "1/30d"'

function isTooSlow(perMs: number): boolean {
  return perMs > 0 && perMs * LONGEST_PERIOD < 1
}

/** Rates in words, in capitals, or as nginx writes them: `5r/s`. */
const SPELLED = new RegExp(
  `^(\\s*[\\d.]+\\s*)(?:(?:r|reqs?|requests?)\\s*)?(?:/|per)(\\s*[\\d.]*\\s*)(${SPELLINGS})\\s*$`,
  'i',
)

/** A hint for a text that is not a rate: the likely meaning, or else an example. */
export function rateRemedy(text: unknown): string {
  const [, count = '', span = '', unit = ''] = (typeof text === 'string' && SPELLED.exec(text)) || []
  const meant = `${count.trim()}/${span.trim()}${shortUnit(unit)}`
  const perMs = ratePerMs(meant)
  return perMs > 0 && perMs < Infinity ? `did you mean "${meant}"?` : 'use e.g. "5/s", "6/30s"'
}

function ratePerMs(text: string): number {
  const [, count, span = '1', unit] = RATE.exec(text) ?? []
  return count === undefined ? Number.NaN : Number(count) / (Number(span) * unitMs(unit!))
}

function unitMs(spelled: string): number {
  return UNIT_MS[shortUnit(spelled) as Unit]
}

function shortUnit(spelled: string): string {
  return /^(?:ms|milli)/i.test(spelled) ? 'ms' : spelled.charAt(0).toLowerCase()
}

/** Reads `"250ms"`, `"1.5m"`. @returns ms, finite and at least 0 @throws RangeError */
export function parseDuration(text: string): number {
  const [, count, unit] = DURATION.exec(text.trim()) ?? []
  const ms = count === undefined ? Number.NaN : Number(count) * unitMs(unit!)
  if (!Number.isFinite(ms)) {
    throw new RangeError(`${JSON.stringify(text)} is not a duration; use e.g. "250ms", "10s", "1m"`)
  }
  return ms
}

/** Writes a rate with the smallest unit that keeps the count at 1 or more: 0.0002 -> `"12/m"`. */
export function formatRate(perMs: number): string {
  const unit = (['s', 'm', 'h'] as const).find(name => perMs * UNIT_MS[name] >= 1 - 1e-9) ?? 'd'
  return `${rounded(perMs * UNIT_MS[unit])}/${unit}`
}

/** Writes a duration in ms as a configuration does: 1800 -> `"1.8s"`, and `"60s"`, `"90m"`, `"1h"`. For people: `durationText`. */
export function formatDuration(ms: number): string {
  if (ms < 1_000) return `${rounded(ms)}ms`
  const unit =
    (['d', 'h', 'm'] as const).find(name => ms >= (name === 'h' && ms % UNIT_MS.h === 0 ? 1 : 2) * UNIT_MS[name]) ?? 's'
  return `${rounded(ms / UNIT_MS[unit])}${unit}`
}

/** Units for people: their length in ms, their name, and the least count for which they are used. */
const SPOKEN_UNITS: readonly (readonly [number, string, number])[] = [
  [UNIT_MS.d, 'd', 2],
  [UNIT_MS.h, 'h', 2],
  [UNIT_MS.m, 'min', 2],
  [UNIT_MS.s, 's', 1],
]

/** A duration in ms for people, with three digits in a suitable unit: 49_512 -> `49.5 s`. */
export function durationText(ms: number): string {
  const [length, unit] = SPOKEN_UNITS.find(([length, , least]) => ms >= length * least) ?? [1, 'ms']
  return `${Number((ms / length).toPrecision(3))} ${unit}`
}

/** Six digits. No exponent, because `parseRate` cannot read one. */
function rounded(value: number): string {
  const digits = String(Number(value.toPrecision(6)))
  return digits.includes('e')
    ? Number(digits)
        .toFixed(20)
        .replace(/\.?0+$/, '')
    : digits
}
