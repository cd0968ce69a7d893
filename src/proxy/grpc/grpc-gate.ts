/**
 * The gate for Envoy and others that ask by gRPC: external authorization and the rate limit service. A question is an exchange as
 * over HTTP, so it is matched, queued, given up and counted alike.
 */

import { fileURLToPath } from 'node:url'
import {
  Server,
  ServerCredentials,
  type ServerUnaryCall,
  type ServiceDefinition,
  type sendUnaryData,
  status,
  type UntypedHandleCall,
} from '@grpc/grpc-js'
import { loadSync } from '@grpc/proto-loader'
import { ownValue } from '../../core/structures/own-value.js'
import type { ProxyContext } from '../context.js'
import { type PeerAddress, peerOf } from '../http/client-address.js'
import { AskedExchange, type AskedFor, type GateVerdict } from './asked-exchange.js'

/** Where a gate is asked by gRPC. */
export interface GrpcGate {
  readonly port: number
  /** Takes no more connections. */
  leave(): void
  /** Answers what waits 503, and closes all connections. Resolves to how many waited. */
  close(): Promise<number>
}

/** ms that answers may take to leave at the end. */
const LAST_ANSWERS = 1_000

const OK = 1
const OVER_LIMIT = 2

interface CheckRequest {
  attributes?: {
    source?: { address?: { socket_address?: { address: string } } }
    request?: { http?: { method: string; headers: Record<string, string>; path: string; host: string } }
  }
}

interface RateLimitRequest {
  domain: string
  descriptors: { entries: Pair[]; hits_addend?: { value: number } }[]
  hits_addend: number
}

interface Pair {
  readonly key: string
  readonly value: string
}

type Call<T> = ServerUnaryCall<T, unknown>
type Answered = sendUnaryData<unknown>

/** Headers that only the proxy may set, and headers about the client's connection or body. */
const LEFT_OUT = new Set([
  'host',
  'connection',
  'content-length',
  'transfer-encoding',
  'expect',
  'max-forwards',
  'x-original-method',
  'x-original-uri',
  'x-forwarded-method',
  'x-forwarded-uri',
  'x-forwarded-host',
])

/** @throws if the address cannot be listened on */
export async function startGrpcGate(
  context: ProxyContext,
  { host, port }: { host: string; port: number },
): Promise<GrpcGate> {
  const server = new Server()
  const open = new Set<AskedExchange>()
  const gate = new Questions(context, open)
  server.addService(serviceOf('authorization.proto', 'envoy.service.auth.v3.Authorization'), {
    Check: ((call: Call<CheckRequest>, answered: Answered) => gate.check(call, answered)) as UntypedHandleCall,
  })
  server.addService(serviceOf('rate-limit.proto', 'envoy.service.ratelimit.v3.RateLimitService'), {
    ShouldRateLimit: ((call: Call<RateLimitRequest>, answered: Answered) =>
      gate.shouldRateLimit(call, answered)) as UntypedHandleCall,
  })
  const address = host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
  const bound = await new Promise<number>((resolve, reject) =>
    server.bindAsync(address, ServerCredentials.createInsecure(), (error, found) =>
      error === null ? resolve(found) : reject(new Error(`cannot listen on ${address} for gRPC: ${error.message}`)),
    ),
  )
  let left: Promise<void> | undefined
  const leave = () => (left ??= new Promise<void>(resolve => server.tryShutdown(() => resolve())))
  return {
    port: bound,
    leave: () => void leave(),
    async close() {
      const done = leave()
      const cut = open.size
      for (const exchange of open) exchange.cutOff()
      const cancel = setTimeout(() => server.forceShutdown(), LAST_ANSWERS)
      await done
      clearTimeout(cancel)
      return cut
    },
  }
}

function serviceOf(file: string, name: string): ServiceDefinition {
  const path = fileURLToPath(new URL(file, import.meta.url))
  return ownValue(loadSync(path, { keepCase: true, longs: Number, defaults: true }), name) as ServiceDefinition
}

/** The questions of one server. */
class Questions {
  readonly #context: ProxyContext
  readonly #open: Set<AskedExchange>

  constructor(context: ProxyContext, open: Set<AskedExchange>) {
    this.#context = context
    this.#open = open
  }

  check(call: Call<CheckRequest>, answered: Answered): void {
    const peer = this.#trusted(call, answered)
    if (peer === undefined) return
    const asked = askedBy(call.request, timeoutOf(call))
    this.#ask(call, peer, [asked], ([verdict]) => answered(null, checkResponse(verdict!)))
  }

