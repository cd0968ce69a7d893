/** What a released call counts as in its buckets, from its release on. */

import type { KeyQueue } from '../key-queues.js'
import type { Costs } from '../options.js'
import type { Call } from './call.js'
import { checkCost, readCosts } from './call-options.js'

export class Charge {
  readonly #call: Call
  /** Where the call counts. A later try may take another credential. */
  readonly #route: KeyQueue
  /** By bucket. At first what was reserved. */
  #costs: readonly number[]

  /** @param call at its release or while it runs */
  constructor(call: Call) {
    this.#call = call
    this.#route = call.route
    this.#costs = call.costs ?? call.stack.map(() => call.cost)
  }

  /**
   * Puts the true cost in the place of what counts. Those that wait move accordingly.
   *
   * @param cost in each bucket, or by name: a bucket that is not named stays as it is
   * @throws RangeError
   */
  change(cost: number | Costs): void {
    const before = this.#costs
    this.#costs = this.#read(cost)
    this.#call.context.settle(
      this.#route,
      this.#costs.map((after, place) => after - before[place]!),
    )
  }

  #read(cost: number | Costs): readonly number[] {
    if (typeof cost !== 'object' || cost === null) {
      const all = checkCost(cost, 'charge')
      return this.#costs.map(() => all)
    }
    const { names } = this.#call.context
    const costs = readCosts(cost, names, 'charge')
    return this.#costs.map((before, place) => costs[names![place]!] ?? before)
  }
}
