/**
 * Who a request is from, by its bearer token (RFC 6750, RFC 7519). What a token says counts only if it is verified. Any other
 * token is as good as none.
 *
 * - Verified tokens are kept until they expire, so that only the first request of a token is verified. Failures are not kept: they
 *   would take the room of tokens that are valid.
 * - The keys of a URL are read at the start, every ten minutes, and once a minute at most for a key that nobody knows.
 */
import { createPublicKey } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import type { JWTPayload, JWTVerifyGetKey, JWTVerifyOptions } from 'jose'
import { readPublicKey } from '../../config/checks/readable-files.js'
import type { JwtSettings } from '../../config/settings.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { MaybePromise } from '../../core/maybe-promise.js'
import { ownValue } from '../../core/structures/own-value.js'
import { ownText, wellFormed } from '../../core/structures/text.js'
import { firstLine, hasSeveralLines } from '../http/request.js'
import type { RequestFailure } from '../observe/observer.js'
import { type Claims, NO_CLAIMS } from './key.js'

type Jose = typeof import('jose')

/** Characters of `Authorization`. A longer one has no token for us. */
const LONGEST = 16 * 1024
/** A signed token has three parts, and none of them is empty. */
const BEARER = /^bearer +([\w-]+\.[\w-]+\.[\w-]+) *$/i
/** Bytes of all tokens that are kept. */
const MOST_KEPT = 16 * 1024 * 1024
/** Characters at the end of a token: 256 bits of a signature. */
const END = 43
/** Bytes that a token takes besides its text. */
const OVERHEAD = 512
/** ms. How often keys are read. */
const REFRESH = 10 * 60_000
/** ms. After a failure they are read again so soon. */
const RETRY = 10_000
/** ms. For a key that is not known they are read again at most so often. */
const UNKNOWN = 60_000
/** ms. Keys that cannot be read again count for so long. */
const STALE = 24 * 3_600_000
/** ms that reading them may take. */
const READ_TIMEOUT = 5_000
const MOST_JWKS = 256 * 1024
const UNREADABLE = 'the public keys of tokens cannot be read: tokens that need them are as good as none'

export interface IdentityOptions {
  readonly settings: JwtSettings
  /** Those that keys are made of. */
  readonly claims: readonly string[]
  readonly clock: Clock
  /** ms since 1970 */
  readonly wallNow: () => number
  /** The keys of a URL cannot be read, or can be again: told once. */
  told(url: string, failure: RequestFailure | undefined): void
}

interface Verified {
  /** The whole value of `Authorization`. */
  readonly sent: string
  readonly claims: Claims
  /** ms since 1970 */
  readonly until: number
}

export class Identity {
  readonly #jose: Jose
  readonly #settings: JwtSettings
  readonly #names: readonly string[]
  readonly #wallNow: () => number
  readonly #options: JWTVerifyOptions
  readonly #key: JWTVerifyGetKey
  readonly #remote: RemoteKeys | undefined
  /** By the end of `Authorization`: that of a signature tells tokens apart, and to hash all of it would take longest. */
  #verified = new Map<string, Verified>()
  #kept = 0
  /** What is being verified. Requests with one token go on in their order. */
  readonly #coming = new Map<string, Promise<Claims>>()

