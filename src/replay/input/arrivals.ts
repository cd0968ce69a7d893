/**
 * The requests of one or more logs, in the order of arrival.
 *
 * Lines are sorted within a window of a minute. If a line of a file comes later than that, all files are read again with a
 * longer window, so files are always sorted completely. Standard input is read once.
 */

import { AGENT_CLASSES, classifyAgent } from '../../http/agent-class.js'
import { FORMAT_LIST, type FormatName } from '../formats/format-names.js'
import type { LineParser } from '../formats/line-parser.js'
import { detectFormat, type FormatOptions } from '../formats/parsers/detect.js'
import { ByteInterner } from './byte-interner.js'
import type { Directory } from './client-directory.js'
import { type JournalDecoder, journalDecoderFor } from './journal.js'
import { type BadExample, BadLines, clipped, Scanner } from './line-scanner.js'
import { InputError, readInput, STDIN } from './log-files.js'
import { Reorder } from './reorder.js'

/** Seconds of log time. */
const WINDOW = 60
/** How much of a log to look at for its format, in bytes. */
const HEAD = 1 << 16
/** The longest window for a few late lines, in seconds. */
const LONGEST_WINDOW = 86_400
const MOST_LATE = 100
/** Ends the last message of a journal that was cut off. */
const NEWLINE = Buffer.from('\n')
type Arrive = (at: number, id: number, agent: number) => void

export interface ArrivalsOptions extends FormatOptions {
  /** Names of files; `-` is standard input. */
  readonly logs: readonly string[]
  readonly stdin: AsyncIterable<Buffer>
  /** The seed for spreading requests within a second; undefined: they are not spread. */
  readonly seed: number | undefined
  readonly directory: Directory
  /** Called with the parser of each log before its first line. */
  readonly begin?: (parser: LineParser, log: string) => void
  readonly onServiceTime?: (ms: number) => void
  /** Called now and then with the numbers of bytes and lines read. */
  readonly progress?: (bytes: number, lines: number) => void
}

export interface Reading {
  readonly lines: number
  /** Records of a shaper's log that are not about a request that reached a bucket. */
  readonly skipped: number
  readonly requests: number
  readonly bad: BadLines
  /** Requests that came later than the window of a stream allows. */
  readonly late: number
  readonly formats: readonly FormatName[]
  /** Whether any time has whole seconds only. */
  readonly whole: boolean
  /** The longest request time that was taken off the time of a line, in ms. */
  readonly longest: number
  /** What a reader has to know of the lines. */
  readonly notes: readonly string[]
  /** The second since 1970 that arrivals count from. */
  readonly origin: number
  /** The times of the first and the last arrival, in ms from `origin`. */
  readonly first: number
  readonly last: number
  /** Why logs could not be read, or not to their end. */
  readonly errors: readonly InputError[]
}

export interface ArrivalSink {
  /** Called before the first arrival. @param origin ms since 1970 that arrivals count from */
  begin?(origin: number): void
  arrive: Arrive
}

export class LogArrivals {
  readonly #options: ArrivalsOptions
  #window = WINDOW
  #logs: readonly string[]

  constructor(options: ArrivalsOptions) {
    this.#options = options
    this.#logs = options.logs
  }

  get repeatable(): boolean {
    return !this.#logs.includes(STDIN)
  }

