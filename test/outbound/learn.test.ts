/** shape() follows what answers announce: rates, what is left, and refusals that look like others. */
import { gzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { Agent, request } from 'undici'
import { type ShapeOptions, shape } from '../../src/index.js'
import { watchStalls } from '../stalls.js'
import { gaps, serve } from './upstreams.js'

type Headers = Record<string, string>

/** A server whose answers have these headers, and requests to it in turn. */
async function world(t: Test, options: Partial<ShapeOptions>, answer: (place: number) => [number, Headers]) {
  let place = 0
  const { origin, seen } = await serve(t, (_, res) => {
    const [status, headers] = answer(place)
    place += 1
    res.writeHead(status, headers).end('ok')
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const interceptor = shape({ learn: true, ...options } as ShapeOptions)
  const dispatcher = agent.compose(interceptor)
  const send = async (): Promise<number> => {
    const { statusCode, body } = await request(origin, { dispatcher })
    await body.text()
    return statusCode
  }
  const times = (): number[] => seen.map(({ at }) => at)
  return { send, times, status: () => interceptor.shaper.status(origin), stalls: watchStalls(t) }
}

t.test('nothing left: the next request waits for the reset, though the answer was 200', async t => {
  const { send, times, status, stalls } = await world(t, { rate: '100/s' }, place => [
    200,
    place === 1 ? { 'ratelimit-limit': '10', 'ratelimit-remaining': '0', 'ratelimit-reset': '1' } : {},
  ])
  for (let count = 0; count < 2; count += 1) t.equal(await send(), 200)
  t.ok(status().pausedForMs > 500)
  t.equal(await send(), 200)
  const [first, second] = gaps(times()) as [number, number]
  const late = stalls.longest()
  t.ok(first < 500 + late, `${first}`)
  t.ok(second > 900 - late, `${second}`)
})

t.test('without learn it does not', async t => {
  const { send, times } = await world(t, { rate: '100/s', learn: false }, () => [
    200,
    { 'ratelimit-limit': '10', 'ratelimit-remaining': '0', 'ratelimit-reset': '9' },
  ])
  for (let count = 0; count < 3; count += 1) await send()
  t.ok(Math.max(...gaps(times())) < 1_000)
})

t.test('a lower rate: requests are spaced by what is left', async t => {
  const { send, times, stalls } = await world(t, { rate: '100/s' }, () => [
    200,
    { 'ratelimit-limit': '100', 'ratelimit-remaining': '90', 'ratelimit-reset': '18' },
  ])
  for (let count = 0; count < 4; count += 1) await send()
  const late = stalls.longest()
  for (const gap of gaps(times()).slice(1)) t.ok(gap > 150 - late && gap < 600 + late, `${gap} of 200`)
})

t.test('requests and tokens of a language model feed their buckets', async t => {
  const buckets = { requests: { rate: '100/s' }, tokens: { rate: '10000/s', capacity: 10_000 } }
  for (const [name, headers] of Object.entries<Headers>({
    OpenAI: {
      'x-ratelimit-limit-requests': '10000',
      'x-ratelimit-remaining-requests': '9999',
      'x-ratelimit-reset-requests': '8ms',
      'x-ratelimit-limit-tokens': '1000',
      'x-ratelimit-remaining-tokens': '900',
      'x-ratelimit-reset-tokens': '9s',
    },
    Anthropic: {
      date: new Date(1_800_000_000_000).toUTCString(),
      'anthropic-ratelimit-requests-limit': '1000',
      'anthropic-ratelimit-requests-remaining': '999',
      'anthropic-ratelimit-requests-reset': new Date(1_800_000_001_000).toISOString(),
      'anthropic-ratelimit-tokens-limit': '1000',
      'anthropic-ratelimit-tokens-remaining': '900',
      'anthropic-ratelimit-tokens-reset': new Date(1_800_000_009_000).toISOString(),
    },
  })) {
    const { send, times, stalls } = await world(t, { buckets, cost: { tokens: 20 } }, () => [200, headers])
    for (let count = 0; count < 4; count += 1) await send()
    const late = stalls.longest()
    // 900 tokens in 9 s: 20 tokens in 200 ms.
    for (const gap of gaps(times()).slice(1)) t.ok(gap > 150 - late && gap < 600 + late, `${name}: ${gap} of 200`)
  }
})

t.test('long: buckets with other names keep their rates', async t => {
  const { send, times } = await world(t, { buckets: { second: { rate: '100/s' }, day: { rate: '90000/d' } } }, () => [
    200,
    { 'ratelimit-limit': '100', 'ratelimit-remaining': '4', 'ratelimit-reset': '40' },
  ])
  for (let count = 0; count < 3; count += 1) await send()
  for (const gap of gaps(times())) t.ok(gap < 5_000, `${gap}`)
})

t.test('no tokens left: a pause, though no bucket counts them', async t => {
  const { send, status } = await world(t, { rate: '100/s' }, () => [
    200,
    { 'x-ratelimit-remaining-tokens': '0', 'x-ratelimit-reset-tokens': '2s' },
  ])
  await send()
  t.ok(status().pausedForMs > 1_500)
})

t.test('a reset in a year: one request asks again after the longest pause', async t => {
  const pauseOn = { status: [429], max: '200ms' }
  const { send, times, stalls } = await world(t, { rate: '100/s', pauseOn }, () => [
    200,
    { 'ratelimit-limit': '10', 'ratelimit-remaining': '0', 'ratelimit-reset': '31000000' },
  ])
  for (let count = 0; count < 4; count += 1) await send()
  const late = stalls.longest()
  for (const gap of gaps(times())) t.ok(gap > 150 - late && gap < 1_000 + late, `${gap} of 200`)
})

t.test('long: a 403 that is a limit pauses and is sent again; another 403 is not', async t => {
  const retry = { status: [429], max: 1 }
  for (const headers of [
    { 'retry-after': '1' },
    { 'x-ratelimit-limit': '60', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '1' },
  ] as Headers[]) {
    const { send, times, stalls } = await world(t, { rate: '100/s', retry }, place =>
      place === 0 ? [403, headers] : [200, {}],
    )
    t.equal(await send(), 200)
    t.ok(gaps(times())[0]! > 900 - stalls.longest())
  }
  const { send, times, status } = await world(t, { rate: '100/s', retry }, () => [
    403,
    { 'x-ratelimit-remaining': '5' },
  ])
  t.equal(await send(), 403)
  t.equal(times().length, 1)
  t.equal(status().pausedForMs, 0)
})

/** A strict GitHub: `core` has plenty, `search` nothing. Paths of requests as they came. */
async function github(t: Test, options: Partial<ShapeOptions> = {}) {
  const reset = Math.floor(Date.now() / 1_000) + 24
  const { origin, seen } = await serve(t, (req, res) => {
    const isSearch = req.url!.startsWith('/search')
    const left = isSearch ? '0' : '4900'
    const resource = isSearch ? 'search' : 'core'
    const refused = isSearch && req.url!.includes('refused')
    res.writeHead(refused ? 403 : 200, {
      'x-ratelimit-limit': isSearch ? '30' : '5000',
      'x-ratelimit-remaining': left,
      'x-ratelimit-reset': `${reset}`,
      'x-ratelimit-resource': resource,
    })
    res.end('{}')
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const interceptor = shape({ rate: '200/s', learn: true, ...options } as ShapeOptions)
  const dispatcher = agent.compose(interceptor)
  const send = (path: string, signal?: AbortSignal) =>
    request(origin + path, { dispatcher, signal }).then(({ statusCode, body }) => body.dump().then(() => statusCode))
  return { origin, send, seen, shaper: interceptor.shaper }
}

t.test('a search that uses up its resource pauses searches, and nothing else', async t => {
  for (const resource of [
    undefined,
    ({ path }: { path: string }) => (path.startsWith('/search') ? 'search' : 'core'),
  ]) {
    const { origin, send, seen, shaper } = await github(t, resource && { resource })
    t.equal(await send('/search/issues?q=1'), 200)
    const { signal, abort } = controller()
    const search = send('/search/issues?q=2', signal).catch((error: Error) => error.name)
    t.equal(await send('/repos/a/b'), 200)
    t.equal(await send('/user'), 200)
    t.equal(seen.length, 3, 'the second search waits')
    t.ok(shaper.status(`${origin} search`).pausedForMs > 15_000)
    t.equal(shaper.status(`${origin} core`).pausedForMs, 0)
    abort()
    t.equal(await search, 'AbortError')
  }
})

t.test('searches that wait when their resource is learnt wait on; what shares nothing with them passes', async t => {
  const { origin, send, seen, shaper } = await github(t, { rate: '1/s', retry: { status: [429], max: 3 } })
  const { signal, abort } = controller()
  const searches = [1, 2, 3].map(q => send(`/search/refused?q=${q}`, signal).catch((error: Error) => error.name))
  const others = ['/repos/a/b', '/repos/c/d', '/user'].map(path => send(path))
  t.same(await Promise.all(others), [200, 200, 200])
  t.match(shaper.status(`${origin} search`), { queued: 3, inFlight: 0 })
  t.same(
    seen.filter(({ path }) => path.startsWith('/search')).map(({ path }) => path),
    ['/search/refused?q=1'],
    'the first told that nothing is left',
  )
  abort()
  t.same(await Promise.all(searches), ['AbortError', 'AbortError', 'AbortError'])
})

t.test('a limit that only the body tells pauses for a minute; another refusal does not', async t => {
  const text = JSON.stringify({ message: 'You have exceeded a secondary rate limit. Please wait a few minutes.' })
  for (const [status, body, coding, expected] of [
    [403, Buffer.from(text), undefined, 60_000],
    [403, gzipSync(text), 'gzip', 60_000],
    [429, Buffer.from(text), undefined, 60_000],
    [403, Buffer.from('{"message":"Resource not accessible"}'), undefined, 0],
    [403, Buffer.from(text), 'gzip', 0],
  ] as const) {
    const { origin } = await serve(t, (_, res) => {
      res
        .writeHead(status, { 'x-ratelimit-remaining': '4900', ...(coding && { 'content-encoding': coding }) })
        .end(body)
    })
    const agent = new Agent()
    t.teardown(() => agent.destroy())
    const limit = shape({ rate: '100/s' })
    const answer = await request(origin, { dispatcher: agent.compose(limit) })
    t.ok(Buffer.from(await answer.body.arrayBuffer()).equals(body), 'the caller has all of it')
    const { pausedForMs } = limit.shaper.status(origin)
    t.ok(
      pausedForMs >= Math.max(0, expected - 5_000) && pausedForMs <= expected * 1.01,
      `${status} ${coding}: ${pausedForMs} of ${expected}`,
    )
  }
})

t.test('529 pauses, as 503 does', async t => {
  const { send, status } = await world(t, { rate: '100/s', learn: false }, () => [529, { 'retry-after': '9' }])
  await send()
  t.ok(status().pausedForMs > 5_000)
})

function controller() {
  const controller = new AbortController()
  return { signal: controller.signal, abort: () => controller.abort() }
}
