const MONTHS = ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec']
const CLF = /^(\d\d)\/([A-Za-z]{3})\/(\d{4}):(\d\d):(\d\d):(\d\d)(?:\.(\d+))? ([+-]\d\d:?\d\d)$/
const ISO = /^(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s*(Z|UTC|GMT|[+-]\d\d:?\d\d)?$/i
const NUMBER = /^\d{9,19}(\.\d+)?$/
const MOST_SECONDS = 60

export interface Timestamp {
  /** Whole seconds since 1970. */
  readonly second: number
  /** The ms after them; -1: the log has whole seconds only. */
  readonly fraction: number
}

/**
 * Reads `17/May/2015:10:05:03 +0000`, an ISO 8601 time or seconds, ms, us or ns since 1970.
 *
 * @returns undefined for any other text, and for a date or time that does not exist, such as 31 February
 */
export function readTimestamp(text: string): Timestamp | undefined {
  const clf = CLF.exec(text)
  if (clf !== null) {
    const [, day, name = '', year, hour, minute, second, fraction, zone = ''] = clf
    const month = String(MONTHS.indexOf(name.toLowerCase()) + 1)
    return timestampOf([year!, month, day!, hour!, minute!, second!], zone, fraction)
  }
  const iso = ISO.exec(text)
  if (iso !== null) {
    const [, year, month, day, hour, minute, second, fraction, zone = 'Z'] = iso
    return timestampOf([year!, month!, day!, hour!, minute!, second!], zone, fraction)
  }
  return NUMBER.test(text) ? sinceEpoch(text) : undefined
}

/** @param civil year, month from 1, day, hour, minute and second, in the time zone `zone` */
function timestampOf(civil: readonly string[], zone: string, fraction: string | undefined): Timestamp | undefined {
  const [year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0] = civil.map(Number)
  const isDate = month >= 1 && month <= 12 && new Date(Date.UTC(year, month - 1, day)).getUTCDate() === day
  // 60 is a leap second, and counts as the second after it.
  if (!isDate || year < 100 || hour > 23 || minute > 59 || second > MOST_SECONDS) return undefined
  const [, sign = '+', hours = '0', minutes = '0'] = /^([+-])(\d\d):?(\d\d)$/.exec(zone) ?? []
  if (Number(hours) > 23 || Number(minutes) > 59) return undefined
  const shift = (Number(hours) * 60 + Number(minutes)) * 60 * (sign === '-' ? -1 : 1)
  const utc = Date.UTC(year, month - 1, day, hour, minute, second) / 1_000
  return { second: utc - shift, fraction: fractionOf(fraction) }
}

function sinceEpoch(text: string): Timestamp {
  const [whole = '', fraction] = text.split('.')
  // 10 digits are seconds until the year 2286.
  const scale = whole.length <= 11 ? 0 : whole.length <= 14 ? 3 : whole.length <= 17 ? 6 : 9
  const second = Number(whole.slice(0, whole.length - scale))
  return { second, fraction: fractionOf(scale === 0 ? fraction : whole.slice(-scale) + (fraction ?? '')) }
}

function fractionOf(digits: string | undefined): number {
  return digits === undefined ? -1 : Number(`0.${digits}`) * 1_000
}

/** The place of the seconds in `17/May/2015:10:05:03 +0000`, and the length of that text. */
const SECONDS = 18
const LENGTH = 26

/** Reads the times of a log. A line in the same minute as the line before is read without parsing the date again. */
export class TimestampReader {
  readonly #last = new Uint8Array(LENGTH)
  #minute = Number.NaN
  second = 0
  fraction = -1

  /** Reads a time into `second` and `fraction`. False: it is no time. */
  read(bytes: Uint8Array, from: number, to: number): boolean {
    if (to - from !== LENGTH || !this.#isSameMinute(bytes, from)) return this.#readAnew(bytes, from, to)
    const tens = bytes[from + SECONDS]! - 48
    const ones = bytes[from + SECONDS + 1]! - 48
    const second = 10 * tens + ones
    if (tens < 0 || ones < 0 || ones > 9 || second > MOST_SECONDS) return false
    this.second = this.#minute + second
    this.fraction = -1
    return true
  }

  #isSameMinute(bytes: Uint8Array, from: number): boolean {
    const last = this.#last
    for (let at = SECONDS - 1; at >= 0; at -= 1) if (bytes[from + at] !== last[at]) return false
    for (let at = SECONDS + 2; at < LENGTH; at += 1) if (bytes[from + at] !== last[at]) return false
    return true
  }

  #readAnew(bytes: Uint8Array, from: number, to: number): boolean {
    if (to - from > 40) return false
    const text = Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1')
    const time = readTimestamp(text)
    if (time === undefined || Number.isNaN(time.second)) return false
    this.second = time.second
    this.fraction = time.fraction
    if (to - from === LENGTH && time.fraction < 0 && text.charCodeAt(2) === 47) {
      this.#last.set(bytes.subarray(from, to))
      this.#minute = time.second - Number(text.slice(SECONDS, SECONDS + 2))
    }
    return true
  }
}
