/**
 * Envoy's questions by gRPC. The messages are put together here byte by byte, by the numbers of Envoy's definitions, so that the
 * definitions of src/proxy/grpc are not judged by themselves.
 */
import { spawnSync } from 'node:child_process'
import { Client, credentials, type ServiceError, status } from '@grpc/grpc-js'
import t from 'tap'
import { type Rig, startRig, turns } from '../proxy/harness.js'

type Test = Parameters<typeof startRig>[0]

const CHECK = '/envoy.service.auth.v3.Authorization/Check'
const LIMIT = '/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit'

const gate = (more: object = {}) => ({
  listen: { address: '127.0.0.1:0', grpc: '127.0.0.1:0' },
  upstream: 'gate:',
  trustProxy: ['loopback', '10.0.0.0/8'],
  buckets: { client: { key: 'ip', rate: '1/s', capacity: 3 } },
  routes: [{ name: 'gate' }],
  ...more,
})

type Value = string | number | Buffer

function varint(value: number): Buffer {
  const bytes: number[] = []
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return Buffer.from([...bytes, rest])
    bytes.push((rest % 128) + 128)
  }
}

/** A message: numbers and values in turn. */
function message(...fields: (readonly [number, Value])[]): Buffer {
  return Buffer.concat(
    fields.map(([number, value]) => {
      if (typeof value === 'number') return Buffer.concat([varint(number * 8), varint(value)])
      const bytes = Buffer.from(value)
      return Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes])
    }),
  )
}

type Fields = Map<number, (Buffer | number)[]>

function read(bytes: Buffer): Fields {
  const fields: Fields = new Map()
  let at = 0
  const next = (): number => {
    let value = 0
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++]!
      value += (byte % 128) * scale
      if (byte < 128) return value
    }
  }
  while (at < bytes.length) {
    const tag = next()
    const number = Math.floor(tag / 8)
    const size = next()
    const value = tag % 8 === 0 ? size : bytes.subarray(at, at + size)
    if (tag % 8 !== 0) at += size
    fields.set(number, [...(fields.get(number) ?? []), value])
  }
  return fields
}

const child = (fields: Fields, number: number): Fields => read((fields.get(number)?.[0] as Buffer) ?? Buffer.alloc(0))
const textOf = (fields: Fields, number: number): string => String(fields.get(number)?.[0] ?? '')

function clientOf(t: Test, rig: Rig): Client {
  const client = new Client(rig.proxy.grpc!, credentials.createInsecure())
  t.teardown(() => client.close())
  return client
}

interface Called {
  readonly answer: Promise<Fields>
  cancel(): void
}

function call(client: Client, method: string, request: Buffer, deadline?: number): Called {
  let cancel = (): void => undefined
  const options = deadline === undefined ? {} : { deadline: Date.now() + deadline }
  const answer = new Promise<Fields>((resolve, reject) => {
    const made = client.makeUnaryRequest(
      method,
      (bytes: Buffer) => bytes,
      read,
      request,
      options,
      (error: ServiceError | null, fields?: Fields) => (error === null ? resolve(fields!) : reject(error)),
    )
    cancel = () => made.cancel()
  })
  answer.catch(() => undefined)
  return { answer, cancel: () => cancel() }
}

interface Asked {
  readonly method?: string
  readonly path?: string
  readonly host?: string
  readonly source?: string
  readonly headers?: Record<string, string>
}

/** Also fields that no gate reads: the time, the size, the protocol, the destination. */
function check({
  method = 'GET',
  path = '/',
  host = 'shop.example',
  source = '192.0.2.1',
  headers = {},
}: Asked = {}): Buffer {
  const peer = message([1, message([1, message([1, 0], [2, source], [3, 4711])])], [2, 'service'])
  const pairs = Object.entries({ ':authority': host, ':path': path, ':method': method, ...headers })
  const http = message(
    [1, '12345'],
    [2, method],
    ...pairs.map(([key, value]) => [3, message([1, key], [2, value])] as const),
    [4, path],
    [5, host],
    [6, 'https'],
    [9, 300],
    [10, 'HTTP/2'],
  )
  const attributes = message([1, peer], [2, peer], [4, message([1, message([1, 1_700_000_000])], [2, http])], [10, ''])
  return message([1, attributes])
}

