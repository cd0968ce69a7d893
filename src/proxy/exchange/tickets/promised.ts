import type { SharedBucket } from '../../../core/queue/lane.js'
import type { RejectedArrival } from '../../../core/shared/shared-promises.js'
import type { ProxyContext } from '../../context.js'
import type { Route } from '../../routing/route.js'

/**
 * Tells a rejection as its client is to be told of it: clients that are rejected at the same moment are told different ones. It is told at
 * once, or later where a store is asked.
 */
export function tellPromised(
  { shaper, sharing }: ProxyContext,
  { buckets, settings }: Route,
  rejected: RejectedArrival,
): void {
  const { arrival, rejection, maxWait, tell } = rejected
  const isAlone = ({ limits }: SharedBucket): boolean =>
    buckets.find(({ settings }) => settings.name === limits.name)?.ofOneClient === true
  // There is nobody to keep it apart from, and a flood from many addresses need not be remembered.
  if (arrival.appointment === undefined && rejection.buckets.every(isAlone)) tell(rejection)
  else if (sharing === undefined) tell(shaper.promise(arrival, rejection, maxWait))
  // Who is metered waits for nothing.
  else sharing.shaper.promise({ ...rejected, atOnce: settings.mode === 'meter' }, sharing.instances)
}
