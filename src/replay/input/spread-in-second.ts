/**
 * Where in its second a request is taken to have come when the log knows whole seconds only: the k-th of n (from 0, in
 * the order of the log) somewhere in the k-th of n equal parts, by a hash of the seed, the second and k.
 *
 * @param seed a whole number
 * @param second since 1970
 * @returns ms since its beginning, 0 or more and below 1000
 */
export function spread(seed: number, second: number, k: number, n: number): number {
  let x = seed ^ Math.imul(second, 0x9e3779b1) ^ Math.imul(k + 1, 0x85ebca6b)
  x = Math.imul(x ^ (x >>> 16), 0x21f0aaad)
  x = Math.imul(x ^ (x >>> 15), 0x735a2d97)
  x ^= x >>> 15
  return (1_000 * (k + (x >>> 0) / 2 ** 32)) / n
}
