/** How evenly requests leave, and how instances share a rate. Times are in ms in ascending order, rates per ms. */

/** Requests per second in a span: those in (from, to]. */
export function ratePerSecond(times: readonly number[], from: number, to: number): number {
  return (times.filter(at => at > from && at <= to).length / (to - from)) * 1_000
}

/**
 * The most by which any window, however short or long, has more than `rate` times its length. One pass.
 *
 * @param costs of the requests; absent: 1
 */
export function worstBurst(times: readonly number[], rate: number, costs?: readonly number[]): number {
  let worst = 0
  let least = Infinity
  let before = 0
  for (const [place, at] of times.entries()) {
    const cost = costs?.[place] ?? 1
    const ahead = before - rate * at
    least = Math.min(least, ahead)
    worst = Math.max(worst, ahead - least + cost)
    before += cost
  }
  return worst
}

/** What contract 10 allows `worstBurst` to be: 10 ms of the rate and one request of each instance. */
export function allowedBurst(rate: number, instances: number): number {
  return rate * 10 + instances
}

/** When a request came and when it left, in ms. */
export interface Stay {
  readonly arrivedAt: number
  readonly at: number
}

/** The most by which a request came later than one that left after it, in ms. 0: they leave in the order of their arrival. */
export function longestOvertaking(stays: readonly Stay[]): number {
  let longest = 0
  let earliest = Infinity
  for (const { arrivedAt } of [...stays].sort((one, other) => other.at - one.at)) {
    longest = Math.max(longest, arrivedAt - earliest)
    earliest = Math.min(earliest, arrivedAt)
  }
  return longest
}

/** Those that left before one that had come more than `by` ms earlier. */
export function overtakers<S extends Stay>(stays: readonly S[], by: number): S[] {
  let earliest = Infinity
  const inOrder = [...stays].sort((one, other) => other.at - one.at)
  return inOrder.filter(({ arrivedAt }) => {
    const isAhead = arrivedAt - earliest > by
    earliest = Math.min(earliest, arrivedAt)
    return isAhead
  })
}

export function gaps(times: readonly number[]): number[] {
  return times.slice(1).map((at, place) => at - times[place]!)
}

/** @param part 0 to 1; 0 is the least. NaN: there are none. */
export function quantile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((one, other) => one - other)
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? NaN
}

/** How many of each. */
export function countBy<T>(values: readonly T[], of: (value: T) => string | number): Map<string | number, number> {
  const counts = new Map<string | number, number>()
  for (const value of values) counts.set(of(value), (counts.get(of(value)) ?? 0) + 1)
  return counts
}

/** Each one's part of the sum of those in the group, in % of an equal part: at 100 all have the same. */
export function spreadOf(counts: readonly number[]): { least: number; most: number } {
  const mean = counts.reduce((sum, count) => sum + count, 0) / counts.length
  return { least: (Math.min(...counts) / mean) * 100, most: (Math.max(...counts) / mean) * 100 }
}

/** Prints rows with the same keys as a table. */
export function printTable(title: string, rows: readonly Record<string, string | number>[]): void {
  const names = [...new Set(rows.flatMap(row => Object.keys(row)))]
  const cells = [names, ...rows.map(row => names.map(name => String(row[name] ?? '')))]
  const widths = names.map((_, place) => Math.max(...cells.map(line => line[place]!.length)))
  const lines = cells.map(line => `| ${line.map((cell, place) => cell.padEnd(widths[place]!)).join(' | ')} |`)
  lines.splice(1, 0, `|${widths.map(width => '-'.repeat(width + 2)).join('|')}|`)
  process.stdout.write(`\n${title}\n\n${lines.join('\n')}\n`)
}
