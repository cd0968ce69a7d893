/** What this process has counted, for its last hour. */
import type { TrafficTally } from '../counters/traffic-tally.js'
import type { Totals } from './hour-ring.js'
import { passedOf } from './member.js'

export function totalsOf({ routes, buckets }: TrafficTally): Totals {
  let waiting = 0
  for (const { queued } of routes.values()) waiting += queued
  return {
    ...passedOf(routes.values(), ({ upstreamResponses }) => upstreamResponses[5]),
    waiting,
    cpu: cpuSeconds(),
    buckets: new Map(
      Array.from(buckets, ([name, { offered, released, rejected, waiting }]) => [
        name,
        { offered, released, rejected, waiting },
      ]),
    ),
  }
}

/** Of this process since its start. */
export function cpuSeconds(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1e6
}
