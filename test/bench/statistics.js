// @ts-check

/** @param {ArrayLike<number>} values @param {number} q 0 to 1 @returns {number} NaN where there are none */
export function quantile(values, q) {
  const sorted = Float64Array.from(values).sort()
  if (sorted.length === 0) return NaN
  const at = q * (sorted.length - 1)
  const below = Math.floor(at)
  const above = Math.min(below + 1, sorted.length - 1)
  return sorted[below] + (sorted[above] - sorted[below]) * (at - below)
}

/**
 * The entry of a name. A missing one is made first.
 *
 * @template {object} T
 * @param {Record<string, T>} lists @param {string} name @param {() => T} make @returns {T}
 */
export function entry(lists, name, make) {
  lists[name] ??= make()
  return lists[name]
}

/** @param {ArrayLike<number>} values */
export function median(values) {
  return quantile(values, 0.5)
}

/** How far apart the rounds are: the largest less the smallest, as a part of the median. @param {ArrayLike<number>} values */
export function spread(values) {
  return (quantile(values, 1) - quantile(values, 0)) / median(values)
}

/**
 * The differences between the gaps of arrivals and the period.
 *
 * @param {ArrayLike<number>} times in ms @param {number} period in ms
 */
export function gapErrors(times, period) {
  const errors = new Float64Array(Math.max(0, times.length - 1))
  for (let at = 1; at < times.length; at += 1) errors[at - 1] = Math.abs(times[at] - times[at - 1] - period)
  return errors
}

/**
 * Arrivals per second: the slope of their count over time (least squares). One late arrival at an end hardly changes it.
 *
 * @param {ArrayLike<number>} times in ms
 */
export function slope(times) {
  const { length } = times
  const middle = (length - 1) / 2
  let mean = 0
  for (let at = 0; at < length; at += 1) mean += times[at] / length
  let above = 0
  let below = 0
  for (let at = 0; at < length; at += 1) {
    above += (at - middle) * (times[at] - mean)
    below += (times[at] - mean) ** 2
  }
  return (above / below) * 1000
}

/**
 * The largest excess in requests of any window over the bound of docs/semantics.md, r * (W + max(1/r, 5 ms)) + 1. Not above
 * 0: the bound holds.
 *
 * @param {ArrayLike<number>} times in ms @param {number} rate per second
 */
export function worstExcess(times, rate) {
  const perMs = rate / 1000
  let least = Infinity
  let most = -Infinity
  for (let at = 0; at < times.length; at += 1) {
    const ahead = at - perMs * times[at]
    least = Math.min(least, ahead)
    most = Math.max(most, ahead - least + 1)
  }
  return most - Math.max(1, 0.005 * rate) - 1
}

/** Numbers in [0, 1), the same ones for the same seed. @param {number} seed @returns {() => number} */
export function random(seed) {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

/** @typedef {{ at: number, cost: number }} Entry */

/** The most cost in any window, less a limit. @param {readonly Entry[]} entries @param {number} limit @param {number} ms of the window */
export function worstWindow(entries, limit, ms) {
  let first = 0
  let sum = 0
  let most = 0
  for (const { at, cost } of entries) {
    sum += cost
    for (; entries[first].at <= at - ms; first += 1) sum -= entries[first].cost
    most = Math.max(most, sum)
  }
  return most - limit
}

/**
 * The most that a bucket holds that holds a limit and drains of it in each window, less that limit.
 *
 * @param {readonly Entry[]} entries @param {number} limit @param {number} ms of the window
 */
export function worstLevel(entries, limit, ms) {
  let level = 0
  let before = 0
  let most = 0
  for (const { at, cost } of entries) {
    level = Math.max(0, level - ((at - before) * limit) / ms) + cost
    before = at
    most = Math.max(most, level)
  }
  return most - limit
}