  /**
   * @param before is returned if nothing has changed. Else it is still open
   * @throws if the file of the public key cannot be read
   */
  static async open(options: IdentityOptions, before?: Identity): Promise<Identity> {
    const { publicKey } = options.settings
    const basis = { ...options.settings, ...(publicKey && { publicKey: readPublicKey(publicKey) }) }
    const isSame = before !== undefined && isDeepStrictEqual([before.#settings, before.#names], [basis, options.claims])
    return isSame ? before : new Identity(await import('jose'), { ...options, settings: basis })
  }

  /** @param options with the text of a public key */
  private constructor(jose: Jose, { settings, claims, clock, wallNow, told }: IdentityOptions) {
    const { jwksUrl, publicKey, secret, issuer, audience, algorithms, clockTolerance } = settings
    this.#jose = jose
    this.#settings = settings
    this.#names = claims
    this.#wallNow = wallNow
    this.#options = {
      algorithms,
      clockTolerance: clockTolerance / 1_000,
      ...(issuer !== undefined && { issuer }),
      ...(audience !== undefined && { audience }),
    }
    if (jwksUrl === undefined) {
      const key = secret === undefined ? createPublicKey(publicKey!) : new TextEncoder().encode(secret)
      this.#key = async () => key
    } else {
      const changed = (): void => this.#forget()
      const remote = new RemoteKeys(jose, { url: jwksUrl, clock, changed, told: failure => told(jwksUrl, failure) })
      this.#remote = remote
      this.#key = (header, token) => remote.find(header, token)
    }
  }

  get kept(): number {
    return this.#verified.size
  }

  /** Whether the keys of a URL could be read when that was tried last. Undefined: there is no URL. */
  get canReadKeys(): boolean | undefined {
    return this.#remote && !this.#remote.isFailing
  }

  close(): void {
    this.#remote?.close()
  }

  /** What the token of a request says: nothing, unless there is one and it is valid. */
  claimsOf(rawHeaders: readonly string[]): MaybePromise<Claims> {
    const sent = firstLine(rawHeaders, 'authorization')
    if (sent === undefined || hasSeveralLines(rawHeaders, 'authorization')) return NO_CLAIMS
    const known = this.#verified.get(endOf(sent))
    if (known !== undefined && known.sent === sent && this.#wallNow() < known.until) return known.claims
    const token = sent.length <= LONGEST ? BEARER.exec(sent)?.[1] : undefined
    if (token === undefined) return NO_CLAIMS
    const text = ownText(sent)
    const coming = this.#coming.get(text) ?? this.#verify(text, token)
    this.#coming.set(text, coming)
    return coming
  }

  async #verify(sent: string, token: string): Promise<Claims> {
    try {
      const options = { ...this.#options, currentDate: new Date(this.#wallNow()) }
      let present: unknown
      const key: JWTVerifyGetKey = async (...asked) => {
        const found = await this.#key(...asked)
        present = this.#verified
        return found
      }
      const { payload } = await this.#jose.jwtVerify(token, key, options)
      const claims = this.#claimsIn(payload)
      const until = (payload.exp ?? Infinity) * 1_000 + this.#settings.clockTolerance
      // Keys may have changed since.
      if (present === this.#verified) this.#keep({ sent, claims, until })
      return claims
    } catch {
      return NO_CLAIMS
    } finally {
      this.#coming.delete(sent)
    }
  }

  #claimsIn(payload: JWTPayload): Claims {
    const found = this.#names.flatMap((name): [string, string][] => {
      const value = claimIn(payload, name)
      if (typeof value === 'string') return [[name, wellFormed(value)]]
      return typeof value === 'number' && Number.isFinite(value) ? [[name, String(value)]] : []
    })
    return new Map(found)
  }

  #keep(verified: Verified): void {
    const { sent } = verified
    const before = this.#verified.get(endOf(sent))
    if (before !== undefined) this.#drop(before)
    this.#verified.set(endOf(sent), verified)
    this.#kept += sent.length + OVERHEAD
    for (const oldest of this.#verified.values()) {
      if (this.#kept <= MOST_KEPT) break
      this.#drop(oldest)
    }
  }

  #drop({ sent }: Verified): void {
    this.#verified.delete(endOf(sent))
    this.#kept -= sent.length + OVERHEAD
  }

  #forget(): void {
    this.#verified = new Map()
    this.#kept = 0
  }
}

function endOf(sent: string): string {
  return sent.slice(-END)
}

/** A claim of this name, or else the one that its parts between dots lead to. */
function claimIn(payload: JWTPayload, name: string): unknown {
  const exact = ownValue(payload, name)
  if (exact !== undefined) return exact
  let value: unknown = payload
  for (const part of name.split('.')) {
    if (typeof value !== 'object' || value === null) return undefined
    value = ownValue(value as Record<string, unknown>, part)
  }
  return value
}

interface RemoteOptions {
  readonly url: string
  readonly clock: Clock
  /** Other keys have been read: what the old ones have verified counts no more. */
  changed(): void
  told(failure: RequestFailure | undefined): void
}

