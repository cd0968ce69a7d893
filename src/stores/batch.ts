/**
 * Sends the questions to a store in batches, and ends each by its deadline.
 *
 * The questions of one tick to one place (a partition of Redis, else 0), and those that come until a batch can be sent, go
 * together. A late answer is dropped. A question is asked again only if the server says that it did nothing.
 */
import type { Clock } from '../core/clock.js'
import { StoreError } from '../sharing/store.js'

/** Questions in a batch. More would occupy a server for long. */
const MOST = 64
/** Doubles in a batch. They are on the stack of Redis's script, which ends at 8000. */
const LARGEST = 4_000
/** A question fails with the others of its batch, so one retry would not do. */
const MOST_TRIES = 3

/** A question. `Source` is what its answer is read from. */
export class AskedQuestion<Question, Source> {
  isOver = false
  tries = 1
  readonly #read: (source: Source) => void
  readonly #reject: (error: StoreError) => void

  /** @param read takes its answer. @throws RangeError: it cannot be read */
  constructor(
    readonly question: Question,
    /** ms of the clock. Nobody waits for it any more after it. */
    readonly deadline: number,
    read: (source: Source) => void,
    reject: (error: StoreError) => void,
  ) {
    this.#read = read
    this.#reject = reject
  }

  /** Also if nobody waits for it: answers of others stand behind it. @throws RangeError: it cannot be read */
  answered(source: Source): void {
    this.#read(source)
    this.isOver = true
  }

  failed(error: StoreError): void {
    this.isOver = true
    this.#reject(error)
  }
}

interface Batch<Question, Source> {
  readonly place: number
  readonly asked: AskedQuestion<Question, Source>[]
  size: number
  isSent: boolean
}

type Send<Question, Source> = (asked: readonly AskedQuestion<Question, Source>[], place: number) => Promise<void>

export interface BatcherOptions<Question, Source> {
  readonly clock: Pick<Clock, 'now'>
  /** ms */
  readonly timeout: number
  /** Whom it asks, for messages. */
  readonly who: string
  /** How a batch can be sent now: what that throws ends its questions. Undefined: `pump` is called when one can be sent. */
  sender(): Send<Question, Source> | undefined
  reasonOf(error: Error): StoreError
  /** Doubles of a question. Absent: a batch may have any size. */
  sizeOf?(question: Question): number
  /** ms. Questions whose deadlines differ by more are not sent together. Absent: all may be. */
  readonly sameDeadline?: number
  /** A batch was sent to this place and had no answer in time. */
  silent?(place: number): void
  /** Writes at once what `send` sends. */
  together?(send: () => void): void
}

export class Batcher<Question, Source> {
  readonly #options: BatcherOptions<Question, Source>
  /** All that are not over. A set that changes all the time would keep what was in it until a full garbage collection. */
  readonly #batches: Batch<Question, Source>[] = []
  /** Those that are not sent, and the last of them for each place. */
  readonly #waiting: Batch<Question, Source>[] = []
  readonly #open = new Map<number, Batch<Question, Source> | undefined>()
  #isPlanned = false
  #dueAt: number | undefined
  #timer: NodeJS.Timeout | undefined
  /** When the timer is due. */
  #lookAt = Infinity
  #closed: string | undefined

  constructor(options: BatcherOptions<Question, Source>) {
    this.#options = options
  }

  /** How many questions wait to be sent. */
  get waiting(): number {
    return this.#waiting.reduce((sum, { asked }) => sum + asked.length, 0)
  }

