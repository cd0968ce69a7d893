/** Learnt patience: a client that stops with all it has waiting has not lost its patience. */
import t from 'tap'
import { Patience } from '../../src/core/patience/patience.js'
import { random } from './run.js'

interface Run {
  readonly connections: number
  /** Releases per second. */
  readonly rate: number
  /** ms */
  readonly from: number
  readonly until: number
  readonly client?: string
}

/**
 * A load tool: each connection asks again when it is answered, and all are closed at the end.
 *
 * @returns how many requests would be sent away
 */
function loadTool(patience: Patience, { connections, rate, from, until, client = 'tool' }: Run): number {
  const gap = 1_000 / rate
  const arrivals: number[] = []
  let lost = 0
  const arrive = (now: number): void => {
    if (arrivals.length * gap > patience.longest(client, now)) lost += 1
    arrivals.push(now)
  }
  for (let number = 0; number < connections; number += 1) arrive(from)
  for (let now = from; now < until; now += gap) {
    patience.answered(client, now - arrivals.shift()!, now)
    arrive(now)
  }
  // It takes a moment until all of them are noticed.
  for (const [place, arrival] of arrivals.entries()) {
    const now = until + place * 0.5
    patience.left(client, now - arrival, now)
  }
  return lost
}

t.test('a load tool that stops, and starts again at once, is not sent away', async t => {
  for (const [connections, rate] of [
    [64, 20],
    [64, 5],
    [10, 5],
    [64, 1_000],
    [128, 100],
  ] as const) {
    const patience = new Patience()
    for (let from = 0; from < 60_000; from += 5_000 + connections) {
      t.equal(loadTool(patience, { connections, rate, from, until: from + 5_000 }), 0, `${connections} at ${rate}/s`)
    }
  }
})

t.test('five load tools that stop decide about nobody else', async t => {
  const patience = new Patience()
  for (let number = 0; number < 5; number += 1) {
    loadTool(patience, { connections: 64, rate: 20, from: 0, until: 5_000, client: `tool${number}` })
  }
  t.equal(patience.longest('other', 5_100), Infinity)
})

t.test('programs that start together and time out together have left', async t => {
  const patience = new Patience()
  const chance = random(1)
  // A busy machine takes 20 ms for the start of all, and as long for the end of all.
  for (let number = 0; number < 20; number += 1) {
    const arrival = 20 * chance()
    const now = 2_000 + number
    patience.left('program', now - arrival, now)
  }
  t.ok(Math.abs(patience.longest('program', 2_020) - 0.97 * 2_000) < 20)
})

t.test('programs that start evenly and time out evenly have left', async t => {
  for (const perSecond of [10, 200, 2_000]) {
    const patience = new Patience()
    const chance = random(1)
    let now = 0
    for (let number = 0; number < 100; number += 1) {
      now += 1_000 / perSecond
      patience.left('program', 2_000 + 20 * chance(), now)
    }
    t.ok(Math.abs(patience.longest('program', now) - 0.97 * 2_010) < 15, `${perSecond}/s`)
  }
})

t.test('some that stop among many that time out at the same moment do not matter', async t => {
  const patience = new Patience()
  for (let number = 0; number < 30; number += 1) patience.left('program', number < 6 ? 300 * number : 2_000, 5_000)
  t.equal(patience.longest('program', 5_000), 0.97 * 2_000)
})

t.test('a closed tab says nothing, a page that is given up after the same time does', async t => {
  const patience = new Patience()
  const close = (waits: readonly number[], now: number): void => {
    for (const ms of waits) patience.left('browser', ms, now)
  }
  for (let tab = 0; tab < 10; tab += 1) close([100, 400, 800, 1_300, 2_100, 3_000], tab * 4_000)
  t.equal(patience.longest('browser', 39_000), Infinity)
  for (let page = 0; page < 4; page += 1) close([2_000, 2_000, 2_000, 1_990, 1_980, 1_900], 40_000 + page * 2_000)
  t.ok(Math.abs(patience.longest('browser', 50_000) - 0.97 * 1_990) < 20)
})

for (const perSecond of [20, 200, 2_000, 20_000]) {
  t.test(
    `${perSecond === 20_000 ? 'long: ' : ''}behind one address: many programs at ${perSecond} hang-ups/s are no stop`,
    async t => {
      const patience = new Patience()
      const chance = random(1)
      let [now, known, asked] = [0, 0, 0]
      while (now < 5_000) {
        now += (-Math.log(1 - chance()) * 1_000) / perSecond
        // Their patience is spread widely: 1386 ms is the median.
        patience.left('proxy', -Math.log(1 - chance()) * 2_000, now)
        if (now < 2_000) continue
        asked += 1
        const longest = patience.longest('proxy', now)
        if (longest > 800 && longest < 2_200) known += 1
      }
      t.ok(known > 0.97 * asked, `${known} of ${asked}`)
    },
  )
}

t.test('one of two tools behind an address that stops has not left, a part of one has', async t => {
  for (const rest of [10, 30]) {
    const patience = new Patience()
    for (let number = 0; number < 40; number += 1) patience.left('proxy', number * 100, 5_000)
    t.equal(patience.longest('proxy', 5_000), Infinity, 'until the contrary is seen')
    for (let number = 0; number < rest; number += 1)
      patience.answered('proxy', 4_200 + number * 50, 5_200 + number * 50)
    t.equal(patience.longest('proxy', 7_000) < Infinity, rest === 30)
  }
})

t.test(
  'who leaves on purpose with all it has, again and again, decides about nobody, and hides no earlier hang-ups',
  async t => {
    const patience = new Patience()
    const leave = (now: number): void => {
      for (let number = 0; number < 50; number += 1) patience.left('attacker', number * 20, now)
    }
    for (let round = 0; round < 20; round += 1) leave(round * 1_000)
    t.equal(patience.longest('other', 20_000), Infinity)
    t.equal(patience.longest('attacker', 20_000), Infinity)
    // All that is a minute ago.
    for (let number = 0; number < 100; number += 1) patience.left('attacker', 500, 90_000 + number * 50)
    leave(96_000)
    t.equal(patience.longest('attacker', 96_000), 485)
  },
)

t.test('programs with two time-outs that fire at the same moment have left', async t => {
  const patience = new Patience()
  for (let number = 0; number < 30; number += 1) patience.left('program', number < 15 ? 1_000 : 3_000, 5_000)
  t.equal(patience.longest('program', 5_000, 1_500), 0.97 * 3_000)
})
