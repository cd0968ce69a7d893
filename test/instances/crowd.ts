/** Thousands of clients whose requests wait, each on a connection of its own. */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

/** How many connections are opened at a time. */
const AT_ONCE = 100

export interface Waiter {
  /** The client as a trusted proxy tells it. */
  readonly client: string
  readonly path: string
}

export class Crowd {
  readonly #sockets = new Set<Socket>()

  /** Sends a request of each, in turn to each of the servers. Resolves when all are sent; the answers are discarded. */
  async send(urls: readonly string[], waiters: readonly Waiter[]): Promise<void> {
    const queue = [...waiters.entries()]
    const next = async (): Promise<void> => {
      for (let entry = queue.pop(); entry !== undefined; entry = queue.pop()) {
        const [place, { client, path }] = entry
        await this.#send(new URL(path, urls[place % urls.length]), client)
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, next))
  }

  leave(): void {
    for (const socket of this.#sockets) socket.destroy()
  }

  async #send({ hostname, port, pathname }: URL, client: string): Promise<void> {
    const socket = connect(Number(port), hostname)
    this.#sockets.add(socket)
    socket.once('close', () => this.#sockets.delete(socket))
    socket.on('error', () => socket.destroy())
    await once(socket, 'connect')
    socket.resume()
    socket.write(`GET ${pathname} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: ${client}\r\n\r\n`)
  }
}
