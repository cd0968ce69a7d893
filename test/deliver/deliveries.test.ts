/** Requests that are accepted now and delivered later, on a real PostgreSQL. */
import { randomBytes } from 'node:crypto'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import pg from 'pg'
import t, { type Test } from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { StoredDeliveries } from '../../src/deliver/deliveries.js'
import { DeliveryTable } from '../../src/deliver/table.js'
import { askOnce, eventually, httpUpstream, type Rig, startRig, turns } from '../proxy/harness.js'
import { startPostgres } from '../servers/postgres.js'
import { until } from '../servers/redis.js'

const server = await startPostgres()
t.teardown(() => server.close())

const BUCKETS = { client: { key: 'header:x-client', rate: '1000/s', capacity: 1_000 } }

interface Got {
  readonly method: string
  readonly url: string
  readonly headers: IncomingMessage['headers']
  readonly rawHeaders: readonly string[]
  readonly body: string
  readonly at: number
}

interface StageOptions {
  /** What the upstream answers to a request; 200 when absent. 0: it hangs up. Undefined: it answers later. */
  readonly status?: (got: Got, count: number) => number | undefined
  readonly headers?: Record<string, string>
  readonly deliver?: object
  readonly buckets?: object
  readonly route?: object
  readonly lease?: number
  readonly upstream?: object
}

let named = 0

/** An upstream that keeps what it got, and instances in front of it. Each stage has routes of its own in the same table. */
async function stage(t: Test, options: StageOptions = {}) {
  const { status = () => 200, lease } = options
  const got: Got[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    let body = ''
    req.setEncoding('latin1').on('data', text => {
      body += text
    })
    req.on('end', () => {
      const one = {
        method: req.method!,
        url: req.url!,
        headers: req.headers,
        rawHeaders: req.rawHeaders,
        body,
        at: performance.now(),
      }
      got.push(one)
      const code = status(one, got.length)
      if (code === undefined) return
      if (code === 0) return void req.socket.destroy()
      res.writeHead(code, { 'x-made': 'yes', ...options.headers }).end(`answer to ${body}`)
    })
  })
  named += 1
  const config = {
    upstream: { url: upstream.url, ...options.upstream },
    buckets: options.buckets ?? BUCKETS,
    routes: [
      {
        name: `hooks-${named}`,
        deliver: { url: server.url, backoff: '20ms', maxBackoff: '50ms', ...options.deliver },
        ...options.route,
      },
    ],
  }
  const errors: string[] = []
  const instance = async (own: Test = t) => {
    let deliveries: StoredDeliveries | undefined
    const rig = await startRig(own, config, {
      realPacer: true,
      deliveries: clock => {
        const onError = (error: Error) => {
          errors.push(error.message)
          if (process.env.DELIVER_ERRORS) console.error(error)
        }
        deliveries = new StoredDeliveries({ clock, wallNow: Date.now, onError, ...(lease && { lease }) })
        return deliveries
      },
    })
    return { ...client(rig), deliveries: deliveries!, rig }
  }
  return { got, config, errors, instance, route: `hooks-${named}` }
}

function client({ port }: Rig) {
  const base = `http://127.0.0.1:${port}`
  const ask = (path: string, init: RequestInit = {}) => fetch(base + path, init)
  const send = (body: string, headers: Record<string, string> = {}, path = '/hook?a=1') =>
    ask(path, { method: 'POST', body, headers: { 'x-client': 'a', ...headers } })
  const state = async (location: string): Promise<State> => (await ask(location)).json() as Promise<State>
  const ends = async (location: string): Promise<State> => {
    let last = await state(location)
    const end = Date.now() + 20_000
    while (last.state === 'waiting' || last.state === 'sending') {
      if (Date.now() > end) throw new Error(JSON.stringify(last))
      await new Promise(resolve => setTimeout(resolve, 10))
      last = await state(location)
    }
    return last
  }
  return { base, ask, send, state, ends }
}

interface State {
  readonly state: string
  readonly attempts: number
  readonly createdAt: string
  readonly nextAttemptAt?: string
  readonly error?: { readonly status: number; readonly detail: string }
  readonly answer?: { readonly status: number; readonly headers: [string, string][]; readonly body?: string }
}

const locationOf = (answer: Response): string => answer.headers.get('location')!

