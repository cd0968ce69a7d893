/**
 * Servers from DNS (contract 14.4): each address of a name is a server, and shaper follows what DNS says of it.
 *
 * A name is asked again before its time to live ends, at most once a second and at least every five minutes. A question that
 * fails changes nothing: what is known stays, and DNS is asked again after 1 s, then after twice the time, up to 30 s. So a
 * name that goes away keeps its addresses. Whether they still answer the breaker and the checks find out.
 *
 * Names are kept for the whole process. Upstreams that name the same one share its answers, and a reload does not lose them.
 */
import type { SrvRecord } from 'node:dns'
import { lookup, Resolver } from 'node:dns/promises'
import { isDeepStrictEqual } from 'node:util'
import type { ServerSettings } from '../../config/settings.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { RequestFailure } from '../observe/observer.js'

/** Addresses of one name that are used, and SRV records. */
const MOST = 100
/** ms between two questions */
const SHORTEST = 1_000
const LONGEST = 300_000
/** ms. What is known without a time to live: SRV records, of which Node does not say it, and names of the system. */
const UNTIMED = 30_000
const LONGEST_RETRY = 30_000
/** ms and tries. So a server that is silent is given up after about 3 s, before `connectTimeout`. */
const ASKING = { timeout: 1_000, tries: 2 }
/** There is no such name, or it has no such records. */
const NONE = new Set(['ENOTFOUND', 'ENODATA'])
const FAMILIES = [4, 6] as const

interface TimedAddress {
  readonly address: string
  /** s */
  readonly ttl: number
}

/** Asks DNS. One for each question. */
export interface NameResolver {
  addresses(name: string, family: 4 | 6): Promise<readonly TimedAddress[]>
  services(name: string): Promise<readonly SrvRecord[]>
  /** Asks the system, which knows names that DNS does not. Absent: the configuration says whom to ask. */
  lookup?(name: string): Promise<readonly { readonly address: string }[]>
  /** Ends what is asked. */
  cancel(): void
}

/** @param servers of the configuration. Undefined: those of the system */
export type OpenResolver = (servers: readonly string[] | undefined) => NameResolver

/** A new one reads resolv.conf as it is now, and asks from another port. */
function openResolver(servers: readonly string[] | undefined): NameResolver {
  const resolver = new Resolver(ASKING)
  if (servers !== undefined) resolver.setServers([...servers])
  return {
    addresses: (name, family) =>
      family === 4 ? resolver.resolve4(name, { ttl: true }) : resolver.resolve6(name, { ttl: true }),
    services: name => resolver.resolveSrv(name),
    ...(servers === undefined && { lookup: name => lookup(name, { all: true }) }),
    cancel: () => resolver.cancel(),
  }
}

/** One address of a name. */
export interface FoundAddress {
  readonly host: string
  /** Undefined: that of the URL. */
  readonly port: number | undefined
  /** Multiplies that of the configuration. */
  readonly weight: number
  readonly isBackup: boolean
}

interface Answer {
  readonly found: readonly FoundAddress[]
  /** ms */
  readonly ttl: number
}

interface Question {
  readonly resolver: NameResolver
  /** What the answers say, by family and name. */
  readonly answers: Map<string, readonly TimedAddress[]>
}

interface NamesContext {
  readonly clock: Clock
  readonly open?: OpenResolver | undefined
  /** What is known of a URL has changed, or a first question has failed. */
  told(url: string, found: readonly FoundAddress[], failure: RequestFailure | undefined): void
}

export class FollowedName {
  readonly url: string
  found: readonly FoundAddress[] = []
  /** Of the last question. */
  failure: RequestFailure | undefined
  /** When DNS is asked next, in ms of the clock. */
  nextAt = -Infinity
  readonly #server: ServerSettings
  readonly #host: string
  readonly #context: NamesContext
  readonly #users = new Set<() => void>()
  /** Those of the last question stay for what cannot be asked about in the next one. */
  #answers: Question['answers'] = new Map()
  #resolver: NameResolver | undefined
  #asking: Promise<void> | undefined
  #state: 'new' | 'asked' | 'closed' = 'new'
  #failures = 0
  #cancel: Cancel = () => false

