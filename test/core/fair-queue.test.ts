import t from 'tap'
import { type Contender, FairQueue } from '../../src/core/queue/fair-queue.js'

interface Lane extends Contender {
  name: string
  costs: number[]
}

let asked = 0

function lane(name: string, costs: number[], weight = 1): Lane {
  return {
    name,
    costs,
    weight,
    deficit: 0,
    round: 0,
    since: 0,
    unused: 0,
    list: undefined,
    previous: undefined,
    next: undefined,
    advance() {
      asked += 1
      if (asked > 1e5) throw new Error('a turn takes too many rounds')
      return costs[0]!
    },
  }
}

/** Serves until the queue is empty or `most` are served. Returns the names in order. */
function serve(fairQueue: FairQueue, most: number): string {
  let order = ''
  while (fairQueue.size > 0 && order.length < most) {
    const next = fairQueue.advance() as Lane
    if (fairQueue.advance() !== next) throw new Error('asked again it answers otherwise')
    next.deficit -= next.costs.shift()!
    if (next.costs.length === 0) fairQueue.leave(next)
    order += next.name
  }
  return order
}

function fairQueueOf(...lanes: Lane[]): FairQueue {
  asked = 0
  const fairQueue = new FairQueue()
  for (const { costs, weight } of lanes) for (const cost of costs) fairQueue.learn(cost, weight)
  for (const contender of lanes) fairQueue.enter(contender, 0)
  return fairQueue
}

const ones = (count: number): number[] => Array(count).fill(1)

t.test('contenders with equal weights alternate', async t => {
  t.equal(serve(fairQueueOf(lane('a', ones(4)), lane('b', ones(4)), lane('c', ones(2))), 99), 'abcabcabab')
})

t.test('turns follow weights', async t => {
  const order = serve(fairQueueOf(lane('a', ones(60)), lane('b', ones(60), 2), lane('c', ones(60), 3)), 60)
  t.same(
    ['a', 'b', 'c'].map(name => order.split(name).length - 1),
    [10, 20, 30],
  )
})

t.test('turns follow costs', async t => {
  const order = serve(fairQueueOf(lane('a', Array(50).fill(5)), lane('b', ones(100))), 60)
  const [a, b] = ['a', 'b'].map(name => order.split(name).length - 1)
  t.ok(Math.abs(5 * a! - b!) <= 5, `${5 * a!} and ${b}`)
})

t.test('a contender that leaves in the middle of its turn continues it later', async t => {
  const [a, b] = [lane('a', ones(9), 3), lane('b', ones(9))]
  const fairQueue = fairQueueOf(a, b)
  let order = ''
  for (let turn = 0; turn < 8; turn += 1) {
    const next = fairQueue.advance() as Lane
    order += next.name
    next.costs.shift()
    next.deficit -= 1
    // Each contender is paced: it leaves after every request and returns before the next.
    fairQueue.leave(next)
    fairQueue.enter(next, 0)
  }
  t.equal(order, 'aaabaaab')
})

t.test('entering and leaving twice have no effect', async t => {
  const [a, b] = [lane('a', ones(2)), lane('b', ones(2))]
  const fairQueue = fairQueueOf(a, b)
  fairQueue.enter(a, 0)
  t.equal(fairQueue.size, 2)
  fairQueue.leave(a)
  fairQueue.leave(a)
  t.equal(fairQueue.size, 1)
  t.equal(serve(fairQueue, 9), 'bb')
})

t.test('an expensive request among thousands of cheap ones does not take thousands of rounds', async t => {
  // A client may name its cost (x-cost): 1e-9 is one.
  const dear = lane('a', [100])
  const fairQueue = fairQueueOf(dear, lane('b', Array(5_000).fill(1e-9)))
  asked = 0
  t.doesNotThrow(() => serve(fairQueue, 9_999))
})

t.test('costs of 0 do not loop forever', async t => {
  const fairQueue = fairQueueOf(lane('a', [1]), lane('b', Array(20_000).fill(0)))
  asked = 0
  t.doesNotThrow(() => serve(fairQueue, 30_000))
})

t.test('one that replaces another has its turn', async t => {
  const [a, b, c] = [lane('a', ones(6)), lane('b', ones(6)), lane('c', ones(6))]
  const fairQueue = fairQueueOf(a, b, c)
  t.equal(serve(fairQueue, 4), 'abca')
  const group = lane('g', ones(2), 1)
  fairQueue.replace(b, group)
  t.equal(b.list, undefined)
  t.equal(fairQueue.size, 3)
  t.equal(serve(fairQueue, 6), 'gcagca')
})

t.test('one that replaces the first of the next round is that', async t => {
  const [a, b] = [lane('a', ones(4)), lane('b', ones(4))]
  const fairQueue = fairQueueOf(a, b)
  const group = lane('g', ones(3))
  fairQueue.replace(a, group)
  t.equal(serve(fairQueue, 6), 'gbgbgb')
})

t.test('one that replaces another which missed its turn still has it', async t => {
  const [a, b, c] = [lane('a', ones(6)), lane('b', ones(6)), lane('c', ones(6))]
  const fairQueue = fairQueueOf(a, b, c)
  t.equal(serve(fairQueue, 2), 'ab')
  fairQueue.leave(b)
  const group = lane('g', ones(2))
  fairQueue.replace(b, group)
  t.equal(serve(fairQueue, 2), 'ca')
  t.equal(fairQueue.advance(), c)
  fairQueue.enter(group, 0)
  t.equal(serve(fairQueue, 3), 'cga')
})
