/** The event streams of waiting pages, on the virtual clock. */
import t from 'tap'
import type { Comeback } from '../../src/core/admission/comeback.js'
import { type Clock, createVirtualClock } from '../../src/core/clock.js'
import { type PageStream, PageStreams, type StreamEvent } from '../../src/proxy/features/page-streams.js'

/** A clock that counts the timers that are set. */
function countingClock() {
  const clock = createVirtualClock()
  let set = 0
  let most = 0
  let runs = 0
  const counting: Clock = {
    now: clock.now,
    at(due, run) {
      set += 1
      most = Math.max(most, set)
      const cancel = clock.at(due, () => {
        set -= 1
        runs += 1
        run()
      })
      return () => {
        const isSet = cancel()
        if (isSet) set -= 1
        return isSet
      }
    },
  }
  const count = { ...clock, clock: counting }
  return Object.assign(count, { timers: () => ({ set, most }), runs: () => runs })
}

/** A page that may come at a moment. */
class Page implements PageStream {
  readonly client: string
  readonly said: { readonly event: StreamEvent; readonly at: number }[] = []
  at: number
  asked = 0
  takes = true
  closed = false
  readonly #now: () => number

  constructor(client: string, at: number, now: () => number) {
    this.client = client
    this.at = at
    this.#now = now
  }

  ask(): Comeback | undefined {
    this.asked += 1
    const until = this.at - this.#now()
    return until > 0 ? { until, wait: until + 1_000, position: 1 } : undefined
  }

  say(event: StreamEvent): boolean {
    this.said.push({ event, at: this.#now() })
    return this.takes
  }

  close(): void {
    this.closed = true
  }

  get wentAt(): number | undefined {
    return this.said.find(({ event }) => event === 'go')?.at
  }
}

t.test('a thousand streams cost one timer, and each is told to go at its moment', async t => {
  const clock = countingClock()
  const streams = new PageStreams(clock.clock)
  const pages = Array.from({ length: 1_000 }, (_, at) => new Page(`client-${at}`, 5_000 + 7.3 * at, clock.now))
  for (const page of pages) streams.open(page)
  t.equal(streams.size, 1_000)
  clock.runUntil(30_000)
  t.equal(clock.timers().most, 1)
  t.equal(clock.timers().set, 0, 'none is left')
  t.equal(streams.size, 0)
  for (const { wentAt, at, said, closed } of pages) {
    t.ok(wentAt! >= at && wentAt! < at + 20, `${at}: ${wentAt}`)
    t.equal(said.length, 2, 'it counted down by itself')
    t.ok(closed)
  }
  t.ok(clock.runs() < 50 * 13, `${clock.runs()} wake-ups, at most fifty a second`)
})

t.test('a page is told at once, when it would be wrong, and now and then', async t => {
  const clock = countingClock()
  const streams = new PageStreams(clock.clock)
  const page = new Page('a', 60_000, clock.now)
  streams.open(page)
  t.same(page.said, [{ event: { until: 60_000, wait: 61_000, position: 1 }, at: 0 }])
  clock.runUntil(10_000)
  t.equal(page.said.length, 1)
  t.equal(page.asked, 11)
  page.at = 50_000
  clock.runUntil(11_500)
  t.same(page.said.slice(1), [{ event: { until: 39_000, wait: 40_000, position: 1 }, at: 11_000 }])
  clock.runUntil(27_000)
  t.same(
    page.said.slice(2).map(({ at }) => at),
    [26_000],
    'nobody on the way takes the connection for a dead one',
  )
  page.at = 27_500
  clock.runUntil(40_000)
  t.ok(page.wentAt! >= 27_500 && page.wentAt! <= 28_020)
})

t.test('one stream of each client: a new one replaces the old one', async t => {
  const clock = countingClock()
  const streams = new PageStreams(clock.clock)
  const [one, two, other] = [
    new Page('a', 9_000, clock.now),
    new Page('a', 9_000, clock.now),
    new Page('b', 9_000, clock.now),
  ]
  for (const page of [one, other, two]) streams.open(page)
  t.equal(streams.size, 2)
  t.same(
    one.said.map(({ event }) => event),
    [{ until: 9_000, wait: 10_000, position: 1 }, 'replaced'],
  )
  t.ok(one.closed)
  streams.drop(one)
  t.equal(streams.size, 2, 'the old one takes nothing with it')
  streams.drop(two)
  t.equal(streams.size, 1)
  clock.runUntil(20_000)
  t.equal(two.wentAt, undefined)
  t.ok(other.wentAt)
})

t.test('there is room for a thousand, and for one more of a client that has one', async t => {
  const clock = countingClock()
  const streams = new PageStreams(clock.clock)
  for (let at = 0; at < 1_000; at += 1) {
    t.ok(streams.hasRoomFor(`client-${at}`))
    streams.open(new Page(`client-${at}`, 9_000, clock.now))
  }
  t.notOk(streams.hasRoomFor('another'))
  t.ok(streams.hasRoomFor('client-7'))
})

t.test('a page that does not take what it is told loses its stream', async t => {
  const clock = countingClock()
  const streams = new PageStreams(clock.clock)
  const page = new Page('a', 60_000, clock.now)
  streams.open(page)
  page.takes = false
  page.at = 50_000
  clock.runUntil(2_000)
  t.ok(page.closed)
  t.equal(streams.size, 0)
  t.equal(clock.timers().set, 0)
})

t.test('all streams end at once, and leave no timer', async t => {
  const clock = countingClock()
  const streams = new PageStreams(clock.clock)
  const pages = ['a', 'b', 'c'].map(client => new Page(client, 60_000, clock.now))
  for (const page of pages) streams.open(page)
  t.equal(clock.timers().set, 1)
  streams.endAll()
  t.ok(pages.every(({ closed, wentAt }) => closed && wentAt === undefined))
  t.equal(clock.timers().set, 0)
  const late = new Page('a', -1, clock.now)
  streams.open(late)
  t.equal(late.wentAt, clock.now(), 'whose moment has come is told at once')
  t.equal(streams.size, 0)
})
