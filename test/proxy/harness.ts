/** What the tests of the proxy stand on: a proxy in this process, scripted upstreams, clients that speak bytes. */
import dns, { type LookupOptions } from 'node:dns'
import { createServer as createHttpServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, createServer, isIP, type Socket, connect as tcpConnect } from 'node:net'
import { connect as tlsConnect } from 'node:tls'
import { fileURLToPath } from 'node:url'
import { parseConfig } from '../../src/config/load.js'
import { type Clock, createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import type { ArmedWrites } from '../../src/pacing/armed-writes.js'
import { createPreciseClock } from '../../src/pacing/precise.js'
import { createTimerClock } from '../../src/pacing/timer.js'
import type { Deliveries, ProxyContext } from '../../src/proxy/context.js'
import type { ResolveName } from '../../src/proxy/egress/egress.js'
import type { GivenUp, LimitsNews, Observer } from '../../src/proxy/observe/observer.js'
import { type ProxyOptions, type RunningProxy, startProxy } from '../../src/proxy/server/server.js'
import type { OpenResolver } from '../../src/proxy/upstream/followed-names.js'
import type { OnOutage } from '../../src/sharing/shard.js'
import type { Store } from '../../src/sharing/store.js'

/** All names resolve to this machine. Returns those that were asked for. */
export function resolving(t: Teardown): string[] {
  const names: string[] = []
  const { lookup } = dns
  const answer = { address: '127.0.0.1', family: 4 }
  dns.lookup = ((
    name: string,
    options: LookupOptions,
    done: (error: Error | null, ...found: unknown[]) => void,
  ): void => {
    // A server that listens asks for its address, too.
    if (isIP(name) !== 0) return lookup(name, options, done)
    names.push(name)
    process.nextTick(() => (options.all ? done(null, [answer]) : done(null, answer.address, answer.family)))
  }) as typeof lookup
  t.teardown(() => {
    dns.lookup = lookup
  })
  return names
}

/** After this long an event that is waited for does not come any more, in ms. */
const PATIENCE = 30_000

/** Nothing is limited. */
export const OFF = { routes: [{ name: 'all', mode: 'off' }] }

/** Bytes of a body that is too long to be read before its request is sent. */
export const STREAMED = 65_537

/** One bucket for everyone, one request a second, the first at once. */
export const ONE_A_SECOND = { buckets: { all: { key: 'all', rate: '1/s', capacity: 5 } }, routes: [{ name: 'all' }] }

/** Listens with TLS. */
export const TLS = {
  listen: {
    address: '127.0.0.1:0',
    tls: {
      cert: fileURLToPath(new URL('../fixtures/upgrade-cert.pem', import.meta.url)),
      key: fileURLToPath(new URL('../fixtures/upgrade-key.pem', import.meta.url)),
    },
  },
}

interface Teardown {
  teardown(run: () => unknown): void
}

/** Lets tests wait until something holds that is changed by events. */
class Signal {
  #waiting = new Set<() => void>()

  notify(): void {
    for (const check of [...this.#waiting]) check()
  }

  until(holds: () => boolean, told: () => string): Promise<void> {
    return new Promise((resolve, reject) => {
      const check = (): void => {
        try {
          if (!holds()) return
          resolve()
        } catch (error) {
          reject(error)
        }
        clearTimeout(timer)
        this.#waiting.delete(check)
      }
      const timer = setTimeout(() => {
        this.#waiting.delete(check)
        reject(new Error(`not true in time: ${holds.toString()}; so far ${told().slice(-2_000)}`))
      }, PATIENCE)
      this.#waiting.add(check)
      check()
    })
  }
}

/** Turns of the event loop: what was to happen at once has happened. */
export async function turns(count = 20): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) await new Promise(resolve => setImmediate(resolve))
}

/** Waits until something holds that no event tells. */
export async function eventually(holds: () => boolean): Promise<void> {
  for (const end = performance.now() + PATIENCE; !holds(); ) {
    if (performance.now() > end) throw new Error(`not true in time: ${holds}`)
    await new Promise(resolve => setTimeout(resolve, 5))
  }
}

/** Lets time pass in steps of `step` ms, up to `until`. Between them requests are sent: opening a connection takes real time. */
export async function pass({ pacer }: { pacer: VirtualClock }, until: number, step: number): Promise<void> {
  while (pacer.now() < until) {
    pacer.runUntil(Math.min(until, pacer.now() + step))
    await turns()
  }
}

/** As `pass`, for a rig with virtual time on both clocks. */
export async function passBoth({ pacer, clock }: Rig, ms: number, step = 50): Promise<void> {
  for (const end = pacer.now() + ms; pacer.now() < end; ) {
    const next = Math.min(end, pacer.now() + step)
    pacer.runUntil(next)
    clock.runUntil(next)
    await turns(40)
  }
}

/** Waits until a count that real buffers bound has not moved for a while. */
export async function stalled(read: () => number): Promise<number> {
  let last = read()
  for (let same = 0; same < 4; ) {
    await new Promise(resolve => setTimeout(resolve, 75))
    same = read() === last ? same + 1 : 0
    last = read()
  }
  return last
}

/**
 * The longest time from an arrival to its slot, and how late all releases were together, in ms: a late one delays the next, and so does
 * the time that sending takes, which on a busy machine may be as long again.
 */
export function slotsOf({ released }: Rig): { longest: number; late: number } {
  return {
    longest: Math.max(...released.map(({ wait, lateness }) => wait - lateness)),
    late: released.reduce((sum, { lateness }) => sum + lateness, 0),
  }
}

/** How many bytes the kernel has taken. */
export function taken({ socket }: { socket: Socket }): number {
  return socket.bytesWritten - socket.writableLength
}

export interface Rig {
  readonly proxy: RunningProxy
  readonly port: number
  readonly pacer: VirtualClock
  readonly clock: VirtualClock
  /** How many requests have come, and have had their turn on their connection. */
  began: number
  /** `route outcome status`, in order. */
  readonly outcomes: string[]
  /** How long each request of `outcomes` was queued, in ms. */
  readonly waits: number[]
  /** `route`, in order. */
  readonly queued: string[]
  /** Wait and lateness of each release, in ms. */
  readonly released: { route: string; wait: number; lateness: number }[]
  readonly rehearsed: string[]
  /** `route detail` of what failed or has to be sent again, and of tunnels that were closed, in order. */
  readonly failures: string[]
  /** `METHOD target: detail` of what was refused, in order. */
  readonly refused: string[]
  /** What the system said of each failure that has an outcome, in order. */
  readonly causes: string[]
  /** Why requests were given up, in order. */
  readonly givenUp: GivenUp[]
  /** `reason bucket` of what was rejected, in order. */
  readonly rejections: string[]
  /** Who told true costs, and which by bucket, in order. */
  readonly settled: string[]
  /** Requests that were on trial and are over. */
  trials: number
  /** Requests that were answered with the answer to another one. */
  coalesced: number
  until(holds: (rig: Rig) => boolean): Promise<void>
  /** Waits for as many outcomes and returns them. */
  finished(count: number): Promise<string[]>
}

export interface RigOptions {
  /** Real time for releases, with or without the thread that sends them. */
  readonly realPacer?: boolean | 'precise'
  /** Virtual time for timeouts. */
  readonly virtualClock?: boolean
  /** Releases are armed here. Somebody has to write them. */
  readonly writes?: ArmedWrites
  /** ms since 1970 */
  readonly wallNow?: () => number
  /** Where buckets are kept for all instances, on the clock of releases. */
  readonly shared?: (pacer: Clock) => { readonly store: Store; readonly onOutage: OnOutage }
  /** How late the pacing clock wakes, in ms. */
  readonly lateness?: () => number
  /** Stores requests of routes with `deliver`. */
  readonly deliveries?: (clock: Clock) => Deliveries
  /** Called before it listens. */
  readonly prepared?: (context: ProxyContext) => Promise<void>
  /** Requests go where they say. `resolve` stands for the DNS. */
  readonly egress?: { readonly resolve?: ResolveName }
  /** Stands for the DNS of upstreams with `dns`. */
  readonly openResolver?: OpenResolver
  /** Stands for files and databases that limits of single keys come from. */
  readonly limits?: Pick<ProxyOptions, 'loadLimits' | 'watchLimits'>
  /** Called with what became of reading them. */
  readonly limitsRead?: (news: LimitsNews) => void
}

/**
 * Starts a proxy. By default releases run on a virtual clock and timeouts on the real one.
 *
 * @param config as in shaper.config.json; listens on a free port
 */
export async function startRig(t: Teardown, config: object, options: RigOptions = {}): Promise<Rig> {
  const { lateness, egress } = options
  const settings = parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config }), {
    flags: { egress: egress !== undefined },
  })
  const pacer = createVirtualClock(lateness && { lateness })
  const clock = createVirtualClock()
  const signal = new Signal()
  const outcomes: string[] = []
  const waits: number[] = []
  const queued: string[] = []
  const released: Rig['released'] = []
  const rehearsed: string[] = []
  const failures: string[] = []
  const refused: string[] = []
  const causes: string[] = []
  const givenUp: GivenUp[] = []
  const rejections: string[] = []
  const settled: string[] = []
  const observer: Observer = {
    began() {
      rig.began += 1
      signal.notify()
    },
    queued: ({ route }) => push(queued, route),
    released: ({ route, wait }, lateness) => push(released, { route, wait, lateness }),
    finished(
      { route, method, target, wait, givenUp: reason, rejection, failure, onTrial, coalesced },
      outcome,
      status,
    ) {
      if (outcome === 'refused') refused.push(`${method} ${target}: ${failure?.detail}`)
      if (outcome === 'failed' && failure !== undefined && !failure.isEarlier)
        push(failures, `${route} ${failure.detail}`)
      if (failure?.cause !== undefined) causes.push(failure.cause.message)
      waits.push(wait)
      if (reason !== undefined) givenUp.push(reason)
      if (rejection !== undefined) rejections.push(`${rejection.reason} ${rejection.bucket}`)
      if (onTrial) rig.trials += 1
      if (coalesced) rig.coalesced += 1
      push(outcomes, `${route} ${outcome} ${status}`)
    },
    settled({ stack, settled: costs }, by) {
      const told = stack.flatMap(({ limits }, at) => (costs?.[at] === undefined ? [] : `${limits.name}=${costs[at]}`))
      push(settled, [by, ...told].join(' '))
    },
    rehearsed: ({ route }, decision) => push(rehearsed, `${route} ${decision}`),
    unreachable: (route, { detail }) => push(failures, `${route} ${detail}`),
    tunnelClosed: (route, detail) => push(failures, `${route} ${detail}`),
    ...(options.limitsRead && { limitsRead: options.limitsRead }),
  }
  function push<T>(list: T[], entry: T): void {
    list.push(entry)
    signal.notify()
  }
  const real: Clock = createTimerClock()
  const proxy = await startProxy({
    settings,
    pacer:
      options.realPacer === 'precise'
        ? createPreciseClock()
        : options.realPacer
          ? real
          : { ...pacer, writes: options.writes },
    clock: options.virtualClock ? clock : real,
    observer,
    ...(options.wallNow && { wallNow: options.wallNow }),
    ...(options.shared && { shared: options.shared(pacer) }),
    ...(options.deliveries && { deliveries: options.deliveries(options.virtualClock ? clock : real) }),
    ...(options.prepared && { prepared: options.prepared }),
    ...(egress?.resolve && { resolveName: egress.resolve }),
    ...(options.openResolver && { openResolver: options.openResolver }),
    ...options.limits,
  })
  const rig: Rig = {
    proxy,
    port: Number(new URL(proxy.url).port),
    pacer,
    clock,
    outcomes,
    waits,
    queued,
    refused,
    released,
    rehearsed,
    failures,
    causes,
    givenUp,
    rejections,
    settled,
    began: 0,
    trials: 0,
    coalesced: 0,
    until: holds =>
      signal.until(
        () => holds(rig),
        () => JSON.stringify({ outcomes, queued, released, rehearsed, failures }),
      ),
    async finished(count) {
      await rig.until(() => outcomes.length >= count)
      return outcomes
    },
  }
  t.teardown(async () => {
    const drained = proxy.drain(0)
    // Its own timeouts may be virtual too.
    await turns()
    clock.runUntil(clock.now() + 60_000)
    await drained
  })
  return rig
}

