/** Each call runs in the async context (AsyncLocalStorage) in which it was made, also when another call or a timer releases it. */
import { AsyncLocalStorage } from 'node:async_hooks'
import t, { type Test } from 'tap'
import { Agent, type Dispatcher, fetch, request } from 'undici'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper, type ShapeOptions, shape } from '../../src/index.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { serve } from './upstreams.js'

const trace = new AsyncLocalStorage<string>()
const current = () => trace.getStore() ?? 'none'

const TENANTS = ['a', 'b', 'c']

/** Sixty calls, three tenants in turn. */
const CALLERS = Array.from({ length: 60 }, (_, place) => TENANTS[place % 3]!)

/** Makes one call in each caller's context. */
function each<T>(callers: readonly string[], call: (caller: string) => Promise<T>): Promise<T[]> {
  return Promise.all(callers.map(caller => trace.run(caller, call, caller)))
}

const settled = () => new Promise(resolve => setImmediate(resolve))

for (const maxInFlight of [Infinity, 1]) {
  t.test(`run, wrap and admit of three tenants, ${maxInFlight} in flight`, async t => {
    const shaper = createShaper({ rate: '2000/s', capacity: 1_000, maxInFlight })
    const inRun = await each(CALLERS, () =>
      shaper.run(async () => {
        const before = current()
        await settled()
        return [before, current()].join()
      }),
    )
    t.same(
      inRun,
      CALLERS.map(caller => `${caller},${caller}`),
    )
    const wrapped = shaper.wrap(async () => current())
    t.same(await each(CALLERS, () => wrapped()), CALLERS)
    const admitted = each(CALLERS, async () => {
      await shaper.admit()
      return current()
    })
    t.same(await admitted, CALLERS)
    const chained = each(CALLERS, () => shaper.run('k', () => 1).then(() => current()))
    t.same(await chained, CALLERS)
    await shaper.drain()
  })
}

t.test('also with a store, where its answers release calls', async t => {
  const clock = createVirtualClock()
  const store = createMemoryStore({ clock })
  const shapers = [0, 1].map(() => createShaper({ rate: '10/s', capacity: 100, clock, store: store as never }))
  const calls = shapers.map(shaper => each(CALLERS.slice(0, 12), () => shaper.run(current)))
  while (clock.now() < 3_000) {
    clock.runUntil(clock.now() + 20)
    await settled()
  }
  for (const call of calls) t.same(await call, CALLERS.slice(0, 12))
})

t.test('events of a call run in its context', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 3, clock })
  const told: string[] = []
  const events = ['queued', 'released', 'rejected', 'expired', 'cancelled'] as const
  for (const event of events) shaper.on(event, () => told.push(`${event} ${current()}`))
  const controller = new AbortController()
  const { signal } = controller
  const calls = each(['a', 'b', 'c', 'd'], caller => {
    return shaper.admit('', caller === 'c' ? { signal } : {}).catch(() => undefined)
  })
  trace.run('other', () => controller.abort())
  trace.run('other', () => clock.runUntil(1_000))
  await calls
  const waits = each(['e', 'f'], () => shaper.admit('', { maxWait: 5_000 }).catch(() => undefined))
  trace.run('other', () => shaper.pause(60_000))
  await waits
  t.same(told, [
    'released a',
    'queued b',
    'queued c',
    'rejected d',
    'cancelled c',
    'released b',
    'released e',
    'queued f',
    'expired f',
  ])
})

/** A server that returns the trace of a request, and an interceptor that sends it. */
async function traced(t: Test, options: Partial<ShapeOptions> = {}, agent = new Agent()) {
  let refusals = 0
  const upstream = await serve(t, (req, res) => {
    if (req.url === '/retry' && refusals++ < 4) return res.writeHead(503, { 'retry-after': '0' }).end('later')
    res.end(String(req.headers.trace))
  })
  const stamp: Dispatcher.DispatcherComposeInterceptor = dispatch => (options, handler) =>
    dispatch({ ...options, headers: { trace: current() } }, handler)
  const seen: string[] = []
  /** Notes in which context it hears of each part of an answer. */
  const watch: Dispatcher.DispatcherComposeInterceptor = dispatch => (options, handler) => {
    const mine = current()
    const note = (what: string) => seen.push(current() === mine ? 'right' : `${what}: ${current()} for ${mine}`)
    return dispatch(options, {
      onRequestStart: (controller, context) => handler.onRequestStart?.(controller, context),
      onResponseStart(controller, ...rest) {
        note('start')
        handler.onResponseStart?.(controller, ...rest)
      },
      onResponseData(controller, chunk) {
        note('data')
        handler.onResponseData?.(controller, chunk)
      },
      onResponseEnd(controller, trailers) {
        note('end')
        handler.onResponseEnd?.(controller, trailers)
      },
      onResponseError(controller, error) {
        note('error')
        handler.onResponseError?.(controller, error)
      },
    })
  }
  const limit = shape({ rate: '100/s', capacity: 100, ...options } as ShapeOptions)
  t.teardown(() => agent.destroy())
  return { ...upstream, seen, shaper: limit.shaper, dispatcher: agent.compose(stamp).compose(limit).compose(watch) }
}

const FIVE = ['a', 'b', 'c', 'd', 'e']

t.test('shape(): five fetches, each with its own trace in inner and outer interceptors', async t => {
  const { origin, dispatcher, seen } = await traced(t)
  const sent = await each(FIVE, async () => (await fetch(origin, { dispatcher })).text())
  t.same(sent, FIVE)
  t.same(seen, Array(15).fill('right'))
})

t.test('shape(): over one connection, and with retries and pauses', async t => {
  const { origin, dispatcher, seen, shaper } = await traced(
    t,
    { retry: { status: [503], max: 9 }, pauseOn: { default: '50ms' }, maxInFlight: 1 },
    new Agent({ connections: 1 }),
  )
  const pauses: string[] = []
  shaper.on('paused', () => pauses.push(current()))
  const sent = await each(FIVE, async () => (await request(`${origin}/retry`, { dispatcher })).body.text())
  t.same(sent, FIVE)
  t.same(new Set(seen), new Set(['right']))
  t.same(
    pauses.filter(caller => !FIVE.includes(caller)),
    [],
  )
})

t.test('shape(): a rejection is reported in the context of its request', async t => {
  const { origin, dispatcher, seen, shaper } = await traced(t, { rate: '1/s', maxWait: '30s' })
  const sent = each(FIVE, () =>
    request(origin, { dispatcher })
      .then(({ body }) => body.dump())
      .catch(() => undefined),
  )
  trace.run('other', () => shaper.pause('60s'))
  await sent
  t.ok(seen.length >= 4)
  t.same(new Set(seen), new Set(['right']))
})
