/** Makes a table of rows: who has which limits. Rows that cannot be used are told by their number, and never by their key. */
import { hint } from '../../config/messages.js'
import { readRate } from '../../config/read-values.js'
import type { BucketSettings } from '../../config/settings.js'
import { LAST_PRIORITY } from '../../core/priority.js'
import { type LimitTable, LimitTableBuilder, MOST_KEYS, OWN } from '../../core/structures/limit-table.js'
import { orElse } from '../../core/structures/or-else.js'
import { faultOfKey, meantKey } from '../http/meant-key.js'
import type { LimitsReport } from '../observe/observer.js'

/** Complaints that are kept as text. The others are counted. */
const MOST_TOLD = 20
/** Rows whose texts are known. Most sources have few different ones. */
const MOST_KNOWN = 4_096

const COLUMNS = ['key', ...OWN] as const

interface Column {
  /** @param number NaN: the text is none. Undefined: it is no value of this column */
  readonly read: (number: number, text: string) => number | undefined
  readonly remedy: string
}

const above0 = (number: number): number | undefined => (number > 0 && number < Infinity ? number : undefined)
const whole = (least: number, most: number) => (number: number) =>
  Number.isInteger(number) && number >= least && number <= most ? number : undefined

/** As in a tier. A schema of zod would take longer to load than most files. */
const VALUES: Record<(typeof OWN)[number], Column> = {
  rate: {
    read: (number, text) => orElse(() => readRate(Number.isNaN(number) ? text : number), undefined),
    remedy: 'use e.g. 5/s',
  },
  capacity: { read: above0, remedy: 'use a number above 0, e.g. 10' },
  weight: { read: above0, remedy: 'use a number above 0, e.g. 2' },
  priority: {
    read: whole(0, LAST_PRIORITY),
    remedy: `use a whole number from 0 (first) to ${LAST_PRIORITY} (last)`,
  },
  maxInFlight: { read: whole(1, Number.MAX_SAFE_INTEGER), remedy: 'use a whole number above 0, e.g. 4' },
}

/** Of the bucket whose limits they are. */
export type RowsOf = Pick<BucketSettings, 'name' | 'key'> & {
  /** What bounds its keys. */
  readonly by: 'rate' | 'quota' | 'in flight'
  /** The least `maxInFlight`: workers divide it, and each needs a part. */
  readonly leastInFlight: number
}

/** A source that cannot be used at all. */
export class LimitsError extends Error {
  /** @param path its place in the configuration, for the message */
  constructor(
    readonly reason: string,
    readonly path?: string,
  ) {
    super(path === undefined ? reason : `${path}: ${reason}`)
  }
}

/** Texts of a row, in the order of `OWN`. '' is absent. */
export type Texts = readonly string[]

/** Where in `Texts` each column of a source is; -1: it is the key. @throws LimitsError */
export function readColumns(names: readonly string[]): number[] {
  const plain = (name: string): string => name.toLowerCase().replaceAll(/[_ -]/g, '')
  const places = names.map(name => {
    const column = COLUMNS.findIndex(known => plain(known) === plain(name))
    if (column >= 0) return column - 1
    const shown = JSON.stringify(name.slice(0, 40))
    throw new LimitsError(`the column ${shown} is not known; ${hint(name.slice(0, 40), COLUMNS, 'columns')}`)
  })
  if (!places.includes(-1)) throw new LimitsError(`there is no column "key"; columns are ${COLUMNS.join(', ')}`)
  const twice = places.find((place, at) => places.indexOf(place) < at)
  if (twice !== undefined) throw new LimitsError(`the column "${COLUMNS[twice + 1]}" is there twice; remove one`)
  return places
}

export class Rows {
  readonly #of: RowsOf
  /** What a row is called. */
  readonly #noun: 'line' | 'row'
  readonly #before: LimitTable | undefined
  readonly #builder: LimitTableBuilder
  readonly #isPlain: boolean
  /** Sets by the texts of rows. */
  readonly #known = new Map<string, number>()
  /** Numbers by the texts of each column. */
  readonly #numbers = OWN.map(() => new Map<string, number>())
  readonly #badKeys = new Set<string>()
  readonly #told: string[] = []
  #complaints = 0
  #bad = 0

