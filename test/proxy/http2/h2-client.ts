/** Clients of HTTP/2 for tests: node:http2, and one that writes frames. */
import { type ClientHttp2Session, type ClientHttp2Stream, connect, type OutgoingHttpHeaders } from 'node:http2'
import { type Socket, connect as tcpConnect } from 'node:net'

interface Teardown {
  teardown(run: () => unknown): void
}

/** One answer as it came. */
export interface H2Answer {
  readonly status: number
  readonly headers: Record<string, string>
  readonly trailers: Record<string, string>
  readonly text: string
  /** Why the stream was reset. 0: it was not. */
  readonly code: number
}

/** Connects to a proxy, over TLS or by prior knowledge. */
export function openSession(t: Teardown, port: number, scheme: 'http' | 'https' = 'http'): ClientHttp2Session {
  const session = connect(`${scheme}://127.0.0.1:${port}`, { rejectUnauthorized: false })
  session.on('error', () => undefined)
  t.teardown(() => session.destroy())
  return session
}

/** Starts a request. Its body, if it has one, is still to be sent. */
export function request(
  session: ClientHttp2Session,
  headers: OutgoingHttpHeaders = {},
  how: 'whole' | 'open' = 'whole',
): ClientHttp2Stream {
  const stream = session.request({ ':authority': 'example.test', ...headers }, { endStream: how === 'whole' })
  stream.on('error', () => undefined)
  return stream
}

/** Waits for the end of an answer. */
export function answerOf(stream: ClientHttp2Stream): Promise<H2Answer> {
  return new Promise(resolve => {
    let status = 0
    let headers = {}
    let trailers = {}
    let text = ''
    stream.setEncoding('latin1')
    stream.on('response', received => {
      status = received[':status']!
      headers = received
    })
    stream.on('trailers', received => {
      trailers = received
    })
    stream.on('data', chunk => {
      text += chunk
    })
    // Not at once: Node's client ends in std::bad_alloc if its session is destroyed while a stream closes.
    stream.on('close', () =>
      setImmediate(() => resolve({ status, headers, trailers, text, code: stream.rstCode ?? 0 })),
    )
  })
}

export function ask(session: ClientHttp2Session, headers?: OutgoingHttpHeaders): Promise<H2Answer> {
  return answerOf(request(session, headers))
}

export const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')

/** The types of frames. */
export const FRAME = { data: 0, headers: 1, reset: 3, settings: 4, ping: 6, goaway: 7, window: 8, continuation: 9 }

export const END_STREAM = 1
export const END_HEADERS = 4

export function frame(type: number, flags: number, stream: number, payload: Buffer = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(9)
  head.writeUIntBE(payload.length, 0, 3)
  head[3] = type
  head[4] = flags
  head.writeUInt32BE(stream, 5)
  return Buffer.concat([head, payload])
}

/** A header block without compression: literal fields, never indexed. Names and values in turn. */
export function block(...fields: string[]): Buffer {
  const parts: Buffer[] = []
  for (let at = 0; at < fields.length; at += 2)
    parts.push(Buffer.from([0x10]), text(fields[at]!), text(fields[at + 1]!))
  return Buffer.concat(parts)
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value, 'latin1')
  if (bytes.length < 127) return Buffer.concat([Buffer.from([bytes.length]), bytes])
  const length = [127]
  let rest = bytes.length - 127
  for (; rest >= 128; rest = Math.floor(rest / 128)) length.push((rest % 128) | 128)
  length.push(rest)
  return Buffer.concat([Buffer.from(length), bytes])
}

export const REQUEST = [':method', 'GET', ':scheme', 'http', ':path', '/', ':authority', 'example.test']

export interface Frame {
  readonly type: number
  readonly flags: number
  readonly stream: number
  readonly payload: Buffer
}

/** The whole frames at the beginning of the bytes. */
export function framesOf(bytes: Buffer): Frame[] {
  const frames: Frame[] = []
  for (let from = 0; from + 9 <= bytes.length; ) {
    const to = from + 9 + bytes.readUIntBE(from, 3)
    if (to > bytes.length) break
    const payload = bytes.subarray(from + 9, to)
    frames.push({ type: bytes[from + 3]!, flags: bytes[from + 4]!, stream: bytes.readUInt32BE(from + 5), payload })
    from = to
  }
  return frames
}

/** A client that writes frames. */
export class RawClient {
  readonly socket: Socket
  readonly frames: Frame[] = []
  ended = false
  #bytes = Buffer.alloc(0)
  #waiting: (() => void)[] = []

  constructor(t: Teardown, port: number) {
    this.socket = tcpConnect({ port, host: '127.0.0.1', noDelay: true })
    t.teardown(() => this.socket.destroy())
    this.socket.on('data', chunk => {
      this.#bytes = Buffer.concat([this.#bytes, chunk])
      this.#parse()
      this.#notify()
    })
    const end = (): void => {
      this.ended = true
      this.#notify()
    }
    this.socket.on('error', end).on('close', end).on('end', end)
  }

  /** Sends the preface and empty settings. */
  open(): this {
    this.socket.write(Buffer.concat([PREFACE, frame(FRAME.settings, 0, 0)]))
    return this
  }

  send(...frames: Buffer[]): void {
    this.socket.write(Buffer.concat(frames))
  }

  /** Waits until something holds that its frames change. */
  until(holds: (client: RawClient) => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`not true in time: ${holds}`)), 30_000)
      const look = (): void => {
        if (!holds(this)) return void this.#waiting.push(look)
        clearTimeout(late)
        resolve()
      }
      look()
    })
  }

  /** Waits for a frame of a type, about a stream. */
  async frame(type: number, stream = 0): Promise<Frame> {
    const isIt = (each: Frame): boolean => each.type === type && each.stream === stream
    await this.until(({ frames, ended }) => frames.some(isIt) || ended)
    const found = this.frames.find(isIt)
    if (found === undefined) throw new Error(`the connection ended without a frame of type ${type}`)
    return found
  }

  #parse(): void {
    const frames = framesOf(this.#bytes)
    this.frames.push(...frames)
    this.#bytes = this.#bytes.subarray(frames.reduce((sum, { payload }) => sum + 9 + payload.length, 0))
  }

  #notify(): void {
    const waiting = this.#waiting
    this.#waiting = []
    for (const look of waiting) look()
  }
}
