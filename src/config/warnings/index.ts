/** Warnings: valid configurations that hardly anybody wants. */

import type { Problem } from '../load.js'
import { formatPath } from '../problems.js'
import type { Settings } from '../settings.js'
import { bucketWarnings } from './buckets.js'
import { clientWarnings } from './clients.js'
import { patternWarnings } from './patterns.js'
import { priorityWarnings } from './priorities.js'
import { profileWarnings } from './profiles.js'
import { routeWarnings } from './routes.js'
import { stackWarnings } from './stacks.js'
import { storeWarnings } from './store.js'
import { tierKeyWarnings } from './tier-keys.js'

/**
 * The warnings about a configuration. Each says where, what the effect is, and what to write instead.
 *
 * @param wallNow ms since 1970
 */
export function warnings(settings: Settings, wallNow = Date.now()): Problem[] {
  const found = [
    ...(settings.notReplaced ?? []),
    ...clientWarnings(settings),
    ...bucketWarnings(settings),
    ...tierKeyWarnings(settings),
    ...patternWarnings(settings),
    ...stackWarnings(settings),
    ...routeWarnings(settings),
    ...priorityWarnings(settings),
    ...storeWarnings(settings),
    ...profileWarnings(settings, wallNow),
  ]
  const place = settings.egress === undefined ? (path: Path) => path : inEgress
  return found.map(({ path, message }) => ({ path: formatPath(place(path)), message }))
}

type Path = readonly PropertyKey[]

/** With egress all routes have the upstream of `egress`. */
function inEgress(path: Path): Path {
  const at = path.indexOf('upstream')
  return at < 0 ? path : ['egress', ...path.slice(at)]
}
