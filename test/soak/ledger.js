// @ts-check
/** What clients know of their requests: the outcome of each, or its possible outcomes. */

/** What the upstream must have seen of a request. */
export const SEEN = { nothing: 0, once: 1, never: 2, perhaps: 3 }

/** A flag: the request may have been sent twice, because its connection was closed. */
export const REPEATABLE = 4

const UPSTREAM_FAILS = 'the upstream fails'

/** How many unexpected answers to report in full. */
const TOLD = 20

/**
 * @typedef {object} Entry
 * @property {Record<string, number>} known requests by their outcome
 * @property {Record<string, number>} unsure requests by their possible outcomes, joined by `|`
 * @property {number} perhaps requests that may never have reached the proxy
 * @property {number} ahead pipelined requests on a connection that ended early; one that was not reached has no route
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

  /** Records the outcome of a request. @param {string} route @param {string} outcome @param {number} [id] @param {number} [seen] */
  knows(route, outcome, id, seen = SEEN.perhaps) {
    const { known } = this.entry(route)
    known[outcome] = (known[outcome] ?? 0) + 1
    if (id !== undefined) this.expected[id] |= seen
  }

  /** Records possible outcomes of a request. @param {string} route @param {readonly string[]} outcomes @param {number} id @param {number} [seen] */
  guesses(route, outcomes, id, seen = SEEN.perhaps) {
    const { unsure } = this.entry(route)
    const name = outcomes.join('|')
    unsure[name] = (unsure[name] ?? 0) + 1
    this.expected[id] |= seen
  }

  /** Records a request that the proxy may never have seen. @param {string} route @param {number} id */
  doubts(route, id) {
    this.entry(route).perhaps += 1
    this.expected[id] |= SEEN.perhaps
  }

  /** Records a pipelined request on a connection that ended early. @param {string} route @param {number} id */
  abandons(route, id) {
    this.entry(route).ahead += 1
    this.expected[id] |= SEEN.perhaps
  }

  /** Records that a request may have been sent twice, because its connection was closed. @param {number} id */
  repeatable(id) {
    this.expected[id] |= REPEATABLE
  }

  /** @param {string} text */
  surprise(text) {
    this.surprised += 1
    if (this.surprises.length < TOLD) this.surprises.push(text)
  }

  /**
   * Records the answer to a request. A missing answer is unexpected.
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

/** The possible outcomes of a request whose client leaves. */
export const ANY = ['forwarded', 'rejected', 'cancelled', 'expired', 'failed', 'refused']

/** @param {Answer} answer @param {string} method @returns {[outcome: string, seen: number]} '': an unexpected answer */
function outcomeOf({ status, headers, body, complete }, method) {
  if (headers.has('x-upstream')) return [complete ? 'forwarded' : 'failed', SEEN.once]
  if (!complete || headers.get('content-type') !== 'application/problem+json') return ['', SEEN.perhaps]
  /** @type {string} */
  // The answer to HEAD has a status only. It goes to routes where 503 means that the upstream fails.
  const detail = method === 'HEAD' ? UPSTREAM_FAILS : JSON.parse(body.toString()).detail
  if (status === 429) return ['rejected', SEEN.never]
  if (status === 502 || status === 504) return ['failed', SEEN.perhaps]
  if (status === 408) return detail.includes('body') ? ['failed', SEEN.perhaps] : ['refused', SEEN.never]
  if (status === 503) return unavailable(detail)
  return [[400, 404, 405, 413, 417, 431, 501, 505].includes(status) ? 'refused' : '', SEEN.never]
}

/** @param {string} detail @returns {[outcome: string, seen: number]} of an answer 503 */
function unavailable(detail) {
  if (detail.startsWith('still queued') || detail.startsWith('the answer would come after'))
    return ['expired', SEEN.never]
  // It may have been sent once, over a connection that broke.
  if (detail.startsWith(UPSTREAM_FAILS)) return ['failed', SEEN.perhaps]
  return detail.startsWith('too many requests') ? ['rejected', SEEN.never] : ['', SEEN.perhaps]
}
