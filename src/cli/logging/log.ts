/**
 * The log: one line for each record, on stderr, in JSON or for people.
 *
 * Writing never blocks, so a slow reader cannot delay requests. Lines are written in batches, and a reader that is too far
 * behind loses lines. All lines of a process go through one stream, so they keep their order and do not mix. Workers and
 * their primary share one stderr: each of their writes is whole lines of at most 4096 bytes, which a pipe takes whole.
 */
import { constants, fstatSync, openSync, writeSync } from 'node:fs'
import { Socket } from 'node:net'
import { isatty } from 'node:tty'
import pino, { type DestinationStream, type Logger } from 'pino'
import { orElse } from '../../core/structures/or-else.js'
import type { LogChoice } from '../command.js'
import { createPrettyPrinter } from './pretty.js'

const STDERR = 2
/** A batch is written when it has this many bytes, or after this many ms. */
const BATCH = { size: 65_536, ms: 50 }
/** The most bytes that a UTF-16 unit takes in UTF-8. */
const WIDEST = 3
/** The most bytes that a pipe takes whole or not at all (PIPE_BUF). */
const WHOLE = 4_096
const LINE_FEED = 0x0a
/** How far a reader may be behind, in bytes. */
const UNREAD = 4 * 1024 * 1024
/** How long `close` waits for a reader to read some more, in ms. */
const PATIENCE = 1_000
/** When to try a busy terminal again, in ms. */
const AGAIN = 10

class LogStream implements DestinationStream {
  readonly #socket = openPipe()
  readonly #file = this.#socket === undefined ? openTerminal() : STDERR
  readonly #isShared: boolean
  /** The current batch. Lines are encoded one by one: joined ones cost several times as much garbage collection. */
  #batch = Buffer.allocUnsafeSlow(BATCH.size)
  #length = 0
  /** Batches to write, in order. The first of them is being written if `#isBusy`. */
  readonly #queue: Buffer[] = []
  #queued = 0
  #isBusy = false
  #timer: NodeJS.Timeout | undefined
  #idle: () => void = () => undefined
  #patience: NodeJS.Timeout | undefined

  constructor({ isShared }: LogOptions) {
    this.#isShared = isShared
  }

