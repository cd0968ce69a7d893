/**
 * The answers to requests of one window of time, and what they say of the upstream.
 *
 * They are counted by client, so that no client decides for all: one that has more than a tenth of the answers counts as a
 * tenth. Nine clients or fewer cannot be a tenth each, so there is a second rule: what is bad has to be bad without any one of
 * them, too, where the others have sent enough to judge by.
 */

/** The part of the answers that come from others. With less one client decides alone. */
export const LEAST_OTHERS = 0.1

/** The part of the answers that one client counts for at most is 1 / this. */
const SHARES = 10

/** To look at so many clients for each answer takes little time. */
const FEW = 16

export interface Growth {
  /** It is hardly less than this. */
  readonly least: number
  /** Its standard error. */
  readonly error: number
}

const UNKNOWN: Growth = { least: 0, error: 0 }

/** The answers of one client. Times are in ms. */
class ClientAnswers {
  answers = 0
  failed = 0
  late = 0
  /** Those of known latency, and the sums of a regression of the latency `y` on the time of sending `x`. */
  timed = 0
  x = 0
  y = 0
  xx = 0
  xy = 0
  yy = 0
}

export class Sample {
  readonly #clients = new Map<string, ClientAnswers>()
  answers = 0
  late = 0
  failed = 0
  /** With so many answers it is looked at again. */
  #lookAt = 0

  /** Takes a look at all clients, which takes time for each. So there is one for every (clients / 16) answers. False: not now. */
  takeLook(): boolean {
    if (this.answers < this.#lookAt) return false
    this.#lookAt = this.answers + Math.floor(this.#clients.size / FEW)
    return true
  }

  /** The upstream did not serve a request. */
  addFailed(client: string): void {
    const own = this.#of(client)
    own.failed += 1
    this.failed += 1
  }

  /** @param latency ms. Undefined: it says nothing of the upstream */
  addServed(client: string, sentAt: number, latency: number | undefined): void {
    const own = this.#of(client)
    if (latency !== undefined) time(own, sentAt, latency)
  }

  /** A request is out for longer than it should be. @param target ms */
  addLate(client: string, sentAt: number, target: number): void {
    const own = this.#of(client)
    own.late += 1
    this.late += 1
    time(own, sentAt, target)
  }

  #of(client: string): ClientAnswers {
    let own = this.#clients.get(client)
    if (own === undefined) {
      own = new ClientAnswers()
      this.#clients.set(client, own)
    }
    own.answers += 1
    this.answers += 1
    return own
  }

  /**
   * How many answers more than allowed are late or have failed. Negative: fewer.
   *
   * @param allowed the part of all answers that may be
   */
  surplus(what: 'late' | 'failed', allowed: number): number {
    const most = this.#most()
    let all = 0
    let worst = 0
    let answersOfWorst = 0
    for (const client of this.#clients.values()) {
      const own = weightOf(client, most) * (client[what] - allowed * client.answers)
      all += own
      if (own <= worst) continue
      worst = own
      answersOfWorst = client.answers
    }
    return this.answers - answersOfWorst < LEAST_OTHERS * this.answers ? all : all - worst
  }

  /**
   * By how much the latency grows with the time of sending: in ms for each ms. An upstream of capacity C that is sent more
   * answers them at C, so the latency grows by rate / C - 1.
   */
  growth(): Growth {
    const most = this.#most()
    const sums = new ClientAnswers()
    for (const client of this.#clients.values()) add(sums, client, weightOf(client, most))
    let least = slopeOf(sums)
    if (this.#clients.size >= SHARES) return least
    for (const client of this.#clients.values()) {
      if (this.answers - client.answers < LEAST_OTHERS * this.answers) continue
      const others = new ClientAnswers()
      add(others, sums, 1)
      add(others, client, -weightOf(client, most))
      const slope = slopeOf(others)
      if (slope.least < least.least) least = slope
    }
    return least
  }

  /** The mean latency in ms. */
  get latency(): number {
    let sum = 0
    let count = 0
    for (const { timed, y } of this.#clients.values()) {
      sum += y
      count += timed
    }
    return count === 0 ? 0 : sum / count
  }

  /** How many answers of one client count, so that none is more than a tenth of those that do. */
  #most(): number {
    if (this.#clients.size < SHARES) return Infinity
    const counts = [...this.#clients.values()].map(({ answers }) => answers).sort((a, b) => b - a)
    let rest = this.answers
    for (let capped = 0; capped < SHARES; capped += 1) {
      const most = rest / (SHARES - capped)
      if (counts[capped]! <= most) return most
      rest -= counts[capped]!
    }
    return Infinity
  }
}

function weightOf({ answers }: ClientAnswers, most: number): number {
  return answers <= most ? 1 : most / answers
}

function time(to: ClientAnswers, x: number, y: number): void {
  to.timed += 1
  to.x += x
  to.y += y
  to.xx += x * x
  to.xy += x * y
  to.yy += y * y
}

function add(to: ClientAnswers, { timed, x, y, xx, xy, yy }: ClientAnswers, weight: number): void {
  to.timed += weight * timed
  to.x += weight * x
  to.y += weight * y
  to.xx += weight * xx
  to.xy += weight * xy
  to.yy += weight * yy
}

function slopeOf({ timed: n, x, y, xx, xy, yy }: ClientAnswers): Growth {
  const spread = xx - (x * x) / n
  if (n < 4 || spread <= 0) return UNKNOWN
  const joint = xy - (x * y) / n
  const slope = joint / spread
  const residual = Math.max(0, yy - (y * y) / n - slope * joint)
  const error = Math.sqrt(residual / (n - 2) / spread)
  // About the 95th percentile of Student's distribution.
  return { least: slope - (1.6 + 4 / n) * error, error }
}
