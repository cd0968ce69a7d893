/**
 * Several servers that die, hang, refuse and come back, with reloads, by random events (contract 14). At rest nothing is left:
 * no request, no place, no connection. Each request has one end, and no server has more requests than it may.
 */
import { createServer, type Socket } from 'node:net'
import fc from 'fast-check'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { runs } from '../runs.js'
import { freePort } from '../servers/free-port.js'
import { Hand } from './hand.js'
import { type Client, connect, passBoth, type Rig, startRig, turns } from './harness.js'

const SERVERS = 3
/** ms from one look to the next. */
const STEP = 20
const BOUNDS = [2, 1, Infinity]

const PATHS = ['/shape', '/shape', '/meter', '/off', '/dry'] as const
const KINDS = ['get', 'get', 'post', 'slow', 'chunked', 'websocket'] as const
const PICKS = [undefined, 'round-robin', { hash: 'header:x-user' }] as const

type Event =
  | { do: 'arrive'; path: (typeof PATHS)[number]; kind: (typeof KINDS)[number]; user: number }
  | { do: 'complete' | 'hangUp'; which: number }
  | { do: 'crash'; which: number }
  | { do: 'answer'; which: number; status: number }
  | { do: 'down' | 'up' | 'ill' | 'well'; server: number }
  | { do: 'willing'; on: boolean }
  | { do: 'pass'; ms: number }
  | { do: 'reload'; variant: number }

const which = fc.nat(9)
const server = fc.nat(SERVERS - 1)
const anEvent: fc.Arbitrary<Event> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant('arrive' as const),
      path: fc.constantFrom(...PATHS),
      kind: fc.constantFrom(...KINDS),
      user: fc.nat(5),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('answer' as const), which, status: fc.constantFrom(200, 200, 503, 500) }),
  },
  {
    weight: 2,
    arbitrary: fc.oneof(
      fc.record({ do: fc.constantFrom('complete' as const, 'hangUp' as const), which }),
      fc.record({ do: fc.constant('crash' as const), which }),
    ),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constantFrom('down' as const, 'up' as const, 'up' as const, 'ill' as const, 'well' as const),
      server,
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('willing' as const), on: fc.boolean() }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.constantFrom(20, 100, 300, 1_200) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('reload' as const), variant: fc.nat(7) }) },
)

/** What a reload changes: which servers there are, how they are picked, their bounds, and settings that make a new upstream. */
function config(ports: readonly number[], variant: number): object {
  const some = variant % 4 === 3 ? ports.slice(1) : ports
  const servers = some.map((port, at) => ({
    url: `http://127.0.0.1:${port}`,
    weight: at + 1,
    ...(variant !== 2 && Number.isFinite(BOUNDS[at]) && { maxInFlight: BOUNDS[at] }),
    ...(variant === 5 && { connections: 2 }),
    ...(variant === 6 && at === 2 && { backup: true }),
  }))
  const pick = PICKS[variant % 3]
  return {
    upstream: {
      servers,
      ...(pick !== undefined && { pick }),
      ...(variant === 4 && { maxInFlight: 2 }),
      ...(variant !== 1 && { health: { path: '/check', interval: '1600ms', timeout: '1500ms', rise: 1, fall: 1 } }),
      responseTimeout: '3s',
      idleTimeout: '20s',
      requestBuffer: 100,
      breaker: { failures: 2, status: [500], probe: '200ms', maxProbe: '800ms', hold: '1s' },
      retry: { status: [503], max: 2 },
      ...(variant === 5 && { warmUp: '1s' }),
    },
    limits: { maxQueued: 6, bodyTimeout: '2s' },
    buckets: { all: { key: 'all', rate: '20/s', capacity: 8 } },
    routes: [
      { name: 'meter', match: { path: '/meter' }, mode: 'meter' },
      { name: 'off', match: { path: '/off' }, mode: 'off' },
      { name: 'dry', match: { path: '/dry' }, dryRun: true },
      { name: 'shape', patience: 'none' },
    ],
  }
}

