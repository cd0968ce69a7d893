/** Zones, and the limits that a place has with them. */
import type { Directive, ImportNote, SourcePlace } from './directives.js'
import { inherited, type Scopes, settingOf } from './scopes.js'

export interface Zone {
  readonly kind: 'rate' | 'connections'
  readonly name: string
  /** A text with variables. */
  readonly key: string
  /** As in our file; empty for connections. */
  readonly rate: string
  readonly place: SourcePlace
}

/** `limit_req` or `limit_conn` in one place. */
export interface Limit {
  readonly zone: Zone
  readonly place: SourcePlace
  readonly status: number
  /** Requests in excess that are not rejected. */
  readonly excess: number
  /** Requests in excess that do not wait; Infinity: none does. */
  readonly undelayed: number
  /** For connections: how many. */
  readonly connections: number
}

const ZONE = /^zone=([^:]+)/

export class Zones {
  readonly #zones = new Map<string, Zone>()
  readonly #notes: ImportNote[]

  /** @param http the directives of the block `http` */
  constructor(http: readonly Directive[], notes: ImportNote[]) {
    this.#notes = notes
    for (const each of http) {
      if (each.name === 'limit_req_zone') this.#readRate(each)
      if (each.name === 'limit_conn_zone') this.#readConnections(each)
      if (each.name === 'limit_zone')
        notes.push({ place: each.place, message: 'is not imported: nginx has dropped it' })
    }
  }

  /** The limits in a place. */
  limitsOf(scopes: Scopes): Limit[] {
    const rates = inherited(scopes, 'limit_req').flatMap(each => this.#limitOf('rate', each, scopes))
    const connections = inherited(scopes, 'limit_conn').flatMap(each => this.#limitOf('connections', each, scopes))
    return [...rates, ...connections]
  }

  #readRate({ args, place }: Directive): void {
    const [key = '', ...rest] = args
    const name = argument(rest, ZONE)
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

  #limitOf(kind: Zone['kind'], { name: directive, args, place }: Directive, scopes: Scopes): Limit[] {
    const name = kind === 'rate' ? argument(args, /^zone=(.*)$/) : args[0]
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
        status: Number(settingOf(scopes, kind === 'rate' ? 'limit_req_status' : 'limit_conn_status') ?? 503),
        excess,
        undelayed: delay >= excess ? Infinity : delay,
        connections: kind === 'rate' ? 0 : Number(args[1]),
      },
    ]
  }
}

function argument(args: readonly string[], pattern: RegExp): string | undefined {
  return args.flatMap(each => pattern.exec(each)?.[1] ?? [])[0]
}
