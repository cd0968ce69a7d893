/**
 * Reads rows from the bytes of a file: CSV as in RFC 4180 with a header line, or one JSON object on each line.
 *
 * It is strict. What is no whole record is refused with the number of its line, and reading goes on with the next line. A record has at
 * most 64 kB, so a file of any size takes little memory.
 */
import { readSync } from 'node:fs'
import { OWN } from '../../core/structures/limit-table.js'
import { orElse } from '../../core/structures/or-else.js'
import { LimitsError, type Rows, readColumns } from './rows.js'

export const LONGEST_RECORD = 2 ** 16
/** More than a header can have. */
const MOST_FIELDS = 16
const [LF, CR, QUOTE, COMMA, SPACE, TAB] = [10, 13, 34, 44, 32, 9]
/** No record ends in what was read so far. */
const INCOMPLETE = -1

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
const TOO_LONG = `is longer than ${LONGEST_RECORD} bytes`

type Form = 'csv' | 'json'

/** By the end of its name. */
export function formOf(file: string): Form {
  return /\.(?:jsonl|ndjson|json)$/i.test(file) ? 'json' : 'csv'
}

/** Reads all rows of an open file. @throws LimitsError, or what the system says */
export function readFile(descriptor: number, form: Form, rows: Rows): void {
  const reader = new LineReader(form, rows)
  const buffer = Buffer.alloc(16 * LONGEST_RECORD)
  let filled = 0
  for (;;) {
    const read = readSync(descriptor, buffer, filled, buffer.length - filled, null)
    filled += read
    const used = reader.take(buffer.subarray(0, filled), read === 0 ? 'end' : 'more')
    buffer.copyWithin(0, used, filled)
    filled -= used
    if (read === 0) break
  }
  reader.end()
}

export class LineReader {
  readonly #rows: Rows
  readonly #form: Form
  /** The columns of a CSV. Undefined: its header has not come. */
  #columns: readonly number[] | undefined
  #key = 0
  #line = 1
  #isFirst = true
  /** In a line that is too long. */
  #skips = false
  // Of the record that was read last.
  readonly #from = new Int32Array(MOST_FIELDS)
  readonly #to = new Int32Array(MOST_FIELDS)
  #fields = 0
  #isPlain = true
  #fault: string | undefined

  constructor(form: Form, rows: Rows) {
    this.#form = form
    this.#rows = rows
  }

  /** @returns how many bytes it has used. The others are to come again, with more */
  take(bytes: Buffer, isMore: 'more' | 'end'): number {
    let at = 0
    if (this.#isFirst && (bytes.length >= 3 || isMore === 'end')) {
      this.#isFirst = false
      if (bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf) at = 3
    } else if (this.#isFirst) return 0
    while (at < bytes.length) {
      const after = this.#skips ? this.#skip(bytes, at) : this.#record(bytes, at, isMore)
      if (after === INCOMPLETE) break
      at = after
    }
    return at
  }

  /** @throws LimitsError if there was no header */
  end(): void {
    if (this.#form === 'csv' && this.#columns === undefined)
      throw new LimitsError('the file is empty; begin it with a line that names its columns, e.g. key,rate,capacity')
  }

  /** The rest of a line. */
  #skip(bytes: Buffer, at: number): number {
    const end = bytes.indexOf(LF, at)
    if (end < 0) return bytes.length
    this.#skips = false
    this.#line += 1
    return end + 1
  }

  #record(bytes: Buffer, at: number, isMore: 'more' | 'end'): number {
    const line = this.#line
    this.#fault = undefined
    let after = this.#form === 'csv' ? this.#split(bytes, at, isMore) : this.#wholeLine(bytes, at, isMore)
    if (after === INCOMPLETE && bytes.length - at <= LONGEST_RECORD) return INCOMPLETE
    if (after === INCOMPLETE || after - at > LONGEST_RECORD) this.#fault = TOO_LONG
    if (this.#fault !== undefined) {
      this.#refuse(line, this.#fault, this.#keyBefore(bytes))
      const end = bytes.indexOf(LF, at)
      this.#skips = end < 0
      after = end < 0 ? bytes.length : end + 1
      if (end >= 0) this.#line += 1
      return after
    }
    this.#lines(bytes, at, after)
    if (this.#form === 'json') this.#readJson(bytes, line)
    else this.#readCsv(bytes, line)
    return after
  }

  /** The key of a record that is read up to a fault. Undefined: it has not come, or goes on. */
  #keyBefore(bytes: Buffer): string | undefined {
    const isRead = this.#columns !== undefined && this.#key < this.#fields && bytes[this.#to[this.#key]!] === COMMA
    return isRead ? this.#text(bytes, this.#key) : undefined
  }

