/**
 * Which requests of a route are not worth sending, because their clients will have left before the answer comes.
 *
 * A full FIFO queue keeps its head always just short of its clients' patience: what it sends is answered after they have left.
 * So a request is given up if more than half of its like leave before its answer would come: on arrival, for the predicted
 * wait, and at its release, given that it has waited so far. How long clients stay is learnt from their waits of the last
 * minute (`Departures`). A client that stops with all it has waiting does not count as one that left (`ClientWaits`). Four
 * rules keep this right.
 *
 * 1. Patience differs. At its release a request is compared only with those that have waited as long, so patient clients among
 *    impatient ones are kept. A client with enough hang-ups of its own is judged by these alone.
 * 2. Nobody decides for others alone. The waits of five clients are needed, and each has at most a fifth of the weight.
 * 3. It does not unlearn itself. A request that is sent away counts as one that left: at a time drawn from the distribution
 *    that sent it away. Else nobody would be seen to leave any more.
 * 4. It notices when patience grows. One in twenty is not sent away, but waits a little longer than its answer would have
 *    taken, without being sent, and counts for all twenty. If such clients stay, the drawn departures lose their majority
 *    within some seconds. Where its `maxWait` leaves no time for this, it is sent at its turn.
 */

/** ms. Waits count for so long. */
const MEMORY = 60_000
/** Clients with hang-ups from which on these decide about others. */
const LEAST_CLIENTS = 5
export const ONE_IN = 20
/** The most clients whose waits are kept, and the most waits of all of them that are compared. */
const KEPT_CLIENTS = 256
const COMPARED = 1_024
/** Rounding. */
const HALF = 0.5 + 1e-9
/** ms. What was learnt is looked at anew this often at most. */
const REFRESH = 100
/** Clients are taken to leave this much earlier: a hang-up is noticed late, and an answer at that moment is lost. */
const EARLIER = 0.97
/** A client that is still there this much later than the answer would have come has shown its patience. */
const LATER = 1.05
/** Steps of the golden ratio spread evenly, whatever their number. */
const GOLDEN = 0.618_033_988_749_895

/** One that would not be sent is `lost`, or a `trial`: it waits on to see whether its client does. */
export type Prospect = 'lost' | 'trial'

interface Known {
  readonly waits: ClientWaits
  trials: number
  drawn: number
  departures?: Departures
  /** When `departures` were found, and of which revision of the waits. */
  comparedAt: number
  revision: number
}

function newKnown(): Known {
  return { waits: new ClientWaits(), trials: 0, drawn: 0, comparedAt: -Infinity, revision: -1 }
}

/** What is learnt on one route. Times are in ms. */
export class Patience {
  readonly #clients = new Map<string, Known>()
  readonly #pool = { trials: 0, drawn: 0 }
  #pooled: Departures | undefined
  #pooledAt = -Infinity
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

  /** ms after which most clients like this one, who have waited so long, have left. Infinity: they stay, or it is not known. */
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

