/**
 * Writes that the pacing thread makes by itself: the memory that it shares with the main thread, and the protocol.
 *
 * The main thread *arms* an entry: the bytes of a request, the file descriptor of an idle connection, and the slot, at which
 * the pacing thread writes the bytes. The main thread may take the entry back until then. Exactly one of the two writes it, or
 * none.
 *
 *     free --arm--> armed --claim--> writing --finish--> written --free--> free
 *                     '--revoke--> revoked --free--> free
 *
 * `claim` and `finish` are the pacing thread's steps, the others are the main thread's. Each is one atomic access. `claim` and
 * `revoke` compare and swap the state word, so one of them wins. All else that a step touches belongs to its thread:
 * 1. The fields of an entry belong to the main thread but for `writing`. They are written before the store of `armed` and read
 *    after a claim has won. The result is written before the store of `written` and read after it.
 * 2. The state word has a generation, which `free` changes, and a claim names it. So a claim of an entry that was armed anew
 *    fails.
 * 3. If a file descriptor is closed and opened again, the bytes of one request would go to another connection. The pacing
 *    thread uses it only in `writing`. So it may be closed once its entry cannot come to `writing` and is not there: `revoke`
 *    waits while it is.
 * 4. The entries of one lane leave in order, and not too close: an entry names the one *before* it. It is claimed only if that
 *    one is written, and not later than its `latest`, or free: then the main thread has let this entry stand. The main thread
 *    takes back entries of a lane from the last to the first. So none is written while one before it is taken back.
 *
 * The pacing thread tells the main thread what it may not claim, and when it has written an entry that no other follows. Of all
 * else the main thread hears when the answer comes. armed-writes.test.ts runs every interleaving of these steps.
 */
import { performance } from 'node:perf_hooks'
import type { Clock } from '../core/clock.js'

/** Entries. What finds none free is not armed. */
const ENTRIES = 512
const ENTRY_BYTES = 4_096
/** The low bits of a state word. The others are the generation. */
const STATE_BITS = 3
const STATE_MASK = (1 << STATE_BITS) - 1
/** A state word is never negative. After the last generation comes the first one again. */
const WORD_MASK = 0x7fffffff
export const STATES = { free: 0, armed: 1, writing: 2, written: 3, revoked: 4 } as const

/**
 * Places in `controls`. `signal` changes with everything that is new to the pacing thread. `armed` and `read` count the
 * entries that were ever armed, and those that the pacing thread has read. `alarms` counts the alarms that were set.
 */
export const CONTROLS = { signal: 0, armed: 1, read: 2, alarms: 3, running: 4, stopping: 5 } as const
/** ms. A write that is not done after this time is that of a thread that has died. */
const LONGEST_WRITE = 5_000

/** The shared memory: one element for each entry where nothing else is said. Times are in ms of process.hrtime. */
function createMemory(entries: number) {
  return {
    entryBytes: ENTRY_BYTES,
    /** When to wake the main thread: one element. */
    alarm: floats(1),
    /** Until when the pacing thread sleeps: one element. */
    asleep: floats(1),
    controls: integers(Object.keys(CONTROLS).length),
    /** Indices of armed entries in the order of arming, as a ring. */
    ring: integers(entries),
    states: integers(entries),
    descriptors: integers(entries),
    lengths: integers(entries),
    /** The index of the entry before, and its generation. -1: there is none. */
    before: integers(entries),
    beforeGenerations: integers(entries),
    /** How many bytes were written. -1: the connection is broken. */
    results: integers(entries),
    slots: floats(entries),
    latest: floats(entries),
    sentAt: floats(entries),
    bytes: new Uint8Array(new SharedArrayBuffer(entries * ENTRY_BYTES)),
  }
}

function floats(count: number): Float64Array<SharedArrayBuffer> {
  return new Float64Array(new SharedArrayBuffer(8 * count))
}

function integers(count: number): Int32Array<SharedArrayBuffer> {
  return new Int32Array(new SharedArrayBuffer(4 * count))
}

/** What to write, where and when. Times are in ms of performance.now. */
export interface WriteOrder {
  /** One byte for each character. */
  readonly text: string
  readonly descriptor: number
  readonly slot: number
  /** If it is written later, what comes after it is left to the main thread. */
  readonly latest: number
  /** The entry that must be written before. */
  readonly after: ArmedWrite | undefined
}

export class ArmedWrites {
  readonly memory: ReturnType<typeof createMemory>
  /** An entry was written that no other follows, or one was left to the main thread: it was taken back, or that before it was late. */
  onNews: () => void = () => undefined
  readonly #buffer: Buffer
  readonly #free: number[]
  /** What to add to performance.now, in ms: not less than the true offset, so that nothing is written before its slot. */
  readonly toHrtime = offsetOfHrtime()

  /** @param entries a power of two */
  constructor(entries = ENTRIES) {
    this.memory = createMemory(entries)
    this.#buffer = Buffer.from(this.memory.bytes.buffer)
    this.#free = Array.from({ length: entries }, (_, index) => entries - 1 - index)
  }

