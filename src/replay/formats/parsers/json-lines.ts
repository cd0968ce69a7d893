/** Logs with one JSON object per line: nginx with `escape=json`, Caddy, Traefik, Envoy, and others with given field names. */
import { isObject } from '../../../config/checks/partial-config.js'
import { ownValue } from '../../../core/structures/own-value.js'
import { type FieldNames, type FieldUse, msOfUnit } from '../format-names.js'
import {
  type BadLine,
  firstAddress,
  type JsonObject,
  lineText,
  readJsonObject,
  TextLineParser,
  unlessMissing,
} from '../line-parser.js'
import { readTimestamp, type Timestamp } from '../timestamp.js'

/** The names to look for, in this order. Dots lead into objects. */
const USUAL: Readonly<Record<Exclude<FieldUse, 'unit'>, readonly string[]>> = {
  time: [
    ...['StartUTC', 'StartLocal', 'ts', 'time', '@timestamp', 'timestamp', 'msec', 'time_iso8601', 'time_local'],
    ...['datetime', 'date', 'start_time'],
  ],
  ip: [
    ...['ClientHost', 'request.client_ip', 'request.remote_ip', 'request.remote_addr', 'remote_addr', 'client_ip'],
    ...[
      'clientip',
      'remote_ip',
      'client',
      'ip',
      'ClientAddr',
      'remoteAddr',
      'host_ip',
      'x_forwarded_for',
      'x-forwarded-for',
    ],
    ...['downstream_remote_address'],
  ],
  method: ['request.method', 'RequestMethod', 'request_method', 'method', 'verb', ':method'],
  path: ['request.uri', 'RequestPath', 'request_uri', 'uri', 'path', 'url', 'target', 'x-envoy-origin-path', ':path'],
  request: ['request'],
  host: ['request.host', 'RequestHost', 'RequestAddr', 'http_host', 'host', 'vhost', 'authority', ':authority'],
  agent: [
    ...['request.headers.User-Agent', 'request_User-Agent', 'http_user_agent', 'user_agent', 'userAgent', 'agent'],
    ...['ua', 'user-agent'],
  ],
  duration: [
    ...['Duration', 'request_time', 'latency_human', 'responseTime', 'duration', 'latency', 'elapsed', 'took'],
    ...['response_time'],
  ],
}

/** Traefik and Envoy write the time of the beginning. */
const ENVOY_START = 'start_time'
const STARTS = ['StartUTC', 'StartLocal', ENVOY_START]
/** The units of what Traefik, nginx and pino call a duration, in ms. */
const NGINX_TIME = 'request_time'
const DURATION_UNITS: Readonly<Record<string, number>> = { Duration: 1e-6, [NGINX_TIME]: 1_000, responseTime: 1 }
/** Few requests take so many seconds, and none a whole number of them alone. */
const LONG = 60
/** A duration whose name ends with its unit: `latency_ms`, `durationUs`, `response_time_seconds`. */
const WITH_UNIT =
  /^(?:duration|latency|elapsed|took|(?:req(?:uest)?|resp?(?:onse)?|process(?:ing)?|total)_?time|time_?taken)[_-]?((?:milli|micro|nano|[muµn])s\w{0,6}|(?<=[_-])s|sec\w{0,4})$/i

export class JsonParser extends TextLineParser {
  readonly format = 'json'
  readonly timed = true
  readonly #names: FieldNames
  #line: JsonObject = {}
  /** The field that last held each use. */
  readonly #found: Partial<Record<keyof typeof USUAL, string>> = {}
  /** Whether numeric times have fractions. If so, a whole number is an exact time, too. */
  #exact = false
  readonly #sample: readonly JsonObject[]
  /** A field with durations of which nothing tells the unit. */
  #unitless: string | undefined
  /** The longest `request_time`, as written; 0 as soon as one has a fraction, as nginx's seconds have. */
  #longestWhole = 1

