/** An interceptor for undici: every request of a dispatcher waits for its turn. */
import type { Dispatcher } from 'undici'
import type { CallContext } from '../call-context.js'
import type { CallFacts } from '../calls/call.js'
import { checkKey, readCost } from '../calls/call-options.js'
import {
  type CostAfter,
  type CostOf,
  type KeyOptions,
  type LastingOptions,
  type RequestSettings,
  readShapeOptions,
} from '../options.js'
import { OutboundShaper } from '../shaper.js'
import { HeldRequest } from './held-request.js'
import { discard, keyOf, originOf, queueName } from './request-parts.js'

/** How requests and their answers count. */
interface RequestOptions<Name extends string = string> extends Omit<LastingOptions<Name>, 'retry'> {
  /**
   * Which requests share a queue: those of one origin (default), all, those with the same header, or those for which a
   * function returns the same.
   */
  readonly key?: 'origin' | 'all' | `header:${string}` | ((options: Dispatcher.DispatchOptions) => string)
  /** Cost units of a request: in each bucket, or by their names. Default 1. */
  readonly cost?: CostOf<NoInfer<Name>> | ((options: Dispatcher.DispatchOptions) => CostOf<NoInfer<Name>>)
  /** What a request really cost, by its answer. It is called when the headers of the answer are there. Default: its `cost`. */
  readonly costAfter?: CostAfter<NoInfer<Name>>
  /**
   * Follows what answers announce in their rate limit headers: a lower rate for their key, and a pause where nothing is left. Of
   * several buckets those called `requests` and `tokens` follow (those of OpenAI and Anthropic included). With a store only
   * pauses. Where answers name a resource (`x-ratelimit-resource` of GitHub), each resource of a key has a queue, a pause and buckets
   * of its own: `https://api.github.com search`. Default false.
   */
  readonly learn?: boolean
  /** In which limit of its API a request counts, where that is known before its answer. Default: as answers to such paths say. */
  readonly resource?: string | ((options: Dispatcher.DispatchOptions) => string | undefined)
  /**
   * An answer with one of these statuses pauses its key: for the time of its Retry-After or RateLimit fields, else for
   * `default`, at most for `max` (`"1s"`, or ms). Default: 429, 503 and 529, `"1s"`, `"60s"`. False: no answer pauses.
   */
  readonly pauseOn?:
    | false
    | { readonly status?: readonly number[]; readonly default?: string | number; readonly max?: string | number }
  /**
   * Sends a request again, at the head of its queue, after an answer with one of these statuses, or after a connection that failed before
   * an answer, at most `max` times. Where the answer names no time it waits at random, up to `backoff` (`"500ms"`, or ms), twice that the
   * next time and so on, at most `maxBackoff` (`"30s"`).
   * Only repeatable requests (by their method, or `idempotent: true`) whose body can be read again: a string, Buffer or other bytes,
   * a Blob or FormData. `fetch` makes a stream of every body: with it only requests without one. Default: none.
   */
  readonly retry?: {
    readonly status: readonly number[]
    readonly max: number
    readonly backoff?: string | number
    readonly maxBackoff?: string | number
  }
  /**
   * For how long a credential is not used once it was answered 401 and another one then succeeded with the same request:
   * `"60s"`, the default, or ms. The last one is always used.
   */
  readonly revokedFor?: string | number
}

/** Options of `shape`: those of `createShaper`, and how requests and their answers count. */
export type ShapeOptions<Name extends string = string> = RequestOptions<Name> & KeyOptions<Name>
/** The methods that handlers of undici 7 and 8 share. Those of undici 6 have none of them. */
type AnyHandler = Pick<Dispatcher.DispatchHandler, 'onRequestStart' | 'onResponseStart' | 'onResponseEnd'>

/** For `compose` of undici's dispatchers. Its types fit those of undici 7 and of undici 8. */
export interface ShapeInterceptor<Name extends string = string> {
  <Options = Dispatcher.DispatchOptions, Handler extends AnyHandler = Dispatcher.DispatchHandler>(
    dispatch: (options: Options, handler: Handler) => boolean,
  ): (options: Options, handler: Handler) => boolean
  /** Its shaper: status, pauses, drain and events. */
  readonly shaper: OutboundShaper<Name>
}

const NO_ORIGIN = 'origin: missing, and a credential leaves for its origins only; use an Agent as the dispatcher'

/**
 * Creates an interceptor that holds requests until their turn. Compose it first, so that what other interceptors send passes it.
 * With `credentials` a request to an origin that none of them is for passes untouched.
 * A request that is not let through fails with OverflowError, ExpiredError or ClosedError. With `fetch` that error is the `cause` of a TypeError.
 *
 * @throws RangeError or TypeError as `createShaper`
 */
export function shape<Name extends string = never>(options: ShapeOptions<Name>): ShapeInterceptor<Name> {
  const { settings, request } = readShapeOptions<Dispatcher.DispatchOptions>(options)
  const names = settings.areNamed ? settings.buckets.map(({ name }) => name) : undefined
  if (typeof request.cost !== 'function') readCost(request.cost, names)
  let context: CallContext | undefined
  const shaper = new OutboundShaper<Name>(settings, connected => {
    context = connected
  })
  const intercept = (dispatch: Dispatcher.Dispatch): Dispatcher.Dispatch => {
    return (options, handler) => {
      if (handler.onRequestStart === undefined && handler.onResponseStart === undefined)
        throw new TypeError('shape() needs undici 7 or 8: npm install undici@7')
      const { credentials } = context!
      const origin = originOf(options.origin)
      if (credentials !== undefined && origin !== '' && credentials.frontOf(origin) === undefined)
        return dispatch(options, handler)
      const { facts, keyAlone } = factsOf(options, origin)
      new HeldRequest(context!, request, facts, { dispatch, options, handler, keyAlone }).begin()
      return true
    }
  }
  const factsOf = (options: Dispatcher.DispatchOptions, origin: string) => {
    try {
      const areOwn = context!.credentials !== undefined
      if (areOwn && origin === '') throw new TypeError(NO_ORIGIN)
      const { key, keyAlone } = areOwn ? { key: '', keyAlone: undefined } : queueFor(options, request, context!)
      const cost = typeof request.cost === 'function' ? request.cost(options) : request.cost
      const facts: CallFacts = { key, ...readCost(cost, context!.names), origin }
      return { facts, keyAlone }
    } catch (error) {
      discard(options.body, error instanceof Error ? error : new Error('not sent', { cause: error }))
      throw error
    }
  }
  return Object.assign(intercept as ShapeInterceptor<Name>, { shaper })
}

/** The queue of a request. `keyAlone`: its key, where answers say in which of the limits of their API they count. */
function queueFor(
  options: Dispatcher.DispatchOptions,
  { key, learn, resource }: RequestSettings<Dispatcher.DispatchOptions>,
  { resources }: CallContext,
): { readonly key: string; readonly keyAlone?: string } {
  const alone = checkKey(keyOf(options, key))
  const told = typeof resource === 'function' ? resource(options) : resource
  if (told !== undefined || !learn) return { key: queueName(alone, told) }
  return { key: queueName(alone, resources.of(alone, options.path)), keyAlone: alone }
}
