/**
 * Clients that wait no longer than the `patience` of their route says, as far as a log lets it count: a request is rejected on
 * arrival, or given up at its turn, if its answer would come too late. What the proxy learns of clients is not replayed.
 */
import type { RouteSettings, Settings } from '../../config/settings.js'
import type { ArrivalSink, LogArrivals, Reading } from '../input/arrivals.js'
import type { Waits } from './wait-quantiles.js'

/** Answers that have to be known before their usual time is. */
const LEAST_ANSWERS = 20

/** How long answers take, in ms: the 90th percentile. Undefined: too few are known. */
export function usualServiceTime(times: Waits): number | undefined {
  return times.count < LEAST_ANSWERS ? undefined : times.summary().p90
}

/** How long clients of a route wait for their answers, in ms. Undefined: its configuration does not say. */
export function patienceOf({ mode, patience }: RouteSettings): number | undefined {
  return mode === 'shape' && typeof patience === 'number' ? patience : undefined
}

/** The names of the routes whose `patience` counts. */
export function patientRoutes({ routes }: Settings): string[] {
  return routes.filter(route => patienceOf(route) !== undefined).map(({ name }) => name)
}

/** What reads logs for routes with patience. */
interface PatientReading<T extends ArrivalSink> {
  /** Told of the times of answers as the logs are read. */
  readonly serviceTimes: Waits
  readonly routes: readonly string[]
  /** @param service how long answers take, in ms; undefined: not known */
  readonly open: (service: number | undefined) => T
}

/**
 * Reads logs. Where a route has patience and the logs say how long answers take, they are read a second time.
 *
 * @returns `note`: what a reader has to know of the routes
 */
export async function readPatiently<T extends ArrivalSink>(
  arrivals: LogArrivals,
  { serviceTimes, routes, open }: PatientReading<T>,
): Promise<{ reading: Reading; result: T; note?: string }> {
  const first = await arrivals.read(() => open(undefined))
  if (routes.length === 0) return first
  const about = `patience of ${[...new Set(routes)].map(name => JSON.stringify(name)).join(', ')}: answers are taken to come`
  const service = usualServiceTime(serviceTimes)
  if (service === undefined)
    return { ...first, note: `${about} at once, because the log does not say how long they take` }
  if (!arrivals.repeatable) {
    const note = `${about} at once, because standard input cannot be read twice; save it to a file and name that`
    return { ...first, note }
  }
  const second = await arrivals.read(() => open(service))
  return { ...second, note: `${about} after ${Math.round(service)} ms, the 90th percentile in the log` }
}
