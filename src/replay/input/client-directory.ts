import { needsOf } from '../../config/derived/header-needs.js'
import type { Settings } from '../../config/settings.js'
import type { BucketLimits } from '../../core/bucket/queued-bucket.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { matchingPath } from '../../http/matching/matching-path.js'
import { isAnsweredAtOnce } from '../../http/method.js'
import { addressKey, readAddress } from '../../proxy/http/client-address.js'
import type { RequestFacts } from '../../proxy/http/request.js'
import type { KeyLimits } from '../../proxy/limits/key-limits.js'
import { NO_BODY } from '../../proxy/routing/bucket-costs.js'
import { NO_CLAIMS } from '../../proxy/routing/key.js'
import { createRule, type RouteBucket, type Rule } from '../../proxy/routing/route.js'
import type { LineParser } from '../formats/line-parser.js'
import { ByteInterner } from './byte-interner.js'
import { grown } from './grown.js'

export interface Directory {
  /** The number of the line that a parser has just read. */
  identify(parser: LineParser): number
  /** The key of a client, as shown in reports. */
  text(client: number): string
}

const COLON = 58

/** Clients by address. An IPv6 client is its /64, as for the proxy. */
export class AddressDirectory implements Directory {
  readonly #addresses = new ByteInterner()
  readonly #keys = new ByteInterner()
  #keyOf = new Int32Array(1 << 10)

  identify(parser: LineParser): number {
    const known = this.#addresses.size
    const id = this.#addresses.find(parser.bytes, parser.addressFrom, parser.addressTo)
    return id < known ? this.#keyOf[id]! : this.#enter(id, parser)
  }

  text(client: number): string {
    return this.#keys.text(client)
  }