  /**
   * Passes every request to `open()`, which is called anew for each attempt.
   *
   * @returns the result of the last attempt
   * @throws InputError naming the logs of no known format, and those of which most lines are bad
   */
  async read<T extends ArrivalSink>(open: () => T): Promise<{ reading: Reading; result: T }> {
    if (this.#logs.length > 1) this.#logs = await this.#sorted()
    for (;;) {
      const result = open()
      const { reading, latest } = await this.#readOnce(result)
      const isFew = reading.late * MOST_LATE <= reading.requests
      if (!this.repeatable && !isFew) throw unordered(reading, latest)
      // A few times that are very far off are errors in the log, and no reason to sort everything.
      if (latest === 0 || !this.repeatable || (isFew && latest > LONGEST_WINDOW)) return { reading, result }
      this.#window += latest
    }
  }

  async #readOnce(sink: ArrivalSink): Promise<{ reading: Reading; latest: number }> {
    const pass = new Pass(this.#options, { window: this.#window, hasSeveral: this.#logs.length > 1, sink })
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

function unordered({ late, requests, notes }: Reading, latest: number): InputError {
  const how = `${late} of ${requests} requests are late by up to ${Math.ceil(latest / 60)} min`
  const why = `standard input is not in the order of time: ${how}; name the files instead, which are sorted (gzipped ones, too)`
  return new InputError([why, ...notes].join('\nshaper: '))
}

interface PassOptions {
  /** Seconds of log time. */
  readonly window: number
  /** Whether several logs are put together. */
  readonly hasSeveral: boolean
  readonly sink: ArrivalSink
}

/** One reading of all logs, from the first line of the first to the last of the last. */
class Pass {
  readonly #options: ArrivalsOptions
  readonly #pass: PassOptions
  readonly #agents = new Agents()
  readonly #bad = new BadLines()
  readonly #errors: InputError[] = []
  readonly #formats = new Set<FormatName>()
  readonly #refused: string[] = []
  readonly #notes = new Set<string>()
  #reorder: Reorder | undefined
  #bytes = 0
  #lines = 0
  #skipped = 0
  #requests = 0
  #first = Infinity
  #last = -Infinity
  #hasWholeSeconds = false
  #longest = 0

  constructor(options: ArrivalsOptions, pass: PassOptions) {
    this.#options = options
    this.#pass = pass
  }

  async read(log: string): Promise<void> {
    try {
      const { head, rest } = await openLog(log, this.#options.stdin, bytes => {
        this.#bytes += bytes
      })
      const parser = detectFormat(Buffer.concat(head), this.#options)
      if (parser === undefined) {
        await rest.return(undefined)
        return this.#refuseUnknown(log, head)
      }
      this.#formats.add(parser.format)
      this.#options.begin?.(parser, log)
      const scanner = this.#createScanner(parser)
      await this.#scan(scanner, head, rest)
      this.#refuseUnread(log, parser.format, scanner)
      for (const note of parser.notes) this.#notes.add(`${shown(log)}: ${note}`)
    } catch (error) {
      if (!(error instanceof InputError)) throw error
      this.#errors.push(error)
    }
  }

  /** @throws InputError naming the logs that cannot be understood */
  end(): { reading: Reading; latest: number } {
    if (this.#refused.length > 0) throw new InputError(this.#refused.join('\nshaper: '))
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
      longest: this.#longest,
      notes: [...this.#notes],
      origin: reorder?.origin ?? 0,
      first: this.#first,
      last: this.#last,
      errors: this.#errors,
    }
    return { reading, latest: reorder?.latest ?? 0 }
  }

  #createScanner(parser: LineParser): Scanner {
    const { directory, seed, onServiceTime } = this.#options
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
      if (line.duration > this.#longest) this.#longest = line.duration
      if (onServiceTime !== undefined && line.serviceTime !== undefined) onServiceTime(line.serviceTime)
      const tag = directory.identify(line) * 4 + this.#agents.classOf(line)
      reorder.push(line.second, line.fraction, line.duration, tag)
    }
    return new Scanner(parser, good, this.#bad)
  }

  /** @param tag the client times 4, and the class of the user agent: the two lowest bits */
  #emit(at: number, tag: number): void {
    const { sink } = this.#pass
    if (this.#requests === 0) {
      this.#first = at
      sink.begin?.(this.#reorder!.origin * 1_000)
    }
    this.#requests += 1
    this.#last = at
    sink.arrive(at, tag >>> 2, tag & 3)
  }

  /** Refuses a log of which most lines are bad: a report would be about the wrong requests. */
  #refuseUnread(log: string, format: FormatName, { unread, entries, firstUnread }: Scanner): void {
    if (firstUnread === undefined || 2 * unread <= entries) return
    const share = `${unread} of ${entries} lines (${Number(((100 * unread) / entries).toPrecision(2))} %)`
    this.#refuse(log, `cannot be read as ${format}: ${share} are bad`, firstUnread)
  }

  #refuseUnknown(log: string, head: readonly Buffer[]): void {
    const lines = Buffer.concat(head).toString('latin1').split('\n')
    const at = lines.findIndex(line => line.trim() !== '')
    if (at < 0) return
    const first = { line: at + 1, text: clipped(Buffer.from(lines[at]!, 'latin1')) }
    this.#refuse(log, 'is not a log of a known format: none of its first lines fits one', first)
  }

  #refuse(log: string, what: string, { line, reason, text }: Partial<BadExample>): void {
    const why = reason === undefined ? '' : `, ${reason}`
    const [, missing] = /^no (address|time|request)$/.exec(reason ?? '') ?? []
    const field =
      what.includes('as json') && missing !== undefined
        ? `name the field with --field ${missing === 'address' ? 'ip' : missing}=NAME, `
        : ''
    this.#refused.push(
      `${shown(log)} ${what}; the first is line ${line}${why}: ${text}; ${field}name the format with --format ${FORMAT_LIST}, or remove what stands before each request, and lines that are no requests`,
    )
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

interface Opened {
  readonly head: readonly Buffer[]
  readonly rest: AsyncGenerator<Buffer>
}

/**
 * Opens a log. Of a journal it has the messages alone.
 *
 * @param onBytes told how many bytes of the file have been read
 * @throws InputError
 */
async function openLog(log: string, stdin: AsyncIterable<Buffer>, onBytes?: (bytes: number) => void): Promise<Opened> {
  const opened = await beginningOf(readInput(log, stdin, onBytes))
  const decoder = journalDecoderFor(Buffer.concat(opened.head))
  return decoder === undefined ? opened : beginningOf(messagesOf(opened, decoder))
}

/** Reads the first pieces, to find out the format. @throws InputError */
async function beginningOf(rest: AsyncGenerator<Buffer>): Promise<Opened> {
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

async function* messagesOf({ head, rest }: Opened, decoder: JournalDecoder): AsyncGenerator<Buffer> {
  // The finally block closes the file also when only the first pieces are read.
  try {
    for (const piece of head) yield decoder.decode(piece)
    for await (const piece of rest) yield decoder.decode(piece)
    yield decoder.decode(NEWLINE)
  } finally {
    await rest.return(undefined)
  }
}

// biome-ignore lint/correctness/useYield: it only throws
async function* failing(error: unknown): AsyncGenerator<Buffer> {
  throw error
}

function shown(log: string): string {
  return log === STDIN ? 'standard input' : JSON.stringify(log)
}

const REMEMBERED = 1 << 15

class Agents {
  readonly #agents = new ByteInterner(REMEMBERED)
  readonly #classes = new Uint8Array(REMEMBERED)

  /** The index of the class in AGENT_CLASSES. */
  classOf({ bytes, agentFrom, agentTo }: LineParser): number {
    const known = this.#agents.size
    const id = this.#agents.find(bytes, agentFrom, agentTo)
    if (id >= 0 && id < known) return this.#classes[id]!
    const text = Buffer.from(bytes.buffer, bytes.byteOffset + agentFrom, agentTo - agentFrom).toString('latin1')
    const found = AGENT_CLASSES.indexOf(classifyAgent(text))
    if (id >= 0) this.#classes[id] = found
    return found
  }
}
