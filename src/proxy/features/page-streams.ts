/**
 * The event streams of the pages that wait: one of each client, at most `MOST` of them. They cost one timer. Each page is told again
 * what it waits for when that has changed, and to go when its moment has come.
 *
 * A page that has no stream, or no more, counts down by itself.
 */
import type { Comeback } from '../../core/admission/comeback.js'
import type { Cancel, Clock } from '../../core/clock.js'
import { DueHeap, type Timed } from '../../core/structures/due-heap.js'

const MOST = 1_000
/** ms from one question to the next, for each page. */
const INTERVAL = 1_000
/** ms. Streams that are due together share a wake-up. No page is told to go early. */
const GRID = 20
/** ms. A difference that pages are not told of. They count down by themselves. */
const UNTOLD = 500
/** ms. After so long a page is told all the same, so that nobody on the way takes its connection for a dead one. */
const SILENCE = 15_000
/** What a stream says. `replaced`: its client has another one. `go`: it should ask for its page again. */
export type StreamEvent = Comeback | 'go' | 'replaced'

export interface PageStream {
  readonly client: string
  ask(): Comeback | undefined
  /** @returns false if its client has not taken what it was told before. Then it is over */
  say(event: StreamEvent): boolean
  close(): void
}

class Entry implements Timed {
  place = -1
  told: Comeback | undefined
  toldAt = 0

  constructor(readonly stream: PageStream) {}

  /** @returns whether the page does not know it */
  isNews({ until, wait, position }: Comeback, now: number): boolean {
    const { told } = this
    if (told === undefined || now - this.toldAt >= SILENCE) return true
    const passed = now - this.toldAt
    const isNear = (one: number, other: number): boolean => Math.abs(one - (other - passed)) <= UNTOLD
    return (
      !isNear(until, told.until) ||
      !isNear(wait, told.wait) ||
      (position === undefined) !== (told.position === undefined)
    )
  }
}

export class PageStreams {
  readonly #clock: Clock
  readonly #byClient = new Map<string, Entry>()
  readonly #due = new DueHeap<Entry>()
  #disarm: Cancel | undefined
  #armedFor = Infinity

  constructor(clock: Clock) {
    this.#clock = clock
  }

  get size(): number {
    return this.#byClient.size
  }

  hasRoomFor(client: string): boolean {
    return this.#byClient.size < MOST || this.#byClient.has(client)
  }

  /** It takes the place of the one that its client has. */
  open(stream: PageStream): void {
    const former = this.#byClient.get(stream.client)
    if (former !== undefined) {
      former.stream.say('replaced')
      this.#end(former)
    }
    const entry = new Entry(stream)
    this.#byClient.set(stream.client, entry)
    this.#tell(entry)
    this.#arm()
  }

  drop(stream: PageStream): void {
    const entry = this.#byClient.get(stream.client)
    if (entry?.stream !== stream) return
    this.#byClient.delete(stream.client)
    this.#due.remove(entry)
    this.#arm()
  }

  /** Pages ask again, and meanwhile count down by themselves. */
  endAll(): void {
    for (const entry of [...this.#byClient.values()]) this.#end(entry)
    this.#arm()
  }

  #end(entry: Entry): void {
    this.#byClient.delete(entry.stream.client)
    this.#due.remove(entry)
    entry.stream.close()
  }

  #tell(entry: Entry): void {
    const { stream } = entry
    const now = this.#clock.now()
    const comeback = stream.ask()
    if (comeback === undefined) {
      stream.say('go')
      return this.#end(entry)
    }
    if (entry.isNews(comeback, now)) {
      if (!stream.say(comeback)) return this.#end(entry)
      entry.told = comeback
      entry.toldAt = now
    }
    const due = Math.ceil((now + Math.min(comeback.until, INTERVAL)) / GRID) * GRID
    this.#due.remove(entry)
    this.#due.add(entry, Math.max(due, now + 1))
  }

  #arm(): void {
    const { nextDue } = this.#due
    if (nextDue === this.#armedFor) return
    this.#disarm?.()
    this.#armedFor = nextDue
    this.#disarm = nextDue === Infinity ? undefined : this.#clock.at(nextDue, this.#run)
  }

  readonly #run = (): void => {
    this.#disarm = undefined
    this.#armedFor = Infinity
    const now = this.#clock.now()
    for (let { next } = this.#due; next !== undefined && this.#due.nextDue <= now; next = this.#due.next)
      this.#tell(next)
    this.#arm()
  }
}