t.test('202 once it is stored, then it is delivered as it came, and its state has the answer', async t => {
  const { got, instance, route } = await stage(t)
  const { send, ends, rig } = await instance()
  const answer = await send('héllo', { 'x-own': '1', prefer: 'respond-async, wait=5', 'content-type': 'text/plain' })
  t.equal(answer.status, 202)
  t.match(locationOf(answer), /^\/\.well-known\/shaper\/deliveries\/[\w-]{22}$/)
  t.equal(answer.headers.get('preference-applied'), 'respond-async')
  t.match(await answer.json(), { state: 'waiting', attempts: 0 })
  const end = await ends(locationOf(answer))
  t.match(end, { state: 'done', attempts: 1, answer: { status: 200 } })
  t.match(end.answer!.body, /^answer to h/)
  t.ok(end.answer!.headers.some(([name, value]) => name === 'x-made' && value === 'yes'))
  t.notOk(
    end.answer!.headers.some(([name]) => /ratelimit|server-timing/i.test(name)),
    'what the upstream said',
  )
  const [one] = got
  t.match(one, { method: 'POST', url: '/hook?a=1' })
  t.equal(Buffer.from(one!.body, 'latin1').toString(), 'héllo')
  t.match(one!.headers, { 'x-own': '1', 'content-length': '6', 'content-type': 'text/plain' })
  t.match(one!.headers['idempotency-key'], /^"[0-9a-f]{32}"$/)
  t.match(one!.headers['x-forwarded-for'], '127.0.0.1')
  t.notOk('prefer' in one!.headers)
  t.ok(rig.outcomes.includes(`${route} accepted 202`))
  t.ok(rig.outcomes.includes(`${route} forwarded 200`))
})

t.test('only who asks for it has to wait for its delivery, and what only reads never', async t => {
  const { instance } = await stage(t, { deliver: { when: 'asked' } })
  const { send, ask } = await instance()
  t.equal((await send('now')).status, 200)
  t.equal((await send('later', { prefer: 'handling=lenient, Respond-Async' })).status, 202)
  const always = await (await stage(t)).instance()
  t.equal((await always.ask('/', { headers: { 'x-client': 'a' } })).status, 200)
  t.equal((await ask('/', { headers: { 'x-client': 'a', prefer: 'respond-async' } })).status, 200)
})

t.test('the same key is the same delivery; for another request it is 409; keys of others are others', async t => {
  const { got, instance } = await stage(t)
  const { send, ends } = await instance()
  const first = await send('one', { 'idempotency-key': '"k-1"' })
  const again = await send('one', { 'idempotency-key': '"k-1"' })
  const bare = await send('one', { 'idempotency-key': 'k-1' })
  t.same([first.status, again.status, bare.status], [202, 202, 202])
  t.same([locationOf(again), locationOf(bare)], [locationOf(first), locationOf(first)])
  const other = await send('two', { 'idempotency-key': '"k-1"' })
  t.equal(other.status, 409)
  t.match(other.headers.get('content-type'), 'application/problem+json')
  t.equal((await send('one', { 'idempotency-key': '"k-1"' }, '/other')).status, 409)
  const ofB = await send('two', { 'idempotency-key': '"k-1"', 'x-client': 'b' })
  t.equal(ofB.status, 202)
  t.not(locationOf(ofB), locationOf(first))
  await Promise.all([ends(locationOf(first)), ends(locationOf(ofB))])
  t.same(got.map(({ body }) => body).sort(), ['one', 'two'])
  t.ok(got.every(({ headers }) => headers['idempotency-key'] === '"k-1"'))
  const late = await send('one', { 'idempotency-key': '"k-1"' })
  t.equal(locationOf(late), locationOf(first))
  t.equal(((await late.json()) as State).state, 'done')
  for (const bad of ['a b', '""', 'x'.repeat(300), '("a" "b")', '"a'])
    t.equal((await send('bad', { 'idempotency-key': bad })).status, 400, bad)
})

t.test('many at once with one key are stored once', async t => {
  const { got, instance } = await stage(t)
  const [a, b] = [await instance(), await instance()]
  const answers = await Promise.all(
    Array.from({ length: 40 }, (_, at) => (at % 2 ? a : b).send('same', { 'idempotency-key': 'one-key' })),
  )
  t.equal(new Set(answers.map(locationOf)).size, 1)
  t.equal((await a.ends(locationOf(answers[0]!))).state, 'done')
  t.equal(got.length, 1)
})

