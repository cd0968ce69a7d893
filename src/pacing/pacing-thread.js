// The thread that keeps time for the precise clock (precise.ts). It makes armed writes at their slots, and wakes the main
// thread when an alarm is due. It waits in Atomics.wait: its timeout is that of a futex, much finer than a millisecond.
import { writeSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { parentPort, workerData } from 'node:worker_threads'
import { armedWord, claim, finish, mayClaim } from './claims.js'

const { memory, controls: at } = workerData
const { controls, ring, slots, asleep, alarm, descriptors, lengths, bytes, entryBytes } = memory

// ms before a slot when the thread wakes, to spin for the rest.
const SPIN = 0.04

// To performance.now, in ms. The most of many readings: each is too small by the time between its two clocks. So nothing is
// written before its slot.
let toHrtime = -Infinity
for (let reading = 0; reading < 100; reading += 1) {
  const hrtime = Number(process.hrtime.bigint()) / 1e6
  toHrtime = Math.max(toHrtime, hrtime - performance.now())
}
const now = () => performance.now() + toHrtime

// What is armed, in the order of slots.
const armed = []
let read = 0
let rung = 0

function readArmed() {
  const end = Atomics.load(controls, at.armed)
  while (read !== end) {
    const index = ring[read & (ring.length - 1)]
    read = (read + 1) | 0
    const word = armedWord(memory, index)
    if (word >= 0) insert({ index, word, slot: slots[index] })
  }
  Atomics.store(controls, at.read, read)
}

function insert(entry) {
  let place = armed.length
  while (place > 0 && armed[place - 1].slot > entry.slot) place -= 1
  armed.splice(place, 0, entry)
}

function write(entry) {
  if (!mayClaim(memory, entry)) {
    // The main thread does not expect to be needed for it.
    if (armedWord(memory, entry.index) === entry.word) parentPort.postMessage('left')
    return
  }
  if (!claim(memory, entry)) return
  const { index } = entry
  let result = 0
  try {
    result = writeSync(descriptors[index], bytes, index * entryBytes, lengths[index])
  } catch (error) {
    if (error.code !== 'EAGAIN') result = -1
  }
  finish(memory, entry, result, now())
}

Atomics.store(controls, at.running, 1)
while (Atomics.load(controls, at.stopping) === 0) {
  const seen = Atomics.load(controls, at.signal)
  readArmed()
  const alarms = Atomics.load(controls, at.alarms)
  const wake = alarms === rung ? Infinity : alarm[0]
  const until = armed.length === 0 ? wake : Math.min(wake, armed[0].slot - SPIN)
  const left = until - now()
  if (left > 0) {
    asleep[0] = until
    Atomics.wait(controls, at.signal, seen, left)
    asleep[0] = -Infinity
    continue
  }
  if (until === wake) {
    rung = alarms
    parentPort.postMessage('alarm')
    continue
  }
  const entry = armed.shift()
  while (now() < entry.slot);
  write(entry)
}
Atomics.store(controls, at.running, 0)
