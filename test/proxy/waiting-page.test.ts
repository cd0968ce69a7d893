/** Waiting pages as they are sent, and their event streams (contract 13). */
import { writeFileSync } from 'node:fs'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { faultOfTemplate } from '../../src/config/waiting-template.js'
import { IncomingRequest } from '../../src/proxy/exchange/incoming-request.js'
import { PageWait } from '../../src/proxy/exchange/page-wait.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { blocks } from '../docs-code.js'
import {
  type Answer,
  askOnce,
  type Client,
  connect,
  get,
  httpUpstream,
  OFF,
  passBoth,
  type Rig,
  startRig,
  turns,
} from './harness.js'
import { answerOf, ask, openSession, request } from './http2/h2-client.js'

type Teardown = Parameters<typeof startRig>[0]

const HTML = 'Accept: text/html,*/*;q=0.8'
const STREAM = '/.well-known/shaper/wait'

/** Ten a second, ten at most, for everyone. Nobody waits. */
const TEN = {
  trustProxy: ['127.0.0.1'],
  buckets: { all: { key: 'all', rate: '10/s', capacity: 10 } },
  routes: [{ name: 'all', mode: 'meter' }],
}

async function fullRig(t: Teardown, config: object = {}) {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...TEN, ...config }, { virtualClock: true })
  for (let number = 0; number < 10; number += 1) await askOnce(t, rig, from(1, '/first'))
  return { rig, upstream }
}

function from(last: number, path = '/', ...headers: string[]): string {
  return get(path, `X-Forwarded-For: 192.0.2.${last}`, ...headers)
}

/** Asks for the page of a client. */
const askPage = (t: Teardown, rig: Rig, last: number, path = '/'): Promise<Answer> =>
  askOnce(t, rig, from(last, path, HTML))

/** Opens the stream of a client. */
async function listen(t: Teardown, rig: Rig, last: number, path = '/'): Promise<Client> {
  const client = await connect(t, rig)
  client.send(from(last, `${STREAM}?for=${encodeURIComponent(path)}`))
  await client.until(({ rest }) => /\n\r\n/.test(rest))
  return client
}

/** What a stream has said. */
function said({ rest }: Client): string[] {
  return [...rest.matchAll(/^(?:event: (\w+)\ndata: now|data: (\{.*\}))$/gm)].map(([, event, data]) => event ?? data!)
}

const listening = (client: Client, count = 1): Promise<void> => client.until(each => said(each).length >= count)

