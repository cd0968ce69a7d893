/** The end of the proxy: what clients have sent by then, or send just after it, is answered, and the answer says that it is the last. */
import type { ServerResponse } from 'node:http'
import { connect as tcpConnect } from 'node:net'
import t from 'tap'
import {
  type Client,
  connect,
  get,
  httpUpstream,
  OFF,
  ONE_A_SECOND,
  post,
  type Rig,
  startRig,
  TLS,
  turns,
} from './harness.js'
import { ask, openSession } from './http2/h2-client.js'

type Test = Pick<typeof t, 'equal' | 'notOk' | 'teardown'>

/** ms that a connection without a request is left for one. */
const WAIT = 500

async function start(t: Test, config: object = {}): Promise<Rig> {
  // It is slow enough for the proxy to have stopped listening by then.
  const upstream = await httpUpstream(t, (_req, res) => void turns(200).then(() => res.end('ok')))
  return startRig(t, { upstream: upstream.url, ...OFF, ...config }, { virtualClock: true })
}

async function passTo(rig: Rig, ms: number): Promise<void> {
  rig.clock.runUntil(ms)
  await turns()
}

async function isLast(t: Test, client: Client, answer = client.answer()): Promise<void> {
  const { status, header } = await answer
  t.equal(status, 200)
  t.equal(header('connection'), 'close')
  await client.end()
  t.notOk(client.reset)
}

t.test('a request that has come and was not read yet is answered, however long its connection was idle', async t => {
  const rig = await start(t)
  const client = await connect(t, rig)
  await client.ask(get())
  await passTo(rig, 10 * WAIT)
  client.send(get('/unread'))
  const drained = rig.proxy.drain(60_000)
  await isLast(t, client)
  await drained
})

t.test('connections that only the kernel has accepted are served', async t => {
  const rig = await start(t)
  const sockets = Array.from({ length: 40 }, () => tcpConnect(rig.port, '127.0.0.1'))
  const texts = sockets.map(async socket => {
    t.teardown(() => socket.destroy())
    socket.write(get())
    let text = ''
    for await (const chunk of socket) text += chunk
    return text
  })
  // By then they have asked the kernel. The server accepts the first in the next turn.
  await new Promise<void>(resolve => process.nextTick(resolve))
  t.equal(rig.proxy.context.inProgress, 0)
  const drained = rig.proxy.drain(60_000)
  for (const text of await Promise.all(texts)) t.match(text, /^HTTP\/1\.1 200 OK\r\n.*\r\nConnection: close\r\n/s)
  await t.rejects(connect(t, rig), { code: 'ECONNREFUSED' })
  await drained
})

t.test('an idle connection: closed at once, or half a second later if a request may be on its way', async t => {
  const rig = await start(t)
  const [old, recent, asking] = [await connect(t, rig), await connect(t, rig), await connect(t, rig)]
  await old.ask(get())
  await passTo(rig, WAIT)
  await recent.ask(get())
  await asking.ask(get())
  const opened = await connect(t, rig)
  await turns()
  await passTo(rig, 2 * WAIT - 1)
  let isOver = false
  const drained = rig.proxy.drain(60_000).then(() => {
    isOver = true
  })
  await old.end()
  await passTo(rig, 3 * WAIT - 2)
  for (const client of [recent, asking, opened]) t.notOk(client.ended)
  await isLast(t, asking, asking.ask(get('/late')))
  t.notOk(isOver)
  await passTo(rig, 3 * WAIT - 1)
  for (const client of [recent, opened]) {
    await client.end()
    t.equal(client.rest, '')
  }
  await drained
})

t.test('a request that came while the process stood still is answered', async t => {
  const rig = await start(t)
  const client = await connect(t, rig)
  await turns()
  const drained = rig.proxy.drain(60_000)
  await turns()
  // The kernel has it, and the time is over before it is read.
  client.send(get('/late'))
  rig.clock.runUntil(2 * WAIT)
  await isLast(t, client)
  await drained
})

