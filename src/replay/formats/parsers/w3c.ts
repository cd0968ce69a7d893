/**
 * The extended log file format of the W3C, as IIS and CloudFront write it. Lines that begin with # are directives. `#Fields:`
 * names the columns of the lines that follow. Times are UTC and those of the end (www.w3.org/TR/WD-logfile;
 * learn.microsoft.com, "W3C Logging"; docs.aws.amazon.com, "Standard logging reference").
 *
 * - IIS separates columns by a space and writes a plus for a space. `time-taken` is ms.
 * - CloudFront separates columns by a tab and encodes characters as in a URL. `time-taken` is seconds.
 */
import { orElse } from '../../../core/structures/or-else.js'
import { type FieldNames, type FieldUse, msOfUnit } from '../format-names.js'
import { type BadLine, DIRECTIVE, firstAddress, lineText, TextLineParser, unlessMissing } from '../line-parser.js'
import { readTimestamp, type Timestamp } from '../timestamp.js'

const HASH = 35

/** The columns to look for, in this order. */
const USUAL: Readonly<Partial<Record<FieldUse, readonly string[]>>> = {
  ip: ['c-ip'],
  method: ['cs-method'],
  path: ['cs-uri-stem', 'cs-uri'],
  // The name that the client asked for. `cs(Host)` of CloudFront is that of the distribution.
  host: ['x-host-header', 'cs-host', 'cs(host)'],
  agent: ['cs(user-agent)'],
  duration: ['time-taken'],
}

export class W3cParser extends TextLineParser {
  readonly format: 'w3c' | 'cloudfront'
  readonly timed = true
  override readonly prefixed = false
  readonly #names: FieldNames
  /** The places of columns by their names in lower case. Undefined: no line has named them yet. */
  #columns: ReadonlyMap<string, number> | undefined
  #date = ''
  #values: readonly string[] = []

  /**
   * @param names used instead of the usual ones
   * @param sample some lines, to find out which columns the log has
   */
  constructor(format: 'w3c' | 'cloudfront', names: FieldNames, sample: readonly string[]) {
    super()
    this.format = format
    this.#names = names
    for (const line of sample) if (line.startsWith('#')) this.#direct(line)
  }

  parse(bytes: Uint8Array, from: number, to: number): BadLine | typeof DIRECTIVE | undefined {
    const text = lineText(bytes, from, to)
    if (bytes[from] === HASH) {
      this.#direct(text)
      return DIRECTIVE
    }
    if (this.#columns === undefined) return 'no #Fields before it'
    const { size } = this.#columns
    this.#values = text.includes('\t') ? text.split('\t', size + 1) : columnsOf(text, size + 1)
    if (this.#values.length !== size) return 'other columns'
    const timestamp = this.#time()
    if (timestamp === undefined) return 'no time'
    const address = firstAddress(this.#value('ip') ?? '')
    if (address === undefined) return 'no address'
    const [method, path] = [this.#value('method'), this.#value('path')]
    if (method === undefined || path === undefined) return 'no request'
    this.took = this.#readDuration()
    this.duration = this.took ?? 0
    const query = this.#column('cs-uri-query')
    const request = `${method} ${path}${query === undefined ? '' : `?${query}`}`
    return this.keep(timestamp, { request, address, agent: this.header('user-agent') })
  }

  override host(): string | undefined {
    return this.#value('host')
  }

  override header(name: string): string | undefined {
    const value = name === 'user-agent' ? this.#value('agent') : this.#column(`cs(${name})`)
    return value === undefined ? undefined : this.#decoded(value)
  }

  has(name: string): boolean {
    const columns = this.#columns ?? new Map()
    const named = this.#namesOf(name === 'host' ? 'host' : 'agent')
    return (name === 'host' || name === 'user-agent' ? named : [`cs(${name})`]).some(column => columns.has(column))
  }

  override takes(): boolean {
    return true
  }

  #direct(line: string): void {
    const [directive = '', name] = /^#(\w+):/.exec(line) ?? []
    const value = line.slice(directive.length).trim()
    if (name === 'Fields') this.#columns = new Map(value.split(/\s+/).map((column, at) => [column.toLowerCase(), at]))
    if (name === 'Date') this.#date = value.split(' ', 1)[0]!
  }

  #time(): Timestamp | undefined {
    const { time } = this.#names
    if (time !== undefined) return readTimestamp(this.#column(time.toLowerCase()) ?? '')
    return readTimestamp(`${this.#column('date') ?? this.#date}T${this.#column('time')}Z`)
  }

  #readDuration(): number | undefined {
    const [, whole, fraction] = /^(\d{1,9})(\.\d{1,9})?$/.exec(this.#value('duration') ?? '') ?? []
    if (whole === undefined) return undefined
    const usual = fraction !== undefined || this.format === 'cloudfront' ? 's' : 'ms'
    return Number(`${whole}${fraction ?? ''}`) * msOfUnit(this.#names.unit ?? usual)!
  }

  #namesOf(use: FieldUse): readonly string[] {
    const name = this.#names[use]
    return name === undefined ? (USUAL[use] ?? []) : [name.toLowerCase()]
  }

  #value(use: FieldUse): string | undefined {
    for (const name of this.#namesOf(use)) {
      const value = this.#column(name)
      if (value !== undefined) return value
    }
    return undefined
  }

  #column(name: string): string | undefined {
    const place = this.#columns?.get(name)
    return place === undefined ? undefined : unlessMissing(this.#values[place])
  }

  #decoded(text: string): string {
    if (this.format === 'w3c') return text.replaceAll('+', ' ')
    return orElse(() => decodeURIComponent(text), text)
  }
}

/** A column, in quotes that are doubled inside, or as it is. */
const COLUMN = /(?:^| )(?:"((?:[^"]|"")*)"?|([^ ]*))/g

function columnsOf(line: string, most: number): string[] {
  if (!line.includes('"')) return line.split(' ', most)
  const columns: string[] = []
  for (const [, quoted, plain = ''] of line.matchAll(COLUMN)) {
    if (columns.push(quoted?.replaceAll('""', '"') ?? plain) === most) break
  }
  return columns
}