t.test('a body that is too long is 413 and stored nowhere', async t => {
  const { got, instance } = await stage(t, { deliver: { maxBody: 10 } })
  const { send, ask, ends } = await instance()
  t.equal((await send('x'.repeat(11))).status, 413)
  const streamed = new ReadableStream({
    start(control) {
      control.enqueue(new TextEncoder().encode('x'.repeat(8)))
      control.enqueue(new TextEncoder().encode('x'.repeat(8)))
      control.close()
    },
  })
  const chunked = { method: 'POST', body: streamed, duplex: 'half', headers: { 'x-client': 'a' } } as RequestInit
  t.equal((await ask('/', chunked)).status, 413)
  t.equal((await ends(locationOf(await send('x'.repeat(10))))).state, 'done')
  t.equal((await ends(locationOf(await ask('/', { method: 'DELETE', headers: { 'x-client': 'a' } })))).state, 'done')
  t.same(
    got.map(({ method, body }) => `${method} ${body.length}`),
    ['POST 10', 'DELETE 0'],
  )
})

t.test('it is tried again after failures with the same key, then it is dead; a retry by hand sends it', async t => {
  let isWell = false
  const { got, instance } = await stage(t, {
    status: (_, count) => (isWell ? 201 : [500, 0, 408][(count - 1) % 3]),
    deliver: { attempts: 3 },
  })
  const { send, ends, deliveries } = await instance()
  const location = locationOf(await send('try'))
  const dead = await ends(location)
  t.match(dead, { state: 'dead', attempts: 3, error: { status: 408 }, answer: { status: 408 } })
  t.equal(got.length, 3)
  t.equal(new Set(got.map(({ headers }) => headers['idempotency-key'])).size, 1)
  isWell = true
  const id = location.split('/').at(-1)!
  const listed = (await deliveries.administer({ verb: 'list', state: 'dead' })) as { id: string }[]
  t.match(
    listed.find(each => each.id === id),
    { state: 'dead', attempts: 3 },
  )
  t.equal(await deliveries.administer({ verb: 'retry', id }), true)
  t.equal(await deliveries.administer({ verb: 'retry', id }), false)
  t.match(await ends(location), { state: 'done', attempts: 1, answer: { status: 201 } })
  t.equal(await deliveries.administer({ verb: 'remove', id }), true)
})

t.test('a 4xx is the answer, and is not tried again', async t => {
  const { got, instance } = await stage(t, { status: () => 422 })
  const { send, ends } = await instance()
  t.match(await ends(locationOf(await send('bad'))), { state: 'done', attempts: 1, answer: { status: 422 } })
  t.equal(got.length, 1)
})

t.test('one that costs more than its bucket can hold is dead at once, and not tried for ever', async t => {
  const { got, instance } = await stage(t, {
    buckets: { client: { key: 'header:x-client', rate: '1000/s', capacity: 10 } },
    route: { cost: { buckets: { client: { estimate: 'n' } } } },
  })
  const { send, ends } = await instance()
  t.match(await ends(locationOf(await send('{"n":11}'))), {
    state: 'dead',
    attempts: 0,
    error: { status: 429, detail: 'the cost 11 can never fit bucket "client" of 10' },
  })
  t.match(await ends(locationOf(await send('{"n":9}'))), { state: 'done', attempts: 1 })
  t.equal(got.length, 1)
})

t.test('Retry-After of an answer comes first', async t => {
  const { got, instance } = await stage(t, {
    status: (_, count) => (count === 1 ? 429 : 200),
    headers: { 'retry-after': '1' },
  })
  const { send, ends, ask } = await instance()
  const location = locationOf(await send('busy'))
  await eventually(() => got.length === 1)
  await turns()
  let between = await ask(location)
  for (let last = (await between.json()) as State; last.attempts === 0; last = (await between.json()) as State)
    between = await ask(location)
  t.match(between.headers.get('retry-after'), /^[12]$/)
  await ends(location)
  t.ok(got[1]!.at - got[0]!.at > 950, `${got[1]!.at - got[0]!.at} ms`)
})

