/** shape() beside undici's other interceptors, as docs/outbound.md says: what takes a slot, what is sent again, and when to close. */
import t, { type Test } from 'tap'
import { Agent, type Dispatcher, fetch, interceptors, request } from 'undici'
import { type ShapeOptions, shape } from '../../src/index.js'
import { serve } from './upstreams.js'

/** Answers the first request with 503, sends `/hop` elsewhere, and lets the rest be cached. */
async function api(t: Test) {
  let isFirst = true
  return serve(t, (req, res) => {
    if (req.url === '/hop') return res.writeHead(302, { location: '/' }).end()
    if (req.url === '/refuses' && isFirst) {
      isFirst = false
      return res.writeHead(503).end()
    }
    return res.writeHead(200, { 'cache-control': 'max-age=60' }).end('ok')
  })
}

/** A shaped agent, and how often it has released a request. */
function counted(options: Partial<ShapeOptions> = {}) {
  const interceptor = shape({ rate: '200/s', pauseOn: false, ...options } as ShapeOptions)
  const count = { released: 0 }
  interceptor.shaper.on('released', () => {
    count.released += 1
  })
  return { interceptor, count }
}

async function send(t: Test, url: string, dispatcher: Dispatcher, times: number): Promise<void> {
  for (let count = 0; count < times; count += 1) {
    const { statusCode, body } = await request(url, { dispatcher })
    t.equal(statusCode, 200)
    await body.dump()
  }
  await dispatcher.close()
}

const OTHERS = [
  { name: 'redirect', path: '/hop', times: 1, sent: 2, first: 2, last: 1 },
  { name: 'retry', path: '/refuses', times: 1, sent: 2, first: 2, last: 1 },
  { name: 'cache', path: '/', times: 3, sent: 1, first: 1, last: 3 },
] as const

for (const { name, path, times, sent, first, last } of OTHERS) {
  t.test(`${name}: composed first, shape() releases what is sent; last, what is asked for`, async t => {
    for (const [place, released] of [
      ['first', first],
      ['last', last],
    ] as const) {
      const { origin, seen } = await api(t)
      const { interceptor, count } = counted()
      const other = {
        redirect: () => interceptors.redirect({ maxRedirections: 2 }),
        retry: () => interceptors.retry({ maxRetries: 2, minTimeout: 1, maxTimeout: 1 }),
        cache: () => interceptors.cache(),
      }[name]()
      const order = place === 'first' ? [interceptor, other] : [other, interceptor]
      await send(t, `${origin}${path}`, new Agent().compose(...order), times)
      t.equal(seen.length, sent, place)
      t.equal(count.released, released, place)
    }
  })
}

t.test('fetch: each hop of a redirect takes a slot', async t => {
  const { origin } = await api(t)
  const { interceptor, count } = counted()
  const dispatcher = new Agent().compose(interceptor)
  t.equal(await fetch(`${origin}/hop`, { dispatcher }).then(answer => answer.text()), 'ok')
  t.equal(count.released, 2)
  await dispatcher.close()
})

t.test('fetch makes a stream of a body: only requests without one are sent again', async t => {
  for (const [method, body, status] of [
    ['GET', undefined, 200],
    ['PUT', 'text', 503],
  ] as const) {
    const { origin } = await api(t)
    const { interceptor } = counted({ retry: { status: [503], max: 3 } })
    const dispatcher = new Agent().compose(interceptor)
    const answer = await fetch(`${origin}/refuses`, { method, ...(body && { body }), dispatcher })
    t.equal(answer.status, status, method)
    await answer.text()
    await dispatcher.close()
  }
})

t.test('what waits is sent if the shaper is drained first, and fails if its dispatcher is closed first', async t => {
  for (const isDrained of [true, false]) {
    const { origin } = await api(t)
    const { interceptor } = counted({ rate: '10/s' })
    const dispatcher = new Agent().compose(interceptor)
    const calls = [1, 2, 3].map(() => fetch(origin, { dispatcher }).then(answer => answer.text()))
    const outcomes = Promise.allSettled(calls)
    await calls[0]
    if (isDrained) await interceptor.shaper.drain()
    await dispatcher.close()
    const last = (await outcomes).at(-1)
    t.equal(last?.status, isDrained ? 'fulfilled' : 'rejected')
    // As it comes while the dispatcher closes, or after that.
    if (last?.status === 'rejected') t.match(last.reason.cause, { message: /^The client is (closed|destroyed)$/ })
  }
})