  /**
   * @param names used instead of the usual ones
   * @param sample some lines, to find out which headers the log has
   */
  constructor(names: FieldNames = {}, sample: readonly string[] = []) {
    super()
    this.#names = names
    this.#sample = sample.map(readJsonObject).filter(line => line !== undefined)
    this.#exact = this.#sample.some(line => {
      this.#line = line
      return typeof this.#value('time') === 'number' && (this.#time()?.fraction ?? -1) >= 0
    })
  }

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    const line = readJsonObject(lineText(bytes, from, to))
    if (line === undefined) return 'not JSON'
    this.#line = line
    const address = firstAddress(this.#text('ip') ?? '')
    if (address === undefined) return 'no address'
    const timestamp = this.#time()
    if (timestamp === undefined) return 'no time'
    const method = this.#text('method')
    const path = this.#text('path')
    this.took = this.#readDuration()
    // The time is that of the beginning.
    this.duration = STARTS.includes(this.#timeName) ? 0 : (this.took ?? 0)
    const request = method !== undefined && path !== undefined ? `${method} ${path}` : this.#text('request')
    if (request === undefined) return 'no request'
    return this.keep(timestamp, { request, address, agent: this.#text('agent') })
  }

  override host(): string | undefined {
    return this.#text('host')
  }

  override header(name: string): string | undefined {
    if (name === 'user-agent') return this.#text('agent')
    const own = `http_${name.replaceAll('-', '_')}`
    const traefik = `request_${name}`
    for (const [field, value] of Object.entries(this.#line)) {
      const lower = field.toLowerCase()
      if (lower === own || lower === traefik || lower === name) return textOf(value)
    }
    const { request } = this.#line
    const headers = isObject(request) && isObject(request.headers) ? request.headers : this.#line.headers
    if (!isObject(headers)) return undefined
    const [, value] = Object.entries(headers).find(([field]) => field.toLowerCase() === name) ?? []
    return textOf(value)
  }

  has(name: string): boolean {
    return this.#sample.some(line => {
      this.#line = line
      return (name === 'host' ? this.host() : this.header(name)) !== undefined
    })
  }

  override takes(): boolean {
    return true
  }

  override get notes(): readonly string[] {
    const field = this.#unitless
    const own = `${JSON.stringify(field)} does not tell its unit, so times are as logged, not less the request time; add --field unit=ms, or s, us or ns`
    const whole = `"request_time" counts as seconds, as nginx writes it, but has whole numbers up to ${this.#longestWhole}; if it is not seconds add --field unit=ms, us or ns`
    return [...super.notes, ...(field === undefined ? [] : [own]), ...(this.#longestWhole < LONG ? [] : [whole])]
  }

  #text(use: keyof typeof USUAL): string | undefined {
    return textOf(this.#value(use))
  }

  #value(use: keyof typeof USUAL): unknown {
    const name = this.#nameOf(use)
    return name === undefined ? undefined : valueAt(this.#line, name)
  }

  #nameOf(use: keyof typeof USUAL): string | undefined {
    const given = this.#names[use]
    if (given !== undefined) return given
    const before = this.#found[use]
    if (before !== undefined && textOf(valueAt(this.#line, before)) !== undefined) return before
    const ofUnit = use === 'duration' ? Object.keys(this.#line).find(key => WITH_UNIT.test(key)) : undefined
    const found = ofUnit ?? USUAL[use].find(candidate => textOf(valueAt(this.#line, candidate)) !== undefined)
    if (found !== undefined) this.#found[use] = found
    return found
  }

  #time(): Timestamp | undefined {
    const value = this.#value('time')
    const timestamp = readTimestamp(String(value))
    if (timestamp === undefined || typeof value !== 'number') return timestamp
    this.#exact ||= timestamp.fraction >= 0
    return this.#exact && timestamp.fraction < 0 ? { ...timestamp, fraction: 0 } : timestamp
  }

  get #timeName(): string {
    return this.#names.time ?? this.#found.time ?? ''
  }

  #readDuration(): number | undefined {
    const name = this.#nameOf('duration')
    const value = name === undefined ? undefined : valueAt(this.#line, name)
    const [, digits, unit] = /^(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-zµ]+)?$/.exec(String(value)) ?? []
    if (name === undefined || digits === undefined) return undefined
    const ms = unit === undefined ? this.#unitOf(name) : msOfUnit(unit)
    if (ms === undefined) this.#unitless = name
    if (name === NGINX_TIME && unit === undefined && this.#names.unit === undefined && this.#longestWhole > 0)
      this.#longestWhole = digits.includes('.') ? 0 : Math.max(this.#longestWhole, Number(digits))
    return ms === undefined ? undefined : Number(digits) * ms
  }

  #unitOf(name: string): number | undefined {
    const { duration, unit } = this.#names
    if (unit !== undefined) return msOfUnit(unit)
    const [, ofName] = WITH_UNIT.exec(name.slice(name.lastIndexOf('.') + 1)) ?? []
    const known = ofName === undefined ? ownValue(DURATION_UNITS, name) : msOfUnit(ofName)
    if (known !== undefined) return known
    if (this.#timeName === ENVOY_START) return 1
    // Caddy has its requests in an object. Who names a field without a unit means seconds.
    return duration !== undefined || this.#found.method === 'request.method' ? 1_000 : undefined
  }
}

/** What can be the value of a field: text, a number, or a list that begins with one of these. */
function textOf(value: unknown): string | undefined {
  const one: unknown = Array.isArray(value) ? value[0] : value
  if (typeof one === 'number') return String(one)
  return typeof one === 'string' ? unlessMissing(one) : undefined
}

/** The field of exactly this name, else the value that its dots lead to. */
function valueAt(line: JsonObject, name: string): unknown {
  if (Object.hasOwn(line, name)) return ownValue(line, name)
  let at: unknown = line
  for (const step of name.split('.')) {
    if (!isObject(at)) return undefined
    at = ownValue(at, step)
  }
  return at
}