t.test('Retry-After of a 429 pauses all that goes to the upstream', async t => {
  const { got, instance } = await stage(t, {
    status: (_, count) => (count === 1 ? 429 : 200),
    headers: { 'retry-after': '1' },
  })
  const { send, ends } = await instance()
  const first = locationOf(await send('first'))
  await eventually(() => got.length === 1)
  const second = locationOf(await send('second', { 'x-client': 'b' }))
  for (const location of [first, second]) await ends(location)
  t.ok(got[1]!.at - got[0]!.at > 950, `${got[1]!.at - got[0]!.at} ms`)
})

t.test('who is over a quota is told its end, by each instance, and goes on when the quota grows', async t => {
  const quota = (limit: number) => ({ month: { key: 'header:x-client', quota: { limit, per: 'month' } } })
  const { got, instance, config } = await stage(t, { buckets: quota(2) })
  const [a, b] = [await instance(), await instance()]
  const all: string[] = []
  for (let count = 0; count < 7; count += 1) all.push(locationOf(await a.send(`${count}`)))
  // Each of them counts for itself.
  await eventually(() => got.length === 4)
  const isSent = (_: string, count: number): boolean => got.some(({ body }) => body === `${count}`)
  const [next, , last] = all.filter((location, count) => !isSent(location, count)) as [string, string, string]
  for (const location of all.filter(isSent)) await a.ends(location)
  const today = new Date()
  const end = (months: number) => Date.UTC(today.getUTCFullYear(), today.getUTCMonth() + months, 1)
  const told = async (ask: typeof a.ask, location: string) => {
    const answer = await ask(location)
    const { nextAttemptAt } = (await answer.json()) as State
    const inSeconds = (Date.parse(nextAttemptAt!) - Date.now()) / 1_000
    t.ok(Math.abs(Number(answer.headers.get('retry-after')) - inSeconds) < 3, answer.headers.get('retry-after')!)
    return nextAttemptAt!
  }
  await until('the table knows', async () => Date.parse((await b.state(next)).nextAttemptAt!) > Date.now() + 5_000)
  for (const { ask } of [a, b]) {
    t.ok(Math.abs(Date.parse(await told(ask, next)) - end(1)) < 2_000, 'the end of this month')
    t.equal(await told(ask, last), new Date(end(2)).toISOString(), 'two before it are all of the next month')
  }
  const late = (await (await a.send('late')).json()) as State
  t.ok(Date.parse(late.nextAttemptAt!) > end(1) - 2_000, 'who comes later is told so, too')
  t.equal((await b.ends(locationOf(await b.send('other', { 'x-client': 'b' })))).state, 'done')
  const grown = parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config, buckets: quota(100) }))
  await b.rig.proxy.reload(grown)
  for (const location of all) t.equal((await a.ends(location)).state, 'done')
})

t.test('a key that is held up for long leaves as soon as its limits are others', async t => {
  const buckets = { month: { key: 'header:x-client', quota: { limit: 1, per: 'month' } } }
  const { got, instance } = await stage(t, { buckets })
  const { send, ends, state, rig } = await instance()
  await ends(locationOf(await send('1')))
  const location = locationOf(await send('2'))
  await until('it is held up', async () => Date.parse((await state(location)).nextAttemptAt!) > Date.now() + 5_000)
  const set = performance.now()
  await rig.proxy.context.overrides.set({ bucket: 'month', key: 'a', capacity: 2, endsIn: 3_600_000 })
  t.equal((await ends(location)).state, 'done')
  t.ok(got.at(-1)!.at - set < 10_000, `${got.at(-1)!.at - set} ms; without the news it is looked at after a minute`)
})

t.test('long: keys that are held up for long take no room from others', async t => {
  const buckets = { month: { key: 'header:x-client', quota: { limit: 1, per: 'month' } } }
  const { got, instance } = await stage(t, { buckets })
  const { send, ends } = await instance()
  const lanes = [...Array(250).keys()].map(lane => `lane ${lane}`)
  // More than an instance has loaded.
  const ids: string[] = []
  for (const body of ['1', '2', '3'])
    ids.push(
      ...(await Promise.all(lanes.map(async lane => locationOf(await send(`${lane} ${body}`, { 'x-client': lane }))))),
    )
  t.notOk(
    ids.some(location => location.includes('/-')),
    'on a command line that would be an option (one of 64 was)',
  )
  await eventually(() => got.length >= lanes.length)
  t.equal((await ends(locationOf(await send('other', { 'x-client': 'other' })))).state, 'done')
  t.equal(got.length, lanes.length + 1)
})

