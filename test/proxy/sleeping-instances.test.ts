/** A request holds its bucket instances until its outcome, whichever that is. Then they sleep. */
import t from 'tap'
import { askOnce, connect, get, httpUpstream, type Rig, startRig } from './harness.js'

/** The keys of the instances that are awake. */
function awake(rig: Rig): string[] {
  const { bucketTable } = rig.proxy.context
  const names = [...rig.proxy.context.bucketTable.all()].map(({ limits }) => limits.name)
  return [...new Set(names)].flatMap(name =>
    [...bucketTable.entries(name)]
      .map(([key]) => key)
      // Of one that sleeps the table shows a new copy each time.
      .filter(key => new Set([1, 2].map(() => bucketTable.look(name, key))).size === 1),
  )
}

const BUCKETS = {
  client: { key: 'header:x-key', rate: '1/s', capacity: 2 },
}

t.test('forwarded, queued, rejected, expired and cancelled requests let their instances sleep', async t => {
  let answerHeld: (() => void) | undefined
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.url === '/hold') answerHeld = () => res.end('ok')
    else res.end('ok')
  })
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: BUCKETS,
    routes: [{ match: { path: '/short' }, maxWait: '500ms' }, { name: 'api' }],
  })
  const held = askOnce(t, rig, get('/hold', 'x-key: held'))
  await upstream.until(({ requests }) => requests.length === 1)
  t.same(awake(rig), ['held'], 'it is being forwarded')
  answerHeld!()
  t.match((await held).header('ratelimit'), /r=1/, 'the level of that moment is in its headers')
  t.same(awake(rig), [])

  await askOnce(t, rig, get('/', 'x-key: a'))
  const waiting = askOnce(t, rig, get('/', 'x-key: a'))
  await rig.until(({ queued }) => queued.length === 1)
  t.same(awake(rig), ['a'])
  t.equal((await askOnce(t, rig, get('/', 'x-key: a'))).status, 429)
  t.equal((await askOnce(t, rig, get('/short', 'x-key: a'))).status, 429)
  t.same(awake(rig), ['a'], 'another one waits')
  const leaving = await connect(t, rig)
  await askOnce(t, rig, get('/', 'x-key: b'))
  leaving.send(get('/', 'x-key: b'))
  await rig.until(({ queued }) => queued.length === 2)
  leaving.hangUp()
  await rig.until(({ outcomes }) => outcomes.some(outcome => outcome.includes('cancelled')))
  t.same(awake(rig), ['a'])
  rig.pacer.runUntil(1_000)
  t.equal((await waiting).status, 200)
  t.same(awake(rig), [])
})

t.test('a request that is sent again holds its instances once', async t => {
  let refusals = 2
  const upstream = await httpUpstream(t, (_req, res) => {
    if (refusals-- > 0) res.writeHead(429, { 'Retry-After': '1' }).end('no')
    else res.end('ok')
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [429], max: 3 } },
    buckets: BUCKETS,
    routes: [{ name: 'api' }],
  })
  const answer = askOnce(t, rig, get('/', 'x-key: a'))
  await rig.until(({ queued }) => queued.length === 1)
  t.same(awake(rig), ['a'])
  rig.pacer.runUntil(1_000)
  await rig.until(({ queued }) => queued.length === 2)
  t.same(awake(rig), ['a'])
  rig.pacer.runUntil(3_000)
  t.equal((await answer).status, 200)
  t.same(awake(rig), [])
})