  /** @param before the table until now: a row that is bad keeps what its key had there */
  constructor(of: RowsOf, noun: 'line' | 'row', before: LimitTable | undefined) {
    this.#of = of
    this.#noun = noun
    this.#before = before
    this.#builder = new LimitTableBuilder(before)
    const { parts } = of.key
    this.#isPlain = parts.length === 1 && !['all', 'ip'].includes(parts[0]!.kind)
  }

  /** @param name stands for all of its texts but the key @param texts asked for if this name is new */
  add(row: number, written: string, name: string, texts: () => Texts): void {
    const key = this.#keyOf(written)
    if (key === undefined) return this.refuse(row, 'no request has this key; write it as requests have it')
    if (key === '') return this.refuse(row, 'there is no key')
    const known = this.#known.get(name)
    const set = known ?? this.#read(texts())
    if (typeof set === 'string') return this.refuse(row, set, key)
    if (known === undefined && this.#known.size < MOST_KNOWN) this.#known.set(name, set)
    const result = this.#builder.set(key, set)
    if (result === 'again')
      this.#tell(`${this.#noun} ${row}: an earlier ${this.#noun} has this key, too; this one counts`)
    else if (result === 'full') this.refuse(row, `there are more than ${MOST_KEYS} keys`)
  }

  /** @param key of which the last good row is to stay. Undefined: it cannot be read */
  refuse(row: number, why: string, key?: string): void {
    this.#bad += 1
    this.#tell(`${this.#noun} ${row}: ${why}`)
    if (key !== undefined && this.#before !== undefined && this.#badKeys.size < MOST_KEYS) this.#badKeys.add(key)
  }

  end(): { readonly table: LimitTable; readonly report: LimitsReport } {
    for (const key of this.#badKeys) {
      const set = this.#builder.has(key) ? -1 : this.#before!.find(key)
      if (set >= 0) this.#builder.set(key, this.#builder.setOf(this.#before!.own(set)))
    }
    const table = this.#builder.build()
    const report = { keys: table.size, told: this.#told, more: this.#complaints - this.#told.length, bad: this.#bad }
    return { table, report }
  }

  #tell(complaint: string): void {
    this.#complaints += 1
    if (this.#told.length < MOST_TOLD) this.#told.push(complaint)
  }

  /** As requests have it. Undefined: no request can have it. */
  #keyOf(written: string): string | undefined {
    const text = written.trim()
    if (text === '' || (this.#isPlain && text.length <= 128 && !text.includes('\n'))) return text
    const key = meantKey(this.#of.key, text)
    return faultOfKey(this.#of.key, key) === undefined ? key : undefined
  }

  /** Undefined: it is no value of this column. */
  #number(place: number, text: string): number | undefined {
    const numbers = this.#numbers[place]!
    const known = numbers.get(text)
    if (known !== undefined) return known
    const number = VALUES[OWN[place]!].read(NUMBER.test(text) ? Number(text) : Number.NaN, text)
    if (number !== undefined && numbers.size < MOST_KNOWN) numbers.set(text, number)
    return number
  }

  /** The set of a row, or what is wrong with it. */
  #read(texts: Texts): number | string {
    const { by, leastInFlight } = this.#of
    const own: number[] = []
    for (const [place, name] of OWN.entries()) {
      const text = texts[place]!.trim()
      const number = text === '' ? Number.NaN : this.#number(place, text)
      if (number === undefined) return `${name} is wrong; ${VALUES[name].remedy}`
      own.push(number)
    }
    const [ownRate = Number.NaN, capacity = Number.NaN, , , maxInFlight = Number.NaN] = own
    if (by === 'quota' && !Number.isNaN(ownRate))
      return 'a rate has no effect, as the bucket is a quota; leave it empty, and write the limit of the quota as capacity'
    if (by === 'in flight' && Number.isNaN(ownRate) && !Number.isNaN(capacity))
      return 'a capacity needs a rate, as the bucket has none; add it'
    if (maxInFlight < leastInFlight)
      return `maxInFlight is wrong; the workers divide it, so use at least ${leastInFlight}`
    return this.#builder.setOf(own)
  }
}

const NUMBER = /^\d+(?:\.\d+)?(?:e[+-]?\d+)?$/i
