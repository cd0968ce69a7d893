/** An upstream that a reload removes is closed after its last request. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, connect, get, httpUpstream, type RigOptions, rawUpstream, startRig, turns } from './harness.js'

t.test('a removed upstream is closed after its last request in flight, without another reload', async t => {
  const open: (() => void)[] = []
  const old = await httpUpstream(t, (_req, res) => void open.push(() => res.end()))
  const next = await httpUpstream(t, (_req, res) => res.end())
  const asked: string[] = []
  const shared: RigOptions['shared'] = clock => {
    const memory = createMemoryStore({ clock })
    const { exchange } = memory
    memory.exchange = (upstream, state) => {
      asked.push(upstream)
      return exchange.call(memory, upstream, state)
    }
    return { store: memory, onOutage: 'local' }
  }
  const config = (url: string) => ({
    upstream: { url, learn: true },
    buckets: { all: { key: 'all', rate: '10/s', capacity: 20 } },
  })
  const rig = await startRig(t, config(old.url), { shared })
  const answer = askOnce(t, rig, get())
  await old.until(({ requests }) => requests.length === 1)
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config(next.url) })))
  open[0]!()
  t.equal((await answer).status, 200)
  await turns()
  asked.length = 0
  for (let second = 1; second <= 5; second += 1) {
    rig.pacer.runUntil(second * 1_000)
    await turns()
  }
  t.same(
    asked.filter(url => url === old.url),
    [],
    'the store gets no more calls for it',
  )
})

t.test('a request outside the gate is answered although its upstream was removed', async t => {
  const open: (() => void)[] = []
  const old = await httpUpstream(t, (_req, res) => void open.push(() => res.end('late')))
  const next = await httpUpstream(t, (_req, res) => res.end())
  const config = (url: string) => ({ upstream: url, routes: [{ name: 'all', mode: 'off' as const }] })
  const rig = await startRig(t, config(old.url))
  const client = await connect(t, rig)
  client.send(get())
  await old.until(({ requests }) => requests.length === 1)
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config(next.url) })))
  await turns()
  open[0]!()
  const answer = await client.answer()
  t.same([answer.status, answer.text], [200, 'late'])
})

t.test('a client that gives up a request of a removed upstream has cancelled it', async t => {
  const silent = await rawUpstream(t)
  const next = await httpUpstream(t, (_req, res) => res.end())
  const config = (url: string) => ({ upstream: url, routes: [{ name: 'all', mode: 'off' as const }] })
  // Its TLS handshake gets no answer, so the request waits for a connection.
  const rig = await startRig(t, config(silent.url.replace('http:', 'https:')))
  const client = await connect(t, rig)
  client.send(get())
  await silent.connection(0)
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config(next.url) })))
  client.hangUp()
  t.same(await rig.finished(1), ['all cancelled 499'])
  t.same(rig.failures, [])
  t.equal(rig.proxy.context.inProgress, 0)
})
