/** What is valid, and yet hardly what anybody wants. */
import { bucketWarnings } from './bucket-warnings.js'
import { clientWarnings } from './client-warnings.js'
import type { Problem } from './load.js'
import { formatPath } from './problems.js'
import { routeWarnings } from './route-warnings.js'
import type { Settings } from './settings.js'
import { stackWarnings } from './stack-warnings.js'
import { storeWarnings } from './store-warnings.js'

/** What an expert would say about a configuration: where, what follows from it, and what to write instead. */
export function warnings(settings: Settings): Problem[] {
  const found = [
    ...clientWarnings(settings),
    ...bucketWarnings(settings),
    ...stackWarnings(settings),
    ...routeWarnings(settings),
    ...storeWarnings(settings),
  ]
  return found.map(({ path, message }) => ({ path: formatPath(path), message }))
}
