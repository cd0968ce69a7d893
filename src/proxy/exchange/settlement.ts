/**
 * What a request really cost: it passes its buckets with the cost that is reserved for it. When its answer says what it has cost,
 * the buckets get the difference.
 *
 * - An answer that has come whole and says a cost: that counts, whatever its status is, up to the capacity.
 * - Else a status that says that the request was not served (4xx or 503), or no connection for it: it cost nothing.
 * - Else what was reserved stays: the answer says nothing or is cut, its client has left, or the upstream failed.
 *
 * What is reserved in buckets without `after` always stays. An answer that is inflated may be settled after its request is over.
 * Until then the bucket instances are held, and the program does not end.
 */
import type { Demand, SharedBucket } from '../../core/queue/lane.js'
import { type AnswerNumbers, findInAnswer, type Numbers } from '../../http/figures/answer-numbers.js'
import type { ProxyContext } from '../context.js'
import { joinedFields } from '../http/fields.js'
import type { Settled, SettledBy } from '../observe/observer.js'
import type { BucketCosts } from '../routing/bucket-costs.js'

const NOTHING: Numbers = []

export interface SettledRequest {
  readonly stack: readonly SharedBucket[]
  readonly costs: readonly number[] | undefined
  correct(differences: Demand): void
  onSettled(costs: Settled | undefined, by: SettledBy): void
}

export class Settlement {
  readonly #context: ProxyContext
  readonly #costs: BucketCosts
  readonly #request: SettledRequest
  #numbers: AnswerNumbers | undefined
  #state: 'open' | 'reading' | 'over' = 'open'
  #held: readonly SharedBucket[] | undefined

  constructor(context: ProxyContext, costs: BucketCosts, request: SettledRequest) {
    this.#context = context
    this.#costs = costs
    this.#request = request
  }

  get isReading(): boolean {
    return this.#state === 'reading'
  }

  /** The head of an answer for the client has come. @returns what is to read the body. Undefined: nothing is */
  begin(fields: readonly string[]): AnswerNumbers | undefined {
    this.#numbers = findInAnswer(joinedFields(fields), this.#costs.answerPaths)
    return this.#numbers
  }

  answered(status: number): void {
    if (this.#state !== 'open') return
    this.#state = 'reading'
    if (this.#numbers === undefined) return this.#settle(NOTHING, status)
    this.#numbers.end(found => this.#settle(found, status))
    if (this.#state === 'reading') this.#hold()
  }

  unserved(next: 'sent-again' | 'over'): void {
    if (this.#state !== 'open') return
    if (next === 'over') this.#state = 'over'
    this.#apply(NOTHING, 'unserved')
  }

  /** The request is over without a whole answer. @param fate whether it may have cost something */
  end(fate: 'sent' | 'never-sent'): void {
    if (this.#state !== 'open') return
    this.#state = 'over'
    this.#numbers?.drop()
    if (fate === 'sent') this.#request.onSettled(undefined, 'unknown')
  }

  #settle(numbers: Numbers, status: number): void {
    this.#state = 'over'
    const isSaid = this.#request.stack.some(({ limits }) => this.#costs.settled(limits.name, numbers) !== undefined)
    if (isSaid) this.#apply(numbers, 'answer')
    else if (isUnserved(status)) this.#apply(NOTHING, 'unserved')
    else this.#request.onSettled(undefined, 'unknown')
    this.#release()
  }

  #apply(numbers: Numbers, by: 'answer' | 'unserved'): void {
    const { stack, costs: reserved = [] } = this.#request
    const settled = stack.map(({ limits: { name, capacity, whole } }) => {
      const cost = this.#costs.settled(name, numbers)
      // No bucket holds more.
      if (cost !== undefined) return Math.min(cost, whole?.capacity ?? capacity)
      return by === 'unserved' && this.#costs.isSettled(name) ? 0 : undefined
    })
    const costs = settled.map((cost, place) => (cost === undefined ? 0 : cost - reserved[place]!))
    const cost = costs.find(difference => difference !== 0)
    if (cost !== undefined) this.#request.correct({ stack, cost, costs })
    this.#request.onSettled(settled, by)
  }

  #hold(): void {
    const { bucketTable } = this.#context
    this.#held = this.#request.stack
    for (const bucket of this.#held) bucketTable.hold(bucket)
    this.#context.inProgress += 1
  }

  #release(): void {
    if (this.#held === undefined) return
    for (const bucket of this.#held) this.#context.bucketTable.rest(bucket)
    this.#held = undefined
    this.#context.inProgress -= 1
    if (this.#context.inProgress === 0) this.#context.idle()
  }
}

export function isUnserved(status: number): boolean {
  return (status >= 400 && status < 500) || status === 503
}
