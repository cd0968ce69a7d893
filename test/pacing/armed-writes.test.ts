/**
 * Every interleaving of the two threads. A step of either is one atomic access (armed-writes.ts), so nothing can happen in
 * the middle of a step, and what is checked here is all that can happen.
 */
import t from 'tap'
import { type ArmedWrite, ArmedWrites, CONTROLS, STATES } from '../../src/pacing/armed-writes.js'
import { armedWord, claim, type Entry, finish, mayClaim } from './claims.js'

/** ms. Slots of the entries in a lane are this far apart, and lateness beyond it spoils those behind. */
const PERIOD = 10

/** A step of a thread. `undefined`: it has to wait for the other one. */
type Step = () => boolean | undefined

/** One run of the two threads, in an order that is given step by step. */
class Run {
  readonly writes = new ArmedWrites(4)
  /** The connection behind each descriptor: descriptors are used again. */
  readonly behind = new Map<number, string>()
  /** `connection: text`, in the order of writing. */
  readonly sent: string[] = []
  readonly faults: string[] = []
  readonly lateness: number
  #read = 0
  #word: Entry | undefined
  #claimed = false
  #allowed = false
  #known: Entry[] = []

  constructor(lateness: number) {
    this.lateness = lateness
    Atomics.store(this.writes.memory.controls, CONTROLS.running, 1)
  }

  arm(text: string, descriptor: number, slot: number, after?: ArmedWrite): ArmedWrite {
    return this.writes.arm({ text, descriptor, slot, latest: slot + PERIOD, after })!
  }

