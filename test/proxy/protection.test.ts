/**
 * All of the protection of the upstream at once, by random events (contract 8). At rest nothing is left: no request, no place,
 * no byte. Each request has one outcome, and the upstream sees no more than the bound.
 */
import { createServer, type Socket } from 'node:net'
import fc from 'fast-check'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import type { MaybePromise } from '../../src/core/maybe-promise.js'
import type { OnOutage } from '../../src/sharing/shard.js'
import { type Store, StoreError } from '../../src/sharing/store.js'
import { createMemoryStore, type MemoryStore } from '../../src/stores/memory/store.js'
import { runs } from '../runs.js'
import { freePort } from '../servers/free-port.js'
import { Hand } from './hand.js'
import { type Client, connect, passBoth, type Rig, startRig, turns } from './harness.js'

/** ms from one look at the upstream to the next. */
const STEP = 10
const RATE = 20 // per second, of the bucket for all
const CLIENTS = 3

const KINDS = ['get', 'whole', 'slow', 'chunked', 'streamed', 'expect', 'websocket'] as const
const PATHS = ['/shape', '/shape', '/shape', '/lane', '/meter', '/off', '/dry'] as const

type Event =
  | { do: 'arrive'; path: (typeof PATHS)[number]; kind: (typeof KINDS)[number]; client: number }
  | { do: 'complete' | 'hangUp' | 'crash'; which: number }
  | { do: 'answer'; which: number; status: number }
  | { do: 'pass'; ms: number }
  | { do: 'down' | 'up' | 'resume' }
  | { do: 'pause'; ms: number }
  | { do: 'reload'; variant: number }
  | { do: 'outage' | 'willing'; on: boolean }

const which = fc.nat(7)
const anArrival = fc.record({
  do: fc.constant('arrive' as const),
  path: fc.constantFrom(...PATHS),
  kind: fc.constantFrom(...KINDS),
  client: fc.nat(CLIENTS - 1),
})

/** One that can be armed. */
const aPlainArrival = fc.record({
  do: fc.constant('arrive' as const),
  path: fc.constant('/shape' as const),
  kind: fc.constant('get' as const),
  client: fc.nat(1),
})

const anEvent: fc.Arbitrary<Event> = fc.oneof(
  { weight: 8, arbitrary: anArrival },
  { weight: 3, arbitrary: fc.record({ do: fc.constantFrom('complete' as const, 'hangUp' as const), which }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('crash' as const), which }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('answer' as const),
      which,
      status: fc.constantFrom(200, 200, 200, 500, 503, 429, 413),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.constantFrom(10, 50, 120, 250, 1_100) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constantFrom('down' as const, 'up' as const, 'up' as const, 'resume' as const) }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('pause' as const), ms: fc.constantFrom(20, 400) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('reload' as const), variant: fc.nat(3) }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constantFrom('outage' as const, 'willing' as const), on: fc.boolean() }),
  },
)

function config(port: number, variant: number): object {
  return {
    upstream: {
      url: `http://127.0.0.1:${port}`,
      maxInFlight: variant === 2 ? 1 : 3,
      ...(variant === 3 && { connections: 3 }),
      idleTimeout: variant % 2 === 0 ? '20s' : '21s',
      responseTimeout: '3s',
      requestBuffer: 100,
      breaker: { failures: 2, status: [500], probe: '200ms', maxProbe: '800ms', hold: '1s' },
      retry: { status: [503], max: 2 },
      pauseOn: { status: [429], default: '300ms' },
    },
    limits: { maxQueued: 5, bodyTimeout: '2s' },
    trustProxy: ['loopback'],
    buckets: {
      client: { key: 'ip', rate: '10/s', capacity: 4, maxInFlight: variant === 1 ? 1 : 2 },
      all: { key: 'all', rate: variant === 1 ? '10/s' : `${RATE}/s`, capacity: 8, overflow: 'fair' },
    },
    routes: [
      { name: 'meter', match: { path: '/meter' }, mode: 'meter' },
      { name: 'off', match: { path: '/off' }, mode: 'off' },
      { name: 'dry', match: { path: '/dry' }, dryRun: true },
      { name: 'lane', match: { path: '/lane' }, maxWait: '1500ms' },
      { name: 'shape' },
    ],
  }
}