/** The public keys at a URL (JWKS, RFC 7517). */
class RemoteKeys {
  readonly #jose: Jose
  readonly #options: RemoteOptions
  #keys: JWTVerifyGetKey | undefined
  #text = ''
  #readAt = -Infinity
  #soughtAt = -Infinity
  isFailing = false
  #reading: Promise<void> | undefined
  #next: Cancel | undefined
  #isClosed = false
  #abort: AbortController | undefined

  constructor(jose: Jose, options: RemoteOptions) {
    this.#jose = jose
    this.#options = options
    void this.#read()
  }

  /** @throws if there is no such key, or none can be read */
  async find(...asked: Parameters<JWTVerifyGetKey>): Promise<Awaited<ReturnType<JWTVerifyGetKey>>> {
    // Nobody waits for a server that does not answer, but those who come before that is known.
    if (this.#keys === undefined && !this.isFailing) await this.#reading
    try {
      return await this.#known(...asked)
    } catch (error) {
      if (!(error instanceof this.#jose.errors.JWKSNoMatchingKey) || !this.#mayLook()) throw error
      await this.#read()
      return this.#known(...asked)
    }
  }

  close(): void {
    this.#isClosed = true
    this.#next?.()
    this.#abort?.abort()
  }

  #known(...asked: Parameters<JWTVerifyGetKey>): ReturnType<JWTVerifyGetKey> {
    if (this.#keys === undefined) throw new Error('the keys cannot be read')
    return this.#keys(...asked)
  }

  /** Whether they may be read for a key that is not known. Who comes meanwhile waits for the same. */
  #mayLook(): boolean {
    const now = this.#options.clock.now()
    if (this.#reading !== undefined) return true
    if (now - this.#soughtAt < UNKNOWN || this.isFailing) return false
    this.#soughtAt = now
    return true
  }

  #read(): Promise<void> {
    this.#reading ??= this.#readNow().finally(() => {
      this.#reading = undefined
    })
    return this.#reading
  }

  async #readNow(): Promise<void> {
    const { clock, changed, told } = this.#options
    this.#next?.()
    let failure: unknown
    try {
      const text = await this.#fetch()
      if (text !== this.#text) {
        this.#keys = this.#jose.createLocalJWKSet(JSON.parse(text))
        this.#text = text
        changed()
      }
      this.#readAt = clock.now()
    } catch (error) {
      failure = error
    }
    if (this.#isClosed) return
    if (failure !== undefined && this.#keys !== undefined && clock.now() - this.#readAt > STALE) {
      this.#keys = undefined
      this.#text = ''
      changed()
    }
    const isFailing = failure !== undefined
    if (isFailing !== this.isFailing) told(isFailing ? { detail: UNREADABLE, cause: causeOf(failure) } : undefined)
    this.isFailing = isFailing
    this.#next = clock.at(clock.now() + (isFailing ? RETRY : REFRESH), () => void this.#read())
  }

  /** TLS is verified, as always in Node. */
  async #fetch(): Promise<string> {
    const { url, clock } = this.#options
    const abort = new AbortController()
    this.#abort = abort
    const cancel = clock.at(clock.now() + READ_TIMEOUT, () => abort.abort(new Error('no answer in 5 s')))
    try {
      const { signal } = abort
      const response = await fetch(url, { signal, redirect: 'error', headers: { accept: 'application/json' } })
      if (response.status !== 200) throw new Error(`the answer is ${response.status}`)
      const pieces: Uint8Array[] = []
      let bytes = 0
      for await (const piece of response.body ?? []) {
        pieces.push(piece)
        bytes += piece.length
        if (bytes > MOST_JWKS) throw new Error(`the answer has more than ${MOST_JWKS} bytes`)
      }
      return Buffer.concat(pieces).toString()
    } finally {
      cancel()
    }
  }
}

/** `fetch` tells in the cause what has failed. */
function causeOf(error: unknown): Error {
  const { cause } = error as Error
  return cause instanceof Error ? cause : (error as Error)
}
