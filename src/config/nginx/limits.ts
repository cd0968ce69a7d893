/** Zones, and the limits that a place has with them. */
import { quote } from '../messages.js'
import type { Directive, ImportNote, SourcePlace } from './directives.js'
import { inherited, type Scopes } from './scopes.js'

export interface Zone {
  readonly kind: 'rate' | 'connections'
  readonly name: string
  /** A text with variables. */
  readonly key: string
  /** As in our file; empty for connections. */
  readonly rate: string
  readonly place: SourcePlace
}

export interface Limit {
  readonly zone: Zone
  readonly place: SourcePlace
  readonly status: number
  /** Requests in excess that are not rejected. */
  readonly excess: number
  /** Requests in excess that do not wait; Infinity: none does. */
  readonly undelayed: number
  readonly connections: number
}

const ZONE = /^zone=([^:]+)/

export class Zones {
  readonly #zones = new Map<string, Zone>()
  readonly #notes: ImportNote[]

  constructor(http: readonly Directive[], notes: ImportNote[]) {
    this.#notes = notes
    for (const each of http) {
      if (each.name === 'limit_req_zone') this.#readRate(each)
      if (each.name === 'limit_conn_zone') this.#readConnections(each)
      if (each.name === 'limit_zone')
        notes.push({ place: each.place, message: 'is not imported: nginx has dropped it' })
    }
  }

  /** The limits of a request that passes some places: of each kind those of the first that has any. */
  limitsOf(path: readonly Scopes[]): Limit[] {
    return [...this.#limitsOf(path, 'rate'), ...this.#limitsOf(path, 'connections')]
  }

  #limitsOf(path: readonly Scopes[], kind: Zone['kind']): Limit[] {
    const name = kind === 'rate' ? 'limit_req' : 'limit_conn'
    const scopes = path.find(each => inherited(each, name).length > 0)
    return scopes === undefined ? [] : inherited(scopes, name).flatMap(each => this.#limitOf(kind, each, scopes))
  }

  #readRate({ args, place }: Directive): void {
    const [key = '', ...rest] = args
    const name = argument(rest, ZONE)
    const others = rest.filter(each => !/^(?:zone|rate)=|^sync$/.test(each))
    if (others.length > 0) {
      const message = `"limit_req_zone": the second key ${others.map(quote).join(', ')} is left out, so more requests share a bucket`
      this.#notes.push({ place, message })
    }
    const [, count, unit] = /^(\d+)r\/([sm])$/.exec(argument(rest, /^rate=(.*)$/) ?? '') ?? []
    if (name === undefined || count === undefined) {
      this.#notes.push({
        place,
        message: '"limit_req_zone" takes a key, zone=NAME:SIZE and rate=Nr/s or Nr/m; left out',
      })
      return
    }
    if (rest.includes('sync')) {
      const message = `zone "${name}" is shared by machines (sync): add a "store" for that, see docs/scaling.md`
      this.#notes.push({ place, message })
    }
    this.#zones.set(`rate ${name}`, { kind: 'rate', name, key, rate: `${Number(count)}/${unit}`, place })
  }

  #readConnections({ args, place }: Directive): void {
    const [key = '', ...rest] = args
    const name = argument(rest, ZONE)
    if (name !== undefined) this.#zones.set(`connections ${name}`, { kind: 'connections', name, key, rate: '', place })
  }

  #statusOf(kind: Zone['kind'], scopes: Scopes): number {
    const [found] = inherited(scopes, kind === 'rate' ? 'limit_req_status' : 'limit_conn_status')
    const status = Number(found?.args[0] ?? 503)
    if (status !== CLOSE) return status
    const message = `${quote(`${found!.name} ${CLOSE}`)} closes the connection in nginx; here the answer is 429`
    this.#notes.push({ place: found!.place, message })
    return 429
  }

  #limitOf(kind: Zone['kind'], { name: directive, args, place }: Directive, scopes: Scopes): Limit[] {
    const name = kind === 'rate' ? argument(args, /^zone=(.*)$/) : args[0]
    // Tengine's word for none.
    if (args[0] === 'off') return []
    const odd = args.filter(each => !/^(?:zone=.*|burst=\d+|nodelay|delay=\d+)$/.test(each))
    if (kind === 'rate' && odd.length > 0)
      this.#notes.push({ place, message: `"limit_req": ${odd.map(quote).join(', ')} is left out` })
    const zone = this.#zones.get(`${kind} ${name}`)
    if (zone === undefined) {
      this.#notes.push({ place, message: `"${directive}" names zone "${name}", which is not defined; left out` })
      return []
    }
    const excess = Number(argument(args, /^burst=(\d+)$/) ?? 0)
    const delay = args.includes('nodelay') ? Infinity : Number(argument(args, /^delay=(\d+)$/) ?? 0)
    return [
      {
        zone,
        place,
        status: this.#statusOf(kind, scopes),
        excess,
        undelayed: delay >= excess ? Infinity : delay,
        connections: kind === 'rate' ? 0 : Number(args[1]),
      },
    ]
  }
}

/** nginx closes the connection instead. */
const CLOSE = 444

function argument(args: readonly string[], pattern: RegExp): string | undefined {
  return args.flatMap(each => pattern.exec(each)?.[1] ?? [])[0]
}
