import { Gate } from '../../core/queue/lane.js'
import type { ServerSet } from '../../core/release/server-set.js'
import { type Linked, LinkedList } from '../../core/structures/linked-list.js'

interface ConnectionRules {
  readonly maxInFlight: number
  readonly connections?: number
}

interface WaitingOutside extends Linked<WaitingOutside> {
  readonly start: () => void
  /** A request was ready at the gate before it came. That one goes first. */
  behindGate: boolean
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
  /** The servers behind the gate. Those of an upstream that it is handed on to replace them. */
  servers: Pick<ServerSet, 'bound'>
  #maxInFlight = Infinity
  #most = Infinity
  /** Requests that never pass the gate count, too. */
  countsAll = false
  /** How many of them have a place. */
  #ungated = 0
  /** Tunnels that have left the gate. */
  #tunnels = 0
  readonly #waiting = new LinkedList<WaitingOutside>()
  #looksSoon = false

  /** @param wake lets the core look at the gate, which has more places */
  constructor(servers: Pick<ServerSet, 'bound'>, wake: (gate: Gate) => void) {
    this.servers = servers
    this.#wake = wake
  }

  /** Sets the bounds. What is above them stays until it ends. After it wake the gate. */
  apply({ maxInFlight, connections }: ConnectionRules): void {
    this.#maxInFlight = maxInFlight
    this.#most = connections ?? maxInFlight
    this.countsAll = connections !== undefined
    this.budget.limit(this.#most, this.countsAll ? this.unbounded : undefined)
    this.serversChanged()
  }

  /** The servers may have more places, or fewer. */
  serversChanged(): void {
    this.gate.onRoom = Math.min(this.#most, this.servers.bound) < Infinity ? this.#gateHasRoom : undefined
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
    if (!this.countsAll || (this.#waiting.size === 0 && this.#hasPlace)) {
      this.#start(start)
      return undefined
    }
    const behindGate = this.gate.awaited
    const waiting: WaitingOutside = { list: undefined, previous: undefined, next: undefined, start, behindGate }
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
    return this.#tunnels + (this.countsAll ? this.#ungated : 0)
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
    const places = Math.min(this.#maxInFlight, this.#most - this.#outside - kept, this.servers.bound)
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
    for (; first !== undefined && (this.#hasPlace || !this.countsAll); { first } = this.#waiting) {
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

export interface BudgetUser {
  useRoom(): void
  /** Closes a connection that is not in use. False: there is none. */
  closeUnused(): boolean
}

/** A connection that is not a pool's and that waits for room. */
interface WaitingTunnel extends Linked<WaitingTunnel> {
  readonly open: () => void
}

/**
 * How many connections several pools and tunnels may have together. Those that are being opened count. That of a server is a
 * part of its upstream's.
 */
export class ConnectionBudget implements BudgetUser {
  readonly #users = new Set<BudgetUser>()
  readonly #tunnels = new LinkedList<WaitingTunnel>()
  #whole: ConnectionBudget | undefined
  #most = Infinity
  #beside: ConnectionBudget | undefined
  open = 0

  constructor(whole?: ConnectionBudget) {
    this.#whole = whole
    whole?.join(this)
  }

  get hasRoom(): boolean {
    return !this.#isFull && this.#whole?.hasRoom !== false
  }

  get #isFull(): boolean {
    return this.open + (this.#beside?.open ?? 0) >= this.#most
  }

  /** A tunnel waits for room: no connection is to be kept. */
  get crowded(): boolean {
    return this.#tunnels.size > 0 || this.#whole?.crowded === true
  }

  /** Sets the bound. Connections above it stay open. @param beside its connections count, too */
  limit(most: number, beside?: ConnectionBudget): void {
    this.#beside?.leave(this)
    this.#beside = beside
    beside?.join(this)
    this.#most = most
    this.useRoom()
  }

  /** To be called before it has a connection. */
  moveTo(whole: ConnectionBudget): void {
    this.close()
    this.#whole = whole
    whole.join(this)
  }

  close(): void {
    this.#whole?.leave(this)
  }

  join(user: BudgetUser): void {
    this.#users.add(user)
  }

  leave(user: BudgetUser): void {
    this.#users.delete(user)
  }

  opened(): void {
    this.open += 1
    this.#whole?.opened()
  }

  closed(): void {
    this.open -= 1
    if (this.#whole === undefined) return this.useRoom()
    const { hasRoom } = this.#whole
    this.#whole.closed()
    // It was not told: only its own bound had been reached.
    if (hasRoom) this.useRoom()
  }

  /**
   * Takes the room of a tunnel. Unused connections make room for it.
   *
   * @param open called when there is room, at once if possible
   * @returns gives the room back, or gives up waiting for it. To be called once
   */
  openTunnel(open: () => void): () => void {
    const waiting: WaitingTunnel = { list: undefined, previous: undefined, next: undefined, open }
    this.#tunnels.push(waiting)
    this.useRoom()
    return () => {
      if (!this.#tunnels.remove(waiting)) this.closed()
    }
  }

  useRoom(): void {
    while (this.#tunnels.size > 0 && this.hasRoom) {
      this.opened()
      this.#tunnels.shift()!.open()
    }
    // Its close makes room, and comes here again.
    if (this.#tunnels.size > 0 && this.makeRoom()) return
    for (const user of this.#users) user.useRoom()
  }

  /** Closes a connection that is not in use, of another server if that is what it takes. */
  makeRoom(): boolean {
    return this.#isFull ? this.closeUnused() : (this.#whole ?? this).closeUnused()
  }

  closeUnused(): boolean {
    for (const user of this.#users) if (user.closeUnused()) return true
    return false
  }
}
