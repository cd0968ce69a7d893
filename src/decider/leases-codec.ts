/**
 * What is leased of a bucket, as the doubles that a server keeps: until when (as in the bucket; if it differs, the clock went back
 * and moved that), the turn of the last slot of each class, what each but the last owes, lateBy, beyond, how many spare slots,
 * lessees and gone ones, time and cost of each spare slot, instance, waits and until of each that is gone, and of each lessee
 * instance, seenAt, nextAt, lead, late, largest, room, filled, roomRate, roomUntil, lacks, pace, pacedAt, how many classes and slots, of each
 * class priority, weight, cost and turn, of each slot time and cost. Arrivals are not kept.
 */
import { LAST_PRIORITY } from '../core/priority.js'
import { FORECAST } from './constants.js'
import { type BucketLeases, type Lessee, noLeases, type OwnedSlot, shiftLeases } from './leases.js'

const PER_LESSEE = 15
const PER_CLASS = 4

export function packLeases(leases: BucketLeases, until: number): number[] {
  const { spare, lessees, gone } = leases
  const numbers = [until]
  for (const turn of leases.turns) numbers.push(turn)
  for (const cost of leases.owed) numbers.push(cost)
  const at = numbers.length
  numbers[at] = leases.lateBy
  numbers[at + 1] = leases.beyond
  numbers[at + 2] = spare.length
  numbers[at + 3] = lessees.length
  numbers[at + 4] = gone.length
  packSlots(numbers, spare)
  for (const each of gone) {
    numbers.push(each.instance)
    numbers.push(each.waits)
    numbers.push(each.until)
  }
  for (const lessee of lessees) packLessee(numbers, lessee)
  return numbers
}

function packLessee(numbers: number[], lessee: Lessee): void {
  let at = numbers.length
  numbers[at] = lessee.instance
  numbers[at + 1] = lessee.seenAt
  numbers[at + 2] = lessee.nextAt
  numbers[at + 3] = lessee.lead
  numbers[at + 4] = lessee.late
  numbers[at + 5] = lessee.largest
  numbers[at + 6] = lessee.room
  numbers[at + 7] = lessee.filled
  numbers[at + 8] = lessee.roomRate
  numbers[at + 9] = lessee.roomUntil
  numbers[at + 10] = lessee.lacks
  numbers[at + 11] = lessee.pace
  numbers[at + 12] = lessee.pacedAt
  numbers[at + 13] = lessee.demand.length
  numbers[at + 14] = lessee.slots.length
  at += PER_LESSEE
  for (const { priority, weight, cost, turn } of lessee.demand) {
    numbers[at] = priority
    numbers[at + 1] = weight
    numbers[at + 2] = cost
    numbers[at + 3] = turn
    at += PER_CLASS
  }
  packSlots(numbers, lessee.slots)
}

function packSlots(numbers: number[], slots: readonly OwnedSlot[]): void {
  let place = numbers.length
  for (const { at, cost } of slots) {
    numbers[place] = at
    numbers[place + 1] = cost
    place += 2
  }
}

/** @param until as the bucket has it */
export function unpackLeases(numbers: readonly number[], until: number): BucketLeases {
  const leases = noLeases()
  let at = 1
  for (let priority = 0; priority <= FORECAST; priority += 1) leases.turns[priority] = numbers[at + priority]!
  at += FORECAST + 1
  for (let priority = 0; priority < LAST_PRIORITY; priority += 1) leases.owed[priority] = numbers[at + priority]!
  at += LAST_PRIORITY
  leases.lateBy = numbers[at]!
  leases.beyond = numbers[at + 1]!
  const spares = numbers[at + 2]!
  const lessees = numbers[at + 3]!
  const gone = numbers[at + 4]!
  at = unpackSlots(numbers, at + 5, leases.spare, spares)
  for (let count = 0; count < gone; count += 1) {
    leases.gone.push({ instance: numbers[at]!, waits: numbers[at + 1]!, until: numbers[at + 2]! })
    at += 3
  }
  for (let count = 0; count < lessees; count += 1) at = unpackLessee(numbers, at, leases)
  const by = until - numbers[0]!
  if (by !== 0) shiftLeases(leases, by)
  return leases
}

/** Returns where the next one is. */
function unpackLessee(numbers: readonly number[], from: number, leases: BucketLeases): number {
  const lessee: Lessee = {
    instance: numbers[from]!,
    seenAt: numbers[from + 1]!,
    nextAt: numbers[from + 2]!,
    lead: numbers[from + 3]!,
    late: numbers[from + 4]!,
    largest: numbers[from + 5]!,
    room: numbers[from + 6]!,
    filled: numbers[from + 7]!,
    roomRate: numbers[from + 8]!,
    roomUntil: numbers[from + 9]!,
    lacks: numbers[from + 10]!,
    pace: numbers[from + 11]!,
    pacedAt: numbers[from + 12]!,
    demand: [],
    slots: [],
    readyAt: 0,
    latest: 0,
    forecast: undefined,
  }
  leases.lessees.push(lessee)
  const classes = numbers[from + 13]!
  let at = from + PER_LESSEE
  for (let count = 0; count < classes; count += 1) {
    lessee.demand.push({
      priority: numbers[at]!,
      weight: numbers[at + 1]!,
      part: numbers[at + 1]!,
      cost: numbers[at + 2]!,
      turn: numbers[at + 3]!,
      arrivals: undefined,
      passed: 0,
      point: 0,
      lessee,
      place: 0,
      key: 0,
    })
    at += PER_CLASS
  }
  return unpackSlots(numbers, at, lessee.slots, numbers[from + 14]!)
}

/** Returns where the rest is. */
function unpackSlots(numbers: readonly number[], from: number, slots: OwnedSlot[], count: number): number {
  const end = from + 2 * count
  for (let place = from; place < end; place += 2) slots.push({ at: numbers[place]!, cost: numbers[place + 1]! })
  return end
}
