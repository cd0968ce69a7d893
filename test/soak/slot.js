// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { Peer } from './peer.js'
import { KEY_MARK } from './plan.js'

/** The number of recurring keys. */
const REGULARS = 16

/** One of many clients. It does one action after another, mostly on one connection. */
export class Slot {
  /** @type {Peer | undefined} */
  #peer

  /** @param {{ ledger: import('./ledger.js').Ledger, port: number, random: () => number }} options */
  constructor({ ledger, port, random }) {
    this.ledger = ledger
    this.port = port
    this.random = random
  }

  /** An open connection: the current one if possible. @returns {Promise<Peer>} */
  async peer() {
    if (!this.#peer?.open) this.#peer = await Peer.open(this.port)
    return this.#peer
  }

  /** A new connection for one action. */
  fresh() {
    return Peer.open(this.port)
  }

  drop() {
    this.#peer?.close()
    this.#peer = undefined
  }

  /** @template T @param {readonly T[]} list @returns {T} */
  pick(list) {
    return list[Math.floor(this.random() * list.length)]
  }

  /** Waits for a random time. @param {number} ms at most */
  async linger(ms) {
    await sleep(this.random() * ms)
  }

  /**
   * The head of a request.
   *
   * @param {string} route @param {string} page
   * @param {{ method?: string, headers?: Record<string, string | number>, query?: string, keys?: number }} [options] `keys`:
   *   how many keys there are to choose from
   */
  request(route, page, { method = 'GET', headers = {}, query = '', keys = REGULARS } = {}) {
    const id = this.ledger.next()
    const key = `${KEY_MARK}-${Math.floor(this.random() * keys)}`
    const lines = Object.entries({ Host: 'soak.test', 'X-Key': key, ...headers }).map(
      ([name, value]) => `${name}: ${value}\r\n`,
    )
    if (method === 'GET' || method === 'HEAD') this.ledger.repeatable(id)
    return { id, route, method, text: `${method} /${route}/${page}?id=${id}${query} HTTP/1.1\r\n${lines.join('')}\r\n` }
  }

  /**
   * Reads the answer to a request and records it.
   *
   * @param {Peer} peer @param {{ id: number, route: string, method: string }} request
   * @param {Parameters<Peer['answer']>[0]} [options]
   */
  async settle(peer, { id, route, method }, options) {
    const answer = await peer.answer({ ...options, method })
    const outcome = this.ledger.settle(route, id, answer, method)
    if (answer === undefined || !answer.complete || answer.headers.get('connection') === 'close') peer.close()
    return { answer, outcome }
  }
}