  get running(): boolean {
    return Atomics.load(this.memory.controls, CONTROLS.running) === 1
  }

  /** @returns undefined if it does not fit, or nobody would write it */
  arm({ text, descriptor, slot, latest, after }: WriteOrder): ArmedWrite | undefined {
    const { memory } = this
    const { controls, states } = memory
    const armed = Atomics.load(controls, CONTROLS.armed)
    if (text.length > ENTRY_BYTES || !this.running) return undefined
    if (((armed - Atomics.load(controls, CONTROLS.read)) | 0) >= memory.ring.length) return undefined
    const index = this.#free.pop()
    if (index === undefined) return undefined
    const generation = states[index]! >> STATE_BITS
    memory.descriptors[index] = descriptor
    memory.lengths[index] = this.#buffer.write(text, index * ENTRY_BYTES, 'latin1')
    memory.before[index] = after === undefined ? -1 : after.index
    memory.beforeGenerations[index] = after === undefined ? 0 : after.generation
    memory.slots[index] = slot + this.toHrtime
    memory.latest[index] = latest + this.toHrtime
    memory.ring[armed & (memory.ring.length - 1)] = index
    Atomics.store(states, index, (generation << STATE_BITS) | STATES.armed)
    Atomics.store(controls, CONTROLS.armed, (armed + 1) | 0)
    this.#signal(memory.slots[index]!)
    return new ArmedWrite(this, index, generation)
  }

  /** Lets the pacing thread post a message at this time, in ms of performance.now. A later call replaces it. */
  setAlarm(at: number): void {
    this.memory.alarm[0] = at + this.toHrtime
    Atomics.add(this.memory.controls, CONTROLS.alarms, 1)
    this.#signal(at + this.toHrtime)
  }

  stop(): void {
    Atomics.store(this.memory.controls, CONTROLS.running, 0)
    Atomics.store(this.memory.controls, CONTROLS.stopping, 1)
    this.#signal(-Infinity)
  }

  /** Something is new that has to be seen by this time. The pacing thread looks for news before it sleeps. */
  #signal(by: number): void {
    const { controls, asleep } = this.memory
    Atomics.add(controls, CONTROLS.signal, 1)
    if (by < asleep[0]!) Atomics.notify(controls, CONTROLS.signal)
  }

  /** Takes an entry back if it is not being written. Returns its state after that. */
  tryRevoke(index: number, generation: number): number {
    const word = generation << STATE_BITS
    const seen = Atomics.compareExchange(this.memory.states, index, word | STATES.armed, word | STATES.revoked)
    const state = seen & STATE_MASK
    return state === STATES.armed ? STATES.revoked : state
  }

  /** Lets an entry be armed anew. It was written, or taken back. */
  free(index: number, generation: number): void {
    Atomics.store(this.memory.states, index, (((generation + 1) << STATE_BITS) & WORD_MASK) | STATES.free)
    this.#free.push(index)
  }
}

/** One armed entry, for the main thread. */
export class ArmedWrite {
  readonly index: number
  readonly generation: number
  readonly #writes: ArmedWrites

  constructor(writes: ArmedWrites, index: number, generation: number) {
    this.#writes = writes
    this.index = index
    this.generation = generation
  }

  /** When it was written, in ms of performance.now. Undefined: it was not, or its place has another entry. */
  get sentAt(): number | undefined {
    const { memory, toHrtime } = this.#writes
    const written = (this.generation << STATE_BITS) | STATES.written
    return Atomics.load(memory.states, this.index) === written ? memory.sentAt[this.index]! - toHrtime : undefined
  }

  /** How many bytes were written; -1: the connection is broken. Meaningless before it was written. */
  get result(): number {
    return this.#writes.memory.results[this.index]!
  }

  /** Takes it back: its descriptor is used no more. False: it has been written. */
  revoke(): boolean {
    for (let waited = 0; waited < LONGEST_WRITE; waited += 1) {
      const state = this.#writes.tryRevoke(this.index, this.generation)
      if (state !== STATES.writing) return state !== STATES.written
      const { states } = this.#writes.memory
      // Nobody wakes this wait: a write takes some us, and most find it done.
      Atomics.wait(states, this.index, (this.generation << STATE_BITS) | STATES.writing, waited < 20 ? 0.01 : 1)
    }
    return false
  }

  /** Lets the entry be used again. To be called once, after it was written or taken back. */
  free(): void {
    this.#writes.free(this.index, this.generation)
  }
}

/** The least of many readings: each is too large by the time between its two clocks. */
function offsetOfHrtime(): number {
  let least = Infinity
  for (let reading = 0; reading < 100; reading += 1) {
    const before = performance.now()
    least = Math.min(least, Number(process.hrtime.bigint()) / 1e6 - before)
  }
  return least
}

/** A clock that may have a thread which makes writes by itself. */
export interface Pacer extends Clock {
  /** Undefined: there is no thread. */
  readonly writes?: ArmedWrites | undefined
}
