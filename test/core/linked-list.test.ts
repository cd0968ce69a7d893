import fc from 'fast-check'
import t from 'tap'
import { type Linked, LinkedList } from '../../src/core/structures/linked-list.js'
import { runs } from '../runs.js'

class Entry implements Linked<Entry> {
  list: object | undefined = undefined
  previous: Entry | undefined = undefined
  next: Entry | undefined = undefined
  readonly id: number
  constructor(id: number) {
    this.id = id
  }
}

function ids(fifo: LinkedList<Entry>): number[] {
  return [...fifo].map(entry => entry.id)
}

function idsBackwards(fifo: LinkedList<Entry>): number[] {
  const found: number[] = []
  for (let entry = fifo.last; entry !== undefined; entry = entry.previous) found.push(entry.id)
  return found
}

const operation = fc.oneof(
  { weight: 4, arbitrary: fc.constant({ verb: 'push' as const, which: 0 }) },
  { weight: 1, arbitrary: fc.constant({ verb: 'unshift' as const, which: 0 }) },
  { weight: 2, arbitrary: fc.constant({ verb: 'shift' as const, which: 0 }) },
  { weight: 3, arbitrary: fc.record({ verb: fc.constant('remove' as const), which: fc.nat() }) },
  { weight: 1, arbitrary: fc.record({ verb: fc.constant('again' as const), which: fc.nat() }) },
)

t.test('property: behaves like an array', async () => {
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 60, size: 'max' }), operations => {
      const fifo = new LinkedList<Entry>()
      const model: Entry[] = []
      const gone: Entry[] = []
      let nextId = 0
      for (const { verb, which } of operations) {
        if (verb === 'push' || verb === 'unshift') {
          const entry = gone.pop() ?? new Entry(nextId++)
          fifo[verb](entry)
          model[verb](entry)
        } else if (verb === 'shift') {
          const entry = model.shift()
          if (fifo.shift() !== entry) return false
          if (entry !== undefined) gone.push(entry)
        } else if (verb === 'remove' && model.length > 0) {
          const [entry] = model.splice(which % model.length, 1)
          if (!fifo.remove(entry!)) return false
          gone.push(entry!)
        } else if (verb === 'again' && gone.length > 0) {
          if (fifo.remove(gone[which % gone.length]!)) return false
        }
        const expected = model.map(entry => entry.id)
        if (ids(fifo).join() !== expected.join()) return false
        if (idsBackwards(fifo).join() !== expected.reverse().join()) return false
        if (fifo.size !== model.length || fifo.first !== model[0] || fifo.last !== model.at(-1)) return false
        if (gone.some(entry => entry.list ?? entry.previous ?? entry.next)) return false
      }
      return true
    }),
    { seed: 1, numRuns: runs(1000) },
  )
})

t.test('removing an entry twice has no effect', async t => {
  const fifo = new LinkedList<Entry>()
  const [a, b, c] = [new Entry(1), new Entry(2), new Entry(3)]
  for (const entry of [a, b, c]) fifo.push(entry)
  t.equal(fifo.remove(b), true)
  t.equal(fifo.remove(b), false)
  t.same(ids(fifo), [1, 3])
  t.equal(fifo.size, 2)
})

t.test('an entry is in one queue at most', async t => {
  const here = new LinkedList<Entry>()
  const there = new LinkedList<Entry>()
  const entry = new Entry(1)
  here.push(entry)
  for (const fifo of [here, there]) {
    t.throws(() => fifo.push(entry), new TypeError('the entry is already in a queue'))
    t.throws(() => fifo.unshift(entry), new TypeError('the entry is already in a queue'))
  }
  t.equal(there.remove(entry), false, 'and leaves only the one it is in')
  t.same([here.size, there.size, ids(here), ids(there)], [1, 0, [1], []])
  here.remove(entry)
  there.push(entry)
  t.same(ids(there), [1])
})

t.test('an empty queue has nothing', async t => {
  const fifo = new LinkedList<Entry>()
  t.same([fifo.shift(), fifo.first, fifo.last, fifo.size], [undefined, undefined, undefined, 0])
})
