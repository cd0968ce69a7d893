/**
 * The servers of one upstream: which of them are up, how many requests they take, and which one takes the next.
 *
 * The queue, its slots and its order are the upstream's. A server is chosen when a request leaves, or is armed to leave.
 *
 * **Up.** Three things know about a server, and may disagree: its active check, its breaker, and its warm-up.
 * 1. The check is asked first. A server that it finds down gets nothing, not even a probe of its breaker: the check is one.
 * 2. Without a check, or with one that passes, the breaker decides. While it is open the server gets one probe at a time.
 * 3. Else the server is up. Its warm-up only makes it lighter, so that it gets fewer requests than others.
 * A check that finds a server up again closes its breaker, as what that knows is of before.
 * Backup servers take requests only while no other server is up.
 *
 * **Places.** The gate counts every request that has passed, and this set those for which a server has been chosen. With
 *
 *     bound = sum of chosen, over all servers + sum of free, over the servers that take requests
 *
 * the gate is open exactly while fewer have passed without a server than there are free places. So each request that passes
 * finds a server, whichever it is, and waits only while none has a place. A server that goes down keeps what was sent to it.
 */
import { hashOf } from '../structures/text.js'

export interface ServerRules {
  /** Identifies it, also to other processes: hash picks depend on it. */
  readonly url: string
  readonly weight: number
  /** The most requests in flight; Infinity: no bound. */
  readonly maxInFlight: number
  /** The most connections, tunnels included. Undefined: as `maxInFlight`. */
  readonly connections?: number
  /** It takes requests only while no other is up. */
  readonly backup: boolean
}

/** How requests are given to servers. `hash`: each key has a server of its own (rendezvous hashing). */
export type PickRule = 'least-in-flight' | 'round-robin' | 'hash'

/** What is known of one server, and what it has. It outlives changes of the configuration. */
export class ServerPlace {
  rules: ServerRules
  /** Requests that have a place in the gate, or are armed to take one. */
  inFlight = 0
  /** Those of them that are armed. */
  armed = 0
  /** Tunnels that have left the gate. */
  tunnels = 0
  /** Requests that never pass the gate. */
  ungated = 0
  /** Its check fails. */
  isDown = false
  /** Its breaker is open. */
  isBlocked = false
  /** While it is blocked: the next request is its probe. */
  probe = false
  /** Its probe is on its way. */
  probing = false
  /** The part of its weight that it has while it warms up. */
  part = 1
  /** Smooth weighted round-robin, as in nginx: it grows by the weight, and falls by all weights when the server is chosen. */
  credit = 0
  readonly seed: number

  constructor(rules: ServerRules) {
    this.rules = rules
    this.seed = hashOf(rules.url, 0)
  }

  get isUp(): boolean {
    return !this.isDown && !this.isBlocked
  }

  get takesNext(): boolean {
    return !this.isDown && (!this.isBlocked || this.probe)
  }

  get weight(): number {
    return this.rules.weight * this.part
  }

  get load(): number {
    return this.inFlight + this.tunnels + this.ungated
  }

  /** Requests that have been sent, and are not answered completely. */
  get sent(): number {
    return this.inFlight - this.armed + this.ungated
  }

  /** How many more requests of the gate it takes. */
  get free(): number {
    const { maxInFlight, connections } = this.rules
    const outside = this.tunnels + (connections === undefined ? 0 : this.ungated)
    const left = Math.min(maxInFlight - this.inFlight, (connections ?? maxInFlight) - this.inFlight - outside)
    return Math.max(0, this.isBlocked ? Math.min(1, left) : left)
  }

  /** Another probe may be sent. */
  unprobe(): void {
    this.probing = false
    this.probe = this.isBlocked
  }
}

export interface Wanted {
  /** The key of the request. Undefined: it has none. */
  readonly key?: string | undefined
  /** Those that could not be connected to. */
  readonly tried?: readonly ServerPlace[]
  /** It has no place in the gate: it may exceed the bounds of servers. */
  readonly ungated?: boolean
  /** It is to be armed, so it can be no probe: it gets no server when it should be one. */
  readonly armed?: boolean
}

interface Turn {
  readonly places: readonly ServerPlace[]
  readonly best: ServerPlace | undefined
}

const NO_TURN: Turn = { places: [], best: undefined }

export class ServerSet {
  /** What the last pick has changed. */
  #turn: Turn = NO_TURN
  places: readonly ServerPlace[] = []
  /** Servers that are no longer here and still have requests. */
  #left: readonly ServerPlace[] = []
  rule: PickRule = 'least-in-flight'