function request({ path, kind, user }: Event & { do: 'arrive' }): [first: string, rest: string] {
  const head = (method: string, ...fields: string[]): string =>
    `${method} ${path} HTTP/1.1\r\nHost: a\r\nX-User: ${user}\r\n${fields.map(field => `${field}\r\n`).join('')}\r\n`
  switch (kind) {
    case 'get':
      return [head('GET'), '']
    case 'post':
      return [`${head('POST', 'Content-Length: 4')}body`, '']
    case 'slow':
      return [`${head('PUT', 'Content-Length: 200')}${'x'.repeat(50)}`, 'y'.repeat(150)]
    case 'chunked':
      return [`${head('PUT', 'Transfer-Encoding: chunked')}3\r\nabc\r\n`, '2\r\nde\r\n0\r\n\r\n']
    case 'websocket':
      return [
        head('GET', 'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: a'),
        '',
      ]
  }
}

interface Seen {
  /** ms of the pacer */
  readonly at: number
  readonly socket: Socket
  readonly websocket: boolean
  answered: boolean
}

/** A server that can be down, or fail its checks. It answers when it is told to. */
class Server {
  readonly port: number
  readonly seen: Seen[] = []
  readonly sockets = new Set<Socket>()
  isWell = true
  willing = false
  readonly #now: () => number
  #server: ReturnType<typeof createServer> | undefined

  constructor(port: number, now: () => number = () => 0) {
    this.port = port
    this.#now = now
  }

  async up(): Promise<void> {
    if (this.#server !== undefined) return
    this.#server = createServer({ noDelay: true }, socket => this.#accept(socket))
    await new Promise<void>(resolve => this.#server!.listen(this.port, '127.0.0.1', resolve))
  }

  async down(): Promise<void> {
    const server = this.#server
    this.#server = undefined
    for (const socket of this.sockets) socket.destroy()
    if (server !== undefined) await new Promise(resolve => server.close(resolve))
  }

  /** It is there and well, and answers all that it has. */
  async recover(): Promise<void> {
    await this.up()
    this.isWell = true
    this.willing = true
    for (const seen of this.open) this.answer(seen, 200)
    for (const { websocket, socket } of this.seen) if (websocket) socket.end()
  }

  get open(): Seen[] {
    return this.seen.filter(({ answered, socket }) => !answered && !socket.destroyed)
  }

  answer(seen: Seen, status: number): void {
    seen.answered = true
    if (seen.websocket && status === 200)
      seen.socket.write('HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
    else seen.socket.write(`HTTP/1.1 ${status} Any\r\nContent-Length: 2\r\n\r\nok`)
  }

  #accept(socket: Socket): void {
    this.sockets.add(socket)
    let text = ''
    socket.on('error', () => undefined).on('close', () => this.sockets.delete(socket))
    socket.on('data', data => {
      text += data.toString('latin1')
      for (let next = firstOf(text); next !== undefined; next = firstOf(text)) {
        text = next.rest
        this.#asked(next.head, socket)
      }
    })
  }

  #asked(head: string, socket: Socket): void {
    if (head.startsWith('GET /check ')) {
      socket.end(`HTTP/1.1 ${this.isWell ? 200 : 500} Any\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`)
      return
    }
    const seen = { at: this.#now(), socket, websocket: /upgrade: websocket/i.test(head), answered: false }
    this.seen.push(seen)
    if (!this.willing) return
    this.answer(seen, 200)
    if (seen.websocket) socket.end()
  }
}

/** The first request of what has come, once all of it is there. */
function firstOf(text: string): { head: string; rest: string } | undefined {
  const [head] = /^[\s\S]*?\r\n\r\n/.exec(text) ?? []
  if (head === undefined) return undefined
  const isChunked = /transfer-encoding/i.test(head)
  const last = text.indexOf('0\r\n\r\n', head.length)
  const end = isChunked ? last + 5 : head.length + Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0)
  if (isChunked ? last < 0 : text.length < end) return undefined
  return { head, rest: text.slice(end) }
}

interface Sent {
  readonly client: Client
  rest: string
  hungUp: boolean
}

/** Counts that are over a bound of their server at this moment. Unlimited requests and tunnels are not held by `maxInFlight`. */
function over({ proxy }: Rig, excused: ReadonlySet<unknown>): string[] {
  return proxy.context.routes[3]!.upstream.servers.flatMap(({ url, place }) => {
    const { maxInFlight } = place.rules
    if (place.inFlight <= maxInFlight || excused.has(place)) return []
    return [`${url} has ${place.inFlight} of ${maxInFlight}`]
  })
}

/** One proxy before its servers, with all that has been asked. */
class Scene {
  readonly sent: Sent[] = []
  readonly wrong = new Set<string>()
  readonly #hand: Hand | undefined
  /** Places that had more when a reload lowered their bound. */
  readonly #excused = new Set<unknown>()

