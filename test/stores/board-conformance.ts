/** Rules for every store about what instances tell each other, and leave there for each other. In real time. */
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { MOST_OVERRIDES, type News, type Override, VIEW_LIFE } from '../../src/sharing/board.js'
import type { Store } from '../../src/sharing/store.js'
import { until } from '../servers/redis.js'

interface Pair {
  readonly store: Store
  /** Another instance on it, or for a store in one process the same one. */
  readonly other: Store
  close(): Promise<void>
}

/** What an instance hears, each with our time. */
function hear(store: Store): { at: number; news: News }[] {
  const heard: { at: number; news: News }[] = []
  store.listen!(news => void heard.push({ at: performance.now(), news }))
  return heard
}

const HOUR = 3_600_000

/** How far two clocks of one machine may drift apart in a test, and what a store may round away, in ms. */
const SLACK = 2

/**
 * What instances tell each other.
 *
 * @param create called once for each test
 */
export function newsConformance(name: string, create: () => Promise<Pair>): void {
  t.test(`${name}: news reaches all who listen`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    const heard = hear(other)
    const listens = (): number => heard.filter(({ news }) => news.about === 'upstream').length
    await until('it is heard', async () => {
      await store.exchange('first', { pausedFor: performance.now() * 1_000, rate: undefined, rateFor: 0 })
      return listens() > 0
    })
    const isLater = ({ news }: { news: News }): boolean => news.about !== 'upstream' || news.name !== 'first'
    const next = async () => {
      await until('the news has come', () => heard.some(isLater), 5_000)
      const found = heard.find(isLater)!
      heard.length = 0
      return found
    }

    const upstreams = ['http://a:80', 'a b', '%25{x}', '"ä€😀"', 'beat:a\n']
    const delays: number[] = []
    for (const upstream of upstreams) {
      const sent = performance.now()
      await store.exchange(upstream, { pausedFor: HOUR, rate: 1 / 3, rateFor: 2 * HOUR })
      const { at, news } = await next()
      if (news.about !== 'upstream') throw new Error(JSON.stringify(news))
      t.equal(news.name, upstream)
      t.equal(news.state.rate, 1 / 3, 'to the last bit')
      const ends = at + news.state.pausedFor - HOUR
      t.ok(ends >= sent - SLACK && ends <= at + SLACK, `a pause that ends ${ends - sent} ms late`)
      const lapses = at + news.state.rateFor - 2 * HOUR
      t.ok(lapses >= sent - SLACK && lapses <= at + SLACK, `a rate that lapses ${lapses - sent} ms late`)
      delays.push(at - sent)
    }
    t.comment(`${name}: news after ${delays.map(ms => ms.toFixed(1))} ms`)
    t.ok(Math.min(...delays) < 100, `news after ${delays}`)

    await store.exchange('http://a:80')
    await other.exchange('http://a:80')
    const limits = { name: 'client', rate: 1, capacity: 1 }
    await store.reset({ limits, key: 'k€\n%', group: 'g' })
    t.same((await next()).news, { about: 'reset', bucket: 'client', key: 'k€\n%' }, 'a question is no news')
  })

  t.test(`${name}: all hear what waits in one after a reset`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    const heard = hear(other)
    const news = {
      ...({ about: 'kept', from: 'a', bucket: 'client', key: 'k€\n %' } as const),
      kept: { kept: 7.5, unreported: -1, waiting: 3, queued: 1 / 3 },
    }
    await until('it is heard', async () => {
      await store.board!.tell(news)
      return heard.length > 0
    })
    t.same(heard[0]!.news, news)
  })

  t.test(`${name}: who has stopped listening hears nothing`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    const [gone, here] = [[] as News[], [] as News[]]
    const stop = other.listen!(news => void gone.push(news))
    other.listen!(news => void here.push(news))
    stop()
    stop()
    await until('it is heard', async () => {
      await store.exchange('a', { pausedFor: performance.now() * 1_000, rate: undefined, rateFor: 0 })
      return here.length > 0
    })
    t.same(gone, [])
  })
}

/**
 * What they leave for each other as well.
 *
 * @param create called once for each test
 */