  shouldRateLimit(call: Call<RateLimitRequest>, answered: Answered): void {
    const peer = this.#trusted(call, answered)
    if (peer === undefined) return
    const timeout = timeoutOf(call)
    const all = call.request.descriptors.map(descriptor => askedIn(call.request, descriptor, timeout))
    this.#ask(call, peer, all, verdicts => {
      const undecided = verdicts.find(each => each !== undefined && each.status !== 204 && !each.isRejection)
      if (undecided !== undefined) answered({ code: codeOf(undecided), details: undecided.body })
      else answered(null, rateLimitResponse(verdicts))
    })
  }

  /** Only a trusted proxy may describe the request that it asks for. */
  #trusted(call: Call<unknown>, answered: Answered): PeerAddress | undefined {
    // The library writes no brackets around an IPv6 address.
    const found = peerOf({ remoteAddress: call.getPeer().replace(/:\d+$/, '') })
    if (found !== undefined && this.#context.trust(found.peer, 0)) return found
    const name = found === undefined ? 'a caller that has left' : found.peer
    answered({ code: status.PERMISSION_DENIED, details: `"trustProxy" does not name ${name}` })
    return undefined
  }

  /**
   * Asks for all. They pass together: if one does not, the others give their slots back.
   *
   * @param decided is called once. A verdict is missing where another one was enough
   */
  #ask(
    call: Call<unknown>,
    peer: PeerAddress,
    all: readonly AskedFor[],
    decided: (verdicts: readonly (GateVerdict | undefined)[]) => void,
  ): void {
    const verdicts: (GateVerdict | undefined)[] = all.map(() => undefined)
    let missing = all.length
    let isOver = false
    const mine = new Set<AskedExchange>()
    const abandon = (): void => {
      isOver = true
      for (const exchange of mine) exchange.abandon()
      mine.clear()
    }
    const end = (): void => {
      abandon()
      if (!call.cancelled) decided(verdicts)
    }
    call.on('cancelled', abandon)
    if (missing === 0) return end()
    for (const [at, asked] of all.entries()) {
      const exchange = new AskedExchange(this.#context, peer, asked, verdict => {
        this.#open.delete(exchange)
        mine.delete(exchange)
        verdicts[at] = verdict
        missing -= 1
        if (!isOver && (missing === 0 || verdict.status !== 204)) end()
      })
      this.#open.add(exchange)
      mine.add(exchange)
      exchange.start()
      if (isOver) return
    }
  }
}

/** The time that its caller gives it, as a header. Nobody takes the answer after it. */
function timeoutOf(call: Call<unknown>): readonly string[] {
  const deadline = Number(call.getDeadline())
  if (!Number.isFinite(deadline)) return []
  return ['grpc-timeout', `${Math.min(99_999_999, Math.max(0, Math.round(deadline - Date.now())))}m`]
}

/** The request that Envoy describes. */
function askedBy({ attributes }: CheckRequest, timeout: readonly string[]): AskedFor {
  const { method = 'GET', headers: given = {}, path = '/', host = '' } = attributes?.request?.http ?? {}
  const headers = [...timeout]
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith(':') || LEFT_OUT.has(name) || name === 'x-forwarded-for') continue
    headers.push(name, value)
  }
  const source = attributes?.source?.address?.socket_address?.address
  const hops = hopsWith(given['x-forwarded-for'], source)
  if (hops !== '') headers.push('x-forwarded-for', hops)
  return { method, target: path === '' ? '/' : path, host: host === '' ? undefined : host, headers }
}

/** `X-Forwarded-For` as this proxy would send it: some have added their own client already. */
function hopsWith(forwardedFor = '', source = ''): string {
  const last = forwardedFor.slice(forwardedFor.lastIndexOf(',') + 1).trim()
  return source === '' || last === source ? forwardedFor : [forwardedFor, source].filter(Boolean).join(', ')
}

/** What entries of descriptors stand for, if not for a header. */
const PLACES: Readonly<Record<string, 'method' | 'target' | 'host' | 'client'>> = {
  ':method': 'method',
  method: 'method',
  ':path': 'target',
  path: 'target',
  ':authority': 'host',
  host: 'host',
  remote_address: 'client',
  masked_remote_address: 'client',
}

/** A descriptor as a request. Its entries are its method, path, host and client, and headers. */
function askedIn(
  { domain, hits_addend: addend }: RateLimitRequest,
  { entries, hits_addend: own }: RateLimitRequest['descriptors'][number],
  timeout: readonly string[],
): AskedFor {
  const asked = { method: 'GET', target: '/', host: undefined as string | undefined }
  const headers = [...timeout, 'domain', domain]
  const hits = own?.value ?? addend
  if (hits > 0) headers.push('hits-addend', String(hits))
  for (const { key, value } of entries) {
    const place = ownValue(PLACES, key)
    if (place === 'client') headers.push('x-forwarded-for', value.split('/')[0]!)
    else if (place !== undefined) asked[place] = value
    else if (!LEFT_OUT.has(key.toLowerCase())) headers.push(key, value)
  }
  return { ...asked, headers }
}

function checkResponse(verdict: GateVerdict): object {
  const { status: code, headers, body } = verdict
  const pairs = pairsOf(headers).map(header => ({ header }))
  if (code === 204) return { status: { code: status.OK }, ok_response: { response_headers_to_add: pairs } }
  return {
    status: { code: codeOf(verdict) },
    denied_response: { status: { code }, headers: pairs, body: Buffer.from(body, 'latin1').toString() },
  }
}

function rateLimitResponse(verdicts: readonly (GateVerdict | undefined)[]): object {
  const rejected = verdicts.find(each => each?.isRejection)
  const [decisive = rejected] = rejected === undefined ? verdicts : [rejected]
  return {
    overall_code: rejected === undefined ? OK : OVER_LIMIT,
    statuses: verdicts.map(each => ({ code: each?.isRejection ? OVER_LIMIT : OK })),
    response_headers_to_add: pairsOf(decisive?.headers ?? []),
  }
}

/** Headers that are the proxy's own affair are left out. */
function pairsOf(headers: readonly string[]): Pair[] {
  const pairs: Pair[] = []
  for (let at = 0; at < headers.length; at += 2) {
    const key = headers[at]!
    if (key !== 'Content-Length' && key !== 'Connection') pairs.push({ key, value: headers[at + 1]! })
  }
  return pairs
}

/** The status of gRPC for a refusal. */
function codeOf({ status: code, isRejection }: GateVerdict): status {
  if (isRejection) return code === 401 || code === 403 ? status.PERMISSION_DENIED : status.RESOURCE_EXHAUSTED
  if (code === 404) return status.NOT_FOUND
  return code === 503 ? status.UNAVAILABLE : status.INVALID_ARGUMENT
}
