import { type Board, Listeners, type News } from '../core/board.js'
import type { MaybePromise } from '../core/maybe-promise.js'
import {
  type Admission,
  type AdmitRequest,
  type BucketRef,
  type ClaimAnswer,
  type ClaimRequest,
  type GiveBackRequest,
  HORIZON,
  type LeaseAnswer,
  type LeaseRequest,
  type PromiseAnswer,
  type PromiseRequest,
  type Roll,
  type SettleRequest,
  type Store,
  StoreError,
} from '../core/store.js'
import type { UpstreamState } from '../core/upstream-state.js'

/** A store that is still being opened, or that the user owns. Until it is open, questions to it fail. */
export class DeferredStore implements Store {
  readonly #borrowed: boolean
  readonly #listeners = new Listeners()
  #store: Store | undefined
  #closed = false
  #stopListening: (() => void) | undefined
  /** Absent: a borrowed store has none. All that are opened have it. */
  readonly lease?: (request: LeaseRequest) => MaybePromise<LeaseAnswer>
  /** As `lease`. */
  readonly promise?: (request: PromiseRequest) => MaybePromise<PromiseAnswer>

  /** @param borrowed a store that its owner closes */
  constructor(borrowed?: Store) {
    this.#borrowed = borrowed !== undefined
    this.#store = borrowed
    if (borrowed === undefined || borrowed.lease !== undefined) {
      this.lease = request => this.#store?.lease?.(request) ?? missing()
    }
    if (borrowed === undefined || borrowed.promise !== undefined) {
      this.promise = request => this.#store?.promise?.(request) ?? missing()
    }
  }

  get board(): Board | undefined {
    return this.#store?.board
  }

  listen(listener: (news: News) => void): () => void {
    const stop = this.#listeners.add(listener)
    this.#hear()
    return stop
  }

  /** Sets the opened store. Closes it at once if this one has been closed. */
  async opened(store: Store): Promise<void> {
    if (this.#closed) return store.close()
    this.#store = store
    if (this.#listeners.any) this.#hear()
  }

  get horizon(): number {
    return this.#store?.horizon ?? HORIZON.least
  }

  horizonOf(stack: readonly BucketRef[]): number {
    return this.#store?.horizonOf?.(stack) ?? this.horizon
  }

  latenessOf(bucket: BucketRef): number {
    return this.#store?.latenessOf?.(bucket) ?? 0
  }

  admit(request: AdmitRequest): MaybePromise<Admission> {
    return this.#store?.admit(request) ?? missing()
  }

  claim(request: ClaimRequest): MaybePromise<ClaimAnswer> {
    return this.#store?.claim(request) ?? missing()
  }

  giveBack(request: GiveBackRequest): MaybePromise<void> {
    return this.#store?.giveBack(request)
  }

  settle(request: SettleRequest): MaybePromise<readonly number[]> {
    return this.#store?.settle?.(request) ?? request.stack.map(() => 0)
  }

  reset(bucket: BucketRef): MaybePromise<void> {
    return this.#store?.reset(bucket)
  }

  get keepsOrder(): boolean {
    return this.#store?.keepsOrder === true
  }

  get shards(): readonly string[] | undefined {
    return this.#store?.shards
  }

  shardOf(bucket: BucketRef): string {
    return this.#store?.shardOf?.(bucket) ?? ''
  }

  beat(id: string, shard?: string): MaybePromise<Roll> {
    return this.#store?.beat(id, shard) ?? missing()
  }

  leave(id: string, shard?: string): MaybePromise<void> {
    return this.#store?.leave?.(id, shard)
  }

  exchange(upstream: string, news?: UpstreamState): MaybePromise<UpstreamState> {
    return this.#store?.exchange(upstream, news) ?? missing()
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#stopListening?.()
    if (!this.#borrowed) await this.#store?.close()
  }

  #hear(): void {
    this.#stopListening ??= this.#store?.listen?.(news => this.#listeners.tell(news))
  }
}

function missing(): Promise<never> {
  return Promise.reject(new StoreError('the store is not open'))
}
