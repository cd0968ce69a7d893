// The pacing thread's steps on armed writes (armed-writes.ts has the protocol and the memory). Each is one atomic access.
// An entry is known by its index and `word`, the state word that it had when it was read from the ring.

const STATE_BITS = 3
const STATE_MASK = (1 << STATE_BITS) - 1
const ARMED = 1
const WRITING = 2
const WRITTEN = 3

export function generationOf(word) {
  return word >> STATE_BITS
}

/** Whether the entry before this one, if there is one, has left in time or is not the thread's business any more. */
export function mayClaim({ states, before, beforeGenerations, sentAt, latest }, { index }) {
  const first = before[index]
  if (first < 0) return true
  const seen = Atomics.load(states, first)
  if (generationOf(seen) !== beforeGenerations[index]) return true
  if ((seen & STATE_MASK) !== WRITTEN) return false
  const late = sentAt[first] > latest[first]
  // It may have been freed between the two readings.
  return !late || Atomics.load(states, first) !== seen
}

/** The state word of an entry that is armed; -1: it is not, any more. */
export function armedWord({ states }, index) {
  const word = Atomics.load(states, index)
  return (word & STATE_MASK) === ARMED ? word : -1
}

/** False: the main thread has taken it back. After true the fields of the entry are the thread's until `finish`. */
export function claim({ states }, { index, word }) {
  return Atomics.compareExchange(states, index, word, (word & ~STATE_MASK) | WRITING) === word
}

/** `result`: bytes written; -1: the connection is broken. */
export function finish({ states, results, sentAt }, { index, word }, result, at) {
  results[index] = result
  sentAt[index] = at
  Atomics.store(states, index, (word & ~STATE_MASK) | WRITTEN)
}