/** Each client has its bucket and no other bound, so its requests can be armed. */
function apart(port: number, variant: number): object {
  const { upstream } = config(port, variant) as { upstream: { maxInFlight?: number } }
  const { maxInFlight, ...unbounded } = upstream
  return {
    upstream: variant === 2 ? { ...unbounded, maxInFlight } : unbounded,
    buckets: { client: { key: 'ip', rate: variant === 1 ? '10/s' : `${RATE}/s`, capacity: 8 } },
  }
}

/** What one client sends first, and what completes it. */
function request(kind: Event & { do: 'arrive' }): [first: string, rest: string] {
  const head = (method: string, ...fields: string[]): string =>
    `${method} ${kind.path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.${kind.client}\r\n${fields.map(field => `${field}\r\n`).join('')}\r\n`
  switch (kind.kind) {
    case 'get':
      return [head('GET'), '']
    case 'whole':
      return [`${head('POST', 'Content-Length: 10')}0123456789`, '']
    case 'slow':
      return [`${head('POST', 'Content-Length: 10')}012`, '3456789']
    case 'chunked':
      return [`${head('POST', 'Transfer-Encoding: chunked')}3\r\nabc\r\n`, '2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n']
    case 'streamed':
      return [`${head('POST', 'Content-Length: 200')}${'x'.repeat(50)}`, 'y'.repeat(150)]
    case 'expect':
      return [head('POST', 'Content-Length: 10', 'Expect: 100-continue'), '0123456789']
    case 'websocket':
      return [
        head(
          'GET',
          'Connection: Upgrade',
          'Upgrade: websocket',
          'Sec-WebSocket-Version: 13',
          'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
        ),
        '',
      ]
  }
}

interface Seen {
  readonly path: string
  readonly client: string
  readonly at: number
  readonly socket: Socket
  readonly websocket: boolean
  answered: boolean
}

/** An upstream that can be down, and answers when it is told to. */
class Upstream {
  readonly seen: Seen[] = []
  readonly sockets = new Set<Socket>()
  readonly #port: number
  readonly #now: () => number
  #server: ReturnType<typeof createServer> | undefined
  /** Answers all at once from now on. */
  willing = false

  constructor(port: number, now: () => number) {
    this.#port = port
    this.#now = now
  }