/** What a Check says: the code of gRPC, the status of HTTP, headers and the body. */
function verdict(fields: Fields) {
  const denied = fields.get(2) === undefined ? undefined : child(fields, 2)
  const headers = denied?.get(2) ?? child(fields, 3).get(6) ?? []
  const pairs = headers.map(option => {
    const header = child(read(option as Buffer), 1)
    return [textOf(header, 1).toLowerCase(), textOf(header, 2)]
  })
  return {
    code: Number(child(fields, 1).get(1)?.[0] ?? 0),
    isOk: fields.get(3) !== undefined,
    http: denied === undefined ? undefined : child(denied, 1).get(1)?.[0],
    headers: Object.fromEntries(pairs) as Record<string, string>,
    body: denied === undefined ? '' : textOf(denied, 3),
  }
}

async function advance(rig: Rig, ms: number): Promise<void> {
  for (let step = 0; step < ms; step += 50) {
    rig.pacer.runUntil(rig.pacer.now() + 50)
    await turns(5)
  }
}

t.test('Check is answered at the slot, with the limits', async t => {
  const rig = await startRig(t, gate())
  const client = clientOf(t, rig)
  const first = verdict(await call(client, CHECK, check()).answer)
  t.match(first, {
    code: status.OK,
    isOk: true,
    headers: { 'x-shaper-wait': '0', 'ratelimit-policy': '"client";q=3;w=3' },
  })
  const second = call(client, CHECK, check())
  await rig.until(({ queued }) => queued.length === 1)
  let isAnswered = false
  void second.answer.then(() => {
    isAnswered = true
  })
  await advance(rig, 900)
  t.notOk(isAnswered, 'its slot has not come')
  await advance(rig, 200)
  t.match(verdict(await second.answer), { code: status.OK, headers: { 'x-shaper-wait': /^\d+/ } })
  t.same(rig.outcomes, ['gate forwarded 204', 'gate forwarded 204'])
})

t.test('a rejection is the answer that Envoy gives the client', async t => {
  const meter = { routes: [{ name: 'gate', mode: 'meter' }] }
  const rig = await startRig(t, gate(meter))
  const client = clientOf(t, rig)
  for (let count = 0; count < 3; count += 1) await call(client, CHECK, check()).answer
  const { code, http, headers, body, isOk } = verdict(await call(client, CHECK, check()).answer)
  t.same({ code, http, isOk }, { code: status.RESOURCE_EXHAUSTED, http: 429, isOk: false })
  t.match(headers, { 'retry-after': '1', ratelimit: '"client";r=0;t=1', 'content-type': 'application/problem+json' })
  t.match(JSON.parse(body), { status: 429, 'violated-policies': ['client'] })
  t.match(verdict(await call(client, CHECK, check({ source: '192.0.2.2' })).answer), { code: 0 }, 'another client')
})

t.test('method, path, host, headers and client are those of the request', async t => {
  const routes = [
    {
      name: 'login',
      match: { path: '/login', method: 'POST', host: 'shop.example', header: { 'x-plan': 'gold' } },
      mode: 'meter',
    },
    { name: 'rest', mode: 'meter' },
  ]
  const rig = await startRig(t, gate({ routes }))
  const keys: string[] = []
  rig.proxy.context.observer.arrived = ({ keys: found, target }) => keys.push(`${found.join()} ${target}`)
  const client = clientOf(t, rig)
  const ask = (asked: Asked) => call(client, CHECK, check(asked)).answer
  await ask({ method: 'POST', path: '/login?a=b', headers: { 'x-plan': 'gold' } })
  await ask({ path: '/login', headers: { 'x-plan': 'gold' } })
  // A client that names another path, or another client.
  await ask({
    headers: { 'x-original-uri': '/login', 'x-forwarded-method': 'POST', 'x-forwarded-for': '198.51.100.7' },
  })
  // Envoy has added the address itself, or has not.
  await ask({ headers: { 'x-forwarded-for': '198.51.100.7, 192.0.2.1' } })
  // A proxy before Envoy is trusted, too.
  await ask({ source: '10.0.0.9', headers: { 'x-forwarded-for': '198.51.100.7' } })
  t.same(
    rig.outcomes.map(each => each.split(' ')[0]),
    ['login', 'rest', 'rest', 'rest', 'rest'],
  )
  t.same(keys, ['192.0.2.1 /login?a=b', '192.0.2.1 /login', '192.0.2.1 /', '192.0.2.1 /', '198.51.100.7 /'])
})