t.test('headers arrive in their order and case', async t => {
  const { got, instance } = await stage(t)
  const { base, ends } = await instance()
  const sent = ['Host', 'a', 'X-Client', 'a', 'content-LENGTH', '2', 'idempotency-key', '"k"', 'X-Last', '1']
  const location = await new Promise<string>(resolve => {
    const { port } = new URL(base)
    const client = httpRequest({ port, method: 'POST', path: '/', headers: sent }, res => {
      res.resume()
      resolve(res.headers.location!)
    })
    client.end('ok')
  })
  await ends(location)
  const { rawHeaders } = got[0]!
  t.same(rawHeaders.slice(rawHeaders.indexOf('Host'), rawHeaders.indexOf('X-Last') + 2), sent)
})

t.test('what waits can be cancelled, what was sent cannot', async t => {
  const { got, instance } = await stage(t, {
    buckets: { client: { key: 'header:x-client', rate: '1/2s', capacity: 50 } },
    status: () => undefined,
  })
  const { send, ask, ends, state } = await instance()
  const all: string[] = []
  for (let count = 0; count < 5; count += 1) all.push(locationOf(await send(`${count}`)))
  await eventually(() => got.length === 1)
  t.equal((await ask(all[0]!, { method: 'DELETE' })).status, 409, 'it is sent')
  // The next ones wait in the queue of the proxy, and in the worker.
  for (const at of [1, 2, 4]) t.equal((await ask(all[at]!, { method: 'DELETE' })).status, 204, `${at}`)
  t.equal((await state(all[2]!)).state, 'cancelled')
  t.equal((await ask(all[2]!, { method: 'DELETE' })).status, 204, 'once more')
  await eventually(() => got.length === 2)
  t.same(
    got.map(({ body }) => body),
    ['0', '3'],
  )
  t.equal((await ends(all[4]!)).state, 'cancelled')
  t.equal((await ask(`${all[0]!.slice(0, -22)}${'A'.repeat(22)}`)).status, 404)
  t.equal((await ask(`${all[0]!.slice(0, -22)}constructor`)).status, 404)
  t.equal((await ask(all[0]!, { method: 'PUT', body: 'x' })).status, 405)
})

t.test('another instance cancels what one has in its queue', async t => {
  const { got, instance } = await stage(t, {
    buckets: { client: { key: 'header:x-client', rate: '1/h', capacity: 50 } },
    status: () => undefined,
  })
  const a = await instance()
  const first = locationOf(await a.send('0'))
  const second = locationOf(await a.send('1'))
  await eventually(() => got.length === 1)
  const b = await instance()
  await until('the table knows that it is sent', async () => (await b.state(first)).state === 'sending')
  t.equal((await b.ask(first, { method: 'DELETE' })).status, 409)
  t.equal((await b.ask(second, { method: 'DELETE' })).status, 204)
})

t.test('who was told that it is too late to cancel has not cancelled', async t => {
  const table = new DeliveryTable(server.url)
  t.teardown(() => table.close())
  await table.open()
  const route = 'cancelled'
  const claim = (owner: string) =>
    table.claim({
      ...{ owner, route, isOrdered: false, after: '', most: 1 },
      perLane: 1,
      held: new Map(),
      known: undefined,
    })
  const owned = async (owner: string): Promise<string> => {
    const id = randomBytes(16).toString('hex').slice(0, 22)
    const [dedupe, lane] = [randomBytes(32), randomBytes(16)]
    await table.insert([{ id, route, lane, dedupe, fingerprint: dedupe, head: '{}', body: Buffer.alloc(0) }])
    t.same(
      (await claim(owner)).rows.map(row => row.id),
      [id],
    )
    return id
  }
  const failed = (id: string, owner: string) =>
    table.record([{ id, owner, attempts: 0, state: 'waiting', tried: 1, delay: 3_600_000 }])
  const stateOf = async (id: string) => (await table.find(id))?.state
  await table.join('one', 60_000)
  const sent = await owned('one')
  t.equal((await table.cancel(sent))?.state, 'waiting', 'its owner is asked')
  await table.noteSent('one', [sent])
  t.equal((await table.find(sent))?.sent, true, 'who waits for it is told that it is too late')
  await failed(sent, 'one')
  t.equal(await stateOf(sent), 'waiting', 'it is tried again')
  const unheard = await owned('one')
  await table.cancel(unheard)
  t.equal(await table.keep(unheard), false, 'the owner does not answer')
  await failed(unheard, 'one')
  t.equal(await stateOf(unheard), 'waiting')
  const stopped = await owned('one')
  await table.cancel(stopped)
  await failed(stopped, 'one')
  t.equal(await stateOf(stopped), 'cancelled')
  t.equal(await table.keep(stopped), true)
  // Its owner dies while it is sent, or before that.
  const [dying, before] = [await owned('one'), await owned('one')]
  for (const id of [dying, before]) await table.cancel(id)
  await table.noteSent('one', [dying])
  await table.leave('one')
  t.equal(await stateOf(before), 'cancelled')
  await table.join('other', 60_000)
  t.same(
    (await claim('other')).rows.map(({ id }) => id),
    [dying],
    'it is sent again',
  )
  const client = new pg.Client(server.url)
  await client.connect()
  const { rows } = await client.query('SELECT id, head FROM shaper_deliveries WHERE id = ANY($1)', [[before, dying]])
  await client.end()
  const heads = Object.fromEntries(rows.map(({ id, head }) => [id, head]))
  t.same(heads, { [before]: '', [dying]: '{}' }, 'what is cancelled is deleted')
})

