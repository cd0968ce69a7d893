/** A virtual clock for simulations in which many things are planned: a heap, where `createVirtualClock` has a list. */
import type { Cancel, VirtualClock } from '../../src/core/clock.js'

interface Planned {
  readonly due: number
  /** Its place among those of the same time. */
  readonly order: number
  run: (() => void) | undefined
}

export interface HeapClock extends VirtualClock {
  /** Runs what is due next, if that is not after `until`. False: nothing is. */
  step(until: number): boolean
}

export function createHeapClock(): HeapClock {
  const heap: Planned[] = []
  let time = 0
  let order = 0

  function add(entry: Planned): void {
    let place = heap.length
    while (place > 0) {
      const above = (place - 1) >> 1
      if (!isBefore(entry, heap[above]!)) break
      heap[place] = heap[above]!
      place = above
    }
    heap[place] = entry
  }

  function takeFirst(): Planned {
    const first = heap[0]!
    const last = heap.pop()!
    const { length } = heap
    if (length === 0) return first
    let place = 0
    for (;;) {
      let below = 2 * place + 1
      if (below >= length) break
      if (below + 1 < length && isBefore(heap[below + 1]!, heap[below]!)) below += 1
      if (!isBefore(heap[below]!, last)) break
      heap[place] = heap[below]!
      place = below
    }
    heap[place] = last
    return first
  }

  function step(until: number): boolean {
    while (heap.length > 0 && heap[0]!.due <= until) {
      const { due, run } = takeFirst()
      // It was cancelled.
      if (run === undefined) continue
      time = due
      run()
      return true
    }
    return false
  }

  return {
    now: () => time,
    next: () => Math.min(...heap.filter(({ run }) => run !== undefined).map(({ due }) => due)),
    at(due, run): Cancel {
      const entry: Planned = { due: Math.max(due, time), order, run: undefined }
      order += 1
      entry.run = () => {
        entry.run = undefined
        run()
      }
      add(entry)
      return () => {
        const isPlanned = entry.run !== undefined
        entry.run = undefined
        return isPlanned
      }
    },
    step,
    runUntil(until) {
      while (step(until));
      time = Math.max(time, until)
    },
    runAll() {
      while (step(Infinity));
      return time
    },
  }
}

function isBefore(one: Planned, other: Planned): boolean {
  return one.due < other.due || (one.due === other.due && one.order < other.order)
}