  async up(): Promise<void> {
    if (this.#server !== undefined) return
    const server = createServer({ noDelay: true }, socket => this.#accept(socket))
    this.#server = server
    await new Promise<void>(resolve => server.listen(this.#port, '127.0.0.1', resolve))
  }

  async down(): Promise<void> {
    const server = this.#server
    this.#server = undefined
    for (const socket of this.sockets) socket.destroy()
    if (server !== undefined) await new Promise(resolve => server.close(resolve))
  }

  get open(): Seen[] {
    return this.seen.filter(({ answered, socket }) => !answered && !socket.destroyed)
  }

  answer(seen: Seen, status: number): void {
    seen.answered = true
    if (seen.websocket && status === 200) {
      seen.socket.write('HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
    } else seen.socket.write(`HTTP/1.1 ${status} Any\r\nContent-Length: 2\r\n\r\nok`)
  }

  #accept(socket: Socket): void {
    this.sockets.add(socket)
    const input = new Input()
    socket.on('error', () => undefined).on('close', () => this.sockets.delete(socket))
    socket.on('data', data => {
      input.text += data.toString('latin1')
      for (let head = input.next(); head !== undefined; head = input.next()) {
        const websocket = /upgrade: websocket/i.test(head)
        const client = /x-forwarded-for: ([\d.]+)/i.exec(head)![1]!
        const seen = { path: head.split(' ')[1]!, client, at: this.#now(), socket, websocket, answered: false }
        this.seen.push(seen)
        if (!this.willing) continue
        this.answer(seen, 200)
        if (websocket) socket.end()
      }
    })
  }
}

/** The bytes of one connection. */
class Input {
  text = ''
  /** Bytes that are left of a body. -1: chunks. */
  #owed = 0

  /** The next head, once all before it has come. */
  next(): string | undefined {
    this.#skipBody()
    const end = this.text.indexOf('\r\n\r\n')
    if (this.#owed !== 0 || end < 0) return undefined
    const head = this.text.slice(0, end + 2)
    this.text = this.text.slice(end + 4)
    this.#owed = /transfer-encoding: chunked/i.test(head) ? -1 : Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0)
    return head
  }

  #skipBody(): void {
    if (this.#owed === -1) {
      const end = /(^|\n)0\r\n\r\n/.exec(this.text)
      if (end === null) return
      this.text = this.text.slice(end.index + end[0].length)
      this.#owed = 0
    }
    const skipped = Math.min(this.#owed, this.text.length)
    this.text = this.text.slice(skipped)
    this.#owed -= skipped
  }
}

interface Sent {
  readonly client: Client
  rest: string
  hungUp: boolean
}

/** Where the buckets are, and what holds there. */
interface Place {
  readonly shared?: { readonly onOutage: OnOutage; readonly answers: 'at-once' | 'later' }
  /** Releases are armed. */
  readonly armed?: true
  /** ms that the slots of a store may be off. Undefined: there is no bound in an outage. */
  readonly grace?: number
}

/** A store that may be out of order. */
class Fallible {
  isDown = false
  readonly #answers: 'at-once' | 'later'

  constructor(answers: 'at-once' | 'later') {
    this.#answers = answers
  }

  wrap(memory: MemoryStore): Store {
    const call = <T>(ask: () => T): MaybePromise<T> => {
      if (this.#answers === 'at-once') return ask()
      return this.isDown ? Promise.reject(new StoreError('down')) : Promise.resolve().then(ask)
    }
    return {
      horizon: 4,
      admit: request => call(() => memory.admit(request)),
      claim: request => call(() => memory.claim(request)),
      giveBack: request => call(() => memory.giveBack(request)),
      reset: bucket => call(() => memory.reset(bucket)),
      beat: id => call(() => memory.beat(id)),
      leave: id => call(() => memory.leave(id)),
      exchange: (upstream, news) => call(() => memory.exchange(upstream, news)),
      close: () => memory.close(),
    }
  }
}

async function play(events: readonly Event[], { shared, grace, armed }: Place): Promise<string[]> {
  const ends: (() => unknown)[] = []
  const teardown = { teardown: (run: () => unknown) => void ends.push(run) }
  const port = await freePort()
  const store = new Fallible(shared?.answers ?? 'at-once')
  const hand = armed && new Hand()
  const settings = (variant: number): object => ({ ...config(port, variant), ...(armed && apart(port, variant)) })
  const rig = await startRig(teardown, settings(0), {
    virtualClock: true,
    ...(hand && { writes: hand.writes }),
    ...(shared && {
      shared: clock => ({ store: store.wrap(createMemoryStore({ clock })), onOutage: shared.onOutage }),
    }),
  })
  const upstream = new Upstream(port, () => rig.pacer.now())
  const step = shared?.answers === 'later' ? 4 : STEP
  const run = async (ms: number, by: number): Promise<void> => {
    for (const end = rig.pacer.now() + ms; rig.pacer.now() < end; ) {
      const next = Math.min(end, rig.pacer.now() + by)
      hand?.sendUntil(rig, next)
      await passBoth(rig, next - rig.pacer.now(), by)
    }
  }
  const scene: Scene = { rig, upstream, store, step, sent: [], settings, run, teardown }
  try {
    await upstream.up()
    for (const event of events) {
      await apply(event, scene)
      await turns(12)
    }
    await finish(scene)
    return [
      ...unanswered(scene),
      ...left(scene),
      ...(grace === undefined ? [] : excess(upstream.seen, grace, armed ? ({ client }) => client : () => 'all')),
    ]
  } finally {
    for (const { client } of scene.sent) client.hangUp()
    for (const end of ends.reverse()) await end()
    await upstream.down()
  }
}

function unanswered({ sent, rig: { outcomes } }: Scene): string[] {
  const wrong = outcomes.length === sent.length ? [] : [`${sent.length} requests, ${outcomes.length} outcomes`]
  for (const [index, { client, hungUp }] of sent.entries()) {
    if (!hungUp && !/HTTP\/1\.1 (?!100)\d/.test(client.rest)) wrong.push(`request ${index} has no answer`)
  }
  return wrong
}

/** What is left at rest. */
function left({ rig: { proxy }, upstream: { sockets } }: Scene): string[] {
  const { context } = proxy
  const { gate, queued, requests, limit, settings } = context.routes[0]!.upstream
  const counts: Record<string, number> = {
    inProgress: context.inProgress,
    shaperQueued: context.shaper.queued,
    queued,
    requests,
    gate: gate.inFlight,
    armed: gate.armed,
    blocked: [gate.blocked, gate.probing, gate.closed, context.routes[0]!.upstream.servers[0]!.breaker!.isOpen].filter(
      Boolean,
    ).length,
    places: gate.maxInFlight === Math.min(settings.maxInFlight, settings.connections ?? Infinity) ? 0 : 1,
    bytes: context.bodyBytes.used,
    openBodies: context.openBodies.size,
    watched: context.bodyLimits.size,
    connections: limit.budget.open + limit.unbounded.open,
    sockets: sockets.size,
  }
  for (const bucket of context.bucketTable.all()) {
    const { waiting, queued: cost, inFlight, aside, source, extras } = bucket
    const sources = source === undefined ? 0 : 1
    for (const [name, count] of Object.entries({
      waiting,
      cost,
      inFlight,
      aside,
      sources,
      held: extras?.held.length ?? 0,
    })) {
      counts[`${bucket.limits.name}.${name}`] ??= 0
      counts[`${bucket.limits.name}.${name}`]! += Math.abs(count)
    }
  }
  return Object.entries(counts).flatMap(([name, count]) => (count === 0 ? [] : [`${name}: ${count}`]))
}

interface Scene {
  readonly rig: Rig
  readonly upstream: Upstream
  readonly store: Fallible
  /** ms */
  readonly step: number
  readonly sent: Sent[]
  settings(variant: number): object
  /** Lets a time in ms pass, in steps of some ms. */
  run(ms: number, step: number): Promise<void>
  readonly teardown: { teardown(run: () => unknown): void }
}

async function apply(
  event: Event,
  { rig, upstream, store, step, sent, settings, run, teardown }: Scene,
): Promise<void> {
  const { engine } = rig.proxy.context.shaper
  const gate = rig.proxy.context.routes[0]!.lane.gate
  switch (event.do) {
    case 'arrive': {
      const client = await connect(teardown, rig)
      client.socket.on('end', () => client.socket.end())
      const [first, rest] = request(event)
      client.send(first)
      sent.push({ client, rest, hungUp: false })
      return
    }
    case 'complete': {
      const open = sent.filter(({ rest, hungUp }) => rest !== '' && !hungUp)
      const one = open[event.which % Math.max(1, open.length)]
      if (one === undefined) return
      one.client.send(one.rest)
      one.rest = ''
      return
    }
    case 'hangUp': {
      const open = sent.filter(({ client, hungUp }) => !hungUp && !client.ended)
      const one = open[event.which % Math.max(1, open.length)]
      if (one === undefined) return
      one.hungUp = true
      one.client.hangUp()
      return
    }
    case 'crash': {
      const { open } = upstream
      open[event.which % Math.max(1, open.length)]?.socket.destroy()
      return
    }
    case 'answer': {
      const { open } = upstream
      const one = open[event.which % Math.max(1, open.length)]
      if (one !== undefined) upstream.answer(one, event.status)
      return
    }
    case 'pass':
      return run(event.ms, step)
    case 'willing':
      upstream.willing = event.on
      return
    case 'outage':
      store.isDown = event.on
      return
    case 'down':
      return upstream.down()
    case 'up':
      return upstream.up()
    case 'resume':
      return engine.resume(gate)
    case 'pause':
      return void engine.pause(gate, event.ms)
    case 'reload':
      await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...settings(event.variant) })))
  }
}

/** The upstream is well, and all that can end ends. */
async function finish({ rig, upstream, store, step, sent, run, teardown }: Scene): Promise<void> {
  await upstream.up()
  store.isDown = false
  upstream.willing = true
  for (const seen of upstream.open) upstream.answer(seen, 200)
  // Tunnels end by real time.
  for (const { websocket, socket } of upstream.seen) if (websocket) socket.end()
  await run(6_000, step === STEP ? 50 : step)
  // If the breaker is open, this is its probe.
  const client = await connect(teardown, rig)
  client.send(request({ do: 'arrive', path: '/shape', kind: 'get', client: CLIENTS })[0])
  sent.push({ client, rest: '', hungUp: false })
  await turns(40)
  await run(1_000, step)
  if (!client.rest.startsWith('HTTP/1.1 200')) throw new Error(`the last request: ${client.rest.slice(0, 20)}`)
  // Bodies that never come, and idle connections.
  await run(70_000, 1_000)
  for (const { client } of sent) client.hangUp()
  await turns(40)
  await run(10_000, 1_000)
}

/** Where shaped requests came to the upstream above the bound of contract 2.4. `by` tells the bucket of a request. */
function excess(seen: readonly Seen[], grace: number, by: (seen: Seen) => string): string[] {
  const shaped = seen.filter(({ path }) => path === '/shape' || path === '/lane')
  return [...new Set(shaped.map(by))].flatMap(bucket =>
    excessOf(
      shaped.filter(each => by(each) === bucket),
      grace,
    ),
  )
}

function excessOf(seen: readonly Seen[], grace: number): string[] {
  const times = seen.map(({ at }) => at)
  for (let from = 0; from < times.length; from += 1) {
    for (let to = from; to < times.length; to += 1) {
      const window = times[to]! - times[from]! + STEP + grace
      const most = (RATE / 1_000) * (window + 1_000 / RATE) + 1
      if (to - from + 1 > most + 1e-9)
        return [`${to - from + 1} requests in ${window} ms: ${times.slice(from, to + 1)}`]
    }
  }
  return []
}

async function check(place: Place): Promise<void> {
  const oneOf = place.armed
    ? fc.oneof({ weight: 2, arbitrary: aPlainArrival }, { weight: 1, arbitrary: anEvent })
    : anEvent
  const events = fc.array(oneOf, { minLength: 5, maxLength: 120, size: 'max' })
  const property = fc.asyncProperty(events, async each => {
    const wrong = await play(each, place)
    if (wrong.length > 0) throw new Error(wrong.join('; '))
  })
  return fc.assert(property, { numRuns: runs(place.shared?.answers === 'later' ? 3 : 10) })
}

t.test('in memory', () => check({ grace: 0 }))

t.test('in memory, with armed releases', () => check({ armed: true, grace: 0 }))

t.test('with a store', () => check({ shared: { onOutage: 'local', answers: 'at-once' }, grace: 10 }))

for (const onOutage of ['local', 'open', 'closed'] as const) {
  t.test(`with a store that answers later or not at all: ${onOutage}`, () =>
    check({ shared: { onOutage, answers: 'later' } }),
  )
}