t.test('a client may ask only so many questions at a time, and others still may', async t => {
  const { instance } = await stage(t)
  const { deliveries } = await instance()
  const id = 'A'.repeat(22)
  const ask = (client: string) => deliveries.ask('GET', id, client)
  const answers = await Promise.all([...Array.from({ length: 20 }, () => ask('greedy')), ask('other')])
  const statuses = answers.map(({ status }) => status)
  t.same([statuses.filter(status => status === 503).length, statuses.at(-1)], [4, 404])
  t.equal((await ask('greedy')).status, 404)
})

t.test(
  'clients that are authorized otherwise do not meet in a key, unless a verified one tells them apart',
  async t => {
    const { instance } = await stage(t, { buckets: { client: { key: 'ip', rate: '1000/s', capacity: 100 } } })
    const { send } = await instance()
    const by = async (authorization: string) =>
      locationOf(await send('order', { 'idempotency-key': 'order-17', authorization }))
    const alice = await by('Bearer alice')
    t.equal(await by('Bearer alice'), alice)
    t.not(await by('Bearer bob'), alice)
  },
)

t.test('deliveries leave at r, those of one key in order, and one key does not hold up another', async t => {
  const { got, instance } = await stage(t, {
    buckets: { client: { key: 'header:x-client', rate: '50/s', capacity: 5 } },
    // From two connections it may read in another order.
    upstream: { connections: 1 },
  })
  const { send, ends } = await instance()
  const sends: Promise<Response>[] = []
  for (let count = 0; count < 40; count += 1) sends.push(send(`${count}`))
  const all = await Promise.all(sends)
  t.ok(
    all.every(({ status }) => status === 202),
    'more than fit the bucket',
  )
  const b = locationOf(await send('b', { 'x-client': 'b' }))
  await ends(b)
  t.ok(got.length < 35, `${got.length} before the other key`)
  await ends(locationOf(all[39]!))
  const own = got.filter(({ body }) => body !== 'b')
  const order = own.map(({ body }) => Number(body))
  const stored = await server.query<{ id: string }>('SELECT id FROM shaper_deliveries ORDER BY seq')
  const places = new Map(stored.map(({ id }, at) => [id, at]))
  const ids = all.map(answer => places.get(locationOf(answer).split('/').at(-1)!)!)
  const inOrder = [...order].sort((one, other) => ids[one]! - ids[other]!)
  t.same(order, inOrder)
  const took = own.at(-1)!.at - own[0]!.at
  t.ok(took > 39 * 20 - 20 && took < 39 * 20 * 3, `40 took ${took} ms`)
})

t.test('ordered: those behind a failed one wait for it', async t => {
  const seen = new Map<string, number>()
  const { got, instance } = await stage(t, {
    status({ body }) {
      seen.set(body, (seen.get(body) ?? 0) + 1)
      return ['2', '5'].includes(body) && seen.get(body)! < 3 ? 503 : 200
    },
    deliver: { ordered: true },
  })
  const [a, b] = [await instance(), await instance()]
  let last = ''
  for (let count = 0; count < 10; count += 1) last = locationOf(await (count % 2 ? a : b).send(`${count}`))
  t.equal((await a.ends(last)).state, 'done')
  t.same(
    got.map(({ body }) => body),
    ['0', '1', '2', '2', '2', '3', '4', '5', '5', '5', '6', '7', '8', '9'],
  )
})

