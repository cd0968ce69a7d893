import type { Cancel, Clock } from '../core/clock.js'
import { type Linked, LinkedList } from '../core/structures/linked-list.js'

/** Something with a deadline. It can be in one `Deadlines` at a time. */
export abstract class Watched implements Linked<Watched> {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  abstract expired(): void
}

/** Deadlines of the same duration. They end in the order in which they were started, so one timer serves them all. */
export class Deadlines<E extends Watched = Watched> {
  readonly #watched = new LinkedList<Watched>()
  readonly #clock: Clock
  readonly #duration: number
  #disarm: Cancel | undefined

  constructor(clock: Clock, duration: number) {
    this.#clock = clock
    this.#duration = duration
  }

  watch(entry: E): void {
    entry.dueAt = this.#clock.now() + this.#duration
    // It often is the last one: the pieces of an answer come together.
    if (this.#watched.last !== entry) {
      this.#watched.remove(entry)
      this.#watched.push(entry)
    }
    this.#disarm ??= this.#clock.at(entry.dueAt, this.#run)
  }

  unwatch(entry: E): boolean {
    return this.#watched.remove(entry)
  }

  get size(): number {
    return this.#watched.size
  }

  /** How long the one that passes first has run, and how long it has left, in ms. Undefined: none runs. */
  get oldest(): { readonly ran: number; readonly left: number } | undefined {
    const { first } = this.#watched
    const left = first && first.dueAt - this.#clock.now()
    return left === undefined ? undefined : { ran: this.#duration - left, left }
  }

  takeOldest(): E | undefined {
    return this.#watched.shift() as E | undefined
  }

  takeNewest(): E | undefined {
    const entry = this.#watched.last as E | undefined
    if (entry !== undefined) this.#watched.remove(entry)
    return entry
  }

  close(): void {
    this.#disarm?.()
    this.#disarm = undefined
    while (this.#watched.shift() !== undefined);
  }

  readonly #run = (): void => {
    // Deadlines that start during the loop must not set the timer: an earlier one may be left.
    this.#disarm = nothing
    const now = this.#clock.now()
    for (let entry = this.#watched.first; entry !== undefined && entry.dueAt <= now; entry = this.#watched.first) {
      this.#watched.shift()
      entry.expired()
    }
    const { first } = this.#watched
    this.#disarm = first === undefined ? undefined : this.#clock.at(first.dueAt, this.#run)
  }
}

const nothing = (): boolean => false
