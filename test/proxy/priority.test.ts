import t from 'tap'
import { askOnce, type Client, connect, get, httpUpstream, pass, type Rig, startRig } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

/** One bucket for everyone, and a route for each of some priorities. */
function byPath(rate: string, capacity: number): object {
  return {
    buckets: { everyone: { key: 'all', rate, capacity } },
    routes: [
      { name: 'paid', match: { path: '/paid*' }, priority: 0 },
      { name: 'bulk', match: { path: '/bulk*' }, priority: 7 },
      { name: 'other' },
    ],
  }
}

/** Sends requests on connections of their own, each decided on before the next. */
async function queue(t: Teardown, rig: Rig, texts: readonly string[]): Promise<Client[]> {
  const clients: Client[] = []
  for (const text of texts) {
    const client = await connect(t, rig)
    const decided = (): number => rig.queued.length + rig.outcomes.length + rig.released.length
    const before = decided()
    client.send(text)
    await rig.until(() => decided() > before)
    clients.push(client)
  }
  return clients
}

function times(count: number, path: string, ...headers: string[]): string[] {
  return Array.from({ length: count }, () => get(path, ...headers))
}

t.test('lower numbers leave first; every twentieth slot is for those behind', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...byPath('10/s', 200) })
  await queue(t, rig, [...times(3, '/bulk'), ...times(1, '/'), ...times(45, '/paid')])
  await pass(rig, 4_900, 100)
  await upstream.until(({ requests }) => requests.length === 49)
  const behind = upstream.requests.flatMap((request, place) =>
    request.endsWith('/paid') ? [] : [`${place} ${request}`],
  )
  t.same(behind, ['0 GET /bulk', '21 GET /', '41 GET /bulk', '48 GET /bulk'])
})

t.test('a flood of class 7 delays class 0 by a period, and by two where a slot is for those behind', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...byPath('100/s', 200) })
  await queue(t, rig, times(150, '/bulk'))
  for (let count = 0; count < 21; count += 1) {
    const [paid] = await queue(t, rig, times(1, '/paid'))
    const answered = paid!.answer()
    const before = rig.released.length
    // A period is 10 ms.
    while (!rig.released.slice(before).some(({ route }) => route === 'paid')) await pass(rig, rig.pacer.now() + 10, 10)
    t.equal((await answered).status, 200)
  }
  await pass(rig, 1_710, 10)
  await rig.finished(171)
  const waitsOf = (name: string): number[] =>
    rig.released
      .filter(({ route }) => route === name)
      .map(({ wait }) => Math.round(wait))
      .sort((a, b) => a - b)
  const [paid, bulk] = [waitsOf('paid'), waitsOf('bulk')]
  t.same(paid, [...Array(20).fill(10), 20])
  t.equal(bulk.length, 150, 'nobody had to make room')
  t.equal(bulk.at(-1), 1_700, 'the last of the flood leaves last')
})

t.test(
  'a full bucket makes room for a lower number with the newest of the last class: they are answered 429',
  async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...byPath('1/s', 4) })
    const clients = await queue(t, rig, [...times(2, '/bulk'), ...times(1, '/'), ...times(1, '/bulk')])
    const paid = await connect(t, rig)
    paid.send(get('/paid'))
    const told = await clients[3]!.answer()
    t.equal(told.status, 429)
    t.ok(Number(told.header('Retry-After')) >= 1)
    t.same(told.json()['violated-policies'], ['everyone'])
    t.equal(told.json().detail, 'bucket "everyone" is full: 4 of 4, and this request made room for another')
    const late = await askOnce(t, rig, get('/bulk'))
    t.equal(late.status, 429, 'the last class makes room for nobody')
    t.equal(late.json().detail, 'bucket "everyone" is full: 4 of 4')
    t.same(rig.rejections, ['evicted everyone', 'overflow everyone'])
    rig.pacer.runAll()
    t.equal((await paid.answer()).status, 200)
    await rig.finished(6)
    t.same([...rig.outcomes].sort(), [
      'bulk forwarded 200',
      'bulk forwarded 200',
      'bulk rejected 429',
      'bulk rejected 429',
      'other forwarded 200',
      'paid forwarded 200',
    ])
  },
)

t.test('the priority of a tier goes before that of the route, and that of a trusted hop before both', async t => {
  for (const trustProxy of [true, false]) {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, {
      upstream: upstream.url,
      trustProxy,
      buckets: {
        client: { key: 'header:x-user', rate: '1000/s', tiers: [{ name: 'gold', keys: ['gold'], priority: 1 }] },
        everyone: { key: 'all', rate: '10/s', capacity: 100, minShare: 0 },
      },
      routes: [
        { name: 'late', match: { path: '/late*' }, priority: 6 },
        { name: 'any', priority: { header: true } },
      ],
    })
    const texts: [string, ...string[]][] = [
      ['/late/first', 'X-User: plain'],
      ['/late', 'X-User: plain'],
      ['/late/gold', 'X-User: gold'],
      ['/seven', 'X-User: gold', 'Priority: u=7'],
      ['/none', 'X-User: plain', 'Priority: u=9'],
      ['/zero', 'X-User: plain', 'Priority: i, u=0'],
      ['/gold', 'X-User: gold'],
    ]
    await queue(
      t,
      rig,
      texts.map(text => get(...text)),
    )
    await pass(rig, 1_000, 100)
    await upstream.until(({ requests }) => requests.length === 7)
    const paths = upstream.requests.map(request => request.replace('GET ', ''))
    t.same(
      paths,
      trustProxy
        ? ['/late/first', '/zero', '/late/gold', '/gold', '/none', '/late', '/seven']
        : ['/late/first', '/late/gold', '/seven', '/gold', '/none', '/zero', '/late'],
      `trustProxy ${trustProxy}`,
    )
  }
})
