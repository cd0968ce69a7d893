/**
 * Which requests of a route are not worth sending, because their clients will have left before the answer comes.
 *
 * A full FIFO queue keeps its head always just short of its clients' patience: what it sends is answered after they have
 * left. So a request is given up if more than half of its like leave before its answer would come: on arrival, for the
 * wait that is predicted, and at its release, given that it has waited so far. What is left in the queue keeps its order.
 *
 * How long clients stay is learnt from their waits of the last minute (departures.ts). A client that stops with all it has waiting
 * does not count as one that left (client-waits.ts). Four rules keep this right.
 *
 * 1. Patience differs. At its release a request is compared with those only that have waited as long. So patient clients
 *    among impatient ones are kept: the impatient ones have left before. A client with enough hang-ups of its own is judged
 *    by these alone, so the others do not pay for it, nor it for them.
 * 2. Nobody decides for others alone. The waits of five clients are needed, and each has at most a fifth of the weight.
 * 3. It does not unlearn itself. Once the impatient are sent away nobody is seen to leave. So a request that is sent away
 *    counts as one that left when it would have: at a time drawn from the distribution that sent it away.
 * 4. It notices when patience grows. One in twenty is not sent away. It waits a little longer than its answer would have
 *    taken, without being sent: so it costs the upstream nothing if its client leaves. It counts twenty times, for those that
 *    were sent away in its place. If such clients stay, the drawn departures lose their majority within some seconds. Where
 *    its `maxWait` leaves no time for this, it is sent at its turn.
 */
import { ClientWaits, LEAST_HANG_UPS } from './client-waits.js'
import { Departures, type Wait } from './departures.js'

/** ms. Waits count for so long. */
const MEMORY = 60_000

/** Clients with hang-ups from which on these decide about others. */
const LEAST_CLIENTS = 5

/** One in 20 of those that would be sent away waits on. */
export const ONE_IN = 20

/** The most clients whose waits are kept, and the most waits of all of them that are compared. */
const KEPT_CLIENTS = 256
const COMPARED = 1_024

/** Rounding. */
const HALF = 0.5 + 1e-9

/** ms. What was learnt is looked at anew this often at most. */
const REFRESH = 100

/**
 * An answer that comes just as its client leaves is as good as lost, and it takes a moment until a hang-up is noticed. So
 * clients are taken to leave this much earlier.
 */
const EARLIER = 0.97

/** A client that is still there this much later than the answer would have come has shown its patience. */
const LATER = 1.05

/** Steps of the golden ratio spread evenly, whatever their number. */
const GOLDEN = 0.618_033_988_749_895

/** One that would not be sent is `lost`, or a `trial`: it waits on to see whether its client does. */
export type Prospect = 'lost' | 'trial'

/** What is known of one client. */
interface Known {
  readonly waits: ClientWaits
  trials: number
  drawn: number
  departures?: Departures
  /** When `departures` were found, and of which revision of the waits. */
  comparedAt: number
  revision: number
}

/** What is learnt on one route. Times are in ms. */
export class Patience {
  readonly #clients = new Map<string, Known>()
  /** What all clients together have shown. */
  readonly #pool = { trials: 0, drawn: 0 }
  #pooled: Departures | undefined
  #pooledAt = -Infinity
  /** When somebody left last. */
  #leftAt = -Infinity
  /** The shortest wait of those that left. Shorter ones of others tell nothing. */
  #shortest = Infinity