t.test('who is not trusted is not answered', async t => {
  const rig = await startRig(t, gate({ trustProxy: ['10.0.0.0/8'] }))
  const client = clientOf(t, rig)
  await t.rejects(call(client, CHECK, check()).answer, { code: status.PERMISSION_DENIED, details: /trustProxy/ })
  await t.rejects(call(client, LIMIT, message([1, 'edge'])).answer, { code: status.PERMISSION_DENIED })
  t.same(rig.outcomes, [])
})

t.test('a trusted proxy may ask over IPv6', async t => {
  for (const grpc of ['[::1]:0', '[::]:0']) {
    const rig = await startRig(t, gate({ listen: { address: '127.0.0.1:0', grpc }, trustProxy: ['loopback'] }))
    const client = clientOf(t, rig)
    t.match(verdict(await call(client, CHECK, check()).answer), { code: status.OK }, grpc)
  }
})

t.test(
  'a caller that has reset its connection before it is accepted is asked for nothing, whoever is trusted',
  async t => {
    const rig = await startRig(t, gate({ trustProxy: true, routes: [{ name: 'gate', mode: 'meter' }] }))
    const frame = (type: number, flags: number, stream: number, payload: Buffer) => {
      const length = payload.length
      return Buffer.concat([Buffer.from([0, length >> 8, length & 255, type, flags, 0, 0, 0, stream]), payload])
    }
    const text = (value: string) => Buffer.concat([varint(value.length), Buffer.from(value)])
    const question = check()
    const bytes = Buffer.concat([
      Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
      frame(4, 0, 0, Buffer.alloc(0)),
      // POST, http, then :path, :authority, content-type and te as literals.
      frame(
        1,
        4,
        1,
        Buffer.concat([
          Buffer.from([0x83, 0x86, 0x04]),
          text(CHECK),
          Buffer.from([0x41]),
          text('a'),
          Buffer.from([0x0f, 0x10]),
          text('application/grpc'),
          Buffer.from([0x00]),
          text('te'),
          text('trailers'),
        ]),
      ),
      frame(0, 1, 1, Buffer.concat([Buffer.from([0, 0, 0, question.length >> 8, question.length & 255]), question])),
    ])
    const port = new URL(`http://${rig.proxy.grpc}`).port
    // This process stands still meanwhile, so the connection waits to be accepted until it is reset.
    const code = `const socket = require('node:net').connect(${port}, '127.0.0.1', () =>
    socket.write(Buffer.from('${bytes.toString('hex')}', 'hex'), () => socket.resetAndDestroy()))`
    t.equal(spawnSync(process.execPath, ['-e', code]).status, 0)
    const client = clientOf(t, rig)
    await call(client, CHECK, check()).answer
    t.equal(rig.outcomes.length, 1)
  },
)

t.test('a cancelled call gives its slot back', async t => {
  const rig = await startRig(t, gate({ buckets: { all: { key: 'all', rate: '1/h', capacity: 100 } } }))
  const client = clientOf(t, rig)
  await call(client, CHECK, check()).answer
  const calls = Array.from({ length: 50 }, () => call(client, CHECK, check()))
  await rig.until(({ queued }) => queued.length === 50)
  for (const each of calls) each.cancel()
  await rig.finished(51)
  t.same(new Set(rig.outcomes.slice(1)), new Set(['gate cancelled 499']))
  t.equal(rig.proxy.context.shaper.queued, 0)
  t.equal(rig.proxy.context.inProgress, 0)
})

t.test('who could not be answered within its time is told so at once', async t => {
  const rig = await startRig(t, gate())
  const client = clientOf(t, rig)
  await call(client, CHECK, check()).answer
  t.match(verdict(await call(client, CHECK, check(), 900).answer), { code: status.RESOURCE_EXHAUSTED, http: 429 })
})

t.test('only gates are asked', async t => {
  const routes = [
    { name: 'proxy', match: { path: '/p*' }, mode: 'off', upstream: 'echo:' },
    { name: 'gate', match: { path: '/g' } },
  ]
  const rig = await startRig(t, gate({ routes }))
  const client = clientOf(t, rig)
  t.match(verdict(await call(client, CHECK, check({ path: '/p' })).answer), { code: status.NOT_FOUND, http: 404 })
  t.match(verdict(await call(client, CHECK, check({ path: '/g' })).answer), { code: status.OK })
})

const entry = (key: string, value: string) => [1, message([1, key], [2, value])] as const
const descriptor = (...entries: (readonly [string, string])[]) =>
  [2, message(...entries.map(([key, value]) => entry(key, value)))] as const