  constructor(
    readonly rig: Rig,
    readonly servers: readonly Server[],
    readonly teardown: Parameters<typeof startRig>[0],
    hand: Hand | undefined,
  ) {
    this.#hand = hand
  }

  look(): void {
    for (const { place } of this.rig.proxy.context.routes[3]!.upstream.servers)
      if (place.inFlight <= place.rules.maxInFlight) this.#excused.delete(place)
    for (const each of over(this.rig, this.#excused)) this.wrong.add(each)
  }

  async run(ms: number, by: number): Promise<void> {
    const { rig } = this
    for (const end = rig.pacer.now() + ms; rig.pacer.now() < end; ) {
      const next = Math.min(end, rig.pacer.now() + by)
      this.#hand?.sendUntil(rig, next)
      await passBoth(rig, next - rig.pacer.now(), by)
      this.look()
    }
  }

  async arrive(event: Event & { do: 'arrive' }): Promise<Client> {
    const client = await connect(this.teardown, this.rig)
    client.socket.on('end', () => client.socket.end())
    const [first, rest] = request(event)
    client.send(first)
    this.sent.push({ client, rest, hungUp: false })
    return client
  }

  async apply(event: Event): Promise<unknown> {
    switch (event.do) {
      case 'arrive':
        return this.arrive(event)
      case 'pass':
        return this.run(event.ms, STEP)
      case 'reload':
        return this.#reload(event.variant)
      case 'complete':
        return this.#complete(event.which)
      case 'hangUp':
        return this.#hangUp(event.which)
      default:
        return applyTo(this.servers, event)
    }
  }

  #complete(which: number): void {
    const one = oneOf(
      this.sent.filter(({ rest, hungUp }) => rest !== '' && !hungUp),
      which,
    )
    one?.client.send(one.rest)
    if (one !== undefined) one.rest = ''
  }

  #hangUp(which: number): void {
    const one = oneOf(
      this.sent.filter(({ client, hungUp }) => !hungUp && !client.ended),
      which,
    )
    if (one !== undefined) one.hungUp = true
    one?.client.hangUp()
  }

  async #reload(variant: number): Promise<void> {
    const ports = this.servers.map(({ port }) => port)
    await this.rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config(ports, variant) })))
    for (const { place } of this.rig.proxy.context.routes[3]!.upstream.servers)
      if (place.inFlight > place.rules.maxInFlight) this.#excused.add(place)
  }

  /** All servers are well, and all that can end ends. */
  async finish(): Promise<void> {
    const { servers, sent } = this
    for (const each of servers) await each.recover()
    for (const { client, rest, hungUp } of sent) if (!hungUp && rest !== '') client.send(rest)
    // What waits, probes and checks.
    await this.run(6_000, 50)
    // A hash pick probes a server only with its own keys.
    if (typeof this.rig.proxy.context.routes[3]!.upstream.settings.pick === 'object') await this.#reload(0)
    for (let at = 0; at < 12; at += 1) {
      const client = await this.arrive({ do: 'arrive', path: '/shape', kind: 'get', user: at })
      for (let looks = 0; looks < 20 && client.rest === ''; looks += 1) {
        await turns(20)
        await this.run(50, 50)
      }
      if (!client.rest.startsWith('HTTP/1.1 200')) this.wrong.add(`the last: ${client.rest.slice(0, 300)}`)
      await this.run(100, 50)
    }
    await this.run(40_000, 1_000)
    for (const { client } of sent) client.hangUp()
    await turns(40)
    await this.run(10_000, 1_000)
    // A check may be on its way.
    await turns(200)
  }
}

