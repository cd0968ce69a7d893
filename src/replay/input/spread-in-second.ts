/**
 * The assumed time of a request within its second, for logs with whole seconds. The k-th of n requests (from 0, in log
 * order) lies in the k-th of n equal parts, at a place given by a hash of the seed, the second and k.
 *
 * @param seed a whole number
 * @param second since 1970
 * @returns ms since the beginning of the second, at least 0 and below 1000
 */
export function timeInSecond(seed: number, second: number, k: number, n: number): number {
  let x = seed ^ Math.imul(second, 0x9e3779b1) ^ Math.imul(k + 1, 0x85ebca6b)
  x = Math.imul(x ^ (x >>> 16), 0x21f0aaad)
  x = Math.imul(x ^ (x >>> 15), 0x735a2d97)
  x ^= x >>> 15
  return (1_000 * (k + (x >>> 0) / 2 ** 32)) / n
}