/** One connection of a scripted upstream. */
export interface Incoming {
  readonly socket: Socket
  /** All bytes that came, as latin1. */
  text: string
  closed: boolean
  until(holds: RegExp | ((incoming: Incoming) => boolean)): Promise<string>
}

export interface RawUpstream {
  readonly url: string
  readonly port: number
  readonly connections: Incoming[]
  /** The connection of that number, from 0, once it is there. */
  connection(index: number): Promise<Incoming>
  /** Everything that came on any connection. */
  readonly text: string
  /** How many request lines came. */
  readonly requests: number
  until(holds: (upstream: RawUpstream) => boolean): Promise<void>
  close(): Promise<void>
}

/**
 * An upstream that speaks bytes.
 *
 * @param script called with all bytes of a connection so far, when more arrive; `undefined`: no answer yet
 * @param listenOn its port. 0: any
 */
export async function rawUpstream(
  t: Teardown,
  script?: (incoming: Incoming, index: number) => void,
  listenOn = 0,
): Promise<RawUpstream> {
  const signal = new Signal()
  const connections: Incoming[] = []
  const server = createServer({ allowHalfOpen: false, noDelay: true }, socket => {
    const index = connections.length
    const incoming: Incoming = {
      socket,
      text: '',
      closed: false,
      async until(holds) {
        const test = holds instanceof RegExp ? () => holds.test(incoming.text) : () => holds(incoming)
        await signal.until(test, () => JSON.stringify(incoming.text.slice(0, 300)))
        return incoming.text
      },
    }
    connections.push(incoming)
    socket.on('error', () => undefined)
    socket.on('data', chunk => {
      incoming.text += chunk.toString('latin1')
      script?.(incoming, index)
      signal.notify()
    })
    socket.on('close', () => {
      incoming.closed = true
      signal.notify()
    })
    signal.notify()
  })
  await new Promise<void>(resolve => server.listen(listenOn, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const close = (): Promise<void> =>
    new Promise(resolve => {
      for (const { socket } of connections) socket.destroy()
      server.close(() => resolve())
    })
  t.teardown(close)
  const upstream: RawUpstream = {
    url: `http://127.0.0.1:${port}`,
    port,
    connections,
    async connection(index) {
      await signal.until(
        () => connections.length > index,
        () => `${connections.length} connections`,
      )
      return connections[index]!
    },
    get text() {
      return connections.map(({ text }) => text).join('')
    },
    get requests() {
      return (this.text.match(/^[A-Z]+ \S+ HTTP\/1\.1\r$/gm) ?? []).length
    },
    until: holds =>
      signal.until(
        () => holds(upstream),
        () => JSON.stringify(upstream.text.slice(0, 2_000)),
      ),
    close,
  }
  return upstream
}

/** Answers each request that has no body with the same bytes. */
export function answering(answer: string): (incoming: Incoming) => void {
  const answered = new WeakMap<Incoming, number>()
  return incoming => {
    const due = incoming.text.split('\r\n\r\n').length - 1
    for (let count = answered.get(incoming) ?? 0; count < due; count += 1) incoming.socket.write(answer, 'latin1')
    answered.set(incoming, due)
  }
}

export const OK = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'

export interface HttpUpstream {
  readonly url: string
  readonly port: number
  /** `METHOD path`, in order. */
  readonly requests: string[]
  until(holds: (upstream: HttpUpstream) => boolean): Promise<void>
  /** To be called when something that tests wait for has changed. */
  notify(): void
  close(): Promise<void>
}

/** An upstream that speaks HTTP; without a handler it answers `ok`. */
export async function httpUpstream(
  t: Teardown,
  handler: (req: IncomingMessage, res: ServerResponse) => void = (_req, res) => res.end('ok'),
): Promise<HttpUpstream> {
  const signal = new Signal()
  const requests: string[] = []
  const server = createHttpServer((req, res) => {
    requests.push(`${req.method} ${req.url}`)
    handler(req, res)
    signal.notify()
  })
  server.requestTimeout = 0
  server.keepAliveTimeout = 60_000
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const close = (): Promise<void> =>
    new Promise(resolve => {
      server.close(() => resolve())
      server.closeAllConnections()
    })
  t.teardown(close)
  const upstream: HttpUpstream = {
    url: `http://127.0.0.1:${port}`,
    port,
    requests,
    until: holds =>
      signal.until(
        () => holds(upstream),
        () => JSON.stringify(requests),
      ),
    notify: () => signal.notify(),
    close,
  }
  return upstream
}

/** One answer as it came. */
export interface Answer {
  readonly version: string
  readonly status: number
  readonly reason: string
  /** Names and values as they came. */
  readonly headers: readonly (readonly [name: string, value: string])[]
  /** All values of a header, joined by `, `. */
  header(name: string): string | undefined
  readonly body: Buffer
  readonly text: string
  /** Lines after the last chunk. */
  readonly trailers: readonly string[]
  /** False: the connection ended before it did. */
  readonly whole: boolean
  json(): Problem
}

export interface Problem {
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail: string
  readonly 'violated-policies'?: string[]
  readonly retryAfterMs?: number
}

/** A client that speaks bytes. */
export interface Client {
  readonly socket: Socket
  /** What has come and was not taken by `answer`, as latin1. */
  readonly rest: string
  readonly bytes: number
  /** It got a FIN, an RST, or was closed here. */
  readonly ended: boolean
  /** It got an RST. */
  readonly reset: boolean
  send(text: string | Buffer): void
  /** Takes the next answer; of HEAD, 204 and 304 there is no body. */
  answer(method?: string): Promise<Answer>
  /** Sends and takes the answer. */
  ask(text: string): Promise<Answer>
  until(holds: (client: Client) => boolean): Promise<void>
  /** Waits until the connection has ended. */
  end(): Promise<void>
  hangUp(): void
  resetConnection(): void
}

export async function connect(
  t: Teardown,
  to: { port: number } | { path: string },
  { tls = false, from = '127.0.0.1' }: { tls?: boolean; from?: string } = {},
): Promise<Client> {
  const signal = new Signal()
  const at = 'path' in to ? { path: to.path } : { port: to.port, host: '127.0.0.1', localAddress: from }
  const tcp = tcpConnect({ ...at, noDelay: true, allowHalfOpen: true })
  const socket = tls ? tlsConnect({ socket: tcp, rejectUnauthorized: false }) : tcp
  let parts: Buffer[] = []
  let bytes = 0
  let ended = false
  let reset = false
  const held = (): Buffer => {
    if (parts.length !== 1) parts = [Buffer.concat(parts)]
    return parts[0]!
  }
  socket.on('data', chunk => {
    parts.push(chunk)
    bytes += chunk.length
    signal.notify()
  })
  const end = (): void => {
    ended = true
    signal.notify()
  }
  socket.on('end', end)
  socket.on('close', end)
  socket.on('error', error => {
    reset ||= (error as NodeJS.ErrnoException).code === 'ECONNRESET'
    end()
  })
  t.teardown(() => socket.destroy())
  await new Promise<void>((resolve, reject) =>
    socket.once(tls ? 'secureConnect' : 'connect', resolve).once('error', reject),
  )
  const told = (): string => JSON.stringify({ ended, held: held().subarray(0, 300).toString('latin1') })
  const client: Client = {
    socket,
    get rest() {
      return held().toString('latin1')
    },
    get bytes() {
      return bytes
    },
    get ended() {
      return ended
    },
    get reset() {
      return reset
    },
    send: text => void socket.write(typeof text === 'string' ? Buffer.from(text, 'latin1') : text),
    async answer(method = 'GET') {
      let taken: { answer: Answer; length: number } | undefined
      let enough = 0
      await signal.until(() => {
        const here = parts.reduce((sum, { length }) => sum + length, 0)
        if (here < enough && !ended) return false
        const read = readAnswer(held(), method, ended)
        if (typeof read === 'number') enough = read
        else taken = read
        return taken !== undefined
      }, told)
      parts = [held().subarray(taken!.length)]
      return taken!.answer
    },
    async ask(text) {
      client.send(text)
      return client.answer(text.slice(0, text.indexOf(' ')))
    },
    until: holds => signal.until(() => holds(client), told),
    end: () => signal.until(() => ended, told),
    hangUp: () => void socket.destroy(),
    resetConnection: () => void socket.resetAndDestroy(),
  }
  return client
}

/** Sends a request on a new connection. Returns the answer and whether the connection is still open. */
export async function askOnce(t: Teardown, rig: { port: number } | { path: string }, text: string): Promise<Answer> {
  const client = await connect(t, rig)
  const answer = await client.ask(text)
  client.hangUp()
  return answer
}

/** Takes the slot of now: the next request of `ONE_A_SECOND` waits. */
export async function occupy(t: Teardown, rig: { port: number }): Promise<void> {
  await askOnce(t, rig, get('/first'))
}

/** A request without a body. */
export function get(path = '/', ...headers: string[]): string {
  return ['GET', path, 'HTTP/1.1\r\nHost: example.test'].join(' ').concat('\r\n', lines(headers), '\r\n')
}

/** A request with a body of known length. */
export function post(body: string, path = '/', ...headers: string[]): string {
  return `POST ${path} HTTP/1.1\r\nHost: example.test\r\nContent-Length: ${body.length}\r\n${lines(headers)}\r\n${body}`
}

function lines(headers: readonly string[]): string {
  return headers.map(header => `${header}\r\n`).join('')
}

/** Returns an answer and its length, or how many bytes there must be before it is worth trying again. */
function readAnswer(held: Buffer, method: string, ended: boolean): { answer: Answer; length: number } | number {
  const headEnd = held.indexOf('\r\n\r\n')
  if (headEnd < 0) {
    if (ended) throw new Error(`the connection ended without an answer: ${JSON.stringify(held.toString('latin1'))}`)
    return held.length + 1
  }
  const [statusLine, ...fields] = held.toString('latin1', 0, headEnd).split('\r\n')
  const [, version, status, reason] = /^HTTP\/(\d\.\d) (\d{3}) ?(.*)$/.exec(statusLine!) ?? []
  if (status === undefined) throw new Error(`not an answer: ${JSON.stringify(statusLine)}`)
  const headers = fields.map(field => {
    const colon = field.indexOf(': ')
    return [field.slice(0, colon), field.slice(colon + 2)] as const
  })
  const header = (name: string): string | undefined => {
    const values = headers.filter(([each]) => each.toLowerCase() === name.toLowerCase()).map(([, value]) => value)
    return values.length === 0 ? undefined : values.join(', ')
  }
  const start = headEnd + 4
  const bodiless =
    method === 'HEAD' ||
    (method === 'CONNECT' && status.startsWith('2')) ||
    Number(status) < 200 ||
    status === '204' ||
    status === '304'
  const framed = bodiless
    ? { body: Buffer.alloc(0), trailers: [], length: start, whole: true }
    : header('transfer-encoding') === 'chunked'
      ? readChunks(held, start, ended)
      : readPlain(held, start, header('content-length'), ended)
  if (framed === undefined) return Math.max(held.length + 1, start + Number(header('content-length') ?? 0))
  const { body, trailers, length, whole } = framed
  const answer: Answer = {
    version: version!,
    status: Number(status),
    reason: reason!,
    headers,
    header,
    body,
    get text() {
      return body.toString('latin1')
    },
    trailers,
    whole,
    json: () => JSON.parse(body.toString()) as Problem,
  }
  return { answer, length }
}

interface Framed {
  body: Buffer
  trailers: string[]
  length: number
  whole: boolean
}

function readPlain(held: Buffer, start: number, declared: string | undefined, ended: boolean): Framed | undefined {
  const length = declared === undefined ? held.length : start + Number(declared)
  const whole = declared === undefined ? ended : held.length >= length
  if (!whole && !ended) return undefined
  return { body: held.subarray(start, Math.min(length, held.length)), trailers: [], length, whole }
}

function readChunks(held: Buffer, start: number, ended: boolean): Framed | undefined {
  const parts: Buffer[] = []
  const cut = (): Framed | undefined =>
    ended ? { body: Buffer.concat(parts), trailers: [], length: held.length, whole: false } : undefined
  for (let at = start; ; ) {
    const lineEnd = held.indexOf('\r\n', at)
    if (lineEnd < 0) return cut()
    const size = Number.parseInt(held.toString('latin1', at, lineEnd), 16)
    if (size === 0) {
      const trailerEnd = held.indexOf('\r\n\r\n', lineEnd)
      if (trailerEnd < 0) return cut()
      const trailers = held.toString('latin1', lineEnd + 2, Math.max(lineEnd + 2, trailerEnd)).split('\r\n')
      return {
        body: Buffer.concat(parts),
        trailers: trailers.filter(line => line !== ''),
        length: trailerEnd + 4,
        whole: true,
      }
    }
    const data = lineEnd + 2
    parts.push(held.subarray(data, Math.min(data + size, held.length)))
    if (held.length < data + size + 2) return cut()
    at = data + size + 2
  }
}
