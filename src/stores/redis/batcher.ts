/**
 * Sends operations. Those of one tick and one partition go in one call with one deadline.
 *
 * A call is sent again only if the server says that it did nothing: it does not have the script, is not the right server, or
 * got the call too late because its clock was changed.
 */
import type { Clock } from '../../core/clock.js'
import { StoreError } from '../../core/store.js'
import type { Manner, RedisNode } from './node.js'
import type { Redirection, Router } from './router.js'
import { type Answer, type RedisOperation, sizeOf, withoutScript } from './wire.js'

/** Operations in a call. More would occupy the server for long. */
const MOST = 64
/** Numbers in a call. They are on the script's stack, which ends at 8000. */
const LARGEST = 4_000
/** Operations whose deadlines differ by no more, in ms, share the earliest. */
const SAME_DEADLINE = 5

const REDIRECTIONS = 5
const TRY_AGAIN = 20

class Batch {
  readonly partition: number
  readonly operations: RedisOperation[] = []
  deadline = Infinity
  settled = false
  timer: NodeJS.Timeout | undefined
  #size = 0

  constructor(partition: number) {
    this.partition = partition
  }

  takes(operation: RedisOperation): boolean {
    return (
      this.operations.length < MOST &&
      this.#size + sizeOf(operation) <= LARGEST &&
      Math.abs(operation.deadline - this.deadline) <= SAME_DEADLINE
    )
  }

  add(operation: RedisOperation): void {
    this.operations.push(operation)
    this.#size += sizeOf(operation)
    this.deadline = Math.min(this.deadline, operation.deadline)
  }

  done(answer: Answer): void {
    if (!this.#settle()) return
    let told = 0
    try {
      for (const operation of this.operations) {
        operation.done(answer)
        told += 1
      }
    } catch (error) {
      const failure = new StoreError('the answer of Redis cannot be read', { cause: error })
      for (const operation of this.operations.slice(told)) operation.failed(failure)
    }
  }

  fail(error: StoreError): void {
    if (this.#settle()) for (const operation of this.operations) operation.failed(error)
  }

  #settle(): boolean {
    if (this.settled) return false
    this.settled = true
    clearTimeout(this.timer)
    return true
  }
}

export class RedisBatcher {
  readonly #router: Router
  readonly #clock: Clock
  readonly #underWay = new Set<Batch>()
  #open = new Map<number, Batch>()
  #waiting: Batch[] = []
  #closed = false

  constructor(router: Router, clock: Clock) {
    this.#router = router
    this.#clock = clock
  }

  add(partition: number, operation: RedisOperation): void {
    if (this.#closed) return operation.failed(new StoreError('the store is closed'))
    let batch = this.#open.get(partition)
    if (batch === undefined || !batch.takes(operation)) {
      batch = new Batch(partition)
      if (this.#waiting.length === 0) setImmediate(this.#flush)
      this.#waiting.push(batch)
      this.#underWay.add(batch)
      this.#open.set(partition, batch)
      this.#arm(batch, operation.deadline)
    }
    batch.add(operation)
  }

  close(): void {
    this.#closed = true
    for (const batch of this.#underWay) batch.fail(new StoreError('the store is closed'))
    this.#underWay.clear()
  }

  #arm(batch: Batch, deadline: number): void {
    batch.timer = setTimeout(
      () => {
        // If this process was held up, the answer may be there already.
        setImmediate(() => {
          if (batch.settled) return
          batch.fail(new StoreError('Redis did not answer in time'))
          this.#underWay.delete(batch)
          this.#router.suspect(batch.partition)
        })
      },
      Math.max(0, deadline - this.#clock.now()),
    )
  }

  readonly #flush = (): void => {
    const batches = this.#waiting
    this.#waiting = []
    this.#open = new Map()
    this.#router.together(() => {
      for (const batch of batches) void this.#carryOut(batch)
    })
  }

  async #carryOut(batch: Batch): Promise<void> {
    try {
      const answer = await this.#send(batch)
      if (answer !== undefined) batch.done(answer)
    } catch (error) {
      batch.fail(error instanceof StoreError ? error : new StoreError(`Redis: ${withoutScript(error as Error)}`))
    }
    this.#underWay.delete(batch)
  }

  /** @returns undefined: no operation waits for it any longer */
  async #send(batch: Batch): Promise<Answer | undefined> {
    let target = this.#find(batch)
    let redirections = 0
    let isLate = false
    while (!batch.settled) {
      const { node } = target
      if (!node?.ready) {
        target = await this.#findLater(batch, target)
        continue
      }
      const outcome = await node.carryOut(batch.operations, batch.deadline, target).catch(asError)
      if (outcome instanceof Error) {
        if (redirections === REDIRECTIONS) throw outcome
        redirections += 1
        target = (await this.#redirect(outcome, batch, node)) ?? target
        continue
      }
      if (outcome.status === 'done') return outcome
      // Its clock was set. It is known now, so one more attempt can succeed.
      if (isLate) throw new StoreError('Redis got a call too late')
      isLate = true
    }
    return undefined
  }

  #find(batch: Batch): Target {
    return { node: this.#router.find(batch.partition), asking: false }
  }

  /**
   * Waits until more is known of the server, or of where one is.
   *
   * @throws if waiting is of no use
   */
  async #findLater(batch: Batch, target: Target): Promise<Target> {
    const source = target.node ?? this.#router
    if (source.pending === undefined) throw source.error
    await source.pending
    return target.asking ? target : this.#find(batch)
  }

  /**
   * @returns where to send the batch instead; undefined: to the same server again
   * @throws if that would be of no use
   */
  async #redirect(error: Error, batch: Batch, from: RedisNode): Promise<Redirection | undefined> {
    const redirection = this.#router.redirect(error, batch.partition, from)
    if (redirection !== undefined) return redirection
    if (!error.message.startsWith('TRYAGAIN')) throw error
    await new Promise(resolve => setTimeout(resolve, TRY_AGAIN))
    return undefined
  }
}

/** Where a batch is sent. Undefined: no server is known. */
interface Target extends Manner {
  readonly node: RedisNode | undefined
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error))
}
