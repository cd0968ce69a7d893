/** Writes what is armed, in place of the pacing thread. */
import { writeSync } from 'node:fs'
import { ArmedWrites, CONTROLS } from '../../src/pacing/armed-writes.js'
import { armedWord, claim, type Entry, finish, mayClaim } from '../pacing/claims.js'
import type { Rig } from './harness.js'

/** Plays the pacing thread. */
export class Hand {
  readonly writes = new ArmedWrites()

  constructor() {
    Atomics.store(this.writes.memory.controls, CONTROLS.running, 1)
  }

  /** What is armed, by slot. */
  get armed(): Entry[] {
    const { memory } = this.writes
    const all = [...memory.states.keys()].map(index => ({ index, word: armedWord(memory, index) }))
    return all.filter(({ word }) => word >= 0).sort((a, b) => memory.slots[a.index]! - memory.slots[b.index]!)
  }

  /** Paths of what is armed. */
  get paths(): string[] {
    return this.armed.map(entry => this.text(entry).split(' ')[1]!)
  }

  text({ index }: Entry): string {
    const { bytes, entryBytes, lengths } = this.writes.memory
    return Buffer.from(bytes.slice(index * entryBytes, index * entryBytes + lengths[index]!)).toString('latin1')
  }

  /** Writes what is due until then, in ms of the pacer. */
  sendUntil(rig: Rig, until: number): void {
    const { memory, toHrtime } = this.writes
    // What follows a late one is not sent.
    const next = (): Entry | undefined =>
      this.armed.find(entry => memory.slots[entry.index]! - toHrtime <= until && mayClaim(memory, entry))
    for (let entry = next(); entry !== undefined; entry = next()) this.send(rig, entry)
  }

  /** Writes one of them, or its first bytes only, and moves the pacer to its slot: no further than the thread would. */
  send(rig: Rig, entry = this.armed[0]!, most = Infinity): void {
    const { memory, toHrtime } = this.writes
    if (!mayClaim(memory, entry) || !claim(memory, entry)) throw new Error('it cannot be claimed')
    const { bytes, descriptors, entryBytes, lengths, slots } = memory
    const length = Math.min(most, lengths[entry.index]!)
    let result = -1
    try {
      result = length === 0 ? 0 : writeSync(descriptors[entry.index]!, bytes, entry.index * entryBytes, length)
    } catch {
      // The connection is broken.
    }
    finish(memory, entry, result, slots[entry.index]!)
    // The main thread does not wake for what is armed.
    rig.pacer.runUntil(slots[entry.index]! - toHrtime)
  }
}