  /** By client, those that count, the newest first. */
  *waits(now: number): Generator<[client: string, waits: readonly TimedWait[]]> {
    if (now - this.#leftAt > MEMORY) return
    for (const [client, { waits }] of this.#clients) yield [client, waits.since(now - MEMORY)]
  }

  /** What another process has learnt. @param waits the newest first */
  learn(client: string, waits: readonly TimedWait[]): void {
    const { waits: own } = this.#known(client)
    for (const wait of [...waits].reverse()) {
      own.add(wait)
      if (!wait.left) continue
      this.#leftAt = Math.max(this.#leftAt, wait.at)
      this.#shortest = Math.min(this.#shortest, wait.ms)
    }
  }

  #departures(client: string, now: number): Departures | undefined {
    const since = now - MEMORY
    if (this.#leftAt < since) return undefined
    const own = this.#clients.get(client)
    return own?.waits.decides(since) ? compareOwn(own, now) : this.#compareAll(now)
  }

  #known(client: string): Known {
    const own = this.#clients.get(client) ?? newKnown()
    this.#clients.delete(client)
    this.#clients.set(client, own)
    const [oldest] = this.#clients.keys()
    if (this.#clients.size > KEPT_CLIENTS) this.#clients.delete(oldest!)
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

export interface Wait {
  readonly ms: number
  /** Its client left. False: it was answered. */
  readonly left: boolean
  readonly weight: number
}

/** With fewer waits than these at a moment nothing is known of later ones. */
const LEAST_AT_RISK = 5

/**
 * How long clients wait before they hang up, estimated from those that were served and those that left.
 *
 * A client that was answered after t has shown that its patience is longer than t, and no more. So the estimate is the
 * product-limit one (Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", 1958): at each moment at
 * which somebody left, the part of those still waiting that stays. The product of these parts up to t is the part of all
 * clients whose patience lasts until t.
 *
 * Where few still waited, a single one of them would decide. There the estimate goes no further.
 */
export class Departures {
  readonly #times: number[] = []
  /** The part of all that stays at that moment. */
  readonly #staying: number[] = []

  /** @param waits in any order. They are sorted in place */
  constructor(waits: Wait[]) {
    waits.sort((a, b) => a.ms - b.ms || Number(b.left) - Number(a.left))
    let atRisk = 0
    for (const { weight } of waits) atRisk += weight
    let staying = 1
    for (const [place, { ms, left, weight }] of waits.entries()) {
      if (waits.length - place < LEAST_AT_RISK) return
      if (left) {
        staying *= atRisk - weight > 0 ? (atRisk - weight) / atRisk : 0
        this.#add(ms, staying)
      }
      atRisk -= weight
    }
  }

  #add(ms: number, staying: number): void {
    if (this.#times.at(-1) === ms) {
      this.#staying[this.#staying.length - 1] = staying
      return
    }
    this.#times.push(ms)
    this.#staying.push(staying)
  }

  /** The part of those that wait at `waited` ms that leave before `until` ms. */
  leaving(waited: number, until: number): number {
    const now = this.#stayingUntil(waited)
    return now === 0 ? 1 : 1 - this.#stayingUntil(until) / now
  }

  /** ms after which most have left. Undefined: later than is known. */
  get median(): number | undefined {
    const at = this.#staying.findIndex(staying => staying < 0.5 - 1e-9)
    return at < 0 ? undefined : this.#times[at]
  }

  /** ms. Nothing is known of later departures. Undefined: nobody left. */
  get last(): number | undefined {
    return this.#times.at(-1)
  }

  /** ms after which a client leaves that has waited for `waited` ms and outstays the `part` (0 to 1). Undefined: not known. */
  timeOf(waited: number, part: number): number | undefined {
    const target = this.#stayingUntil(waited) * part
    for (let at = this.#firstFrom(waited); at < this.#times.length; at += 1) {
      if (this.#staying[at]! <= target) return this.#times[at]
    }
    return undefined
  }

  /** The part of all whose patience lasts until then, in ms. */
  #stayingUntil(ms: number): number {
    const at = this.#firstFrom(ms)
    return at === 0 ? 1 : this.#staying[at - 1]!
  }

  #firstFrom(ms: number): number {
    let low = 0
    let high = this.#times.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#times[middle]! < ms) low = middle + 1
      else high = middle
    }
    return low
  }
}

/** Hang-ups of a client, or of all, from which on they decide. */
const LEAST_HANG_UPS = 20
const KEPT_WAITS = 100
/** ms. A busy process takes so long to notice that all connections of a client are closed. */
const TOGETHER = 100
/** The part of a group that has to be alike, and the part of what the client has waiting that a stop is at least. */
const MOST = 0.75
/** The part of a wait by which others may differ to be like it. */
const ALIKE = 0.1
/** The part of the others in its group that has to be like a wait. */
const MANY = 0.25
/** ms */
const STEADY = 1_000
const KEPT_GROUPS = 4

export interface TimedWait extends Wait {
  readonly at: number
  left: boolean
}

interface Group {
  readonly from: number
  readonly waits: TimedWait[]
  /** Its waits differ, and its rest is not known to be too large. */
  differs: boolean
  isStop: boolean
  /** How many came before and ended after it. */
  outlived: number
}

/**
 * The most recent waits of one client, and whether its hang-ups tell of its patience.
 *
 * Clients that lose their patience leave after about the same wait, whenever they came. A load tool that ends, a program that
 * is killed and a tab that is closed leave with all their requests at one moment. That says only that their patience was longer
 * than these waits, so they count as if they had ended with an answer. The hang-ups of a client within TOGETHER are a group. A
 * group is a stop if
 *
 * 1. fewer than MOST of its waits are alike. A wait is alike if a MANY part of the others in its group are within ALIKE of it.
 *    So requests that time out together, or one after another, are no stop, nor is one alone. What a queue holds has waits from
 *    0 to the longest, evenly: less than a fifth are within ALIKE of any.
 * 2. it is at least MOST of what the client had waiting. The rest came before the group and ended after it. Behind an address
 *    with many programs somebody leaves at any moment, but many others stay.
 *
 * The rest is seen only later. Until then the group is taken for a stop, because a load tool may start again at once. If the
 * rest turns out to be too large, the group counts as hang-ups again, and for STEADY no group of this client is taken for a
 * stop.
 */
class ClientWaits {
  readonly #waits: TimedWait[] = []
  #next = 0
  #hangUps: TimedWait[] = []
  /** The last is the newest. Those before it differ. */
  #groups: Group[] = []
  /** Until then no new group is taken for a stop. */
  #steadyUntil = -Infinity
  /** Goes up when older waits count differently. */
  revision = 0