  /** The pacing thread's next step: reads what is armed, or goes on with what it has. False: there is nothing to do. */
  readonly thread: Step = () => {
    const { memory } = this.writes
    if (this.#word === undefined) return this.#next()
    if (!this.#allowed) {
      this.#allowed = mayClaim(memory, this.#word)
      if (!this.#allowed) this.#word = undefined
      return true
    }
    if (!this.#claimed) {
      this.#claimed = claim(memory, this.#word)
      if (!this.#claimed) this.#word = undefined
      return true
    }
    // The system call, and then the end of it.
    const { index } = this.#word
    const { bytes, descriptors, entryBytes, lengths, slots } = memory
    if (this.#allowed && !this.#written) {
      const from = index * entryBytes
      const text = Buffer.from(bytes.slice(from, from + lengths[index]!)).toString('latin1')
      this.sent.push(`${this.behind.get(descriptors[index]!) ?? 'closed'}: ${text}`)
      this.#written = true
      return true
    }
    finish(memory, this.#word, lengths[index]!, slots[index]! + this.lateness)
    this.#word = undefined
    return true
  }

  #written = false

  #next(): boolean {
    const { controls, ring } = this.writes.memory
    this.#claimed = this.#allowed = this.#written = false
    if (this.#read !== Atomics.load(controls, CONTROLS.armed)) {
      const index = ring[this.#read]!
      this.#read += 1
      const word = armedWord(this.writes.memory, index)
      if (word >= 0) this.#known.push({ index, word })
      return true
    }
    this.#word = this.#known.shift()
    return this.#word !== undefined
  }

  /** Takes an entry back. `undefined`: it is being written. */
  revoke(entry: ArmedWrite): boolean | undefined {
    const state = this.writes.tryRevoke(entry.index, entry.generation)
    return state === STATES.writing ? undefined : state === STATES.revoked
  }
}

/** Which thread takes a step, and whether the other one could have taken it. */
interface Choice {
  readonly main: boolean
  readonly open: boolean
}

/** Makes one run. Follows the choices as far as they go, then lets the main thread go first. Returns all choices. */
function follow(given: readonly Choice[], run: Run, steps: readonly Step[]): Choice[] {
  const made: Choice[] = []
  let next = 0
  const main = (): void => {
    if (steps[next]!() !== undefined) next += 1
    // It waits for the other thread, which has to go.
    else if (run.thread() === false) throw new Error('the main thread waits for nobody')
  }
  while (made.length < 200) {
    const wanted = given[made.length] ?? { main: true, open: true }
    if (wanted.main && next < steps.length) {
      main()
      made.push(wanted)
    } else if (run.thread() !== false) made.push({ main: false, open: true })
    else if (next === steps.length) return made
    else {
      // The other thread has nothing to do: this is the order in which the main thread goes.
      main()
      made.push({ main: true, open: false })
    }
  }
  throw new Error('it does not end')
}

/**
 * Runs a scenario in every order of its steps.
 *
 * @returns how many orders there are, and the different ends
 */
function everyOrder(lateness: number, scenario: (run: Run) => Step[]): { orders: number; ends: Set<string> } {
  const ends = new Set<string>()
  let choices: Choice[] = []
  for (let orders = 1; ; orders += 1) {
    const run = new Run(lateness)
    choices = follow(choices, run, scenario(run))
    if (run.faults.length > 0) throw new Error(run.faults.join('; '))
    ends.add(run.sent.join(', ') || 'nothing')
    // The last step that the main thread took and the other one could have taken.
    while (choices.length > 0 && !(choices.at(-1)!.main && choices.at(-1)!.open)) choices.pop()
    if (choices.length === 0) return { orders, ends }
    choices[choices.length - 1] = { main: false, open: true }
  }
}

t.test('an entry that is taken back is written by one of the two, never by both', async t => {
  const { orders, ends } = everyOrder(0, run => {
    run.behind.set(7, 'one')
    let entry: ArmedWrite
    return [
      () => {
        entry = run.arm('a', 7, 0)
        return true
      },
      () => {
        const revoked = run.revoke(entry)
        if (revoked) run.sent.push('main: a')
        return revoked
      },
      () => {
        entry.free()
        return true
      },
    ]
  })
  t.same([...ends].sort(), ['main: a', 'one: a'])
  t.ok(orders > 5, `${orders} orders`)
})

/** A connection is closed and its descriptor used again, with or without the guard that takes back what is armed on it. */
function closeAndReuse(run: Run, guard: 'guarded' | 'bare'): Step[] {
  run.behind.set(7, 'alice')
  let first: ArmedWrite
  let second: ArmedWrite
  const become = (connection: string) => () => {
    run.behind.set(7, connection)
    return true
  }
  const close: Step[] = guard === 'guarded' ? [() => (run.revoke(first) === undefined ? undefined : true)] : []
  return [
    () => {
      first = run.arm('for alice', 7, 0)
      return true
    },
    ...close,
    become('closed'),
    ...(guard === 'guarded'
      ? [
          () => {
            first.free()
            return true
          },
        ]
      : []),
    become('bob'),
    () => {
      second = run.arm('for bob', 7, 5)
      return true
    },
    () => (run.revoke(second) === undefined ? undefined : true),
  ]
}

t.test('a descriptor that is closed and used again gets no bytes of the connection before', async t => {
  const { orders, ends } = everyOrder(0, run => closeAndReuse(run, 'guarded'))
  t.same([...ends].sort(), ['alice: for alice', 'alice: for alice, bob: for bob', 'bob: for bob', 'nothing'])
  t.ok(orders > 50, `${orders} orders`)
})

t.test('without the guard it would', async t => {
  const { ends } = everyOrder(0, run => closeAndReuse(run, 'bare'))
  t.ok([...ends].some(end => end.includes('bob: for alice')))
})

t.test('an entry that was taken back, freed and armed anew is written as what it is now', async t => {
  const { ends } = everyOrder(0, run => {
    run.behind.set(7, 'seven').set(8, 'eight')
    let first: ArmedWrite
    return [
      () => {
        first = run.arm('old', 7, 0)
        return true
      },
      () => {
        const revoked = run.revoke(first)
        if (revoked) first.free()
        return revoked
      },
      () => {
        if (run.arm('new', 8, 0).index !== first.index && run.sent.length === 0) run.faults.push('another entry')
        return true
      },
    ]
  })
  t.same([...ends].sort(), ['eight: new', 'seven: old, eight: new'])
})

for (const [lateness, expected] of [
  [0, ['one: a', 'one: a, two: b', 'nothing']],
  [PERIOD + 1, ['one: a', 'nothing']],
] as const) {
  t.test(`a lane leaves in order, and nothing behind one that is ${lateness} ms late`, async t => {
    const { orders, ends } = everyOrder(lateness, run => {
      run.behind.set(7, 'one').set(8, 'two')
      let first: ArmedWrite
      let second: ArmedWrite
      return [
        () => {
          first = run.arm('a', 7, 0)
          return true
        },
        () => {
          second = run.arm('b', 8, PERIOD, first)
          return true
        },
        // From the last to the first.
        () => (run.revoke(second) === undefined ? undefined : true),
        () => (run.revoke(first) === undefined ? undefined : true),
      ]
    })
    t.same([...ends].sort(), [...expected].sort())
    t.ok(orders > 50, `${orders} orders`)
  })
}

t.test('what is behind one that the main thread has sent may go once that is freed, and not before', async t => {
  const { ends } = everyOrder(0, run => {
    run.behind.set(7, 'one').set(8, 'two')
    let first: ArmedWrite
    return [
      () => {
        first = run.arm('a', 7, 0)
        return true
      },
      () => {
        run.arm('b', 8, PERIOD, first)
        return true
      },
      () => {
        const revoked = run.revoke(first)
        if (revoked) run.sent.push('main: a')
        return revoked
      },
      () => {
        first.free()
        return true
      },
    ]
  })
  // Alone at the end: the pacing thread came too early and has left it to the main thread.
  t.same([...ends].sort(), ['main: a', 'main: a, two: b', 'one: a, two: b'])
})

t.test('what does not fit is not armed', async t => {
  const writes = new ArmedWrites()
  const order = { text: 'x', descriptor: 1, slot: 0, latest: 1, after: undefined }
  t.equal(writes.arm(order), undefined, 'nobody would write it')
  Atomics.store(writes.memory.controls, CONTROLS.running, 1)
  t.equal(writes.arm({ ...order, text: 'x'.repeat(writes.memory.entryBytes + 1) }), undefined, 'too long')
  t.not(writes.arm({ ...order, text: 'x'.repeat(writes.memory.entryBytes) }), undefined)
  let armed = 1
  while (writes.arm(order) !== undefined) armed += 1
  t.equal(armed, writes.memory.states.length, 'all entries are taken')
})

t.test('an entry that has been used so often that its generation starts again is still written', t => {
  const writes = new ArmedWrites(1)
  const { memory } = writes
  Atomics.store(memory.controls, CONTROLS.running, 1)
  const order = { text: 'a', descriptor: 1, slot: 0, latest: 0, after: undefined }
  // The state word of the last generation: the next one does not fit.
  Atomics.store(memory.states, 0, 2 ** 31 - 8)
  const generations = new Set<number>()
  for (let use = 0; use < 3; use += 1) {
    const write = writes.arm(order)!
    Atomics.store(memory.controls, CONTROLS.read, use + 1)
    const entry = { index: 0, word: armedWord(memory, 0) }
    t.ok(entry.word >= 0, 'the thread reads it')
    t.ok(mayClaim(memory, entry) && claim(memory, entry), 'and writes it')
    finish(memory, entry, 1, 7)
    t.type(write.sentAt, 'number')
    t.equal(write.revoke(), false)
    write.free()
    generations.add(write.generation)
  }
  t.equal(generations.size, 3)
  t.end()
})
