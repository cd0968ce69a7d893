// The thread that keeps time for the precise clock (precise.ts). It makes armed writes at their slots, and wakes the main
// thread when an alarm is due. It waits in Atomics.wait: its timeout is that of a futex, much finer than a millisecond.
import { writeSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { parentPort, workerData } from 'node:worker_threads'
import { armedWord, claim, finish, generationOf, mayClaim } from './claims.js'

const { memory, controls: at } = workerData
const { controls, ring, states, slots, asleep, alarm, before, beforeGenerations } = memory
const { descriptors, lengths, bytes, entryBytes } = memory

// ms before a slot when the thread wakes, to spin for the rest. A processor that has slept for long wakes later: after a sleep
// of 0.1 ms 5 us later than asked, after 1 ms 26 us, after 8 ms 31 us (medians).
const SPIN = { long: 0.04, short: 0.012 }
const SHORT_SLEEP = 0.3

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
// By index: the generation of the entry that another one follows.
const followed = new Int32Array(states.length).fill(-1)
let read = 0
let rung = 0

function readArmed() {
  const end = Atomics.load(controls, at.armed)
  while (read !== end) {
    const index = ring[read & (ring.length - 1)]
    read = (read + 1) | 0
    const word = armedWord(memory, index)
    if (word < 0) continue
    if (before[index] >= 0) followed[before[index]] = beforeGenerations[index]
    insert({ index, word, slot: slots[index] })
  }
  Atomics.store(controls, at.read, read)
}

function insert(entry) {
  let place = armed.length
  while (place > 0 && armed[place - 1].slot > entry.slot) place -= 1
  armed.splice(place, 0, entry)
}

// The main thread is told when it has to send by itself, and when it may arm more. Else it sleeps until something comes.
function write(entry) {
  if (!mayClaim(memory, entry) || !claim(memory, entry)) return parentPort.postMessage('news')
  const { index, word } = entry
  let result = 0
  try {
    result = writeSync(descriptors[index], bytes, index * entryBytes, lengths[index])
  } catch (error) {
    if (error.code !== 'EAGAIN') result = -1
  }
  finish(memory, entry, result, now())
  if (followed[index] !== generationOf(word)) parentPort.postMessage('news')
}

Atomics.store(controls, at.running, 1)
while (Atomics.load(controls, at.stopping) === 0) {
  const seen = Atomics.load(controls, at.signal)
  readArmed()
  const alarms = Atomics.load(controls, at.alarms)
  const wake = alarms === rung ? Infinity : alarm[0]
  const time = now()
  const slot = armed.length === 0 ? Infinity : armed[0].slot
  const spin = slot - time < SHORT_SLEEP ? SPIN.short : SPIN.long
  const until = Math.min(wake, slot - spin)
  const left = until - time
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