  /** A client has left. `counts`: how many like it. */
  left(client: string, ms: number, now: number, counts = 1): void {
    if (now - this.#leftAt > MEMORY) this.#shortest = Infinity
    this.#leftAt = now
    const earlier = ms * EARLIER
    this.#shortest = Math.min(this.#shortest, earlier)
    const { waits } = this.#known(client)
    waits.ended(now - ms, now)
    waits.addHangUp({ ms: earlier, left: true, weight: counts, at: now })
  }

  /** A client was answered. `counts`: how many like it. */
  answered(client: string, ms: number, now: number, counts = 1): void {
    if (now - this.#leftAt > MEMORY) return
    this.#clients.get(client)?.waits.ended(now - ms, now)
    if (ms >= this.#shortest) this.#known(client).waits.add({ ms, left: false, weight: counts, at: now })
  }

  /**
   * ms after which most clients like this one have left: no answer should come later. Infinity: they stay, or it is not known.
   *
   * @param waited ms. Those that had left before do not count.
   */
  longest(client: string, now: number, waited = 0): number {
    return this.#departures(client, now)?.timeOf(waited, 1 - HALF) ?? Infinity
  }

  /** ms after which most clients leave, but for those that are judged by their own waits. Undefined: not known. */
  usual(now: number): number | undefined {
    return this.#leftAt < now - MEMORY ? undefined : this.#compareAll(now)?.median
  }

  /** Whether most of those that have waited for `waited` ms leave before the answer would come, in ms since the arrival. */
  isLost(client: string, waited: number, answerAt: () => number, now: number): boolean {
    const departures = this.#departures(client, now)
    return departures !== undefined && departures.leaving(waited, answerAt()) > HALF
  }

  /** How long a trial waits before it is sent, in ms since its arrival. */
  trialUntil(answerAt: number): number {
    return answerAt * LATER
  }

  /** A request that has waited for `waited` ms is to be sent away. If it is `lost` it counts as one that left. */
  sendAway(client: string, waited: number, now: number): Prospect {
    const own = this.#clients.get(client)
    own?.waits.ended(now - waited, now)
    const judge = own?.waits.decides(now - MEMORY) ? own : this.#pool
    judge.trials += 1
    if (judge.trials % ONE_IN === 0) return 'trial'
    judge.drawn = (judge.drawn + GOLDEN) % 1
    const departures = this.#departures(client, now)
    const leaves = departures?.timeOf(waited, judge.drawn)
    const { waits } = this.#known(client)
    if (leaves === undefined) waits.add({ ms: departures?.last ?? waited, left: false, weight: 1, at: now })
    else {
      this.#leftAt = now
      waits.add({ ms: leaves, left: true, weight: 1, at: now })
    }
    return 'lost'
  }

  /** What decides about a client. Undefined: nothing is known. */
  #departures(client: string, now: number): Departures | undefined {
    const since = now - MEMORY
    if (this.#leftAt < since) return undefined
    const own = this.#clients.get(client)
    return own?.waits.decides(since) ? compareOwn(own, now) : this.#compareAll(now)
  }

  /** The last to be heard of is the last. */
  #known(client: string): Known {
    const own = this.#clients.get(client) ?? {
      waits: new ClientWaits(),
      trials: 0,
      drawn: 0,
      comparedAt: -Infinity,
      revision: -1,
    }
    this.#clients.delete(client)
    this.#clients.set(client, own)
    if (this.#clients.size > KEPT_CLIENTS) {
      for (const [oldest] of this.#clients) {
        this.#clients.delete(oldest)
        break
      }
    }
    return own
  }

  #compareAll(now: number): Departures | undefined {
    if (now - this.#pooledAt < REFRESH) return this.#pooled
    this.#pooledAt = now
    this.#pooled = compare(
      [...this.#clients.values()].map(({ waits }) => waits),
      now - MEMORY,
    )
    return this.#pooled
  }
}

function compareOwn(own: Known, now: number): Departures {
  const { revision } = own.waits
  if (own.departures === undefined || own.revision !== revision || own.comparedAt < now - REFRESH) {
    own.departures = new Departures(own.waits.since(now - MEMORY))
    own.comparedAt = now
    own.revision = revision
  }
  return own.departures
}

/** Undefined: too few have left, or too few clients. */
function compare(clients: readonly ClientWaits[], since: number): Departures | undefined {
  if (clients.filter(client => client.hasLeftSince(since)).length < LEAST_CLIENTS) return undefined
  const most = Math.max(4, Math.floor(COMPARED / clients.length))
  const samples = clients.map(client => client.since(since, most)).filter(waits => waits.length > 0)
  const sums = samples.map(waits => waits.reduce((sum, { weight }) => sum + weight, 0))
  const cap = capOf(sums)
  const waits: Wait[] = []
  let hangUps = 0
  for (const [place, sample] of samples.entries()) {
    const share = Math.min(1, cap / sums[place]!)
    for (const { ms, left, weight } of sample) {
      waits.push({ ms, left, weight: weight * share })
      if (left) hangUps += 1
    }
  }
  return hangUps < LEAST_HANG_UPS ? undefined : new Departures(waits)
}

/** The weight that no client may exceed, so that none has more than a fifth of all. There are five clients or more. */
function capOf(sums: readonly number[]): number {
  const heaviest = [...sums].sort((a, b) => b - a)
  let rest = heaviest.reduce((sum, weight) => sum + weight, 0)
  for (let above = 0; ; above += 1) {
    // If `above` clients are cut to the cap, it is a fifth of the sum: cap = (above * cap + rest) / 5.
    const cap = rest / (LEAST_CLIENTS - above)
    if (heaviest[above]! <= cap) return cap
    rest -= heaviest[above]!
  }
}
