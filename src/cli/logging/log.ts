/**
 * The log: one line of JSON for each record, on stderr. Nobody ever waits for its reader: lines are handed over by the
 * batch and without blocking, and a reader that is too far behind loses some. All lines of a process go through one
 * stream. So they keep their order, and no line is written into another.
 */
import { constants, fstatSync, openSync, writeSync } from 'node:fs'
import { Socket } from 'node:net'
import { isatty } from 'node:tty'
import pino, { type DestinationStream, type Logger } from 'pino'

const STDERR = 2

/** Lines are handed over when there are so many characters of them, or after so many ms. */
const BATCH = { size: 65_536, ms: 50 }

/** What a reader may be behind, in characters. */
const UNREAD = 4 * 1024 * 1024

/** How long the end waits for a reader, in ms. */
const PATIENCE = 500

/** When a terminal that took no more is tried again, in ms. */
const AGAIN = 10

const NOTHING: Buffer = Buffer.alloc(0)

class LogStream implements DestinationStream {
  readonly #socket = openPipe()
  readonly #file = this.#socket === undefined ? openTerminal() : STDERR
  /** What a terminal has not taken yet. */
  #rest: Buffer = NOTHING
  #lines = ''
  /** Handed over, and not written yet. */
  #pending = 0
  #timer: NodeJS.Timeout | undefined
  #idle: () => void = () => undefined

  write(line: string): void {
    if (this.#pending + this.#lines.length + line.length > UNREAD) return
    this.#lines += line
    if (this.#lines.length >= BATCH.size && this.#rest.length === 0) this.handOver()
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
    if (rest !== '' && this.#pending === 0) tryWrite(this.#file, Buffer.from(rest))
  }

  handOver(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#socket === undefined) return this.#writeOut()
    const text = this.#lines
    if (text === '') return
    this.#lines = ''
    this.#pending += text.length
    this.#socket.write(text, () => {
      this.#pending -= text.length
      if (this.#pending === 0) this.#idle()
    })
  }

  #writeOut(): void {
    const batch = this.#rest.length > 0 ? this.#rest : Buffer.from(this.#lines)
    if (this.#rest.length === 0) this.#lines = ''
    this.#rest = tryWrite(this.#file, batch)
    this.#pending = this.#rest.length
    // A terminal that is stopped (Ctrl-S), or whose other end hangs.
    if (this.#pending > 0 || this.#lines !== '') this.#timer = setTimeout(() => this.handOver(), AGAIN).unref()
    else this.#idle()
  }
}

/** What a reader can hold up; undefined: a file, which takes all at once, or a terminal. */
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

/** A terminal by an opening of its own, which does not wait for its reader; anything else as it is. */
function openTerminal(): number {
  if (!isatty(STDERR)) return STDERR
  try {
    return openSync(`/proc/self/fd/${STDERR}`, constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY)
  } catch {
    return STDERR
  }
}

/** Answers what is to be tried again. */
function tryWrite(file: number, bytes: Buffer): Buffer {
  let rest = bytes
  try {
    // A pipe or a terminal may take a part of it.
    while (rest.length > 0) rest = rest.subarray(writeSync(file, rest))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return rest
    // There is nobody to tell.
  }
  return NOTHING
}

let stream: LogStream | undefined

function open(): LogStream {
  const opened = new LogStream()
  process.once('exit', () => opened.flush())
  return opened
}

/** @param base what every record carries */
export function createLog(base: Record<string, unknown> | null = null): Logger {
  stream ??= open()
  return pino({ base }, stream)
}

/** Writes a record that is a whole line already, with its line feed. */
export function writeLine(line: string): void {
  stream ??= open()
  stream.write(line)
}

/** Hands over what there is: before something that is to come after it. */
export function flushLog(): void {
  stream?.handOver()
}

/** To be awaited before the process ends. */
export async function closeLog(): Promise<void> {
  await stream?.close()
}