t.test('the head of a request may come in parts, within half a second', async t => {
  const rig = await start(t)
  const [quick, slow] = [await connect(t, rig), await connect(t, rig)]
  for (const client of [quick, slow]) client.send('GET / HTTP/1.1\r\nHo')
  await turns()
  const drained = rig.proxy.drain(60_000)
  await turns()
  slow.send('st: h')
  await passTo(rig, WAIT - 1)
  await isLast(t, quick, quick.ask('st: h\r\n\r\n'))
  t.equal(slow.rest, '')
  await passTo(rig, WAIT)
  const late = await slow.answer()
  t.equal(late.status, 408)
  t.equal(late.header('connection'), 'close')
  slow.hangUp()
  await drained
})

t.test('a head that was sent before the end and did not say that it is the last: one more is answered', async t => {
  let res: ServerResponse | undefined
  const upstream = await httpUpstream(t, (req, response) => {
    if (req.url !== '/long') return response.end('ok')
    res = response
    res.write('half')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send(get('/long'))
  await client.until(({ rest }) => rest.includes('half'))
  const drained = rig.proxy.drain(60_000)
  await turns()
  res!.end()
  const { header } = await client.answer()
  t.equal(header('connection'), 'keep-alive')
  await isLast(t, client, client.ask(get('/more')))
  await drained
})

t.test('32 clients that ask again as soon as they have an answer: none loses a request', async t => {
  const rig = await start(t)
  const clients = await Promise.all(Array.from({ length: 32 }, () => connect(t, rig)))
  let answers = 0
  let drained: Promise<unknown> | undefined
  await Promise.all(
    clients.map(async client => {
      for (let isOpen = true; isOpen; ) {
        const { status, header } = await client.ask(get())
        if (status !== 200) t.fail(`status ${status}`)
        isOpen = header('connection') !== 'close'
        answers += 1
        if (answers === 100) drained = rig.proxy.drain(60_000)
      }
    }),
  )
  t.ok(answers >= 100 + 31, 'each has its last answer after the signal')
  await drained
  t.same(new Set(rig.outcomes), new Set(['all forwarded 200']))
})

t.test('TLS: a connection in its handshake is served', async t => {
  const rig = await start(t, TLS)
  const connecting = connect(t, rig, { tls: true })
  await new Promise<void>(resolve => process.nextTick(resolve))
  const drained = rig.proxy.drain(60_000)
  const client = await connecting
  await isLast(t, client, client.ask(get()))
  await drained
})

t.test('HTTP/2: a session that had an answer just now may ask once more', async t => {
  const rig = await start(t)
  const [asking, idle] = [openSession(t, rig.port), openSession(t, rig.port)]
  const closed = [asking, idle].map(session => new Promise(resolve => session.once('close', resolve)))
  for (const session of [asking, idle]) t.match(await ask(session), { status: 200 })
  const drained = rig.proxy.drain(60_000)
  await turns()
  t.match(await ask(asking), { status: 200 })
  await closed[0]
  t.notOk(idle.destroyed)
  await passTo(rig, WAIT)
  await closed[1]
  await drained
})

t.test(
  'the end of shutdownTimeout: what may have been served and must not be twice is not asked for again',
  async t => {
    const upstream = await httpUpstream(t, () => undefined)
    const routes = [{ name: 'off', mode: 'off', match: { path: '/off' } }, { name: 'all' }]
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND, routes })
    const clients = [await connect(t, rig), await connect(t, rig), await connect(t, rig)] as const
    const [sentPost, sentGet, queuedPost] = clients
    sentPost.send(post('a', '/off'))
    sentGet.send(get('/first'))
    await upstream.until(({ requests }) => requests.length === 2)
    queuedPost.send(post('b'))
    await rig.until(({ queued }) => queued.length === 1)
    await rig.proxy.drain(0)
    const [unclear, repeatable, unsent] = await Promise.all(clients.map(client => client.answer()))
    for (const { status } of [unclear!, repeatable!, unsent!]) t.equal(status, 503)
    t.equal(unclear!.header('retry-after'), undefined)
    t.equal(unclear!.json().retryAfterMs, undefined)
    t.match(unclear!.json().detail, /the upstream may have served this request/)
    t.equal(repeatable!.header('retry-after'), '1')
    t.equal(unsent!.header('retry-after'), '1')
  },
)