  get isDown(): boolean {
    for (const place of this.places) if (place.isUp) return false
    return true
  }

  /** These are here now. What others have been sent stays theirs. */
  replace(places: readonly ServerPlace[], before: ServerSet = this): void {
    const known = new Set([...before.#left, ...before.places, ...this.places])
    this.#left = [...known].filter(place => place.inFlight > 0 && !places.includes(place))
    this.places = places
  }

  /** The most requests that may be in flight and armed together, as things are. While all are down the gate is blocked instead. */
  get bound(): number {
    if (this.isDown) return Infinity
    let sum = 0
    for (const { inFlight } of this.#left) sum += inFlight
    for (const { inFlight } of this.places) sum += inFlight
    for (const { free } of this.#candidates) sum += free
    return sum
  }

  /** The server for a request. Undefined: none takes it. */
  pick({ key, tried, ungated = false, armed = false }: Wanted): ServerPlace | undefined {
    const found = this.#candidates.filter(place => !tried?.includes(place) && (ungated || place.free >= 1))
    this.#turn = NO_TURN
    const chosen = this.#choose(found, key)
    return armed && chosen?.isBlocked ? undefined : chosen
  }

  #choose(found: readonly ServerPlace[], key: string | undefined): ServerPlace | undefined {
    if (found.length < 2) return found[0]
    if (this.rule === 'hash' && key !== undefined) return nearest(found, hashOf(key, 0))
    const blocked = found.find(({ isBlocked }) => isBlocked)
    if (blocked !== undefined) return blocked
    const places = this.rule === 'round-robin' ? found : idlest(found)
    const best = nextInTurn(places)
    this.#turn = { places, best }
    return best
  }

  /** The server that was picked last was not used: it has its turn still. */
  returnTurn(): void {
    const { places, best } = this.#turn
    for (const place of places) {
      place.credit -= place.weight
      best!.credit += place.weight
    }
    this.#turn = NO_TURN
  }

  /** Whether a request that is armed should rather go to another server: that has fewer by more than one. */
  get isUneven(): boolean {
    if (this.rule !== 'least-in-flight') return false
    return this.places.some(place => place.armed > 0 && this.#hasBetterThan(place))
  }

  #hasBetterThan(chosen: ServerPlace): boolean {
    return this.#candidates.some(
      place =>
        place !== chosen &&
        place.isUp &&
        place.free >= 1 &&
        (place.load + 1) / place.weight < (chosen.load - 1) / chosen.weight,
    )
  }

  /** Those that take requests now. */
  get #candidates(): readonly ServerPlace[] {
    const isServed = this.places.some(({ isUp, rules }) => isUp && !rules.backup)
    return this.places.filter(({ takesNext, rules }) => takesNext && !(rules.backup && isServed))
  }
}

/** Those with the fewest requests for their weight. */
function idlest(places: readonly ServerPlace[]): readonly ServerPlace[] {
  let least = Infinity
  for (const { load, weight } of places) least = Math.min(least, load / weight)
  return places.filter(({ load, weight }) => load / weight <= least)
}

function nextInTurn(places: readonly ServerPlace[]): ServerPlace {
  let best = places[0]!
  let total = 0
  for (const place of places) {
    place.credit += place.weight
    total += place.weight
    if (place.credit > best.credit) best = place
  }
  best.credit -= total
  return best
}

/**
 * Weighted rendezvous hashing (Thaler and Ravishankar 1998; weights as in "Weighted Distributed Hash Tables", Schindelhauer and
 * Schomaker 2005): each server draws a number from the key, of an exponential distribution with its weight as rate, and the
 * lowest wins. A server that leaves moves only the keys that it had.
 */
function nearest(places: readonly ServerPlace[], key: number): ServerPlace {
  let best = places[0]!
  let least = Infinity
  for (const place of places) {
    const drawn = -Math.log(uniform(key, place.seed)) / place.weight
    if (drawn < least) [best, least] = [place, drawn]
  }
  return best
}

/** Above 0 and below 1. Mixes two hashes of 32 bits (the constants are those of the "lowbias32" mixer, Wellons 2018). */
function uniform(key: number, seed: number): number {
  let mixed = (key ^ Math.imul(seed, 0x9e3779b1)) >>> 0
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x21f0aaad)
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97)
  return (((mixed ^ (mixed >>> 15)) >>> 0) + 0.5) / 0x1_0000_0000
}