  /** @param deadline ms of the clock. Absent: the timeout from now */
  ask<T>(question: Question, read: (source: Source) => T, place = 0, deadline?: number): Promise<T> {
    if (this.#closed !== undefined) return Promise.reject(new StoreError(this.#closed))
    const { clock, timeout } = this.#options
    return new Promise<T>((resolve, reject) => {
      // The clock is read once for all that are asked in a tick.
      this.#dueAt ??= clock.now() + timeout
      const due = deadline ?? this.#dueAt
      this.#add(place, new AskedQuestion<Question, Source>(question, due, source => resolve(read(source)), reject))
    })
  }

  /** The server did nothing for this question: asks it again. */
  again(asked: AskedQuestion<Question, Source>, place: number, error: StoreError): void {
    if (asked.isOver) return
    asked.tries += 1
    if (asked.tries > MOST_TRIES) asked.failed(error)
    else this.#add(place, asked)
  }

  readonly pump = (): void => {
    this.#isPlanned = false
    this.#dueAt = undefined
    const { together = run => run() } = this.#options
    together(() => {
      while (this.#sendNext());
    })
  }

  /** Those that are not sent fail. */
  fail(error: StoreError): void {
    for (const batch of this.#waiting) end(batch, error)
    this.pump()
  }

  /** @param why what is asked later is told this as well */
  close(why = 'the store is closed'): void {
    this.#closed ??= why
    clearTimeout(this.#timer)
    for (const batch of this.#batches) end(batch, new StoreError(why))
  }

  #add(place: number, asked: AskedQuestion<Question, Source>): void {
    const { sizeOf, sameDeadline = Infinity } = this.#options
    const size = sizeOf?.(asked.question) ?? 0
    let batch = this.#open.get(place)
    const isFull =
      sizeOf !== undefined && batch !== undefined && (batch.asked.length === MOST || batch.size + size > LARGEST)
    if (batch === undefined || isFull || Math.abs(batch.asked[0]!.deadline - asked.deadline) > sameDeadline) {
      batch = { place, asked: [], size: 0, isSent: false }
      this.#open.set(place, batch)
      this.#waiting.push(batch)
      this.#batches.push(batch)
    }
    batch.asked.push(asked)
    batch.size += size
    this.#watch(asked.deadline)
    if (!this.#isPlanned) setImmediate(this.pump)
    this.#isPlanned = true
  }

  #sendNext(): boolean {
    const batch = this.#waiting[0]
    if (batch === undefined) return false
    const send = batch.asked.every(({ isOver }) => isOver) ? DROP : this.#options.sender()
    if (send === undefined) return false
    this.#waiting.shift()
    if (this.#open.get(batch.place) === batch) this.#open.set(batch.place, undefined)
    void this.#send(batch, send)
    return true
  }

  async #send(batch: Batch<Question, Source>, send: Send<Question, Source>): Promise<void> {
    const { who, reasonOf } = this.#options
    batch.isSent = true
    try {
      await send(batch.asked, batch.place)
    } catch (cause) {
      if (cause instanceof StoreError) end(batch, cause)
      else if (cause instanceof RangeError) end(batch, new StoreError(`the answer of ${who} cannot be read`, { cause }))
      else end(batch, reasonOf(cause as Error))
    }
    this.#batches.splice(this.#batches.indexOf(batch), 1)
  }

  #watch(deadline: number): void {
    if (deadline >= this.#lookAt) return
    clearTimeout(this.#timer)
    this.#lookAt = deadline
    this.#timer = setTimeout(this.#look, Math.max(0, Math.ceil(deadline - this.#options.clock.now())))
  }

  readonly #look = (): void => {
    // If this process was held up, the answers may be there already.
    setImmediate(() => {
      const now = this.#options.clock.now()
      this.#lookAt = Infinity
      for (const batch of this.#batches) this.#endLate(batch, now)
      // What nobody waits for any more makes room for others.
      this.pump()
    })
  }

  #endLate({ asked, place, isSent }: Batch<Question, Source>, now: number): void {
    const { who, silent } = this.#options
    const waiting = asked.filter(({ isOver }) => !isOver)
    const late = waiting.filter(({ deadline }) => deadline <= now)
    for (const each of late) each.failed(new StoreError(`${who} did not answer in time`))
    for (const { deadline } of waiting) if (deadline > now) this.#watch(deadline)
    if (late.length > 0 && isSent) silent?.(place)
  }
}

function end({ asked }: Pick<Batch<unknown, never>, 'asked'>, error: StoreError): void {
  for (const each of asked) if (!each.isOver) each.failed(error)
}

const DROP = async (): Promise<void> => {}