export function boardConformance(name: string, create: () => Promise<Pair>): void {
  newsConformance(name, create)

  t.test(`${name}: overrides are kept, told and listed until they end`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    const heard = hear(other)
    const told = (): Override[] => heard.flatMap(({ news }) => (news.about === 'override' ? [news.override] : []))
    await until('it is heard', async () => {
      await store.board!.setOverride({ bucket: 'first', key: '', rate: 1, endsIn: HOUR })
      return told().length > 0
    })
    t.equal(await other.board!.endOverride('first', ''), true)
    t.equal(await store.board!.endOverride('first', ''), false, 'it has ended already')
    await until('its end has come', () => told().at(-1)!.endsIn === 0)
    t.same(told().at(-1), { bucket: 'first', key: '', endsIn: 0 })
    heard.length = 0

    const sent = performance.now()
    const some: Override[] = [
      { bucket: 'client', key: '192.0.2.7', rate: 1 / 3, capacity: 7, endsIn: HOUR },
      { bucket: 'client', key: 'k€"\n%', rate: 5, endsIn: 2 * HOUR },
      { bucket: 'other', key: '192.0.2.7', capacity: 0.5, endsIn: 3 * HOUR },
      { bucket: 'other', key: 'k'.repeat(300), capacity: 1, endsIn: 4 * HOUR },
    ]
    for (const override of some) t.equal(await store.board!.setOverride(override), true)
    await until('all are told', () => told().length === some.length)
    const listed = await other.board!.overrides()
    const asked = performance.now()
    const byKey = (a: Override, b: Override): number => a.endsIn - b.endsIn
    for (const [kind, list] of Object.entries({ told: told(), listed: [...listed].sort(byKey) })) {
      t.same(
        list.map(({ endsIn, ...rest }) => rest),
        some.map(({ endsIn, ...rest }) => rest),
        kind,
      )
      for (const [place, { endsIn }] of list.entries()) {
        const passed = some[place]!.endsIn - endsIn
        t.ok(passed >= -SLACK && passed <= asked - sent + SLACK, `${kind}: ${passed} ms have passed`)
      }
    }
    heard.length = 0
    const set = performance.now()
    await other.board!.setOverride({ bucket: 'client', key: '192.0.2.7', rate: 9, endsIn: 300 })
    const replaced = (await store.board!.overrides()).find(({ rate }) => rate === 9)
    t.notOk(replaced && 'capacity' in replaced, 'the new one replaces the old one')
    const { length } = await store.board!.overrides()
    // On a busy machine it has ended by then.
    if (performance.now() - set < 300 - SLACK) t.equal(length, 4)
    await sleep(300 + SLACK)
    t.same((await store.board!.overrides()).map(({ bucket }) => bucket).sort(), ['client', 'other', 'other'])
  })

  t.test(`${name}: all have the secret that was proposed first`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    const secrets = Array.from({ length: 8 }, (_, at) => `secret ${at} '"ä`)
    const kept = await Promise.all(
      secrets.map((secret, at) => (at % 2 === 0 ? store : other).board!.agreeOnSecret(secret)),
    )
    t.equal(new Set(kept).size, 1)
    t.ok(secrets.includes(kept[0]!))
    t.equal(await other.board!.agreeOnSecret('later'), kept[0])
  })

  t.test(`${name}: there is a most of overrides`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    const set = (at: number, endsIn = HOUR) =>
      (at % 2 === 0 ? store : other).board!.setOverride({ bucket: 'b', key: `${at}`, rate: at + 1, endsIn })
    t.equal(await set(0, 500), true)
    const ended = performance.now() + 500
    for (let at = 1; at < MOST_OVERRIDES; at += 9)
      await Promise.all(Array.from({ length: Math.min(9, MOST_OVERRIDES - at) }, (_, more) => set(at + more)))
    t.equal(await set(1), true, 'one of them is replaced')
    if (performance.now() < ended - 50) t.equal(await set(MOST_OVERRIDES), false, 'there is no room')
    await sleep(Math.max(0, ended + SLACK - performance.now()))
    t.equal(await set(MOST_OVERRIDES), true, 'one has ended')
    t.equal(await set(MOST_OVERRIDES + 1), false)
    t.equal(await store.board!.endOverride('b', '5'), true)
    t.equal(await set(MOST_OVERRIDES + 1), true)
    t.equal((await other.board!.overrides()).length, MOST_OVERRIDES)
  })

  t.test(`${name}: what instances show of themselves disappears with them`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    const seen = async (from: Store) => {
      const views = [...(await from.board!.views('present'))].sort((a, b) => (a.id < b.id ? -1 : 1))
      for (const { age } of views) t.ok(age >= -SLACK && age <= VIEW_LIFE.present + SLACK, `shown ${age} ms ago`)
      return views.map(({ id, text }) => [id, text])
    }
    await until(
      'it is open',
      async () => (await Promise.resolve(store.board!.views('present')).catch(() => null)) !== null,
    )
    t.same(await seen(store), [])
    for (let at = 0; at < 20; at += 1) await store.board!.show('present', `id ${at}`, `${at}`)
    t.equal((await seen(other)).length, 20)
    const hoursAt = performance.now()
    await store.board!.show('hour', 'a', '0')
    const long = JSON.stringify({ text: 'ä€😀"\0'.repeat(5_000) })
    await store.board!.show('present', 'a', long)
    await other.board!.show('present', 'b', '1')
    const shown = performance.now()
    const all = await seen(other)
    t.same(
      all.filter(([id]) => !id!.startsWith('id ')),
      [
        ['a', long],
        ['b', '1'],
      ],
    )
    t.equal(all.length, 22)
    await sleep(VIEW_LIFE.present / 2)
    await other.board!.show('present', 'b', '2')
    await sleep(Math.max(0, shown + VIEW_LIFE.present + 20 - performance.now()))
    t.same(await seen(store), [['b', '2']])
    const [hour] = await other.board!.views('hour')
    t.match(hour, { id: 'a', text: '0' }, 'another kind, of the same id')
    const past = performance.now() - hoursAt
    t.ok(hour!.age > VIEW_LIFE.present && hour!.age <= past + SLACK, `shown ${hour!.age} of ${past} ms ago`)
  })
}