t.test('a browser gets a page in place of the problem document', async t => {
  const { rig, upstream } = await fullRig(t)
  const answer = await askPage(t, rig, 10, '/<script>?q="><b>')
  t.equal(answer.status, 429)
  t.equal(answer.header('content-type'), 'text/html; charset=utf-8')
  t.equal(answer.header('retry-after'), '1')
  t.equal(answer.header('cache-control'), 'no-store')
  t.equal(answer.header('vary'), 'Accept, Sec-Fetch-Mode')
  t.equal(answer.header('x-content-type-options'), 'nosniff')
  t.equal(answer.header('ratelimit'), '"all";r=0;t=1')
  t.match(
    answer.header('content-security-policy'),
    /^default-src 'none'; script-src 'sha256-\S+'; style-src 'sha256-\S+'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'$/,
  )
  t.match(answer.text, /^<!doctype html>\n<html lang="en">/)
  t.match(answer.text, '<noscript><meta http-equiv="refresh" content="1"></noscript>')
  t.match(answer.text, '{"until":100,"wait":100,"position":1,"stream":"/.well-known/shaper/wait"}')
  t.match(answer.text, '<span data-shaper="wait">1 s</span>')
  t.match(answer.text, '<span data-shaper="position">1</span>')
  t.notMatch(answer.text, /\{\{|<b>|q=/, 'nothing of the request is in it')
  t.notMatch(answer.text, /(?:src|href)="(?!data:)|url\(/, 'it loads nothing')
  t.ok(answer.body.length < 8_192, `${answer.body.length} bytes`)
  t.equal(upstream.requests.length, 10)
  t.same(rig.outcomes.slice(10), ['all rejected 429'])
})

t.test('everybody else gets the problem document', async t => {
  const { rig } = await fullRig(t)
  const problem = async (text: string): Promise<void> => {
    const answer = await askOnce(t, rig, text)
    t.equal(answer.status, 429)
    t.equal(answer.header('content-type'), 'application/problem+json')
    t.equal(answer.header('vary'), undefined)
  }
  await problem(from(10))
  await problem(from(10, '/', 'Accept: */*'))
  await problem(from(10, '/', 'Accept: application/json, text/html'))
  await problem(from(10, '/', HTML, 'Sec-Fetch-Mode: cors'))
  await problem(from(10, '/', HTML).replace('GET', 'HEAD'))
  await problem(`POST / HTTP/1.1\r\nHost: example.test\r\nContent-Length: 1\r\n${HTML}\r\n\r\nx`)
})

t.test('only where a turn comes: not for what can never fit, nor for outages', async t => {
  const upstream = await httpUpstream(t)
  const buckets = { all: { key: 'all', rate: '1/s', capacity: 2 } }
  const routes = [{ name: 'all', cost: { header: 'x-cost', max: 5 } }]
  const rig = await startRig(t, { upstream: upstream.url, buckets, routes })
  const answer = await askOnce(t, rig, get('/', HTML, 'X-Cost: 3'))
  t.equal(answer.status, 429)
  t.equal(answer.header('content-type'), 'application/problem+json')
  const down = await startRig(t, { upstream: 'http://127.0.0.1:1', ...OFF })
  t.equal((await askOnce(t, down, get('/', HTML))).header('content-type'), 'application/problem+json')
})

t.test('a status of the bucket stays, and a gate answers proxies, not browsers', async t => {
  const buckets = { all: { key: 'all', rate: '10/s', capacity: 1, status: 503 } }
  const { rig } = await fullRig(t, { buckets })
  const answer = await askPage(t, rig, 10)
  t.equal(answer.status, 503)
  t.equal(answer.header('content-type'), 'text/html; charset=utf-8')
  const gate = await startRig(t, { upstream: 'gate:', ...TEN })
  for (let number = 0; number < 10; number += 1) await askOnce(t, gate, from(1))
  const rejected = await askPage(t, gate, 10)
  t.equal(rejected.status, 429)
  t.equal(rejected.header('content-type'), 'application/problem+json')
})

t.test('waitingPage: false turns it off, for all routes or for one', async t => {
  const routes = [
    { name: 'api', match: { path: '/api/*' }, mode: 'meter', waitingPage: false },
    { name: 'all', mode: 'meter' },
  ]
  const { rig } = await fullRig(t, { routes })
  t.equal((await askPage(t, rig, 10, '/api/x')).header('content-type'), 'application/problem+json')
  t.equal((await askPage(t, rig, 10)).header('content-type'), 'text/html; charset=utf-8')
  const off = await fullRig(t, {
    waitingPage: false,
    routes: [
      { name: 'shop', match: { path: '/shop' }, mode: 'meter', waitingPage: true },
      { name: 'all', mode: 'meter' },
    ],
  })
  t.equal((await askPage(t, off.rig, 10)).header('content-type'), 'application/problem+json')
  t.equal((await askPage(t, off.rig, 10, '/shop')).header('content-type'), 'text/html; charset=utf-8')
})

t.test('the stream says when, costs nothing, and is no request', async t => {
  const { rig, upstream } = await fullRig(t)
  await askPage(t, rig, 10, '/there')
  await askPage(t, rig, 11, '/there')
  const [one, two] = [await listen(t, rig, 10, '/there'), await listen(t, rig, 11, '/there')]
  await listening(one)
  await listening(two)
  t.match(one.rest, /^HTTP\/1\.1 200 OK\r\n(?:.*\r\n)*Content-Type: text\/event-stream; charset=utf-8\r\n/)
  t.match(one.rest, /\r\nCache-Control: no-store\r\n/)
  t.same(said(one), ['{"until":100,"wait":100,"position":1}'])
  t.same(said(two), ['{"until":200,"wait":200,"position":2}'])
  t.equal(rig.proxy.context.pageStreams.size, 2)
  t.equal(rig.proxy.context.inProgress, 0, 'no shutdown waits for it')
  t.equal(rig.proxy.context.bucketTable.look('all', 'all')?.level(rig.pacer.now()), 10)
  await passBoth(rig, 100, 20)
  await listening(one, 2)
  t.same(said(one).slice(1), ['go'])
  t.equal(said(two).length, 1)
  t.equal((await askPage(t, rig, 10, '/there')).status, 200)
  await passBoth(rig, 120, 20)
  await listening(two, 2)
  t.same(said(two).slice(1), ['go'])
  t.equal((await askPage(t, rig, 11, '/there')).status, 200)
  t.equal(rig.proxy.context.pageStreams.size, 0)
  t.same(rig.outcomes.slice(10), ['all rejected 429', 'all rejected 429', 'all forwarded 200', 'all forwarded 200'])
  t.notOk(upstream.requests.some(each => each.includes('well-known')))
})

t.test('a new stream of a client replaces the old one; a hang-up ends it', async t => {
  const { rig } = await fullRig(t)
  await askPage(t, rig, 10)
  const one = await listen(t, rig, 10)
  const two = await listen(t, rig, 10)
  await listening(one, 2)
  t.equal(said(one).at(-1), 'replaced')
  await listening(two)
  t.equal(rig.proxy.context.pageStreams.size, 1)
  // The connection of the old one goes on.
  one.send(from(10, '/after'))
  await one.until(({ rest }) => /0\r\n\r\nHTTP\/1\.1 429 /.test(rest))
  two.hangUp()
  await turns()
  t.equal(rig.proxy.context.pageStreams.size, 0)
  t.equal(rig.clock.runAll() >= 0, true)
})

t.test('a client that does not take what it is told loses its stream', async t => {
  const { rig } = await fullRig(t)
  const { context } = rig.proxy
  let isOpen = true
  const told: string[] = []
  const connection = { peer: '192.0.2.10', peerKey: '192.0.2.10', alone: true, done: () => undefined }
  const answer = {
    data: (bytes: Buffer) => told.push(bytes.toString()) === 0,
    ...{ start: () => undefined, readRest: () => undefined, onceDrained: () => undefined },
    cut: () => (isOpen = false),
  }
  const rawHeaders = ['Host', 'example.test']
  const req = { method: 'GET', url: `${STREAM}?for=%2F`, httpVersionMinor: 1, rawHeaders, complete: true } as const
  new PageWait(new IncomingRequest(context, connection as never, req), answer as never).start()
  t.same(told, ['retry: 2000\n\n'], 'nothing more is given to a full buffer')
  t.notOk(isOpen)
  t.equal(context.pageStreams.size, 0)
})

t.test('who may not listen, and what is not waited for', async t => {
  const { rig, upstream } = await fullRig(t, {
    routes: [
      { name: 'off', match: { path: '/off' }, mode: 'off' },
      { name: 'plain', match: { path: '/plain' }, mode: 'meter', waitingPage: false },
      { name: 'dry', match: { path: '/dry' }, mode: 'meter', dryRun: true },
      { name: 'all', match: { path: '/*' }, mode: 'meter' },
    ],
  })
  const status = async (target: string, ...headers: string[]): Promise<number> =>
    (await askOnce(t, rig, from(10, target, ...headers))).status
  t.equal(await status(`${STREAM}?for=%2F`, 'Sec-Fetch-Site: cross-site'), 403)
  t.equal(await status(`${STREAM}?for=%2F`, 'Sec-Fetch-Site: same-site'), 403)
  t.equal(await status(`${STREAM}?for=%2F`, 'Origin: http://evil.test'), 403)
  t.equal(await status(`${STREAM}?for=%2F`, 'Origin: null'), 403)
  t.equal(await status(STREAM), 400)
  t.equal(await status(`${STREAM}?for=there`), 400)
  t.equal(await status(`${STREAM}?for=%2F%0d%0aX:%20y`), 400)
  t.equal(await status(`${STREAM}?for=%2Foff`), 204)
  t.equal(await status(`${STREAM}?for=%2Fplain`), 204)
  t.equal(await status(`${STREAM}?for=%2Fdry`), 204)
  const posted = await askOnce(t, rig, from(10, `${STREAM}?for=%2F`).replace('GET', 'POST'))
  t.equal(posted.status, 405)
  t.equal(posted.header('allow'), 'GET')
  t.equal(rig.proxy.context.pageStreams.size, 0)
  const before = upstream.requests.length
  for (const path of ['/.well-known/shaper/', `${STREAM}/x`, `${STREAM}s`, '/.well-known/acme']) await status(path)
  t.equal(upstream.requests.length, before, 'all else is a request like any other: the bucket is full')
  await passBoth(rig, 1_000)
  t.equal(await status('/.well-known/shaper/other'), 200)
})

t.test('streams end at a reload, and find the routes that are in effect then', async t => {
  const { rig, upstream } = await fullRig(t)
  const client = await listen(t, rig, 10)
  await listening(client)
  const slow = { ...TEN, buckets: { all: { key: 'all', rate: '1/s', capacity: 10 } } }
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', upstream: upstream.url, ...slow })))
  await client.until(({ rest }) => rest.endsWith('0\r\n\r\n'))
  t.equal(rig.proxy.context.pageStreams.size, 0)
  const again = await listen(t, rig, 10)
  await listening(again)
  t.same(said(again), ['{"until":1000,"wait":1000,"position":1}'])
})

t.test('streams end at the shutdown', async t => {
  const { rig } = await fullRig(t)
  const client = await listen(t, rig, 10)
  await listening(client)
  const drained = rig.proxy.drain(30_000)
  await client.end()
  t.match(client.rest, /0\r\n\r\n$/)
  await drained
  t.equal(rig.clock.runAll() >= 0, true)
})

t.test('behind another shaper the page does not listen', async t => {
  const { rig } = await fullRig(t)
  const answer = await askOnce(t, rig, from(10, '/', HTML, 'Via: 1.1 shaper (1f3a9c)'))
  t.equal(answer.status, 429)
  t.match(answer.text, '{"until":100,"wait":100,"position":1}')
})

t.test('with appointments its address stands for the ticket', async t => {
  const { rig } = await fullRig(t, { routes: [{ name: 'all', mode: 'meter', appointments: true }] })
  const page = await askPage(t, rig, 10)
  t.equal(page.status, 429)
  t.match(page.header('shaper-ticket'), /^\d+\.[\w-]{43}$/, 'for programs that ask like a browser')
  t.equal(page.header('cache-control'), 'no-store', 'once')
  t.equal(page.header('set-cookie'), undefined)
  const client = await listen(t, rig, 10)
  await listening(client)
  t.equal((await askPage(t, rig, 10)).status, 429, 'too early')
  await passBoth(rig, 100, 20)
  await listening(client, 2)
  t.equal(said(client).at(-1), 'go')
  t.equal((await askPage(t, rig, 11)).status, 429, 'nobody else has its room')
  t.equal((await askOnce(t, rig, from(10))).status, 429, 'nor has a program that shows no ticket')
  t.equal((await askPage(t, rig, 10)).status, 200)
  t.equal((await askPage(t, rig, 10)).status, 429, 'once')
})

/** Pages of many clients: whether each came in when it was told to go, at its first return. */
async function returns(t: Teardown, { appointments = false, newcomers = 0 }): Promise<number> {
  const upstream = await httpUpstream(t)
  const rig = await startRig(
    t,
    {
      ...{ upstream: upstream.url, trustProxy: ['127.0.0.1'] },
      buckets: { all: { key: 'all', rate: '100/s', capacity: 100 } },
      routes: [{ name: 'all', mode: 'meter', appointments }],
    },
    { virtualClock: true },
  )
  const hop = await connect(t, rig)
  for (let number = 0; number < 100; number += 1) await hop.ask(from(1))
  const pages: { readonly last: number; readonly stream: Client; back: boolean }[] = []
  for (let number = 0; number < 100; number += 1) {
    const last = 100 + number
    await hop.ask(from(last, '/', HTML))
    pages.push({ last, stream: await listen(t, rig, last), back: false })
  }
  let admitted = 0
  for (let step = 0; step < 120; step += 1) {
    await passBoth(rig, 20, 20)
    for (let more = 0; more < newcomers; more += 1) await hop.ask(from(2))
    for (const page of pages) {
      if (page.back || said(page.stream).at(-1) !== 'go') continue
      page.back = true
      if ((await hop.ask(from(page.last, '/', HTML))).status === 200) admitted += 1
    }
  }
  return pages.every(({ back }) => back) ? admitted : 0
}

t.test(
  'a hundred pages: all that have booked come in at their first return, among twice as many newcomers',
  async t => {
    t.equal(await returns(t, { appointments: true, newcomers: 4 }), 100)
  },
)

t.test('a hundred pages without appointments: all come in at their first return', async t => {
  t.ok((await returns(t, {})) >= 95)
})

t.test('over HTTP/2', async t => {
  const { rig } = await fullRig(t)
  const session = openSession(t, rig.port)
  const forwarded = { 'x-forwarded-for': '192.0.2.10' }
  const page = await ask(session, { ...forwarded, ':path': '/', accept: 'text/html' })
  t.equal(page.status, 429)
  t.equal(page.headers['content-type'], 'text/html; charset=utf-8')
  t.match(page.text, 'You are in line')
  const stream = request(session, { ...forwarded, ':path': `${STREAM}?for=%2F` })
  let text = ''
  stream.setEncoding('utf8').on('data', chunk => (text += chunk))
  const over = answerOf(stream)
  const dropped = request(session, { 'x-forwarded-for': '192.0.2.11', ':path': `${STREAM}?for=%2F` })
  dropped.resume()
  await new Promise(resolve => dropped.once('data', resolve))
  t.equal(rig.proxy.context.pageStreams.size, 2)
  dropped.close(8)
  while (!text.includes('data: {')) await turns()
  await turns()
  t.equal(rig.proxy.context.pageStreams.size, 1, 'a stream that is reset is over')
  await passBoth(rig, 100, 20)
  t.equal((await over).status, 200)
  t.match(text, /^retry: 2000\n\ndata: \{"until":100,"wait":100,"position":1\}\n\nevent: go\ndata: now\n\n$/)
  t.equal((await ask(session, { ...forwarded, ':path': '/', accept: 'text/html' })).status, 200)
})

t.test('a template of the site, read again at a reload', async t => {
  const folder = t.testdir({
    'wait.html': '<html><head>{{script}}</head><p>Größe: {{wait}}, {{ position }}.</p></html>',
  })
  const template = `${folder}/wait.html`
  const { rig, upstream } = await fullRig(t, { waitingPage: { template } })
  const answer = await askPage(t, rig, 10)
  t.match(
    answer.body.toString(),
    /<p>Größe: <span data-shaper="wait">1 s<\/span>, <span data-shaper="position">1<\/span>\.<\/p>/,
  )
  t.match(answer.header('content-security-policy'), /script-src 'sha256-\S+' 'self'; style-src +'self'; style-src-attr/)
  writeFileSync(template, '<head>{{script}}</head>Anders')
  t.match((await askPage(t, rig, 10)).body.toString(), /Größe/)
  const next = { listen: '127.0.0.1:0', upstream: upstream.url, ...TEN, waitingPage: { template } }
  await rig.proxy.reload(parseConfig(JSON.stringify(next)))
  t.match((await askPage(t, rig, 10)).body.toString(), /Anders$/)
})

t.test('the template in the docs has all that it needs', async t => {
  const [example = ''] = blocks('docs/waiting-page.md', 'html')
  t.equal(faultOfTemplate(Buffer.from(example)), undefined)
  const template = `${t.testdir({ 'wait.html': example })}/wait.html`
  const { rig } = await fullRig(t, { waitingPage: { template } })
  const html = (await askPage(t, rig, 10)).body.toString()
  t.match(html, '<h1>Noch <span data-shaper="wait">1 s</span></h1>')
  t.match(html, '<p>Sie sind an Stelle <span data-shaper="position">1</span>.</p>')
})

t.test('with a store the page that was rejected comes back at its moment', async t => {
  const upstream = await httpUpstream(t)
  const config = { upstream: upstream.url, ...TEN, routes: [{ name: 'all' }] }
  const rig = await startRig(t, config, {
    virtualClock: true,
    shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' }),
  })
  await askOnce(t, rig, from(1, '/first'))
  const others = await Promise.all(Array.from({ length: 9 }, () => connect(t, rig)))
  for (const other of others) other.send(from(1, '/other'))
  await rig.until(({ queued }) => queued.length === 9)
  const page = await askPage(t, rig, 10)
  t.equal(page.status, 429)
  t.match(page.text, '"stream"')
  const client = await listen(t, rig, 10)
  await listening(client)
  t.match(JSON.parse(said(client)[0]!), { until: Number, wait: Number, position: Number })
  for (let step = 0; step < 100 && said(client).at(-1) !== 'go'; step += 1) await passBoth(rig, 20, 20)
  t.equal(said(client).at(-1), 'go')
  const back = await connect(t, rig)
  back.send(from(10, '/', HTML))
  await passBoth(rig, 2_000)
  t.equal((await back.answer()).status, 200)
})

t.test('through egress there is no page, and the path of the stream is that of the origin', async t => {
  const upstream = await httpUpstream(t)
  const config = {
    buckets: { all: { key: 'all', rate: '1/s', capacity: 1 } },
    routes: [{ name: 'all', mode: 'meter' }],
  }
  const { host } = new URL(upstream.url)
  const rig = await startRig(t, { ...config, egress: { allow: [host] } }, { egress: {}, virtualClock: true })
  const asked = (path: string): string => get(path, HTML).replace('GET ', `GET ${upstream.url}`)
  t.equal((await askOnce(t, rig, asked(`${STREAM}?for=%2F`))).status, 200)
  t.same(upstream.requests, [`GET ${STREAM}?for=%2F`])
  const rejected = await askOnce(t, rig, asked('/'))
  t.equal(rejected.status, 429)
  t.equal(rejected.header('content-type'), 'application/problem+json')
})