  constructor(server: ServerSettings, context: NamesContext) {
    this.url = server.url
    this.#server = server
    this.#host = new URL(server.url).hostname
    this.#context = context
  }

  get isUsed(): boolean {
    return this.#users.size > 0
  }

  /** Resolves when the first question has been answered or has failed, at the latest after `within` ms. */
  async asked(within: number): Promise<void> {
    if (this.#state !== 'new') return
    const { clock } = this.#context
    let cancel: Cancel = () => false
    const late = new Promise<void>(resolve => {
      cancel = clock.at(clock.now() + within, resolve)
    })
    await Promise.race([this.#ask(), late])
    cancel()
  }

  /** @param changed called after other addresses were found */
  join(changed: () => void): void {
    this.#users.add(changed)
    if (this.#asking === undefined) this.#plan()
  }

  leave(changed: () => void): void {
    this.#users.delete(changed)
    if (!this.isUsed) this.#cancel()
  }

  close(): void {
    this.#state = 'closed'
    this.#users.clear()
    this.#cancel()
    this.#resolver?.cancel()
  }

  #plan(): void {
    this.#cancel()
    if (this.isUsed) this.#cancel = this.#context.clock.at(this.nextAt, () => void this.#ask())
  }

  #ask(): Promise<void> {
    this.#asking ??= this.#question().then(
      answer => this.#learn(answer),
      error => this.#fail(error),
    )
    return this.#asking
  }

  #end(after: number): void {
    this.#asking = undefined
    this.#state = 'asked'
    this.nextAt = this.#context.clock.now() + after
    this.#plan()
  }