  #enter(id: number, { bytes, addressFrom, addressTo }: LineParser): number {
    if (id >= this.#keyOf.length) this.#keyOf = grown(this.#keyOf, 2 * this.#keyOf.length)
    const isPlain = bytes.indexOf(COLON, addressFrom) >= addressTo || bytes.indexOf(COLON, addressFrom) < 0
    const key = isPlain ? undefined : Buffer.from(addressOf(this.#addresses.text(id)))
    const client =
      key === undefined ? this.#keys.find(bytes, addressFrom, addressTo) : this.#keys.find(key, 0, key.length)
    this.#keyOf[id] = client
    return client
  }
}

/** The key that the proxy makes of an address. A text that is no address stays as it is. */
function addressOf(text: string): string {
  const address = readAddress(text)
  return address === undefined ? text : addressKey(address)
}

/** Everything that requests of one client with the same route, keys and cost have in common. */
export interface RequestKind {
  /** Undefined: no route matches. */
  readonly rule: Rule | undefined
  /** The key for each bucket of the rule; undefined: a key is missing, and its bucket says to reject. */
  readonly keys: readonly string[] | undefined
  readonly limits: readonly BucketLimits[]
  readonly cost: number
  readonly costs?: readonly number[]
  readonly weight: number
  readonly priority: number
  readonly client: number
  /** It is accepted now and sent later (`deliver`). Undefined: it is not; a log does not say who has asked for it. */
  readonly isStored?: boolean
}

export class RouteDirectory implements Directory {
  readonly kinds: RequestKind[] = []
  readonly #rules: readonly Rule[]
  readonly #client: 'first key' | 'address'
  readonly #headers: readonly string[]
  readonly #known = new Map<string, number>()
  readonly #clients = new ByteInterner()

  /** @param client whether a client is the first key of its stack, or its address */
  constructor({ routes }: Settings, client: 'first key' | 'address' = 'first key', keyLimits?: KeyLimits) {
    this.#rules = routes.map(route => createRule(route, keyLimits))
    this.#client = client
    this.#headers = [...new Set(needsOf(routes).map(({ name }) => name))].filter(name => name !== 'host')
  }

  identify(parser: LineParser): number {
    const facts = this.#factsOf(parser)
    const written = textOf(parser, parser.addressFrom, parser.addressTo)
    const address = readAddress(written) ?? written
    const ip = addressKey(address)
    const rule = this.#rules.find(candidate => candidate.matches({ facts, address }))
    if (rule === undefined || rule.settings.mode === 'off') {
      const kind = { rule, keys: [], limits: [], cost: 0, weight: 1, priority: DEFAULT_PRIORITY }
      return this.#kindOf(`${rule?.name ?? ''}\n\n${ip}`, () => ({ ...kind, client: this.#clientId(ip) }))
    }
    // A log has no certificates, tokens and bodies.
    const unknown = { certificate: undefined, claims: NO_CLAIMS, body: NO_BODY }
    const context = { facts, address, ip, route: rule.name, ...unknown }
    const used: RouteBucket[] = []
    const keys: string[] = []
    let isWhole = true
    for (const bucket of rule.buckets) {
      const value = bucket.key(context)
      if (value === undefined && bucket.settings.key.missing === 'skip') continue
      isWhole = value !== undefined
      if (!isWhole) break
      used.push(bucket)
      keys.push(value!)
    }
    const cost = rule.cost(facts)
    const owners = used.map(({ owner }, at) => (isWhole ? owner(keys[at]!, facts) : undefined))
    const [first] = used[0] === rule.buckets[0] ? keys : []
    const owner = this.#client === 'address' || first === undefined ? ip : first
    const names = used.map(({ settings }, at) => `${settings.name} ${owners[at]?.limits.tier}`).join()
    const isStored = rule.settings.deliver?.when === 'always' && !isAnsweredAtOnce(facts.method)
    const id = `${rule.name}\n${isStored}\n${cost}\n${names}\n${owner}\n${isWhole}\n${keys.join('\r')}`
    return this.#kindOf(id, () => {
      const settings = used.map((bucket, at) => ({ ...bucket, own: owners[at] ?? bucket.settings, member: owners[at] }))
      const inOrder = [...settings].sort((a, b) => a.place - b.place)
      const ofRoute = rule.settings.priority
      const costs = rule.bucketCosts?.reserve(
        used.map(({ settings }) => settings.name),
        NO_BODY,
      )
      return {
        rule,
        keys: isWhole ? keys : undefined,
        limits: settings.map(({ own }) => own.limits),
        cost: costs?.at(-1) ?? cost,
        ...(costs && { costs }),
        weight: inOrder.find(({ own }) => own.weight !== undefined)?.own.weight ?? 1,
        priority:
          inOrder.find(({ member }) => member?.priority !== undefined)?.member?.priority ??
          // A log has no such header.
          (ofRoute === 'header' ? DEFAULT_PRIORITY : ofRoute),
        client: this.#clientId(owner),
        ...(isStored && { isStored }),
      }
    })
  }

  text(client: number): string {
    return this.#clients.text(client).trim().replaceAll('\n', ', ')
  }

  #kindOf(id: string, create: () => RequestKind): number {
    const known = this.#known.get(id)
    if (known !== undefined) return known
    this.kinds.push(create())
    this.#known.set(id, this.kinds.length - 1)
    return this.kinds.length - 1
  }

  #clientId(text: string): number {
    const bytes = Buffer.from(text)
    return this.#clients.find(bytes, 0, bytes.length)
  }

  #factsOf(parser: LineParser): RequestFacts {
    const target = textOf(parser, parser.targetFrom, parser.targetTo)
    const rawHeaders: string[] = []
    for (const name of this.#headers) {
      const value = parser.header(name)
      if (value !== undefined) rawHeaders.push(name, value)
    }
    return {
      ...NO_FACTS,
      method: textOf(parser, parser.methodFrom, parser.methodTo),
      target,
      path: matchingPath(target),
      host: parser.host(),
      rawHeaders,
    }
  }
}

const NO_FACTS: Omit<RequestFacts, 'method' | 'target' | 'path' | 'host' | 'rawHeaders'> = {
  origin: undefined,
  oldHttp: false,
  connection: undefined,
  forwardedFor: [],
  via: undefined,
  contentLength: undefined,
  chunked: false,
  expectContinue: false,
  maxForwards: undefined,
  preferWait: undefined,
  grpcTimeout: undefined,
  expectedTimeout: undefined,
}

function textOf({ bytes }: LineParser, from: number, to: number): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1')
}
