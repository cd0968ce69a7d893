/**
 * The requests of some logs, in the order of their arrival.
 *
 * Files are sorted as a whole: where the window of a minute was too short for what is in them, they are read again with
 * one that is long enough. Arrivals are kept as long as they are not too many, so that they can be had again.
 */

import { detectFormat, type FormatOptions } from '../formats/detect.js'
import type { FormatName, LineParser } from '../formats/line-parser.js'
import { Agents } from './agent-classes.js'
import type { Directory } from './client-directory.js'
import { BadLines, Scanner } from './line-scanner.js'
import { InputError, readInput, STDIN } from './log-files.js'
import { Reorder } from './reorder.js'

/** Seconds of log time. */
const WINDOW = 60

/** What is looked at to find out the format. */
const HEAD = 1 << 16

/** Files that are further out of order than that, in seconds, are not sorted. */
const LONGEST_WINDOW = 86_400

export type Arrive = (at: number, id: number, agent: number) => void

export interface ArrivalsOptions extends FormatOptions {
  /** Names of files; `-`: standard input. */
  readonly logs: readonly string[]
  readonly stdin: AsyncIterable<Buffer>
  /** Of the spreading within seconds; undefined: none. */
  readonly seed: number | undefined
  readonly directory: Directory
  /** Told about the parser of each log before any of its lines. */
  readonly begin?: (parser: LineParser, log: string) => void
  /** Told now and then how many bytes have been read, and lines. */
  readonly progress?: (bytes: number, lines: number) => void
}

/** What a reading has found. */
export interface Reading {
  readonly lines: number
  /** Of them: no requests, and no faults. */
  readonly skipped: number
  readonly requests: number
  readonly bad: BadLines
  readonly late: number
  readonly formats: readonly FormatName[]
  /** Whether any time was in whole seconds. */
  readonly whole: boolean
  /** The second since 1970 that arrivals count from. */
  readonly origin: number
  /** Of the first and the last arrival, in ms from there. */
  readonly first: number
  readonly last: number
  /** Why it has ended early. */
  readonly errors: readonly InputError[]
}

export class LogArrivals {
  readonly #options: ArrivalsOptions
  #window = WINDOW
  #logs: readonly string[]

  constructor(options: ArrivalsOptions) {
    this.#options = options
    this.#logs = options.logs
  }

  /** Whether it can be read once more. */
  get repeatable(): boolean {
    return !this.#logs.includes(STDIN)
  }