  #learn({ found, ttl }: Answer): void {
    if (this.#state === 'closed') return
    const hasFailed = this.#failures > 0
    this.#failures = 0
    this.failure = undefined
    const most = Math.min(LONGEST, Math.max(SHORTEST, ttl))
    // Not all instances and names at once.
    this.#end(Math.max(SHORTEST, most * (0.8 + 0.2 * Math.random())))
    const used = found.slice(0, MOST)
    if (!isDeepStrictEqual(used, this.found)) {
      this.found = used
      for (const changed of [...this.#users]) changed()
    } else if (!hasFailed) return
    const isMore = found.length > MOST
    const failure = { detail: `DNS has ${found.length} addresses of the upstream: the first ${MOST} are used` }
    this.#context.told(this.url, used, isMore ? failure : undefined)
  }

  #fail(cause: Error): void {
    if (this.#state === 'closed') return
    this.failure = { detail: "the upstream's name does not resolve", cause }
    this.#end(Math.min(LONGEST_RETRY, SHORTEST * 2 ** this.#failures) * (1 + 0.2 * Math.random()))
    this.#failures += 1
    if (this.#failures > 1) return
    const state = this.found.length === 0 ? 'it has no server' : 'its servers stay as they are'
    this.#context.told(this.url, this.found, { detail: `DNS says no address of the upstream: ${state}`, cause })
  }

  async #question(): Promise<Answer> {
    const { dns, resolver: servers } = this.#server
    this.#resolver = (this.#context.open ?? openResolver)(servers)
    const question: Question = { resolver: this.#resolver, answers: new Map() }
    const answer = await (dns === 'srv' ? this.#askServices(question) : this.#askAddresses(question))
    this.#answers = question.answers
    return answer
  }

  async #askAddresses(question: Question): Promise<Answer> {
    const host = this.#host
    const { lookup } = question.resolver
    const answerOf = (addresses: readonly { readonly address: string }[], ttl: number): Answer => {
      const hosts = [...new Set(addresses.map(({ address }) => address))].sort()
      return { found: hosts.map(host => ({ host, port: undefined, weight: 1, isBackup: false })), ttl }
    }
    // RFC 6761 6.3: not a name of DNS.
    if (lookup !== undefined && /(^|\.)localhost$/.test(host)) return answerOf(await lookup(host), UNTIMED)
    try {
      const { addresses, ttl } = await this.#addressesOf(host, question)
      return answerOf(addresses, ttl)
    } catch (error) {
      // Once DNS has known the name, its failure is one.
      if (lookup === undefined || this.#answers.size > 0) throw error
      const known = await lookup(host).catch(() => [])
      if (known.length === 0) throw error
      return answerOf(known, UNTIMED)
    }
  }

  async #askServices(question: Question): Promise<Answer> {
    const records = (await question.resolver.services(this.#host))
      // RFC 2782: a dot says that there is no such service.
      .filter(({ name, port }) => name !== '' && name !== '.' && port > 0)
      .sort((a, b) => a.priority - b.priority || compare(a.name, b.name) || a.port - b.port)
      .slice(0, MOST)
    let ttl = UNTIMED
    let error: unknown
    const found = new Map<string, FoundAddress>()
    const targets = await Promise.allSettled(records.map(({ name }) => this.#addressesOf(name, question)))
    let answered = 0
    for (const [at, target] of targets.entries()) {
      const { name, port, priority, weight } = records[at]!
      if (target.status === 'fulfilled') {
        answered += 1
        ttl = Math.min(ttl, target.value.ttl)
      } else error ??= target.reason
      const addresses =
        target.status === 'fulfilled' ? target.value.addresses : this.#formerOf(name, target.reason, question)
      for (const { address: host } of addresses) {
        const each = {
          host,
          port,
          weight: Math.max(1, weight) / addresses.length,
          isBackup: priority > records[0]!.priority,
        }
        if (!found.has(`${host} ${port}`)) found.set(`${host} ${port}`, each)
      }
    }
    if (answered === 0) throw error ?? new Error(`no SRV record of ${this.#host} names a server`)
    return { found: [...found.values()], ttl }
  }

  /** Those of a target that cannot be asked about now. @param failure why */
  #formerOf(name: string, failure: NodeJS.ErrnoException, { answers }: Question): readonly TimedAddress[] {
    if (NONE.has(failure.code ?? '')) return []
    return FAMILIES.flatMap(family => {
      const former = this.#answers.get(`${family} ${name}`) ?? []
      if (former.length > 0) answers.set(`${family} ${name}`, former)
      return former
    })
  }

  /** The addresses of both families. If one of them cannot be asked about, it is as before. @throws if neither has any */
  async #addressesOf(
    name: string,
    { resolver, answers }: Question,
  ): Promise<{ addresses: readonly TimedAddress[]; ttl: number }> {
    let ttl = Infinity
    let failed: NodeJS.ErrnoException | undefined
    const found = await Promise.all(
      FAMILIES.map(async family => {
        const key = `${family} ${name}`
        const addresses = await resolver.addresses(name, family).catch((error: NodeJS.ErrnoException) => {
          const isNone = NONE.has(error.code ?? '')
          if (failed === undefined || !isNone) failed = error
          return isNone ? [] : undefined
        })
        for (const each of addresses ?? []) ttl = Math.min(ttl, 1_000 * each.ttl)
        const known = addresses ?? this.#answers.get(key) ?? []
        if (known.length > 0) answers.set(key, known)
        return known
      }),
    )
    if (ttl === Infinity) throw failed ?? new Error(`${name} has no address`)
    return { addresses: found.flat().sort((a, b) => compare(a.address, b.address)), ttl }
  }
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

export class FollowedNames {
  readonly #context: NamesContext
  readonly #byKey = new Map<string, FollowedName>()

  constructor(context: NamesContext) {
    this.#context = context
  }

  /** That of a server with `dns`. */
  of(server: ServerSettings): FollowedName {
    const key = JSON.stringify([server.url, server.dns, server.resolver])
    const name = this.#byKey.get(key) ?? new FollowedName(server, this.#context)
    this.#byKey.set(key, name)
    return name
  }

  /** Waits for the first answers about these servers. It gives up after this time, in ms. */
  async ask(servers: readonly ServerSettings[], within: number): Promise<void> {
    await Promise.all(servers.map(each => each.dns && this.of(each).asked(within)))
  }

  forgetUnused(): void {
    for (const [key, name] of this.#byKey) {
      if (name.isUsed) continue
      name.close()
      this.#byKey.delete(key)
    }
  }

  close(): void {
    for (const name of this.#byKey.values()) name.close()
  }
}
