import {
  type Admission,
  type AdmitRequest,
  type BucketRef,
  type ClaimAnswer,
  type ClaimRequest,
  type GiveBackRequest,
  HORIZON,
  type MaybePromise,
  type Store,
  StoreError,
  type UpstreamState,
} from '../core/store.js'

/** A store that is still being opened, or that the user owns. Until it is open, questions to it fail. */
export class DeferredStore implements Store {
  readonly #borrowed: boolean
  #store: Store | undefined
  #closed = false

  /** @param borrowed a store that its owner closes */
  constructor(borrowed?: Store) {
    this.#borrowed = borrowed !== undefined
    this.#store = borrowed
  }

  /** Sets the opened store. Closes it at once if this one has been closed. */
  async opened(store: Store): Promise<void> {
    if (this.#closed) await store.close()
    else this.#store = store
  }

  get horizon(): number {
    return this.#store?.horizon ?? HORIZON.least
  }

  horizonOf(stack: readonly BucketRef[]): number {
    return this.#store?.horizonOf?.(stack) ?? this.horizon
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

  reset(bucket: BucketRef): MaybePromise<void> {
    return this.#store?.reset(bucket)
  }

  beat(id: string): MaybePromise<number> {
    return this.#store?.beat(id) ?? missing()
  }

  leave(id: string): MaybePromise<void> {
    return this.#store?.leave?.(id)
  }

  get left(): number {
    return this.#store?.left ?? 0
  }

  exchange(upstream: string, news?: UpstreamState): MaybePromise<UpstreamState> {
    return this.#store?.exchange(upstream, news) ?? missing()
  }

  async close(): Promise<void> {
    this.#closed = true
    if (!this.#borrowed) await this.#store?.close()
  }
}

function missing(): Promise<never> {
  return Promise.reject(new StoreError('the store is not open'))
}