t.test('unordered: those behind a failed one pass', async t => {
  let failures = 0
  const { got, instance } = await stage(t, {
    status: ({ body }) => (body === '0' && failures++ < 2 ? 503 : 200),
    deliver: { backoff: '300ms', maxBackoff: '300ms' },
  })
  const { send, ends } = await instance()
  const first = locationOf(await send('0'))
  await ends(locationOf(await send('1')))
  await ends(first)
  t.same(got.map(({ body }) => body).sort(), ['0', '0', '0', '1'])
})

t.test('instances on one table send each delivery once', async t => {
  const { got, instance } = await stage(t)
  const instances = [await instance(), await instance(), await instance()]
  const all = await Promise.all(
    Array.from({ length: 300 }, (_, at) => instances[at % 3]!.send(`${at}`, { 'x-client': `${at % 7}` })),
  )
  for (const answer of all) t.equal((await instances[0]!.ends(locationOf(answer))).state, 'done')
  t.equal(got.length, 300)
  t.equal(new Set(got.map(({ body }) => body)).size, 300)
})

t.test('a database that is away: 503, then all goes on', async t => {
  const own = await startPostgres()
  t.teardown(() => own.close())
  const { got, instance, errors } = await stage(t, { deliver: { url: own.url } })
  const { send, ends, ask } = await instance()
  const before = locationOf(await send('before'))
  await ends(before)
  await own.kill()
  const away = await send('away', { 'idempotency-key': 'away' })
  t.equal(away.status, 503)
  t.ok(Number(away.headers.get('retry-after')) >= 1)
  t.equal((await ask(before)).status, 503)
  await own.start()
  let back = await send('away', { 'idempotency-key': 'away' })
  while (back.status === 503) back = await send('away', { 'idempotency-key': 'away' })
  t.equal((await ends(locationOf(back))).state, 'done')
  t.same(
    got.map(({ body }) => body),
    ['before', 'away'],
  )
  t.ok(errors.length > 0)
  const client = new StoredDeliveries({
    clock: { now: () => 0, at: () => () => false },
    wallNow: Date.now,
    onError() {},
  })
  await own.kill()
  await t.rejects(client.start({ routes: [{ settings: { name: 'x', deliver: { url: own.url } } }] } as never), {
    message: /ECONNREFUSED/,
  })
})

t.test('an instance that stops gives back what it has not sent, and another one sends it', async t => {
  const { got, instance } = await stage(t, {
    buckets: { client: { key: 'header:x-client', rate: '5/s', capacity: 50 } },
  })
  const a = await instance()
  const all: string[] = []
  for (let count = 0; count < 6; count += 1) all.push(locationOf(await a.send(`${count}`)))
  await eventually(() => got.length === 2)
  await a.rig.proxy.drain(5_000)
  const b = await instance()
  for (const location of all) t.equal((await b.ends(location)).state, 'done')
  t.same(
    got.map(({ body }) => body),
    ['0', '1', '2', '3', '4', '5'],
  )
})

t.test('an instance whose lease is over lets go, and a stalled one sends nothing late', async t => {
  const { got, instance } = await stage(t, {
    lease: 1_200,
    buckets: { client: { key: 'header:x-client', rate: '2/s', capacity: 50 } },
  })
  const { send, ends } = await instance()
  const all: string[] = []
  for (let count = 0; count < 6; count += 1) all.push(locationOf(await send(`${count}`)))
  await eventually(() => got.length === 1)
  // Nobody can say that it lives.
  await server.query('DELETE FROM shaper_delivery_instances')
  for (const location of all) t.equal((await ends(location)).state, 'done')
  t.equal(new Set(got.map(({ body }) => body)).size, 6)
})