  #refuse(line: number, why: string, key?: string): void {
    if (this.#form === 'csv' && this.#columns === undefined) throw new LimitsError(`line ${line}, its header, ${why}`)
    this.#rows.refuse(line, `this line ${why}`, key)
  }

  /** Counts the lines of a record. Only in quotes may there be several. */
  #lines(bytes: Buffer, at: number, after: number): void {
    if (this.#isPlain) this.#line += 1
    else
      for (let place = bytes.indexOf(LF, at); place >= 0 && place < after; place = bytes.indexOf(LF, place + 1))
        this.#line += 1
  }

  #wholeLine(bytes: Buffer, at: number, isMore: 'more' | 'end'): number {
    const end = bytes.indexOf(LF, at)
    if (end < 0 && isMore === 'more') return INCOMPLETE
    this.#from[0] = at
    this.#to[0] = end < 0 ? bytes.length : end
    this.#isPlain = true
    return end < 0 ? bytes.length : end + 1
  }

  /** Finds the fields of a record, or sets the fault. @returns where the next one begins */
  #split(bytes: Buffer, start: number, isMore: 'more' | 'end'): number {
    this.#fields = 0
    this.#isPlain = true
    let at = start
    for (;;) {
      if (this.#fields === MOST_FIELDS) return this.#fail(bytes, at, 'has too many fields', isMore)
      at = bytes[at] === QUOTE ? this.#quoted(bytes, at) : this.#bare(bytes, at)
      this.#fields += 1
      if (at === INCOMPLETE) return this.#fail(bytes, bytes.length, 'has a quote that is not closed', isMore)
      if (bytes[at] !== COMMA) return this.#endAt(bytes, at, isMore)
      at += 1
    }
  }

  #endAt(bytes: Buffer, from: number, isMore: 'more' | 'end'): number {
    let at = from
    if (bytes[at] === CR && (bytes[at + 1] === LF || (at + 1 === bytes.length && isMore === 'end'))) at += 1
    const code = bytes[at]
    if (code === undefined) return isMore === 'more' ? INCOMPLETE : at
    return code === LF ? at + 1 : this.#fail(bytes, at, whyNot(code, bytes[at - 1]), isMore)
  }

  /** @returns where a field ends that begins with a quote */
  #quoted(bytes: Buffer, from: number): number {
    this.#isPlain = false
    const quote = closingQuote(bytes, from + 1)
    this.#from[this.#fields] = from
    this.#to[this.#fields] = quote + 1
    return quote < 0 ? INCOMPLETE : quote + 1
  }

  #bare(bytes: Buffer, from: number): number {
    let at = from
    let all = 0
    for (let code = bytes[at]; isText(code); code = bytes[at]) {
      all |= code
      at += 1
    }
    if (all > 127) this.#isPlain = false
    this.#from[this.#fields] = from
    this.#to[this.#fields] = at
    return at
  }

  /** The line has to be there to its end, so that reading can go on after it. */
  #fail(bytes: Buffer, at: number, why: string, isMore: 'more' | 'end'): number {
    const end = bytes.indexOf(LF, at)
    if (end < 0 && isMore === 'more') return INCOMPLETE
    this.#fault = why
    return end < 0 ? bytes.length : end + 1
  }

  /** A field as it is meant. Undefined: it is no UTF-8, or has a control character. */
  #text(bytes: Buffer, field: number): string | undefined {
    const [from, to] = [this.#from[field]!, this.#to[field]!]
    if (this.#isPlain) return bytes.toString('latin1', from, to)
    const text = orElse(() => utf8.decode(bytes.subarray(from, to)), undefined)
    if (text === undefined || !text.startsWith('"')) return text
    const meant = text.slice(1, -1).replaceAll('""', '"')
    // biome-ignore lint/suspicious/noControlCharactersInRegex: that is what it looks for
    return /[\0-\x08\x0b-\x1f]/.test(meant) ? undefined : meant
  }

  #readCsv(bytes: Buffer, line: number): void {
    const fields = this.#fields
    // An empty line.
    if (fields === 1 && this.#from[0] === this.#to[0]) return
    if (this.#columns === undefined) {
      const names = Array.from({ length: fields }, (_, field) => this.#text(bytes, field)?.trim() ?? '')
      this.#columns = readColumns(names)
      this.#key = this.#columns.indexOf(-1)
      return
    }
    const columns = this.#columns
    const key = this.#text(bytes, this.#key < fields ? this.#key : 0)
    if (fields !== columns.length)
      return this.#refuse(
        line,
        `has ${fields} ${fields === 1 ? 'field' : 'fields'}, and the header ${columns.length}`,
        this.#key < fields ? key : undefined,
      )
    if (key === undefined) return this.#refuse(line, 'has a key that is no text')
    const before = this.#key === 0 ? '' : bytes.toString('latin1', this.#from[0], this.#from[this.#key])
    const name = before + bytes.toString('latin1', this.#to[this.#key], this.#to[fields - 1])
    this.#rows.add(line, key, name, () => {
      const texts = OWN.map(() => '')
      // A text that cannot be read is none of these values.
      for (const [field, place] of columns.entries()) if (place >= 0) texts[place] = this.#text(bytes, field) ?? '?'
      return texts
    })
  }

  #readJson(bytes: Buffer, line: number): void {
    const text = orElse(() => utf8.decode(bytes.subarray(this.#from[0], this.#to[0])), '?').trim()
    if (text === '') return
    const value: unknown = orElse(() => JSON.parse(text), undefined)
    if (typeof value !== 'object' || value === null || Array.isArray(value))
      return this.#refuse(line, 'is no JSON object; write one on each line, e.g. { "key": "a", "rate": "5/s" }')
    const given = Object.entries(value)
    const columns = orElse(() => readColumns(given.map(([name]) => name)), undefined)
    const key = given[columns?.indexOf(-1) ?? -1]?.[1] ?? Object.getOwnPropertyDescriptor(value, 'key')?.value
    if (typeof key !== 'string' && typeof key !== 'number') return this.#refuse(line, 'has no key')
    if (columns === undefined)
      return this.#refuse(line, `has an unknown name, or one twice; names are key, ${OWN.join(', ')}`, String(key))
    const texts = OWN.map(() => '')
    for (const [at, place] of columns.entries()) if (place >= 0) texts[place] = textOf(given[at]![1])
    this.#rows.add(line, String(key), texts.join('\0'), () => texts)
  }
}

/** What is no text and no number is no value of these. */
function textOf(value: unknown): string {
  if (value === null) return ''
  return typeof value === 'number' || (typeof value === 'string' && !value.includes('\0')) ? String(value) : '?'
}

function isText(code: number | undefined): code is number {
  return code !== undefined && code !== COMMA && code !== QUOTE && (code >= SPACE || code === TAB)
}

/** Why a field cannot end with this byte. */
function whyNot(code: number, before: number | undefined): string {
  if (code === QUOTE) return 'has a quote inside a field; write the field in quotes'
  return before === QUOTE && code >= SPACE ? 'goes on after a closing quote' : 'has a control character'
}

/** The place of a quote that ends a field. Two are one in it. */
function closingQuote(bytes: Buffer, from: number): number {
  for (let at = bytes.indexOf(QUOTE, from); at >= 0; at = bytes.indexOf(QUOTE, at + 2))
    if (bytes[at + 1] !== QUOTE) return at
  return -1
}