  /**
   * Puts every request through what `open` gives: a fresh one for each attempt.
   *
   * @returns what the last attempt found
   */
  async read<T extends { arrive: Arrive }>(open: () => T): Promise<{ reading: Reading; result: T }> {
    if (this.#logs.length > 1) this.#logs = await this.#sorted()
    for (;;) {
      const result = open()
      const { reading, latest } = await this.#readOnce((at, id, agent) => result.arrive(at, id, agent))
      // One time that is far off is a mistake in it, and no reason to sort everything.
      if (latest === 0 || latest > LONGEST_WINDOW || !this.repeatable) return { reading, result }
      this.#window += latest
    }
  }

  async #readOnce(arrive: Arrive): Promise<{ reading: Reading; latest: number }> {
    const pass = new Pass(this.#options, { window: this.#window, hasSeveral: this.#logs.length > 1, arrive })
    for (const log of this.#logs) await pass.read(log)
    return pass.end()
  }

  /** Logs in the order of their first times; standard input comes last. */
  async #sorted(): Promise<string[]> {
    const begins: { log: string; second: number }[] = []
    for (const log of this.#logs) {
      let second = Infinity
      if (log !== STDIN) {
        const { head, rest } = await openLog(log, this.#options.stdin).catch(() => ({ head: [], rest: undefined }))
        await rest?.return(undefined)
        const parser = detectFormat(Buffer.concat(head), this.#options)
        if (parser !== undefined) {
          const scanner = new Scanner(
            parser,
            line => {
              second = Math.min(second, line.second)
            },
            new BadLines(),
          )
          for (const chunk of head) scanner.feed(chunk)
        }
      }
      begins.push({ log, second })
    }
    return begins.sort((a, b) => (a.second === b.second ? 0 : a.second - b.second)).map(({ log }) => log)
  }
}

interface PassOptions {
  /** Seconds of log time. */
  readonly window: number
  /** Whether several logs are put together. */
  readonly hasSeveral: boolean
  readonly arrive: Arrive
}

/** One reading of all logs, from the first line of the first to the last of the last. */
class Pass {
  readonly #options: ArrivalsOptions
  readonly #pass: PassOptions
  readonly #agents = new Agents()
  readonly #bad = new BadLines()
  readonly #errors: InputError[] = []
  readonly #formats = new Set<FormatName>()
  #reorder: Reorder | undefined
  #bytes = 0
  #lines = 0
  #skipped = 0
  #requests = 0
  #first = Infinity
  #last = -Infinity
  #hasWholeSeconds = false

  constructor(options: ArrivalsOptions, pass: PassOptions) {
    this.#options = options
    this.#pass = pass
  }

  /** Reads one log. What cannot be read becomes one of the errors of the reading. */
  async read(log: string): Promise<void> {
    try {
      const { head, rest } = await openLog(log, this.#options.stdin, bytes => {
        this.#bytes += bytes
      })
      const parser = detectFormat(Buffer.concat(head), this.#options) ?? refuseUnknownFormat(log, head)
      if (parser === undefined) return
      this.#formats.add(parser.format)
      this.#options.begin?.(parser, log)
      await this.#scan(this.#createScanner(parser), head, rest)
    } catch (error) {
      if (!(error instanceof InputError)) throw error
      this.#errors.push(error)
    }
  }

  end(): { reading: Reading; latest: number } {
    const reorder = this.#reorder
    reorder?.end()
    this.#options.progress?.(this.#bytes, this.#lines)
    const reading: Reading = {
      lines: this.#lines,
      skipped: this.#skipped,
      requests: this.#requests,
      bad: this.#bad,
      late: reorder?.late ?? 0,
      formats: [...this.#formats],
      whole: this.#hasWholeSeconds,
      origin: reorder?.origin ?? 0,
      first: this.#first,
      last: this.#last,
      errors: this.#errors,
    }
    return { reading, latest: reorder?.latest ?? 0 }
  }

  #createScanner(parser: LineParser): Scanner {
    const { directory, seed } = this.#options
    const { window, hasSeveral } = this.#pass
    this.#reorder ??= new Reorder({
      window,
      seed,
      timed: parser.timed || hasSeveral,
      arrive: (at, tag) => this.#emit(at, tag),
    })
    const reorder = this.#reorder
    const good = (line: LineParser): void => {
      if (line.fraction < 0) this.#hasWholeSeconds = true
      const tag = directory.identify(line) * 4 + this.#agents.classOf(line)
      reorder.push(line.second, line.fraction, line.duration, tag)
    }
    return new Scanner(parser, good, this.#bad)
  }

  /** @param tag the client times 4, and the class of the user agent: the two lowest bits */
  #emit(at: number, tag: number): void {
    if (this.#requests === 0) this.#first = at
    this.#requests += 1
    this.#last = at
    this.#pass.arrive(at, tag >>> 2, tag & 3)
  }

  async #scan(scanner: Scanner, head: readonly Buffer[], rest: AsyncIterable<Buffer>): Promise<void> {
    try {
      for (const chunk of head) scanner.feed(chunk)
      for await (const chunk of rest) {
        scanner.feed(chunk)
        this.#options.progress?.(this.#bytes, this.#lines + scanner.lines)
      }
    } finally {
      scanner.end()
      this.#lines += scanner.lines
      this.#skipped += scanner.skipped
    }
  }
}

/**
 * Reads the first pieces of a log, to find out its format.
 *
 * @param onBytes told how many bytes of the file have been read
 * @throws InputError
 */
async function openLog(
  log: string,
  stdin: AsyncIterable<Buffer>,
  onBytes?: (bytes: number) => void,
): Promise<{ head: Buffer[]; rest: AsyncGenerator<Buffer> }> {
  const rest = readInput(log, stdin, onBytes)
  const head: Buffer[] = []
  for (let bytes = 0; bytes < HEAD; ) {
    const next = await rest.next().catch((error: unknown) => ({ done: true as const, value: { error } }))
    // What came before the error counts. The error is thrown when the rest is read.
    if (next.done && next.value !== undefined && head.length > 0) return { head, rest: failing(next.value.error) }
    if (next.done && next.value !== undefined) throw next.value.error
    if (next.done) break
    // The piece is overwritten by the next but one.
    head.push(Buffer.from(next.value))
    bytes += next.value.length
  }
  return { head, rest }
}

// biome-ignore lint/correctness/useYield: it has nothing to give
async function* failing(error: unknown): AsyncGenerator<Buffer> {
  throw error
}

/** @throws InputError where there are lines, but of no known format */
function refuseUnknownFormat(log: string, head: readonly Buffer[]): undefined {
  if (!head.some(chunk => chunk.some(byte => byte > 32))) return undefined
  const shown = log === STDIN ? 'standard input' : JSON.stringify(log)
  throw new InputError(
    `${shown} looks like no log that is known; say what it is with --format common, combined, json, alb or shaper, or cut off what stands before each request`,
  )
}
