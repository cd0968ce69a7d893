/** Requests of the process before this one, in the queues of this one (departing.ts). */
import { type Gate, type Rejection, type SharedBucket, Ticket } from '../../core/queue/lane.js'
import type { AdmissionCallbacks, Arrival, Verdict } from '../../core/shaper.js'
import type { ProxyContext } from '../context.js'
import { limitsOf, ownerOf } from '../live-limits.js'
import type { Route } from '../routing/route.js'
import { DepartingShaper, type Guest, type GuestNews, type GuestOrder, type Link } from './departing.js'

/** Guests of the processes before this one, by their numbers: those of workers, or 0. */
export class Houses {
  readonly #context: ProxyContext
  readonly #guests = new Map<number, Guests>()
  readonly #tell: (news: GuestNews, from: number) => void
  readonly #machine: Link['machine']

  constructor(context: ProxyContext, machine: Link['machine'], tell: (news: GuestNews, from: number) => void) {
    this.#context = context
    this.#machine = machine
    this.#tell = tell
  }

  obey(order: GuestOrder, from = 0): void {
    if (order.verb === 'gone') this.#close(from)
    else this.#of(from).obey(order)
  }

  close(): void {
    for (const from of [...this.#guests.keys()]) this.#close(from)
  }

  #of(from: number): Guests {
    const known = this.#guests.get(from)
    if (known !== undefined) return known
    const guests = new Guests(this.#context, { tell: news => this.#tell(news, from), machine: this.#machine })
    this.#guests.set(from, guests)
    // If this process ended before them, the one before would decide on them again, and the successor of this one as well.
    this.#context.inProgress += 1
    return guests
  }

  #close(from: number): void {
    const guests = this.#guests.get(from)
    if (guests === undefined) return
    this.#guests.delete(from)
    guests.close()
    this.#context.inProgress -= 1
    if (this.#context.inProgress === 0) this.#context.idle()
  }
}

interface Origin {
  tell(news: GuestNews): void
  readonly machine: Link['machine']
}

class Guests {
  readonly #context: ProxyContext
  readonly #origin: Origin
  /** Those that wait or are on their way. */
  readonly #all = new Map<number, Visit>()
  /** How many requests the process before has sent by itself, and that are not over. */
  readonly #before = new Map<Gate, number>()
  /** Those that have left their places. Their slots may be given back until they are told to be used. */
  readonly #left = new Map<number, Visit>()
  /** When those left that are not on the wire yet, as far as is known: ms, the oldest first. */
  readonly #unsent = new Map<number, number>()

  constructor(context: ProxyContext, origin: Origin) {
    this.#context = context
    this.#origin = origin
  }

  obey(order: GuestOrder): void {
    if (order.verb === 'guests') {
      const { clock, shaper } = this.#context
      const again: Ticket[] = []
      for (const guest of order.guests) this.#take(guest, again)
      shaper.engine.source?.takenOver(again)
      for (const ticket of again) if (ticket.list === ticket.lane.tickets) shaper.engine.contend(ticket, clock.now())
      shaper.wake()
    } else if (order.verb === 'key') this.#context.tickets.agree(order.key)
    else if (order.verb === 'override') void this.#context.overrides.set(order.override)
    else if (order.verb === 'adaptive') this.#adapt(order)
    else if (order.verb === 'waits') this.#learn(order)
    else if (order.verb === 'gate' || order.verb === 'left') this.#follow(order)
    else if (order.verb !== 'gone') this.#obey(order)
  }

  #adapt({ bucket, state }: Extract<GuestOrder, { verb: 'adaptive' }>): void {
    const limits = this.#context.routes.flatMap(({ upstream }) => upstream.adaptive ?? [])
    limits.find(({ bucket: { name } }) => name === bucket)?.heard(state)
  }

  #learn({ route, client, waits }: Extract<GuestOrder, { verb: 'waits' }>): void {
    const known = waits.map(wait => ({ ...wait, at: this.#origin.machine.ours(wait.at) }))
    this.#context.routes.find(({ name }) => name === route)?.waits.patience.learn(client, known)
  }

  /** What the process before has sent itself is in flight here, too. */
  #follow(order: Extract<GuestOrder, { verb: 'gate' | 'left' }>): void {
    const { shaper, routes } = this.#context
    const gate = routes.find(({ name }) => name === order.route)?.lane.gate
    if (gate === undefined) return
    const before = this.#before.get(gate) ?? 0
    if (order.verb === 'left') {
      if (before === 0) return
      this.#before.set(gate, before - 1)
      return shaper.leave(gate, [])
    }
    this.#before.set(gate, before + order.inFlight)
    for (let count = 0; count < order.inFlight; count += 1) gate.enter()
    if (order.pausedFor > 0) shaper.engine.pause(gate, order.pausedFor)
  }

  #obey(order: { readonly verb: 'cancel' | 'sent' | 'ended' | 'unused'; readonly id: number }): void {
    const { id, verb } = order
    this.#unsent.delete(id)
    if (verb === 'sent') return this.#all.get(id)?.sent()
    if (verb === 'unused') {
      this.#left.get(id)?.giveBack()
      this.#left.delete(id)
      return
    }
    const visit = this.#all.get(id)
    this.#all.delete(id)
    visit?.end()
    // Its process says at once if the slot was not used.
    if (visit !== undefined && verb === 'ended') this.#keep(id, visit)
  }

  /** The process before is gone, and its clients with it. */
  close(): void {
    for (const visit of this.#all.values()) visit.end()
    this.#all.clear()
    this.#left.clear()
    for (const [gate, count] of this.#before) for (let at = 0; at < count; at += 1) this.#context.shaper.leave(gate, [])
    this.#before.clear()
  }

  #keep(id: number, visit: Visit): void {
    this.#left.set(id, visit)
    for (const oldest of this.#left.keys()) {
      if (this.#left.size <= MOST_LEFT) break
      this.#left.delete(oldest)
    }
  }

  /** @param again those that wait as they did before */
  #take(guest: Guest, again: Ticket[]): void {
    const { id, mode, route: name, arrivedAt, due } = guest
    const route = this.#context.routes.find(each => each.name === name)
    const stack = route && this.#stackOf(route, guest)
    if (route === undefined || stack === undefined) return this.#origin.tell({ verb: 'unknown', id })
    const { machine } = this.#origin
    const visit = new Visit(
      this.#context,
      { route, stack, guest },
      {
        maxWait: due - arrivedAt,
        tell: news => {
          if (news.verb === 'rejected' || news.verb === 'expired') this.#all.delete(id)
          this.#origin.tell(news)
        },
        theirs: machine.theirs,
        house: this,
        isLate: () => {
          const now = this.#context.clock.now()
          const [oldest = now] = this.#unsent.values()
          this.#unsent.set(id, now)
          return now - oldest >= MOST_LATE
        },
      },
    )
    this.#all.set(id, visit)
    if (mode === 'again') again.push(visit.lineUp(machine.ours(arrivedAt)))
    else visit.ask(mode)
  }

  /** Held. Undefined: a bucket is gone from the configuration, or there is no room for it. */
  #stackOf(route: Route, { buckets }: Guest): SharedBucket[] | undefined {
    const { bucketTable, clock } = this.#context
    const stack: SharedBucket[] = []
    for (const { name, key, tier } of buckets) {
      const settings = route.buckets.find(each => each.settings.name === name)?.settings
      const limits = settings && ownerOf(this.#context, settings, { key, tier }).limits
      const bucket = limits && bucketTable.find(limitsOf(this.#context, limits, key), key, clock.now(), stack)
      if (bucket === undefined) {
        for (const found of stack) bucketTable.rest(found)
        return undefined
      }
      bucketTable.hold(bucket)
      stack.push(bucket)
    }
    return stack
  }
}

/** ms. A process that is later than this gets no more slots until it is there again. The bound has room for so many (contract 2.4). */
const MOST_LATE = 10

/** Those whose slots may still be given back. */
const MOST_LEFT = 1_000

interface Place {
  readonly route: Route
  readonly stack: SharedBucket[]
  readonly guest: Guest
}

interface VisitOptions {
  /** ms */
  readonly maxWait: number
  readonly tell: (news: GuestNews) => void
  readonly theirs: (ours: number) => number
  /** Called when one is released. Whether those before it are not on the wire for long. */
  readonly isLate: () => boolean
  /** Those of the same process have the same. */
  readonly house: object
}

class Visit implements AdmissionCallbacks {
  readonly #maxWait: number
  readonly #context: ProxyContext
  readonly #arrival: Arrival
  readonly #id: number
  readonly #isCounted: boolean
  readonly #options: VisitOptions
  #ticket: Ticket | undefined
  #state: 'asking' | 'waiting' | 'passed' | 'over' = 'asking'
  readonly #isMetered: boolean
  #held: Arrival | undefined

  constructor(context: ProxyContext, { route, stack, guest }: Place, options: VisitOptions) {
    const { id, mode, cost, costs, weight = 1, priority, client, patience, counted = false } = guest
    this.#context = context
    this.#id = id
    this.#isCounted = counted
    this.#isMetered = mode === 'meter'
    this.#options = options
    this.#maxWait = options.maxWait
    this.#arrival = {
      ...{ route: route.lane, stack, cost, costs, weight, patience },
      ...(priority !== undefined && { priority }),
      ...(client !== undefined && { client }),
    }
  }

  /** It was admitted before, and comes in its place by its arrival. It is to contend then. */
  lineUp(arrivedAt: number): Ticket {
    const { engine } = this.#context.shaper
    this.#state = 'waiting'
    const ticket = engine.join(this.#arrival, this, this.#maxWait, arrivedAt)
    this.#ticket = ticket
    if (this.#isCounted) ticket.counted = true
    return ticket
  }

  ask(mode: 'shape' | 'meter'): void {
    this.#context.shaper.arrive(this.#arrival, this, mode, this.#maxWait)
  }

  decided(verdict: Verdict): void {
    if (verdict === 'released') return this.release(this.#context.clock.now())
    if (!(verdict instanceof Ticket)) return this.reject(verdict)
    this.#state = 'waiting'
    this.#ticket = verdict
    this.#options.tell({ verb: 'queued', id: this.#id })
  }

  release(slot: number): void {
    this.#state = 'passed'
    this.#options.tell({ verb: 'released', id: this.#id, slot: this.#options.theirs(slot) })
    if (!this.#isMetered) this.#hold()
  }

  /**
   * Its process may be late. Where it is, or the next slot is far away, nothing leaves before this one is on the wire. And nobody
   * but another one of that process comes next in its lane.
   */
  #hold(): void {
    const { stack, costs } = this.#arrival
    const { shaper, clock } = this.#context
    const from = clock.now() + MOST_LATE
    const isAll = this.#options.isLate() || costs !== undefined || shaper instanceof DepartingShaper
    const held = isAll ? stack : stack.filter(({ freeAt }, place) => freeAt >= from || (place === 0 && this.#isLast))
    if (held.length === 0) return
    const request = { ...this.#arrival, stack: held }
    shaper.hold(request, this)
    this.#held = request
  }

  /** Of those of its process in its lane. Instances do not keep an order among them. */
  get #isLast(): boolean {
    if (this.#context.shaper.engine.source !== undefined) return false
    const next = this.#ticket?.lane.first?.waiter
    return !(next instanceof Visit && next.#options.house === this.#options.house)
  }

  sent(): void {
    this.#unhold('sent')
  }

  #unhold(fate: 'sent' | 'never-sent'): void {
    const held = this.#held
    this.#held = undefined
    if (held !== undefined) this.#context.shaper.unhold(held, fate, this)
  }

  expire(): void {
    this.#options.tell({ verb: 'expired', id: this.#id })
    this.#rest()
  }

  reject({ buckets, booking: _, ...rest }: Rejection): void {
    const places = buckets.map(bucket => this.#arrival.stack.indexOf(bucket)).filter(place => place >= 0)
    this.#options.tell({ verb: 'rejected', id: this.#id, rejection: { ...rest, places } })
    this.#rest()
  }

  end(): void {
    const { shaper } = this.#context
    this.#unhold('never-sent')
    if (this.#state === 'waiting' && this.#ticket !== undefined) shaper.cancel(this.#ticket)
    else if (this.#state === 'passed') shaper.leave(this.#arrival.route.gate, this.#arrival.stack, this)
    this.#rest()
  }

  giveBack(): void {
    if (this.#ticket?.slot !== undefined) this.#context.shaper.giveBack(this.#ticket)
  }

  #rest(): void {
    if (this.#state === 'over') return
    this.#state = 'over'
    for (const bucket of this.#arrival.stack) this.#context.bucketTable.rest(bucket)
  }
}
