/** An upstream in the world: it takes connections of all instances, and does well or badly. */
import type { Line, VirtualSocket } from './virtual-socket.js'

/** `dying`: it breaks off, anywhere. `lying`: its answers are not what they say. `refusing`: it takes no connection. */
export type Condition = 'well' | 'slow' | 'dying' | 'lying' | 'refusing'

export interface UpstreamOptions {
  readonly line: Line
  /** ms that an answer takes, by the head of its request. */
  serviceOf(head: string): number
}

/** How much longer a slow upstream takes, in ms. */
const SLOW = 400

export class VirtualUpstream {
  condition: Condition = 'well'
  readonly #options: UpstreamOptions

  constructor(options: UpstreamOptions) {
    this.#options = options
  }

  accept(socket: VirtualSocket): void {
    let text = ''
    let isBusy = false
    const next = (): void => {
      const end = text.indexOf('\r\n\r\n')
      if (isBusy || end < 0) return
      const head = text.slice(0, end)
      text = text.slice(end + 4)
      isBusy = true
      this.#answer(socket, head, () => {
        isBusy = false
        next()
      })
    }
    socket.on('error', () => undefined)
    socket.on('data', (bytes: Buffer) => {
      text += bytes.toString('latin1')
      next()
    })
    socket.on('end', () => socket.end())
  }

  #answer(socket: VirtualSocket, head: string, done: () => void): void {
    const { line, serviceOf } = this.#options
    const { condition } = this
    const { clock, chance, stirred } = line
    const takes = serviceOf(head) + (condition === 'slow' ? SLOW * chance() : 0)
    const answer = (): void => {
      stirred()
      if (socket.destroyed) return
      const text = textOf(condition, Math.floor(2_000 * chance() ** 4), chance)
      socket.write(text.slice(0, condition === 'dying' ? Math.floor(text.length * chance()) : undefined), 'latin1')
      if (condition === 'dying') return void socket.resetAndDestroy()
      if (condition === 'lying') return void socket.end()
      done()
    }
    if (takes === 0) answer()
    else clock.at(clock.now() + takes, answer)
  }
}

function textOf(condition: Condition, length: number, chance: () => number): string {
  const body = 'x'.repeat(length)
  if (condition !== 'lying') return `HTTP/1.1 200 OK\r\nContent-Length: ${length}\r\n\r\n${body}`
  const lies = [
    `HTTP/1.1 200 OK\r\nContent-Length: ${length + 10}\r\n\r\n${body}`,
    `HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n`,
    `HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx`,
    'nonsense\r\n\r\n',
    `HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n`,
    `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n`,
  ]
  return lies[Math.floor(lies.length * chance())]!
}
