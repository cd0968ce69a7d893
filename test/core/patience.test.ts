/** Learnt patience, judged by simulations: a queue in front of an upstream, and clients that leave. */
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Departures, ONE_IN, Patience } from '../../src/core/patience/patience.js'
import { ServiceTime } from '../../src/core/patience/service-time.js'
import { Gate, type Lane, type Source, Ticket, type Waiter } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { limits, random } from './run.js'

interface Client {
  readonly name: string
  /** Requests per second. */
  readonly rate: number
  /** ms. Infinity: it waits for its answer, however long that takes. */
  patience(now: number, chance: number): number
}

interface Tally {
  /** Requests that were sent, those of them whose clients were there for the answer, and those sent away. */
  sent: number
  good: number
  sentAway: number
  trials: number
}

interface Load {
  readonly clients: readonly Client[]
  readonly seconds: number
  /** s. What happened before is not counted. */
  readonly from?: number
  /** ms */
  readonly service?: number
  readonly learns?: boolean
}

interface Simulated {
  readonly all: Tally
  readonly of: ReadonlyMap<string, Tally>
  /** ms. The longest distance between two releases after `from`. */
  readonly longestGap: number
  /** ms. The longest wait of what was sent. */
  readonly longestWait: number
}

const RATE = 100

/** A queue of 1000 that drains at 100/s. */
function simulate({ clients, seconds, from = 0, service = 300, learns = true }: Load): Simulated {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const stack = [new QueuedBucket<Source, Lane>(limits(RATE, 1_000))]
  const patience = new Patience()
  const times = new ServiceTime()
  const chance = random(1)
  const tallies = new Map(clients.map(({ name }) => [name, { sent: 0, good: 0, sentAway: 0, trials: 0 }]))
  let [lastAt, longestGap, longestWait] = [Infinity, 0, 0]

  const arrive = ({ name, patience: patienceOf }: Client): void => {
    const at = clock.now()
    const counts = at >= from * 1_000
    const tally = counts ? tallies.get(name)! : { sent: 0, good: 0, sentAway: 0, trials: 0 }
    const stays = patienceOf(at, chance())
    let [ticket, isTrial, isOver]: [Ticket | undefined, boolean, boolean] = [undefined, false, false]
    const arrival = { route, stack, cost: 1 }
    const weight = (): number => (isTrial ? ONE_IN : 1)
    const waited = (): number => clock.now() - at
    const leave = clock.at(at + stays, () => {
      isOver = true
      patience.left(name, waited(), clock.now(), weight())
      if (ticket !== undefined) shaper.cancel(ticket)
    })
    const send = (): void => {
      if (counts) longestWait = Math.max(longestWait, waited())
      longestGap = Math.max(longestGap, clock.now() - lastAt)
      if (clock.now() >= from * 1_000) lastAt = clock.now()
      tally.sent += 1
      clock.at(clock.now() + service, () => {
        route.gate.leave()
        if (isOver) return
        leave()
        tally.good += 1
        times.add(name, service, clock.now())
        patience.answered(name, waited(), clock.now(), weight())
      })
    }
    const giveUp = (released: Ticket): void => {
      const left = times.of(name)
      route.gate.leave()
      if (isTrial || patience.sendAway(name, waited(), clock.now()) === 'trial') {
        isTrial = true
        tally.trials += 1
        route.gate.enter()
        ticket = shaper.setAside(arrival, waiter, released, at) as Ticket
        shaper.wake(route.gate, stack)
        const waiting = ticket
        clock.at(at + patience.trialUntil(waited() + left), () => {
          if (isOver) return
          isProven = true
          shaper.comeBack(waiting, Infinity)
          shaper.wake()
        })
        return
      }
      tally.sentAway += 1
      isOver = true
      leave()
      for (const bucket of stack) bucket.leave()
      shaper.giveBack(released)
    }
    let isProven = false
    const waiter: Waiter = {
      release() {
        const isLost = learns && patience.isLost(name, waited(), () => waited() + times.of(name), clock.now())
        if (isLost && !isProven) return giveUp(ticket!)
        send()
      },
      expire() {},
      reject() {},
    }
    const longest = learns ? patience.longest(name, at) - times.of(name) : Infinity
    let verdict = shaper.admit(arrival, waiter, longest)
    if (typeof verdict === 'object' && 'reason' in verdict && verdict.reason === 'max-wait') {
      if (patience.sendAway(name, 0, at) === 'trial') {
        isTrial = true
        tally.trials += 1
        verdict = shaper.admit(arrival, waiter)
      } else tally.sentAway += 1
    }
    if (verdict === 'released') send()
    else if (verdict instanceof Ticket) ticket = verdict
    else {
      isOver = true
      leave()
    }
  }

  for (const client of clients) {
    const next = (): void => {
      arrive(client)
      clock.at(clock.now() + (-Math.log(1 - chance()) / client.rate) * 1_000, next)
    }
    clock.at((-Math.log(1 - chance()) / client.rate) * 1_000, next)
  }
  clock.runUntil(seconds * 1_000)
  const all = { sent: 0, good: 0, sentAway: 0, trials: 0 }
  for (const tally of tallies.values()) {
    for (const key of Object.keys(all) as (keyof Tally)[]) all[key] += tally[key]
  }
  return { all, of: tallies, longestGap, longestWait }
}

