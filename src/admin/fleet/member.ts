/** What an instance shows of itself to the other instances on its store, and how they read it. */
import type { View } from '../../core/board.js'
import type { MemberSnapshot, RouteSnapshot, Snapshot } from '../snapshot/snapshot.js'
import { compactSnapshot } from './compact.js'

/** One instance of several, with its own snapshot. */
export interface FleetMember {
  /** Unique among all instances. */
  readonly id: string
  /** For people: the host and the process. */
  readonly name: string
  /** How old the snapshot is, in ms. */
  readonly age: number
  readonly snapshot: Snapshot
  /** Sums over all routes. The snapshot of another instance may be without its routes. */
  readonly passed: Passed
  /** Seconds of CPU time since its start. */
  readonly cpu: number
}

export type Passed = Pick<MemberSnapshot, 'forwarded' | 'rejected' | 'errors'>

/** @param broken the answers 5xx of the upstreams of a route */
export function passedOf<T extends Pick<RouteSnapshot, 'outcomes'>>(
  routes: Iterable<T>,
  broken: (route: T) => number,
): Passed {
  const sums = { forwarded: 0, rejected: 0, errors: 0 }
  for (const route of routes) {
    sums.forwarded += route.outcomes.forwarded
    sums.rejected += route.outcomes.rejected
    sums.errors += broken(route) + route.outcomes.failed
  }
  return sums
}

/** Instances of another version may show something else. */
const FORMAT = 4

/** Bytes. An instance shows no more, whatever the number of keys, buckets and routes. */
export const LARGEST_VIEW = 32 * 1_024

/** The text that others read. Undefined: its buckets and routes alone are too large. */
export function writeView({ name, snapshot, passed, cpu }: FleetMember): string | undefined {
  const write = (compact: Snapshot): string => JSON.stringify({ format: FORMAT, name, passed, cpu, snapshot: compact })
  return compactSnapshot(snapshot, write, LARGEST_VIEW)
}

/**
 * Undefined: it is of another version.
 *
 * @param wallNow ms since 1970. Its times are moved to this clock, because clocks of machines differ.
 */
export function readView({ id, text, age }: View, wallNow: number): FleetMember | undefined {
  try {
    const { format, name, passed, cpu, snapshot } = JSON.parse(text) as FleetMember & { format: number }
    if (format !== FORMAT) return undefined
    return { id, name, age, passed, cpu, snapshot: moved(snapshot, wallNow - age - snapshot.at) }
  } catch {
    return undefined
  }
}

function moved(snapshot: Snapshot, by: number): Snapshot {
  const all = (moments: readonly number[]): number[] => moments.map(moment => moment + by)
  return {
    ...snapshot,
    at: snapshot.at + by,
    buckets: snapshot.buckets.map(({ focus, ...bucket }) => ({
      ...bucket,
      ...(focus && {
        focus: {
          ...focus,
          arrivals: all(focus.arrivals),
          releases: all(focus.releases),
          rejections: all(focus.rejections),
        },
      }),
    })),
  }
}