  write(line: string): void {
    const most = line.length * WIDEST
    if (this.#queued + this.#length + most > UNREAD) return
    if (this.#length + most > BATCH.size) this.handOver()
    if (most > BATCH.size) return this.#add(Buffer.from(line))
    this.#length += this.#batch.write(line, this.#length)
    this.#timer ??= setTimeout(this.#due, BATCH.ms).unref()
  }

  async close(): Promise<void> {
    this.handOver()
    if (this.#isBusy) {
      await new Promise<void>(resolve => {
        this.#patience = setTimeout(resolve, PATIENCE)
        this.#idle = resolve
      })
      clearTimeout(this.#patience)
    }
    // Unwritten lines must not keep the process alive.
    if (this.#isBusy) this.#socket?.destroy()
  }

  /** Writes what it can without waiting, when the process exits. */
  flush(): void {
    if (this.#isBusy) return
    let rest = this.#batch.subarray(0, this.#length)
    this.#length = 0
    while (rest.length > 0) {
      const end = this.#isShared ? endOfPiece(rest) : rest.length
      if (tryWrite(this.#file, rest.subarray(0, end)).length > 0) return
      rest = rest.subarray(end)
    }
  }

  readonly #due = (): void => {
    this.#timer = undefined
    // A slow reader gets full batches.
    if (this.#isBusy) this.#timer = setTimeout(this.#due, BATCH.ms).unref()
    else this.handOver()
  }

  handOver(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#length === 0) return
    const lines = this.#batch.subarray(0, this.#length)
    this.#batch = Buffer.allocUnsafeSlow(BATCH.size)
    this.#length = 0
    this.#add(lines)
  }

  #add(lines: Buffer): void {
    this.#queue.push(lines)
    this.#queued += lines.length
    if (!this.#isBusy) this.#writeNext()
  }

  #writeNext(): void {
    const [lines] = this.#queue
    this.#isBusy = lines !== undefined
    if (lines === undefined) this.#idle()
    else if (this.#socket === undefined) this.#writeOut(lines)
    else if (this.#isShared) writePieces(this.#socket, lines, this.#written)
    else this.#socket.write(lines, this.#written)
  }

  #writeOut(lines: Buffer): void {
    const rest = tryWrite(this.#file, lines)
    // The terminal is stopped (Ctrl-S), or its other end hangs.
    if (rest.length > 0) setTimeout(() => this.#writeOut(rest), AGAIN).unref()
    else this.#written()
  }

  readonly #written = (): void => {
    this.#queued -= this.#queue.shift()!.length
    this.#patience?.refresh()
    this.#writeNext()
  }
}

/** Writes one piece after the other. Writes that wait together would become one, and a pipe might tear that. */
function writePieces(socket: Socket, lines: Buffer, done: () => void): void {
  const end = endOfPiece(lines)
  socket.write(lines.subarray(0, end), () =>
    end < lines.length ? writePieces(socket, lines.subarray(end), done) : done(),
  )
}

/** Where the lines end that a pipe takes whole. A line that is too long for that is a piece of its own. */
function endOfPiece(lines: Buffer): number {
  const end = lines.lastIndexOf(LINE_FEED, WHOLE - 1) + 1
  return end > 0 ? end : lines.indexOf(LINE_FEED) + 1 || lines.length
}

/** Stderr as a socket if it is a pipe or a socket. Undefined for a file or a terminal. */
function openPipe(): Socket | undefined {
  try {
    const stat = fstatSync(STDERR)
    if (!stat.isFIFO() && !stat.isSocket()) return undefined
    // A pipe that lost its reader must not end the process.
    return new Socket({ fd: STDERR, readable: false, writable: true }).on('error', () => undefined)
  } catch {
    return undefined
  }
}

/** Opens a terminal again without blocking. Anything else stays as it is. */
function openTerminal(): number {
  if (!isatty(STDERR)) return STDERR
  const mode = constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY
  return orElse(() => openSync(`/proc/self/fd/${STDERR}`, mode), STDERR)
}

function tryWrite(file: number, bytes: Buffer): Buffer {
  let rest = bytes
  try {
    // A pipe or a terminal may take a part of it.
    while (rest.length > 0) rest = rest.subarray(writeSync(file, rest))
    return rest
  } catch (error) {
    // Other errors cannot be reported anywhere.
    return (error as NodeJS.ErrnoException).code === 'EAGAIN' ? rest : rest.subarray(rest.length)
  }
}

let stream: LogStream | undefined

interface LogOptions extends LogChoice {
  readonly isShared: boolean
}

let write = (line: string): void => stream?.write(line)

function open(options: LogOptions): LogStream {
  const opened = new LogStream(options)
  process.once('exit', () => opened.flush())
  return opened
}

export function createLog(base: Record<string, unknown> | null, options: LogOptions): Logger {
  const opened = stream ?? open(options)
  stream = opened
  const { log = isatty(STDERR) ? 'pretty' : 'json', logLevel = 'info' } = options
  if (log === 'pretty') {
    // Only a terminal is asked: it heeds NO_COLOR.
    const print = createPrettyPrinter(process.stderr.isTTY && process.stderr.hasColors() ? 'ansi' : 'none')
    write = line => opened.write(print(line))
  }
  return pino({ base, level: logLevel }, { write })
}

/** Writes a record in JSON that is a whole line with its line feed, after `createLog`. */
export function writeLine(line: string): void {
  write(line)
}

/** Writes the current batch, so that other output can follow it. */
export function flushLog(): void {
  stream?.handOver()
}

export async function closeLog(): Promise<void> {
  await stream?.close()
}
