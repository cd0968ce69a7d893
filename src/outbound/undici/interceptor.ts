/** An interceptor for undici: every request of a dispatcher waits for its turn. */
import type { Dispatcher } from 'undici'
import type { CallContext } from '../call-context.js'
import type { CallFacts } from '../calls/call.js'
import { checkKey, readCost } from '../calls/call-options.js'
import { type CostAfter, type Costs, readShapeOptions, type ShaperOptions } from '../options.js'
import { OutboundShaper } from '../shaper.js'
import { HeldRequest } from './held-request.js'
import { discard, keyOf, originOf } from './request-parts.js'

/** Options of `shape`: those of `createShaper`, and how requests and their answers count. */
export interface ShapeOptions extends Omit<ShaperOptions, 'retry'> {
  /**
   * Which requests share a queue: those of one origin (default), all, those with the same header, or those for which a
   * function returns the same.
   */
  readonly key?: 'origin' | 'all' | `header:${string}` | ((options: Dispatcher.DispatchOptions) => string)
  /** Cost units of a request: in each bucket, or by their names. Default 1. */
  readonly cost?: number | Costs | ((options: Dispatcher.DispatchOptions) => number | Costs)
  /** What a request really cost, by its answer. It is called when the headers of the answer are there. Default: its `cost`. */
  readonly costAfter?: CostAfter
  /**
   * Follows what answers announce in their rate limit headers: a lower rate for their key, and a pause where nothing is left. Of
   * several buckets those called `requests` and `tokens` follow (those of OpenAI and Anthropic included). With a store only
   * pauses. Default false.
   */
  readonly learn?: boolean
  /**
   * An answer with one of these statuses pauses its key: for the time of its Retry-After or RateLimit fields, else for
   * `default`, at most for `max` (`"1s"`, or ms). Default: 429 and 503, `"1s"`, `"60s"`. False: no answer pauses.
   */
  readonly pauseOn?:
    | false
    | { readonly status?: readonly number[]; readonly default?: string | number; readonly max?: string | number }
  /**
   * Sends a request again, at the head of its queue, after an answer with one of these statuses, at most `max` times.
   * Only repeatable requests (by their method, or `idempotent: true`) whose body can be read again: a string, Buffer or other bytes,
   * a Blob or FormData. `fetch` makes a stream of every body: with it only requests without one. Default: none.
   */
  readonly retry?: { readonly status: readonly number[]; readonly max: number }
  /**
   * For how long a credential is not used once it was answered 401 and another one then succeeded with the same request:
   * `"60s"`, the default, or ms. The last one is always used.
   */
  readonly revokedFor?: string | number
}

/** The methods that handlers of undici 7 and 8 share. Those of undici 6 have none of them. */
type AnyHandler = Pick<Dispatcher.DispatchHandler, 'onRequestStart' | 'onResponseStart' | 'onResponseEnd'>

/** For `compose` of undici's dispatchers. Its types fit those of undici 7 and of undici 8. */
export interface ShapeInterceptor {
  <Options = Dispatcher.DispatchOptions, Handler extends AnyHandler = Dispatcher.DispatchHandler>(
    dispatch: (options: Options, handler: Handler) => boolean,
  ): (options: Options, handler: Handler) => boolean
  /** Its shaper: status, pauses, drain and events. */
  readonly shaper: OutboundShaper
}

const NO_ORIGIN = 'origin: missing, and a credential leaves for its origins only; use an Agent as the dispatcher'

/**
 * Creates an interceptor that holds requests until their turn. Compose it first, so that what other interceptors send passes it.
 * With `credentials` a request to an origin that none of them is for passes untouched.
 * A request that is not let through fails with OverflowError, ExpiredError or ClosedError. With `fetch` that error is the `cause` of a TypeError.
 *
 * @throws RangeError or TypeError as `createShaper`
 */
export function shape(options: ShapeOptions): ShapeInterceptor {
  const { settings, request } = readShapeOptions<Dispatcher.DispatchOptions>(options)
  const names = settings.areNamed ? settings.buckets.map(({ name }) => name) : undefined
  if (typeof request.cost !== 'function') readCost(request.cost, names)
  let context: CallContext | undefined
  const shaper = new OutboundShaper(settings, connected => {
    context = connected
  })
  const intercept = (dispatch: Dispatcher.Dispatch): Dispatcher.Dispatch => {
    return (options, handler) => {
      if (handler.onRequestStart === undefined && handler.onResponseStart === undefined) {
        throw new TypeError('shape() needs undici 7 or 8: npm install undici@7')
      }
      const { credentials } = context!
      const origin = originOf(options.origin)
      if (credentials !== undefined && origin !== '' && credentials.frontOf(origin) === undefined)
        return dispatch(options, handler)
      new HeldRequest(context!, request, factsOf(options, origin), { dispatch, options, handler }).begin()
      return true
    }
  }
  const factsOf = (options: Dispatcher.DispatchOptions, origin: string): CallFacts => {
    try {
      const areOwn = context!.credentials !== undefined
      if (areOwn && origin === '') throw new TypeError(NO_ORIGIN)
      const key = areOwn ? '' : keyOf(options, request.key)
      const cost = typeof request.cost === 'function' ? request.cost(options) : request.cost
      return { key: checkKey(key), ...readCost(cost, context!.names), origin }
    } catch (error) {
      discard(options.body, error instanceof Error ? error : new Error('not sent', { cause: error }))
      throw error
    }
  }
  return Object.assign(intercept as ShapeInterceptor, { shaper })
}