t.test('what is finished is forgotten after its time, and deleted later', async t => {
  const { got, instance } = await stage(t, { deliver: { keep: '2s' } })
  const { send, ends, ask } = await instance()
  const keyed = { 'idempotency-key': 'short' }
  const location = locationOf(await send('short', keyed))
  await ends(location)
  t.equal((await send('another', keyed)).status, 409)
  await until('it is forgotten', async () => (await ask(location)).status === 404)
  const again = await send('another', keyed)
  t.equal(again.status, 202, 'its key is free again')
  await ends(locationOf(again))
  t.same(
    got.map(({ body }) => body),
    ['short', 'another'],
  )
  const { DeliveryTable } = await import('../../src/deliver/table.js')
  const table = new DeliveryTable(server.url)
  t.teardown(() => table.close())
  await new Promise(resolve => setTimeout(resolve, 20))
  await table.prune(`hooks-${named}`, 1)
  t.equal((await ask(location)).status, 404)
})

t.test('a reload takes deliver away and gives it back; what is stored stays', async t => {
  const { got, instance, config, route } = await stage(t, {
    buckets: { client: { key: 'header:x-client', rate: '2/s', capacity: 50 } },
  })
  const { send, ends, rig } = await instance()
  const all: string[] = []
  for (let count = 0; count < 4; count += 1) all.push(locationOf(await send(`${count}`)))
  await eventually(() => got.length >= 1)
  const [{ deliver: _deliver, ...plain }] = config.routes as [{ name: string; deliver: object }]
  const settings = (routes: object[]) => parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config, routes }))
  await rig.proxy.reload(settings([plain]))
  t.equal((await send('now')).status, 200)
  t.ok(got.length < 5, 'the stored ones wait')
  await rig.proxy.reload(settings(config.routes))
  for (const location of all) t.equal((await ends(location)).state, 'done')
  t.equal(got.length, 5)
  t.equal(rig.outcomes.filter(each => each === `${route} accepted 202`).length, 4)
})

t.test('long: more than maxWaiting are answered 503, and the count follows what has left', async t => {
  const { instance } = await stage(t, {
    buckets: { client: { key: 'all', rate: '1/30s', capacity: 1 } },
    deliver: { maxWaiting: 3 },
  })
  const { send, ask } = await instance()
  const all: Response[] = []
  for (let count = 0; count < 4; count += 1) all.push(await send(`${count}`))
  t.same(
    all.map(({ status }) => status),
    [202, 202, 202, 503],
  )
  const wait = Number(all[3]!.headers.get('retry-after'))
  t.ok(wait >= 1 && wait <= 10, `${wait} s: it is counted again then`)
  t.match(await all[3]!.text(), /3 requests of this route wait already/)
  t.equal((await ask(locationOf(all[2]!), { method: 'DELETE' })).status, 204)
  await new Promise(resolve => setTimeout(resolve, wait * 1_000))
  t.equal((await send('later')).status, 202)
})

t.test('keys from the body count when it is accepted and when it is sent', async t => {
  const { got, instance } = await stage(t, {
    buckets: { tenant: { key: { from: 'body:tenant', missing: 'reject' }, rate: '1000/s', capacity: 10 } },
    deliver: { ordered: true },
  })
  const { send, ends } = await instance()
  t.equal((await send('{"other":1}')).status, 400)
  const body = JSON.stringify({ tenant: 'acme', text: 'x'.repeat(50_000) })
  t.equal((await ends(locationOf(await send(body)))).state, 'done')
  t.equal(got[0]!.body, body)
  t.equal(got.length, 1)
})

t.test('what belongs to a connection is not stored, and a hostile head harms nothing', async t => {
  const { got, instance } = await stage(t)
  const { rig, state } = await instance()
  const head = ['POST /x HTTP/1.1', 'Host: a', 'X-Client: a', 'Connection: x-secret, close', 'X-Secret: 1']
  const more = ['Transfer-Encoding: chunked', '__proto__: x', 'Prefer: wait=1']
  const answer = await askOnce(t, rig, `${[...head, ...more].join('\r\n')}\r\n\r\n3\r\nabc\r\n0\r\n\r\n`)
  t.equal(answer.status, 202)
  await eventually(() => got.length === 1)
  t.match(got[0], { body: 'abc', headers: { host: 'a', 'content-length': '3' } })
  t.notOk('x-secret' in got[0]!.headers)
  t.notOk('transfer-encoding' in got[0]!.headers)
  const { base } = client(rig)
  for (const id of ['..%2f..', '%00', "'; DROP TABLE x", 'A'.repeat(5_000)])
    t.equal((await fetch(`${base}/.well-known/shaper/deliveries/${encodeURIComponent(id)}`)).status, 404)
  t.ok(await state(answer.header('location')!))
})
