/** The waits of newcomers for lists of keys. */
import type { BucketSettings } from '../../config/settings.js'
import { predictedWait } from '../../core/admission/predicted-wait.js'
import type { ProxyContext } from '../../proxy/context.js'
import type { Route } from '../../proxy/routing/route.js'
import type { Instance } from '../counters/fullest.js'
import type { InstanceSnapshot, RouteSnapshot } from '../snapshot/snapshot.js'
import { listedState } from './instance.js'
import { heldByAny, heldByOn, newcomersOf, type RouteNewcomer, rounded, strangerOn, waitsOf } from './newcomer.js'

/** Newcomers of a list that are looked at. Beyond these the waits are estimates. */
const MOST_LOOKED_AT = 400
/** With more waiting requests looking ahead takes some ms. It is then done once a second, and its answers are used again in between. */
const MANY = 2_000
const REST = 1_000

/** An entry of a list. Its wait is that of the newcomer that waits longest. */
interface Listed {
  readonly id: string
  readonly newcomers: readonly RouteNewcomer[]
  tell(ms: number): void
}

export class ListedWaits {
  /** What was told last, by id. */
  told: ReadonlyMap<string, number> = new Map()
  /** ms. Until then `told` is used again. */
  restsUntil = -Infinity

  constructor(readonly context: ProxyContext) {}

  list(): WaitList {
    return new WaitList(this)
  }
}

/** One list. Its entries have their waits once it is filled. */
export class WaitList {
  readonly #all: ListedWaits
  readonly #listed: Listed[] = []
  #newcomers = 0

  constructor(all: ListedWaits) {
    this.#all = all
  }

  add(
    settings: BucketSettings,
    [key, bucket]: Instance,
    more: Pick<InstanceSnapshot, 'oldestMs'> = {},
  ): InstanceSnapshot {
    const { context } = this.#all
    const newcomers = newcomersOf(context, settings, key, bucket)
    const heldBy = heldByAny(newcomers)
    const entry = {
      ...{ ...listedState(context, settings.name, [key, bucket]), ...more, predictedWaitMs: 0 },
      ...(heldBy.length > 0 && { heldBy }),
    }
    this.#add(`${settings.name}\n${key}`, newcomers, ms => {
      entry.predictedWaitMs = ms
    })
    return entry
  }

  addRoute(route: Route, entry: RouteSnapshot): RouteSnapshot {
    const stranger = route.settings.mode === 'shape' ? strangerOn(this.#all.context, route) : undefined
    if (stranger === undefined) return entry
    const heldBy = heldByOn(stranger)
    const told = { ...entry, predictedWaitMs: 0, ...(heldBy.length > 0 && { heldBy }) }
    this.#add(route.name, [stranger], ms => {
      told.predictedWaitMs = ms
    })
    return told
  }

  #add(id: string, newcomers: readonly RouteNewcomer[], tell: (ms: number) => void): void {
    this.#listed.push({ id, newcomers, tell })
    this.#newcomers += newcomers.length
  }

  async fill(): Promise<void> {
    const { context, told, restsUntil } = this.#all
    const startedAt = performance.now()
    const isResting = startedAt < restsUntil && context.shaper.queued > MANY
    const newcomers = this.#listed.flatMap(({ newcomers }) => newcomers)
    const looked = isResting ? [] : newcomers.slice(0, MOST_LOOKED_AT)
    const waits = await waitsOf(context, looked)
    const byNewcomer = new Map(looked.map((newcomer, place) => [newcomer, waits[place]!]))
    const waitOf = (newcomer: RouteNewcomer): number => byNewcomer.get(newcomer) ?? estimate(context, newcomer)
    const now = new Map<string, number>()
    for (const { id, newcomers, tell } of this.#listed) {
      const known = isResting ? told.get(id) : undefined
      const ms = known ?? rounded(Math.max(0, ...newcomers.map(waitOf)))
      now.set(id, ms)
      tell(ms)
    }
    if (isResting) return
    this.#all.told = now
    this.#all.restsUntil = startedAt + REST
  }
}

function estimate({ clock }: ProxyContext, { route, arrival }: RouteNewcomer): number {
  if (route.settings.mode !== 'shape') return 0
  const now = clock.now()
  return predictedWait(arrival, now, arrival.route.gate.shutFor(now))
}
