/**
 * What a bucket has promised, as the doubles that a server keeps: until when (as in the bucket; if it differs, the clock went back and
 * moved that), and of each promise client, booking, cost, at, until.
 */
import { shiftPromises } from './appointments.js'
import type { Bucket, StoredPromise } from './bucket.js'

const PER_PROMISE = 5

export function packPromises({ promises, keptUntil }: Bucket): number[] {
  const numbers = [keptUntil]
  let at = 1
  for (const { client, booking, cost, at: moment, until } of promises ?? []) {
    numbers[at] = client
    numbers[at + 1] = booking
    numbers[at + 2] = cost
    numbers[at + 3] = moment
    numbers[at + 4] = until
    at += PER_PROMISE
  }
  return numbers
}

/** @param keptUntil as the bucket has it */
export function unpackPromises(numbers: readonly number[], keptUntil: number): StoredPromise[] {
  const promises: StoredPromise[] = []
  for (let at = 1; at < numbers.length; at += PER_PROMISE) {
    promises.push({
      client: numbers[at]!,
      booking: numbers[at + 1]!,
      cost: numbers[at + 2]!,
      at: numbers[at + 3]!,
      until: numbers[at + 4]!,
    })
  }
  shiftPromises(promises, keptUntil - numbers[0]!)
  return promises
}