async function applyTo(servers: readonly Server[], event: Event): Promise<void> {
  switch (event.do) {
    case 'crash':
    case 'answer': {
      const open = servers.flatMap(each => each.open.map(seen => ({ each, seen })))
      const one = oneOf(open, event.which)
      if (event.do === 'answer') one?.each.answer(one.seen, event.status)
      else one?.seen.socket.destroy()
      return
    }
    case 'down':
      return servers[event.server]!.down()
    case 'up':
      return servers[event.server]!.up()
    case 'ill':
    case 'well':
      servers[event.server]!.isWell = event.do === 'well'
      return
    case 'willing':
      for (const each of servers) each.willing = event.on
  }
}

function oneOf<T>(list: readonly T[], at: number): T | undefined {
  return list[at % Math.max(1, list.length)]
}

async function play(events: readonly Event[], armed: boolean): Promise<string[]> {
  const ends: (() => unknown)[] = []
  const teardown = { teardown: (run: () => unknown) => void ends.push(run) }
  const ports: number[] = []
  while (ports.length < SERVERS) ports.push(await freePort())
  const servers = ports.map(port => new Server(port))
  const hand = armed ? new Hand() : undefined
  const rig = await startRig(teardown, config(ports, 0), { virtualClock: true, ...(hand && { writes: hand.writes }) })
  const scene = new Scene(rig, servers, teardown, hand)
  try {
    for (const each of servers) await each.up()
    for (const event of events) {
      await scene.apply(event)
      await turns(12)
      scene.look()
    }
    await scene.finish()
    return [...scene.wrong, ...unended(rig, scene.sent), ...left(rig, servers)]
  } finally {
    for (const { client } of scene.sent) client.hangUp()
    for (const end of ends.reverse()) await end()
    for (const each of servers) await each.down()
  }
}

function unended({ outcomes }: Rig, sent: readonly Sent[]): string[] {
  const wrong = outcomes.length === sent.length ? [] : [`${sent.length} requests, ${outcomes.length} outcomes`]
  for (const [at, { client, hungUp }] of sent.entries())
    if (!hungUp && !/HTTP\/1\.1 (?!100)\d/.test(client.rest)) wrong.push(`request ${at} has no answer`)
  return wrong
}

function left({ proxy: { context } }: Rig, servers: readonly Server[]): string[] {
  const { gate, queued, requests, limit, servers: present } = context.routes[3]!.upstream
  const counts: Record<string, number> = {
    inProgress: context.inProgress,
    shaperQueued: context.shaper.queued,
    queued,
    requests,
    gate: gate.inFlight,
    armed: gate.armed,
    blocked: [gate.blocked, gate.probing, gate.closed].filter(Boolean).length,
    bytes: context.bodyBytes.used,
    connections: limit.budget.open + limit.unbounded.open,
    sockets: servers.reduce((sum, { sockets }) => sum + sockets.size, 0),
  }
  for (const { url, place, breaker, budget } of present) {
    const { load, armed, part, isDown, isBlocked, probing } = place
    counts[`${url} load`] = load
    counts[`${url} armed`] = armed
    counts[`${url} down`] = [isDown, isBlocked, probing, breaker?.isOpen, part !== 1].filter(Boolean).length
    counts[`${url} connections`] = budget.open
  }
  return Object.entries(counts).flatMap(([name, count]) => (count === 0 ? [] : [`${name}: ${count}`]))
}

for (const armed of [false, true]) {
  t.test(`property: at rest nothing is left${armed ? ', with armed releases' : ''}`, () => {
    const events = fc.array(anEvent, { minLength: 5, maxLength: 100, size: 'max' })
    const property = fc.asyncProperty(events, async each => {
      const wrong = await play(each, armed)
      if (wrong.length > 0) throw new Error(wrong.join('; '))
    })
    return fc.assert(property, { numRuns: runs(6) })
  })
}

const [FLAPPING, INTERVAL, TIMEOUT, FALL] = [10, 1_000, 500, 3]

