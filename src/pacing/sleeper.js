// The thread that sleeps for the precise clock (precise.ts). It waits in Atomics.wait: its timeout is that of a futex, much
// finer than a millisecond. The shared memory holds a counter, which changes with every order, and the order: when to
// wake, in ms of process.hrtime; Infinity: never.
import { parentPort, workerData } from 'node:worker_threads'

const counter = new Int32Array(workerData, 0, 1)
const order = new Float64Array(workerData, 8, 1)

for (;;) {
  const seen = Atomics.load(counter, 0)
  const wake = order[0]
  const left = wake - Number(process.hrtime.bigint()) / 1e6
  // A new order ends the wait early and is read at once.
  if (left > 0) {
    if (Atomics.wait(counter, 0, seen, left) !== 'timed-out') continue
    if (Atomics.load(counter, 0) !== seen) continue
  }
  parentPort.postMessage(wake)
  Atomics.wait(counter, 0, seen)
}
