import { Gate } from '../../core/queue/lane.js'
import { type Linked, LinkedList } from '../../core/structures/linked-list.js'
import { ConnectionBudget } from '../http1/connection-budget.js'

/** What the configuration of an upstream allows. */
export interface ConnectionRules {
  readonly maxInFlight: number
  /** Most connections. Undefined: `maxInFlight` bounds those of requests that pass the gate. */
  readonly connections?: number
}

/** A request outside the gate that has no place yet. */
class WaitingOutside implements Linked<WaitingOutside> {
  list: object | undefined = undefined
  previous: WaitingOutside | undefined = undefined
  next: WaitingOutside | undefined = undefined
  readonly start: () => void
  /** A request was ready at the gate before it came. That one goes first. */
  behindGate = false

  constructor(start: () => void) {
    this.start = start
  }
}

/**
 * The bound on the connections to an upstream, and its gate. It outlives a reload that changes the upstream.
 *
 * Each request that is sent has one of as many places as there may be connections, so none has to wait for the connection
 * of another. Most take theirs at the gate. Some are outside of it: requests of `off` routes, dry runs, and tunnels, which
 * keep their connection after they have left the gate. The gate has the places that are left. A request outside waits here
 * until there is a place, and takes turns with those that wait at the gate.
 */
export class ConnectionLimit {
  readonly gate = new Gate()
  /** For the connections that count. */
  readonly budget = new ConnectionBudget()
  /** For connections of requests outside the gate that do not count. It has no bound. */
  readonly unbounded = new ConnectionBudget()
  readonly #wake: (gate: Gate) => void
  #maxInFlight = Infinity
  #most = Infinity
  /** Requests that never pass the gate count, too. */
  #countsAll = false
  /** How many of them have a place. */
  #ungated = 0
  /** Tunnels that have left the gate. */
  #tunnels = 0
  readonly #waiting = new LinkedList<WaitingOutside>()
  #looksSoon = false

  /** @param wake lets the core look at the gate, which has more places */
  constructor(wake: (gate: Gate) => void) {
    this.#wake = wake
  }

  /** Whether the requests outside the gate count. */
  get countsAll(): boolean {
    return this.#countsAll
  }

  /** Sets the bounds. What is above them stays until it ends. After it wake the gate. */
  apply({ maxInFlight, connections }: ConnectionRules): void {
    this.#maxInFlight = maxInFlight
    this.#most = connections ?? maxInFlight
    this.#countsAll = connections !== undefined
    this.budget.limit(this.#most, this.#countsAll ? this.unbounded : undefined)
    this.gate.onRoom = this.#most < Infinity ? this.#gateHasRoom : undefined
    this.#adjust()
    this.#lookSoon()
  }

  /**
   * Takes a place for a request that never passes the gate.
   *
   * @param start called when it has its place, at once if there is one
   * @returns gives up if it still waits. Undefined: it has started
   */
  enter(start: () => void): (() => void) | undefined {
    if (!this.#countsAll || (this.#waiting.size === 0 && this.#hasPlace)) {
      this.#start(start)
      return undefined
    }
    const waiting = new WaitingOutside(start)
    waiting.behindGate = this.gate.awaited
    this.#waiting.push(waiting)
    this.#adjust()
    return () => void this.#waiting.remove(waiting)
  }

  /** The place of such a request is free. */
  readonly leave = (): void => {
    this.#ungated -= 1
    this.#placeFreed()
  }

  /** A tunnel keeps its place when it leaves the gate. */
  keepForTunnel(): void {
    this.#tunnels += 1
    this.#adjust()
  }

  tunnelClosed(): void {
    this.#tunnels -= 1
    this.#placeFreed()
  }

  get #outside(): number {
    return this.#tunnels + (this.#countsAll ? this.#ungated : 0)
  }

  get #hasPlace(): boolean {
    return this.gate.inFlight + this.gate.armed + this.#outside < this.#most
  }

  #start(start: () => void): void {
    this.#ungated += 1
    this.#adjust()
    start()
  }

  /** Gives the gate the places that are left. The next free one is kept for the request that waits longest outside. */
  #adjust(): void {
    const { gate } = this
    const kept = this.#waiting.first?.behindGate === false ? 1 : 0
    const places = Math.min(this.#maxInFlight, this.#most - this.#outside - kept)
    gate.maxInFlight = gate.armed === 0 ? places : Math.max(places, gate.inFlight + gate.armed)
  }

  readonly #gateHasRoom = (): void => {
    this.#adjust()
    const { first } = this.#waiting
    if (first === undefined) return
    // The gate takes this place.
    first.behindGate = false
    this.#lookSoon()
  }

  #placeFreed(): void {
    this.#adjust()
    if (this.#waiting.size > 0 || (this.gate.open && this.gate.awaited)) this.#lookSoon()
  }

  /** Not now: what has freed a place may be in the middle of something. */
  #lookSoon(): void {
    if (this.#looksSoon) return
    this.#looksSoon = true
    process.nextTick(this.#look)
  }

  readonly #look = (): void => {
    this.#looksSoon = false
    let { first } = this.#waiting
    for (; first !== undefined && (this.#hasPlace || !this.#countsAll); { first } = this.#waiting) {
      if (first.behindGate) {
        this.#adjust()
        this.#wakeGate()
        first.behindGate = false
      } else {
        this.#waiting.shift()
        this.#start(first.start)
      }
    }
    this.#adjust()
    this.#wakeGate()
  }

  #wakeGate(): void {
    if (this.gate.open && this.gate.awaited) this.#wake(this.gate)
  }
}