t.test('ShouldRateLimit: entries are the client, the path and headers', async t => {
  const rig = await startRig(
    t,
    gate({
      buckets: { plan: { key: ['header:plan', 'ip'], rate: '1/s', capacity: 4 } },
      routes: [
        {
          name: 'login',
          match: { path: '/login', header: { domain: 'edge' } },
          mode: 'meter',
          cost: { header: 'hits-addend', max: 10 },
        },
        { name: 'rest', mode: 'meter' },
      ],
    }),
  )
  const client = clientOf(t, rig)
  const keys: string[] = []
  rig.proxy.context.observer.arrived = ({ keys: found, cost }) => keys.push(`${found.join()} ${cost}`)
  const one = message(
    [1, 'edge'],
    descriptor(['path', '/login'], ['plan', 'gold'], ['constructor', 'x'], ['remote_address', '192.0.2.1']),
    [3, 4],
  )
  const first = await call(client, LIMIT, one).answer
  t.equal(first.get(1)?.[0], 1, 'OK')
  t.same(
    first.get(2)?.map(each => read(each as Buffer).get(1)?.[0]),
    [1],
  )
  const headers = Object.fromEntries(
    (first.get(3) ?? []).map(each => [textOf(read(each as Buffer), 1), textOf(read(each as Buffer), 2)]),
  )
  t.match(headers, { 'RateLimit-Policy': '"plan";q=4;w=4', 'X-Shaper-Wait': '0' })
  const second = await call(client, LIMIT, one).answer
  t.equal(second.get(1)?.[0], 2, 'OVER_LIMIT')
  const told = Object.fromEntries(
    (second.get(3) ?? []).map(each => [textOf(read(each as Buffer), 1), textOf(read(each as Buffer), 2)]),
  )
  t.equal(told['Retry-After'], '4')
  t.match(keys[0], /^gold\n192\.0\.2\.1 4$/)
  t.same(rig.outcomes, ['login forwarded 204', 'login rejected 429'])
})

t.test('ShouldRateLimit: descriptors pass together, or none waits on', async t => {
  const rig = await startRig(
    t,
    gate({
      buckets: { key: { key: 'header:name', rate: '1/s', capacity: 2 } },
      routes: [{ name: 'meter', match: { header: { mode: 'meter' } }, mode: 'meter' }, { name: 'shape' }],
    }),
  )
  const client = clientOf(t, rig)
  const both = message([1, 'edge'], descriptor(['name', 'a']), descriptor(['name', 'b']))
  t.equal((await call(client, LIMIT, both).answer).get(1)?.[0], 1)
  const waiting = call(client, LIMIT, both)
  await rig.until(({ queued }) => queued.length === 2)
  await advance(rig, 1_100)
  const answer = await waiting.answer
  t.equal(answer.get(1)?.[0], 1)
  t.equal(answer.get(2)?.length, 2)
  // The first would wait, the second has no room.
  const full = message([1, 'edge'], descriptor(['name', 'c'], ['mode', 'meter']))
  for (let count = 0; count < 2; count += 1) await call(client, LIMIT, full).answer
  const mixed = message([1, 'edge'], descriptor(['name', 'a']), descriptor(['name', 'c'], ['mode', 'meter']))
  const rejected = await call(client, LIMIT, mixed).answer
  t.equal(rejected.get(1)?.[0], 2)
  t.same(
    rejected.get(2)?.map(each => read(each as Buffer).get(1)?.[0]),
    [1, 2],
  )
  t.equal(rig.proxy.context.shaper.queued, 0)
  t.equal(rig.proxy.context.inProgress, 0)
  // No descriptors: nothing to limit.
  t.equal((await call(client, LIMIT, message([1, 'edge'])).answer).get(1)?.[0], 1)
  await t.rejects(call(client, LIMIT, message([1, 'edge'], descriptor(['path', 'no path']))).answer, {
    code: status.INVALID_ARGUMENT,
  })
})

t.test('a drain answers those that wait', async t => {
  const rig = await startRig(t, gate())
  const client = clientOf(t, rig)
  await call(client, CHECK, check()).answer
  const waiting = call(client, CHECK, check())
  await rig.until(({ queued }) => queued.length === 1)
  await rig.proxy.drain(0)
  t.match(verdict(await waiting.answer), { code: status.UNAVAILABLE, http: 503 })
  t.equal(rig.proxy.context.inProgress, 0)
})
