/** Writes rates and durations so that parsing gives exactly the same number. */
import { formatDuration, formatRate, parseDuration, parseRate } from '../../core/units.js'

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, ms: 1 } as const
const LONGEST_SPAN = 120

/** A rate in cost units per ms, written as by `formatRate` if that is exact, else like `"100/3d"`, else with all digits. */
export function exactRate(perMs: number): string {
  const exact = (text: string) => parsesTo(text, perMs, parseRate)
  const short = formatRate(perMs)
  if (exact(short)) return short
  for (let span = 1; span <= LONGEST_SPAN; span++) {
    for (const [unit, ms] of Object.entries(UNITS)) {
      const count = Math.round(perMs * ms * span)
      const text = `${decimal(count)}/${span === 1 ? '' : span}${unit}`
      if (exact(text)) return text
    }
  }
  const perSecond = `${decimal(perMs * UNITS.s)}/s`
  return exact(perSecond) ? perSecond : `${decimal(perMs)}/ms`
}

/** A duration in ms, written as by `formatDuration` if that is exact, else with all digits. */
export function exactDuration(ms: number): string {
  const short = formatDuration(ms)
  return parsesTo(short, ms, parseDuration) ? short : `${decimal(ms)}ms`
}

function parsesTo(text: string, value: number, parse: (text: string) => number): boolean {
  try {
    return parse(text) === value
  } catch {
    return false
  }
}

/** A number with all its digits and without an exponent, which rates and durations do not allow. */
function decimal(value: number): string {
  const [digits = '', exponent] = String(value).split('e')
  if (exponent === undefined) return digits
  const plain = digits.replace('.', '')
  const places = Number(exponent)
  return places < 0 ? `0.${'0'.repeat(-places - 1)}${plain}` : plain.padEnd(places + 1, '0')
}