  /** A request was answered, or counts as one that left. */
  add(wait: TimedWait): void {
    this.revision += 1
    if (wait.left) {
      this.#hangUps.push(wait)
      const most = LEAST_HANG_UPS + (this.#groups.at(-1)?.waits.length ?? 0)
      while (this.#hangUps.length > most) this.#hangUps.shift()
    }
    this.#waits[this.#next] = wait
    this.#next = (this.#next + 1) % KEPT_WAITS
  }

  addHangUp(wait: TimedWait): void {
    let group = this.#groups.at(-1)
    if (group === undefined || wait.at > group.from + TOGETHER) {
      group = { from: wait.at, waits: [], differs: false, isStop: false, outlived: 0 }
      this.#groups = [...this.#groups.filter(({ differs }) => differs).slice(-KEPT_GROUPS), group]
    }
    group.waits.push(wait)
    wait.left = !group.isStop
    this.add(wait)
    if (group.waits.length > KEPT_WAITS) return
    group.differs = alike(group.waits) < MOST * group.waits.length
    this.#judge(group, group.differs && group.from >= this.#steadyUntil ? 'stop' : 'hang-ups')
  }

  /** A request is over that came at `arrivedAt`: it has outlived the groups since then. */
  ended(arrivedAt: number, now: number): void {
    for (const group of this.#groups) {
      if (!group.differs || arrivedAt >= group.from || now <= group.from + TOGETHER) continue
      group.outlived += 1
      const { length } = group.waits
      if (length >= MOST * (length + group.outlived)) continue
      group.differs = false
      this.#judge(group, 'hang-ups')
      this.#steadyUntil = now + STEADY
    }
  }

  #judge(group: Group, verdict: 'stop' | 'hang-ups'): void {
    const isStop = verdict === 'stop'
    if (isStop === group.isStop) return
    this.revision += 1
    group.isStop = isStop
    for (const wait of group.waits) wait.left = !isStop
    if (isStop) this.#hangUps = this.#hangUps.filter(({ left }) => left)
    else this.#hangUps = [...this.#hangUps, ...group.waits].sort((a, b) => a.at - b.at)
  }

  hasLeftSince(time: number): boolean {
    return (this.#hangUps.at(-1)?.at ?? -Infinity) >= time
  }

  /** Whether so many have left since then that its own waits decide. */
  decides(time: number): boolean {
    return (this.#hangUps.at(-LEAST_HANG_UPS)?.at ?? -Infinity) >= time
  }

  /** Its waits that ended since `time`, the newest first, `most` at most. */
  since(time: number, most = KEPT_WAITS): TimedWait[] {
    const found: TimedWait[] = []
    const size = this.#waits.length
    for (let back = 1; back <= size && found.length < most; back += 1) {
      const wait = this.#waits[(this.#next - back + KEPT_WAITS) % KEPT_WAITS]
      if (wait === undefined || wait.at < time) break
      found.push(wait)
    }
    return found
  }
}

/** How many of the waits have many like them. One alone has. */
function alike(waits: readonly TimedWait[]): number {
  const isLike = (a: TimedWait, b: TimedWait): boolean => Math.abs(a.ms - b.ms) <= ALIKE * a.ms
  const like = (wait: TimedWait): number => waits.filter(other => isLike(wait, other)).length - 1
  return waits.filter(wait => like(wait) >= MANY * (waits.length - 1)).length
}