function several(count: number, rate: number, patience: Client['patience'], name = 'c'): Client[] {
  return Array.from({ length: count }, (_, number) => ({ name: `${name}${number}`, rate: rate / count, patience }))
}

const always = (ms: number) => (): number => ms
const exponential =
  (mean: number) =>
  (_: number, chance: number): number =>
    -Math.log(1 - chance) * mean

/** The part of what was sent whose clients were there for the answer. */
function goodPart({ all }: Simulated): number {
  return all.good / all.sent
}

function sumOf({ of }: Simulated, name: string, key: keyof Tally): number {
  let sum = 0
  for (const [client, tally] of of) if (client.startsWith(name)) sum += tally[key]
  return sum
}

for (const count of [1, 20, 200]) {
  t.test(`clients that leave after 2 s at twice the rate, ${count} of them`, async t => {
    const clients = several(count, 200, always(2_000))
    const unlearnt = simulate({ clients, seconds: 60, from: 10, learns: false })
    t.ok(goodPart(unlearnt) < 0.01, `${goodPart(unlearnt)} of what a plain FIFO sends is for somebody`)
    const learnt = simulate({ clients, seconds: 60, from: 10 })
    t.ok(goodPart(learnt) > 0.98, `${goodPart(learnt)} of what is sent is for somebody`)
    t.ok(learnt.all.sent >= RATE * (50 - 1.7), `${learnt.all.sent} sent: the rate is used`)
    t.ok(learnt.longestGap < 1_000 / RATE + 1e-6, 'no slot is lost')
  })
}

for (const offered of [105, 120, 300, 1_000]) {
  t.test(`the same at ${offered}/s`, async t => {
    const { all, longestGap } = simulate({ clients: several(20, offered, always(2_000)), seconds: 120, from: 30 })
    t.ok(all.good / all.sent > 0.98, `${all.good} of ${all.sent}`)
    t.ok(longestGap < (offered < 110 ? 300 : 1_000 / RATE + 1e-6), `no slot is lost: ${longestGap}`)
  })
}

t.test('exponential patience: nothing is gained, and nothing lost', async t => {
  const clients = several(20, 200, exponential(2_000))
  const unlearnt = simulate({ clients, seconds: 60, from: 10, learns: false })
  const learnt = simulate({ clients, seconds: 60, from: 10 })
  t.ok(learnt.all.good > 0.97 * unlearnt.all.good, `${learnt.all.good} against ${unlearnt.all.good}`)
})

t.test('patient clients among impatient ones are kept', async t => {
  const clients = [...several(20, 75, always(30_000), 'browser'), ...several(20, 75, always(2_000), 'program')]
  const result = simulate({ clients, seconds: 180, from: 30 })
  t.ok(goodPart(result) > 0.98)
  // Both offer 11,250.
  t.ok(sumOf(result, 'browser', 'good') > 8_000, `browsers: ${sumOf(result, 'browser', 'good')} served`)
  t.ok(sumOf(result, 'program', 'sentAway') > 2 * sumOf(result, 'browser', 'sentAway'))
})

t.test('one patient client among many impatient ones is judged by its own waits', async t => {
  const clients = [
    ...several(20, 150, always(2_000), 'program'),
    // It leaves now and then, after a long wait.
    ...several(1, 30, (_, chance) => (chance < 0.1 ? 6_000 : 30_000), 'browser'),
  ]
  const result = simulate({ clients, seconds: 240, from: 60 })
  t.ok(goodPart(result) > 0.95)
})

t.test('nobody hangs up: nobody is sent away', async t => {
  const { all } = simulate({ clients: several(20, 105, always(Infinity)), seconds: 60 })
  t.equal(all.sentAway, 0)
  t.equal(all.trials, 0)
})

t.test('patience that grows is noticed within a minute', async t => {
  const clients = several(20, 200, now => (now < 60_000 ? 2_000 : 6_000))
  const result = simulate({ clients, seconds: 240, from: 120 })
  t.ok(goodPart(result) > 0.98)
  const { longestWait } = result
  t.ok(longestWait > 5_000, `the queue is as long as clients wait: ${longestWait} ms`)
})

t.test('patience that shrinks is noticed within a minute', async t => {
  const clients = several(20, 200, now => (now < 60_000 ? 6_000 : 2_000))
  const result = simulate({ clients, seconds: 240, from: 120 })
  t.ok(goodPart(result) > 0.98)
  t.ok(result.longestWait < 2_100, `${result.longestWait} ms`)
})

t.test('one client that hangs up on purpose decides about nobody else', async t => {
  const clients = [...several(20, 120, always(30_000)), ...several(1, 100, always(300), 'attacker')]
  const result = simulate({ clients, seconds: 120, from: 30 })
  t.equal(sumOf(result, 'c', 'sentAway'), 0)
})

