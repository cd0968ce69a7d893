/**
 * What a released call counts as in its buckets, from its release on.
 *
 * A bucket may add or take out less than it is asked to: a debt above its capacity is forgotten, and what has drained is lost. So
 * beside what was told last there is what really counts. What was forgotten is not taken out later, and what was lost is not added
 * again.
 */

import { when } from '../../core/maybe-promise.js'
import { ownValue } from '../../core/structures/own-value.js'
import type { KeyQueue } from '../key-queues.js'
import type { Costs } from '../options.js'
import type { Call } from './call.js'
import { checkCost, readCosts } from './call-options.js'

export class Charge {
  readonly #call: Call
  /** Where the call counts. A later try may take another credential. */
  readonly #route: KeyQueue
  /** By bucket, what was told last. At first what was reserved. */
  #told: readonly number[]
  /** What the buckets were asked to change to last, and what counts in them by their answers. */
  #asked: readonly number[]
  #counted: readonly number[]
  #isAsking = false

  /** @param call at its release or while it runs */
  constructor(call: Call) {
    this.#call = call
    this.#route = call.route
    this.#told = call.costs ?? call.stack.map(() => call.cost)
    this.#asked = this.#told
    this.#counted = this.#told
  }

  /**
   * Puts the true cost in the place of what counts. Those that wait move accordingly.
   *
   * @param cost in each bucket, or by name: a bucket that is not named stays as it is
   * @throws RangeError
   */
  change(cost: number | Costs): void {
    this.#told = this.#read(cost)
    this.#settle()
  }

  /** A store answers later. Of the changes that are told meanwhile only the last is passed on, after the answer. */
  #settle(): void {
    if (this.#isAsking || this.#asked === this.#told) return
    const differences = this.#told.map((to, place) => differenceTo(to, this.#asked[place]!, this.#counted[place]!))
    this.#asked = this.#told
    this.#isAsking = true
    when(this.#call.context.settle(this.#route, differences), changes => {
      this.#isAsking = false
      this.#counted = this.#counted.map((counted, place) => counted + changes[place]!)
      this.#settle()
    })
  }

  #read(cost: number | Costs): readonly number[] {
    if (typeof cost !== 'object' || cost === null) {
      const all = checkCost(cost, 'charge')
      return this.#told.map(() => all)
    }
    const { names } = this.#call.context
    const costs = readCosts(cost, names, 'charge')
    return this.#told.map((before, place) => ownValue(costs, names![place]!) ?? before)
  }
}

/** What a bucket is asked to add, or to take out if it is negative, where so much counts in it now. */
function differenceTo(to: number, from: number, counted: number): number {
  return to > from ? Math.max(0, to - Math.max(from, counted)) : Math.min(0, to - Math.min(from, counted))
}
