/**
 * The log: one line of JSON for each record, on stderr. Nobody ever waits for its reader: lines are handed over by the
 * batch and without blocking, and one that is too far behind loses some. All of a process goes through one stream, so that
 * no line is written into another.
 */
import { fstatSync, writeSync } from 'node:fs'
import { Socket } from 'node:net'
import pino, { type DestinationStream, type Logger } from 'pino'

const STDERR = 2

/** Lines are handed over when there are so many characters of them, or after so many ms. */
const BATCH = { size: 8_192, ms: 50 }

/** What a reader may be behind, in characters. */
const UNREAD = 4 * 1024 * 1024

/** How long the end waits for a reader, in ms. */
const PATIENCE = 500

class LogStream implements DestinationStream {
  readonly #socket = openPipe()
  #lines = ''
  /** Handed over, and not written yet. */
  #pending = 0
  #timer: NodeJS.Timeout | undefined
  #idle: () => void = () => undefined

  write(line: string): void {
    if (this.#pending + this.#lines.length + line.length > UNREAD) return
    this.#lines += line
    if (this.#lines.length >= BATCH.size) this.handOver()
    else this.#timer ??= setTimeout(() => this.handOver(), BATCH.ms).unref()
  }

  /** Resolves when all is written, or its reader has taken too long. */
  async close(): Promise<void> {
    this.handOver()
    if (this.#pending > 0) {
      await new Promise<void>(resolve => {
        const timer = setTimeout(resolve, PATIENCE)
        this.#idle = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    }
    // What is still to be written must not keep the process.
    if (this.#pending > 0) this.#socket?.destroy()
  }

  /** At the very end: what can be written without waiting. */
  flush(): void {
    const rest = this.#lines
    this.#lines = ''
    if (rest !== '' && this.#pending === 0) tryWrite(rest)
  }

  handOver(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    const text = this.#lines
    if (text === '') return
    this.#lines = ''
    if (this.#socket === undefined) return tryWrite(text)
    this.#pending += text.length
    this.#socket.write(text, () => {
      this.#pending -= text.length
      if (this.#pending === 0) this.#idle()
    })
  }
}

/** What a reader can hold up; undefined: a file or a terminal, which take all at once. */
function openPipe(): Socket | undefined {
  try {
    const stat = fstatSync(STDERR)
    if (!stat.isFIFO() && !stat.isSocket()) return undefined
    // Nobody reads it any more: that is no reason to stop.
    return new Socket({ fd: STDERR, readable: false, writable: true }).on('error', () => undefined)
  } catch {
    return undefined
  }
}

function tryWrite(text: string): void {
  try {
    writeSync(STDERR, text)
  } catch {
    // There is nobody to tell.
  }
}

let stream: LogStream | undefined

/** @param base what every record carries */
export function createLog(base: Record<string, unknown> | null = null): Logger {
  if (stream === undefined) {
    const opened = new LogStream()
    stream = opened
    process.once('exit', () => opened.flush())
  }
  return pino({ base }, stream)
}

/** Hands over what there is: before something that is to come after it. */
export function flushLog(): void {
  stream?.handOver()
}

/** To be awaited before the process ends. */
export async function closeLog(): Promise<void> {
  await stream?.close()
}
