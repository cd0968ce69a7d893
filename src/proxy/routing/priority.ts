import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { urgencyOf } from '../../http/priority-field.js'
import { headerValue, type RequestFacts } from '../http/request.js'
import type { Route } from './route.js'

/**
 * The priority of a request: what a trusted hop says, if the route believes it, or that of its tier, or that of the route.
 *
 * @param ofTier undefined: it is in no tier with a priority
 */
export function priorityOf(
  { settings: { priority } }: Route,
  { rawHeaders }: RequestFacts,
  ofTier: number | undefined,
  isTrusted: () => boolean,
): number {
  if (priority !== 'header') return ofTier ?? priority
  const said = isTrusted() ? headerValue(rawHeaders, 'priority') : undefined
  return (said === undefined ? undefined : urgencyOf(said)) ?? ofTier ?? DEFAULT_PRIORITY
}

/** The priority of a request whose headers are unknown. */
export function usualPriorityOf({ settings: { priority } }: Route, ofTier: number | undefined): number {
  return ofTier ?? (priority === 'header' ? DEFAULT_PRIORITY : priority)
}
