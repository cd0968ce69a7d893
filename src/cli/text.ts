/** Figures and names as text in a terminal. */
import { durationText } from '../core/units.js'

/** Characters that take two columns: CJK, Kana, Hangul, full-width forms, and emoji. */
const WIDE =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\u3000-\u303f\uff01-\uff60\uffe0-\uffe6\p{Emoji_Presentation}]/u

const UNPRINTABLE = /[^\p{L}\p{N}\p{P}\p{S} ]/gu

/** Keys come from clients and must not control the terminal. Parts of a combined key have spaces between them. */
export function cellText(text: string, longest = 40): string {
  return cut(text.replaceAll('\n', ' ').replace(UNPRINTABLE, '?'), longest)
}

export function widthOf(text: string): number {
  let width = 0
  for (const character of text) width += WIDE.test(character) ? 2 : 1
  return width
}

export function cut(text: string, columns: number): string {
  if (widthOf(text) <= columns) return text
  let width = 1
  let kept = ''
  for (const character of text) {
    width += widthOf(character)
    if (width > columns) break
    kept += character
  }
  return columns > 0 ? `${kept}~` : ''
}

/** A text in exactly so many columns. */
export function inColumns(text: string, columns: number, align: 'left' | 'right'): string {
  const kept = cut(text, columns)
  const space = ' '.repeat(columns - widthOf(kept))
  return align === 'left' ? kept + space : space + kept
}

export function decimal(value: number): string {
  return String(Number(value >= 100 ? value.toFixed(0) : value.toPrecision(3)))
}

/** From seconds: 40 s, 12 min, 3 h, 9 d */
export function age(seconds: number): string {
  if (seconds < 60) return `${Math.floor(seconds)} s`
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`
  if (seconds < 172_800) return `${Math.floor(seconds / 3_600)} h`
  return `${Math.floor(seconds / 86_400)} d`
}

/** Behind a number of requests that wait. */
export function oldestText(ms: number | undefined): string {
  return ms === undefined ? '' : `, the oldest for ${durationText(ms)}`
}

export function listedWait(ms: number, heldBy: readonly string[] = []): string {
  return heldBy.length === 0 ? durationText(ms) : `at least ${durationText(ms)}`
}

/** @param quotaEnds of a quota, in ISO 8601 */
export function listedRate(rate: number | null, quotaEnds?: string): string {
  if (quotaEnds !== undefined) return `until ${quotaEnds.replace(/:\d\d\.\d+Z$/, 'Z')}`
  return rate === null ? 'any rate' : `${decimal(rate)}/s`
}

/** Rows as lines with aligned columns, two spaces apart. */
export function aligned(cells: readonly (readonly (string | number)[])[]): string[] {
  const rows = cells.map(row => row.map(String))
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map(row => row[column]!.length)))
  return rows.map(row =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd(),
  )
}