t.test('four clients that hang up on purpose decide about nobody else', async t => {
  const clients = [...several(20, 105, always(30_000)), ...several(4, 100, always(300), 'attacker')]
  const result = simulate({ clients, seconds: 120, from: 30 })
  t.equal(sumOf(result, 'c', 'sentAway'), 0)
})

t.test('the estimate is the product limit of those that stay', async t => {
  // Of 8 that wait, 2 leave at 1 s; of 6, one is answered at 2 s; of 5, one leaves at 3 s.
  const waits = [
    { ms: 1_000, left: true, weight: 2 },
    { ms: 2_000, left: false, weight: 1 },
    { ms: 3_000, left: true, weight: 1 },
    ...Array.from({ length: 4 }, () => ({ ms: 9_000, left: false, weight: 1 })),
  ]
  const departures = new Departures(waits)
  t.equal(departures.leaving(0, 1_000), 0, 'until then nobody leaves')
  t.equal(departures.leaving(0, 1_001), 0.25)
  t.ok(Math.abs(departures.leaving(0, 3_001) - (1 - 0.75 * 0.8)) < 1e-12)
  t.ok(Math.abs(departures.leaving(1_500, 3_001) - 0.2) < 1e-12, 'of those that have waited 1.5 s')
  t.equal(departures.median, undefined)
  t.equal(departures.timeOf(0, 0.7), 3_000)
  t.equal(departures.timeOf(0, 0.75), 1_000)
  t.equal(departures.timeOf(0, 0.5), undefined)
})

t.test('few that still wait decide nothing', async t => {
  const waits = [10, 11, 12, 13].map(ms => ({ ms, left: true, weight: 100 }))
  t.equal(new Departures(waits).leaving(0, 1_000), 0)
})

t.test('the service time is the 90th percentile of the last answers, 0 before 20', async t => {
  const times = new ServiceTime()
  for (let number = 0; number < 19; number += 1) times.add(`c${number % 5}`, 100, 0)
  t.equal(times.of('c0'), 0)
  times.add('c0', 100, 0)
  t.equal(times.of('c0'), 100)
  for (let number = 0; number < 80; number += 1) times.add(`d${number % 10}`, 200, 0)
  t.equal(times.of('c0'), 200)
  for (let number = 0; number < 1_000; number += 1) times.add('attacker', 60_000, 0)
  t.equal(times.of('c0'), 200, 'one client has a tenth of them')
})

t.test('of a few clients none makes the service time look long to others', async t => {
  const times = new ServiceTime()
  for (let number = 0; number < 10; number += 1) {
    for (const client of ['a', 'b']) times.add(client, 100, 0)
    times.add('attacker', 60_000, 0)
  }
  t.equal(times.of('a'), 100)
})

t.test('alone, a client is judged by its own answers', async t => {
  const times = new ServiceTime()
  for (let number = 0; number < 20; number += 1) times.add('only', 300, 0)
  t.equal(times.of('only'), 300)
  t.equal(times.of('other'), 0)
})

t.test('those that have waited longer are compared with their like only', async t => {
  const patience = new Patience()
  for (let number = 0; number < 30; number += 1) patience.left('c', 1_000, number)
  for (let number = 0; number < 20; number += 1) patience.left('c', 5_000, 30 + number)
  t.equal(patience.longest('c', 50), 970)
  t.equal(patience.longest('c', 50, 500), 970)
  t.equal(patience.longest('c', 50, 2_000), 4_850)
  t.equal(patience.longest('c', 50, 6_000), Infinity, 'nobody has shown how long such clients stay')
  for (const waited of [0, 500, 2_000]) {
    const longest = patience.longest('c', 50, waited)
    t.notOk(patience.isLost('c', waited, () => longest, 50))
    t.ok(
      patience.isLost('c', waited, () => longest + 1, 50),
      'the same time decides',
    )
  }
})

t.test('what most clients do: not what one does alone, and no longer than a minute', async t => {
  const patience = new Patience()
  for (let number = 0; number < 20; number += 1) patience.left('one', 1_000, number)
  t.equal(patience.usual(20), undefined)
  for (let number = 0; number < 20; number += 1) patience.left(`c${number % 5}`, 2_000, 200 + number)
  t.equal(patience.usual(300), 1_940)
  t.equal(patience.usual(60_300), undefined)
  const times = new ServiceTime()
  for (let number = 0; number < 19; number += 1) times.add(`c${number}`, number, 0)
  t.equal(times.usual, undefined)
  times.add('last', 100, 0)
  t.equal(times.usual, 17)
})

t.test('what happened more than a minute ago does not count', async t => {
  const patience = new Patience()
  for (let number = 0; number < 30; number += 1) patience.left('c', 1_000, number)
  t.equal(patience.longest('c', 30), 970)
  t.equal(patience.longest('other', 30), Infinity, 'one client decides about itself only')
  t.equal(patience.longest('c', 60_031), Infinity)
})