/** Servers of which the first stays. Each other one changes now and then: it is well, fails its checks only, or is away. */
class Flapping {
  /** When each has begun to fail its checks, in ms. */
  readonly #illSince: number[]
  readonly #seen: number[]
  changes = 0
  /** ms. The longest time that a request came after the checks of its server should have taken it down. */
  late = -Infinity

  constructor(readonly servers: readonly Server[]) {
    this.#illSince = servers.map(() => Infinity)
    this.#seen = servers.map(() => 0)
  }

  async step(step: number, now: number): Promise<void> {
    if ((step * 7919) % 31 >= 8) return
    const which = 1 + (step % (this.servers.length - 1))
    const server = this.servers[which]!
    const state = (step * 104_729) % 3
    this.changes += 1
    this.#illSince[which] = state === 1 ? now : Infinity
    server.isWell = state === 0
    if (state === 2) await server.down()
    else await server.up()
  }

  look(): void {
    for (const [at, { seen }] of this.servers.entries()) {
      const allowed = this.#illSince[at]! + FALL * INTERVAL + TIMEOUT + INTERVAL
      for (const one of seen.slice(this.#seen[at])) this.late = Math.max(this.late, one.at - allowed)
      this.#seen[at] = seen.length
    }
  }
}

t.test('long: servers that flap get no request for longer than their checks take, and keep no connection', async t => {
  const ports: number[] = []
  while (ports.length < FLAPPING) ports.push(await freePort())
  const rig: Rig = await startRig(
    t,
    {
      upstream: {
        servers: ports.map(port => `http://127.0.0.1:${port}`),
        health: { path: '/check', interval: `${INTERVAL}ms`, timeout: `${TIMEOUT}ms`, rise: 2, fall: FALL },
      },
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'all', mode: 'meter' }],
    },
    { virtualClock: true },
  )
  const servers = ports.map(port => new Server(port, () => rig.pacer.now()))
  t.teardown(() => Promise.all(servers.map(each => each.down())))
  for (const each of servers) await each.recover()
  const clients: Client[] = []
  while (clients.length < 5) clients.push(await connect(t, rig))
  const [get] = request({ do: 'arrive', path: '/meter', kind: 'get', user: 1 })
  const flapping = new Flapping(servers)
  const statuses = new Set<number>()
  for (let step = 0; step < 600; step += 1) {
    await flapping.step(step, rig.pacer.now())
    const answers = clients.map(client => client.ask(get))
    await passBoth(rig, 100, 100)
    for (const { status } of await Promise.all(answers)) statuses.add(status)
    flapping.look()
  }
  t.ok(flapping.changes > 100, `${flapping.changes} changes in a minute`)
  t.same([...statuses], [200])
  t.ok(flapping.late <= 0, `${flapping.late} ms too late`)
  for (const client of clients) client.hangUp()
  for (const each of servers) await each.recover()
  await passBoth(rig, 20_000, 250)
  await turns(200)
  t.same(
    servers.map(({ sockets }) => sockets.size),
    servers.map(() => 0),
  )
  const { upstream } = rig.proxy.context.routes[0]!
  t.equal(upstream.limit.budget.open, 0)
  for (const { place } of upstream.servers) t.same([place.load, place.isUp], [0, true])
})

t.test('a probe that is answered while another server is up leaves no probe behind at the gate', async t => {
  const events = [
    { do: 'down', server: 0 },
    { do: 'down', server: 1 },
    { do: 'arrive', path: '/shape', kind: 'get', user: 0 },
    { do: 'crash', which: 0 },
    { do: 'arrive', path: '/shape', kind: 'get', user: 0 },
    { do: 'arrive', path: '/shape', kind: 'get', user: 0 },
    { do: 'pass', ms: 100 },
    { do: 'answer', which: 0, status: 200 },
    { do: 'pass', ms: 20 },
    { do: 'pass', ms: 100 },
    { do: 'answer', which: 0, status: 503 },
    { do: 'pass', ms: 20 },
  ] as const
  // Its end needs a certain order of what comes from two sockets, which most runs have.
  for (let run = 0; run < 10; run += 1) t.same(await play(events, false), [])
})
