// @ts-check
/** What clients know of their requests: which outcome each has had, or which it may have had. */

/** What the upstream must have seen of an id. */
export const SEEN = { nothing: 0, once: 1, never: 2, perhaps: 3 }

/** Beside those: may be sent again when a connection was closed under it. */
export const REPEATABLE = 4

/** How many surprises are told in full. */
const TOLD = 20

/**
 * @typedef {object} Entry
 * @property {Record<string, number>} known requests by their outcome
 * @property {Record<string, number>} unsure requests by outcomes that are possible, joined by `|`
 * @property {number} perhaps requests that may never have reached the proxy
 * @property {number} ahead requests that were sent ahead on a connection that ended: one whose turn has not come has no route
 */

/** @typedef {{ status: number, headers: Map<string, string>, body: Buffer, complete: boolean }} Answer */

export class Ledger {
  /** @type {Record<string, Entry>} by route */
  entries = {}
  /** @type {Record<string, number>} */
  actions = {}
  /** @type {string[]} */
  surprises = []
  surprised = 0
  expected = new Uint8Array(1 << 16)
  #next = 0

  /** An id for one request. */
  next() {
    this.#next += 1
    if (this.#next >= this.expected.length) {
      const more = new Uint8Array(this.expected.length * 2)
      more.set(this.expected)
      this.expected = more
    }
    return this.#next
  }

  /** @param {string} route @returns {Entry} */
  entry(route) {
    this.entries[route] ??= { known: {}, unsure: {}, perhaps: 0, ahead: 0 }
    return this.entries[route]
  }

  /** A request has had this outcome. @param {string} route @param {string} outcome @param {number} [id] @param {number} [seen] */
  knows(route, outcome, id, seen = SEEN.perhaps) {
    const { known } = this.entry(route)
    known[outcome] = (known[outcome] ?? 0) + 1
    if (id !== undefined) this.expected[id] |= seen
  }

  /** It has had one of these. @param {string} route @param {readonly string[]} outcomes @param {number} id @param {number} [seen] */
  guesses(route, outcomes, id, seen = SEEN.perhaps) {
    const { unsure } = this.entry(route)
    const name = outcomes.join('|')
    unsure[name] = (unsure[name] ?? 0) + 1
    this.expected[id] |= seen
  }

  /** The proxy may never have seen it. @param {string} route @param {number} id */
  doubts(route, id) {
    this.entry(route).perhaps += 1
    this.expected[id] |= SEEN.perhaps
  }

  /** It was sent ahead on a connection that ended. @param {string} route @param {number} id */
  abandons(route, id) {
    this.entry(route).ahead += 1
    this.expected[id] |= SEEN.perhaps
  }

  /** Its connection was closed under it: it may be sent twice. @param {number} id */
  repeatable(id) {
    this.expected[id] |= REPEATABLE
  }

  /** @param {string} text */
  surprise(text) {
    this.surprised += 1
    if (this.surprises.length < TOLD) this.surprises.push(text)
  }

  /**
   * A request was answered; that it was is expected.
   *
   * @param {string} route @param {number} id @param {Answer | undefined} answer @param {string} [method] @returns {string} its outcome
   */
  settle(route, id, answer, method = 'GET') {
    if (answer === undefined) {
      this.surprise(`${route}: the connection was closed without an answer`)
      this.guesses(route, ANY, id)
      return ''
    }
    const [outcome, seen] = outcomeOf(answer, method)
    if (outcome === '') {
      this.surprise(`${route}: ${answer.status} ${answer.body.toString('latin1', 0, 200)}`)
      this.guesses(route, ANY, id)
      return ''
    }
    this.knows(route, outcome, id, seen)
    return outcome
  }
}

/** Whatever may become of a request that its client leaves. */
export const ANY = ['forwarded', 'rejected', 'cancelled', 'expired', 'failed', 'refused']

/** @param {Answer} answer @param {string} method @returns {[outcome: string, seen: number]} '': no such answer is known */
function outcomeOf({ status, headers, body, complete }, method) {
  if (headers.has('x-upstream')) return [complete ? 'forwarded' : 'failed', SEEN.once]
  if (!complete || headers.get('content-type') !== 'application/problem+json') return ['', SEEN.perhaps]
  /** @type {string} */
  // To a HEAD only the status tells; it is not asked for where one status has several meanings.
  const detail = method === 'HEAD' ? '' : JSON.parse(body.toString()).detail
  if (status === 429) return ['rejected', SEEN.never]
  if (status === 502 || status === 504) return ['failed', SEEN.perhaps]
  if (status === 408) return detail.includes('body') ? ['failed', SEEN.perhaps] : ['refused', SEEN.never]
  if (status === 503) {
    if (detail.startsWith('still queued')) return ['expired', SEEN.never]
    if (detail.startsWith('too many requests')) return ['rejected', SEEN.never]
    return ['', SEEN.perhaps]
  }
  return [[400, 404, 405, 413, 417, 431, 501, 505].includes(status) ? 'refused' : '', SEEN.never]
}
