import fc from 'fast-check'
import t from 'tap'
import { DueHeap, type Timed } from '../../src/core/structures/due-heap.js'
import { runs } from '../runs.js'

interface Entry extends Timed {
  id: number
  due: number
}

const operation = fc.record({
  verb: fc.constantFrom(
    'add' as const,
    'add' as const,
    'add' as const,
    'remove' as const,
    'move' as const,
    'next' as const,
  ),
  which: fc.nat(),
  due: fc.oneof(
    fc.integer({ min: 0, max: 20 }),
    fc.double({ min: -1e6, max: 1e6, noNaN: true }),
    fc.constant(Infinity),
  ),
})

t.test('property: behaves like a sorted array', async () => {
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 80, size: 'max' }), operations => {
      const timeline = new DueHeap<Entry>()
      const model: Entry[] = []
      const gone: Entry[] = []
      for (const [id, { verb, which, due }] of operations.entries()) {
        const picked = model[which % model.length]
        if (verb === 'add') {
          const entry = gone.pop() ?? { id, due, place: -1 }
          entry.due = due
          timeline.add(entry, due)
          model.push(entry)
        } else if (picked !== undefined && verb === 'move') {
          timeline.move(picked, due)
          picked.due = due
        } else if (picked !== undefined) {
          const leaving = verb === 'next' ? timeline.next! : picked
          if (!timeline.remove(leaving) || timeline.remove(leaving) || leaving.place !== -1) return false
          if (timeline.dueOf(leaving) !== Infinity) return false
          model.splice(model.indexOf(leaving), 1)
          gone.push(leaving)
        }
        if (timeline.size !== model.length) return false
        const soonest = model.length === 0 ? undefined : Math.min(...model.map(entry => entry.due))
        if (timeline.next?.due !== soonest || timeline.nextDue !== (soonest ?? Infinity)) return false
        if (model.some(entry => timeline.dueOf(entry) !== entry.due)) return false
        if (timeline.next !== undefined && !model.includes(timeline.next)) return false
        if (model.some(entry => timeline.find(other => other === entry) !== entry)) return false
        if (gone.some(entry => timeline.find(other => other === entry) !== undefined)) return false
        if (new Set(model.map(entry => entry.place)).size !== model.length) return false
      }
      const sorted = model.map(entry => entry.due).sort((a, b) => a - b)
      for (const due of sorted) {
        const entry = timeline.next!
        if (entry.due !== due || !timeline.remove(entry)) return false
      }
      return timeline.size === 0 && timeline.next === undefined
    }),
    { seed: 2, numRuns: runs(1000) },
  )
})

t.test('removing an entry that was never added has no effect', async t => {
  const timeline = new DueHeap<Entry>()
  timeline.add({ id: 1, due: 5, place: -1 }, 5)
  t.equal(timeline.remove({ id: 2, due: 1, place: -1 }), false)
  t.equal(timeline.size, 1)
})
