/** Waiting until a call would be admitted: back-pressure for who makes calls. */
import { type CallContext, RETRY_ADMISSION_MS } from '../call-context.js'
import { ClosedError, OverflowError } from '../errors.js'
import { mayEnd, stayAlive } from '../process-clock.js'
import { retryAfter } from '../retry-after.js'
import { isSignal, unwatch, watch } from './abort-signals.js'
import { type CallOptions, checkKey, checkOptions, readCallOptions } from './call-options.js'

/** Options of `room`: the cost of the call to come, and a signal that ends the wait. */
export type RoomOptions<Name extends string = string> = Pick<CallOptions<Name>, 'cost' | 'signal'>

export async function untilRoom(context: CallContext, key: string, options: RoomOptions = {}): Promise<void> {
  checkKey(key)
  checkOptions(options, ['cost', 'signal'], '{ cost: 2 }')
  const { signal, ...cost } = readCallOptions(options, context.names)
  for (;;) {
    if (context.closed) throw new ClosedError()
    if (isSignal(signal)) signal.throwIfAborted()
    const queue = context.queueOf(key, context.clock.now())
    const ms = queue === undefined ? RETRY_ADMISSION_MS : context.untilRoom(queue, cost)
    if (ms === 0) return
    if (ms === Infinity) throw new OverflowError('too-costly', key, Infinity)
    await passed(context, retryAfter(ms), signal)
  }
}

/** Resolves after this many ms, or when the shaper has ended, or the signal is aborted. */
function passed(context: CallContext, ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise(resolve => {
    const { clock, roomWaits } = context
    const waiter = { cancel: () => end() }
    const end = (): void => {
      if (!roomWaits.delete(end)) return
      cancel()
      if (signal !== undefined) unwatch(signal, waiter)
      mayEnd()
      resolve()
    }
    roomWaits.add(end)
    stayAlive()
    if (signal !== undefined) watch(signal, waiter)
    const cancel = clock.at(clock.now() + ms, end)
  })
}
