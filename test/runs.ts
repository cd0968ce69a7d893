/** `SHAPER_RUNS` is 0.1 in `npm test`. */
const share = process.env.SHAPER_DEEP === '1' ? 10 : Number(process.env.SHAPER_RUNS ?? 1)

/**
 * How many runs a property has: `n` in `npm run test:all` and where a file runs by itself, a tenth in `npm test`, ten times as many with
 * SHAPER_DEEP=1.
 */
export function runs(n: number): number {
  return Math.max(1, Math.ceil(n * share))
}

/** How often something has to come about in these runs, if it does `n` times in all of them. Few runs vary more. */
export function often(n: number): number {
  return Math.floor(n * share * (share < 1 ? 0.1 : 1))
}
