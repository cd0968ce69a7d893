/**
 * The precise clock: it runs callbacks within microseconds of their due time without using a whole core. Node's timers have a
 * resolution of milliseconds. So there is a thread that sleeps in a futex:
 * 1. The thread wakes a little before the due time (`lead`) and posts a message.
 * 2. The main thread then loops with setImmediate. Other work runs in between.
 * 3. For the last `SPIN_MS` it spins in place.
 *
 * The remaining error comes from pauses of the main thread. The lead adapts to the delay of the message, up to a bound: else
 * the main thread would spin all the time. The same thread makes armed writes at their slots (armed-writes.ts).
 *
 * Every wake-up has a plain timer as its backup. If the backup runs first many times in a row (there is no thread, or it gets
 * no core), the clock stops the thread and goes on with timers.
 */
import { writeFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { DueHeap, type Timed } from '../core/structures/due-heap.js'
import { ArmedWrites, CONTROLS, type Pacer } from './armed-writes.js'

/** How long before a due time the main thread spins, in ms. */
const SPIN_MS = 0.06
const LEAD = { least: 0.06, most: 0.15 }
/** The shortest sleep of the thread, in ms. */
const SHORTEST_SLEEP_MS = 0.03
/** `after`: ms from the due time to the backup timer. `most`: how often in a row the backup may run first. */
const BACKUP = { after: 2, most: 20 }
/** The longest delay that Node's timers take. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1
/** How long the thread may take to start, in ms. */
const START_MS = 2_000

export interface PreciseClock extends Pacer {
  /** False once it has fallen back to timers. */
  readonly precise: boolean
  /** Ends the thread. Planned callbacks run on timers. */
  close(): void
}

interface Planned extends Timed {
  /** ms */
  readonly due: number
  run: (() => void) | undefined
}

/** @param options.background whether planned callbacks leave the process free to end */
export function createPreciseClock(
  fellBack: () => void = () => undefined,
  { background = false }: { readonly background?: boolean } = {},
): PreciseClock {
  const planned = new DueHeap<Planned>()
  let thread = startThread(woken, threadLost)
  let lead = LEAD.most
  /** The due time that the thread wakes for; Infinity: none. */
  let wakeAt = Infinity
  let spinning = false
  let backup: NodeJS.Timeout | undefined
  let backupAt = Infinity
  let misses = 0
  /** ms. Until then the thread may be starting, and a backup that runs first is not counted. */
  let startingUntil = performance.now() + START_MS

  function arm(): void {
    const next = planned.next
    if (next === undefined) {
      clearTimeout(backup)
      backup = undefined
      backupAt = Infinity
      return
    }
    const left = next.due - performance.now()
    if (thread !== undefined && left < lead + SHORTEST_SLEEP_MS) return spin()
    if (thread !== undefined && next.due < wakeAt) {
      wakeAt = next.due
      thread.writes.setAlarm(next.due - lead)
    }
    armBackup(next.due + (thread === undefined ? 0 : BACKUP.after))
  }

  function armBackup(at: number): void {
    if (at >= backupAt && backup !== undefined) return
    clearTimeout(backup)
    backupAt = at
    backup = setTimeout(backedUp, Math.min(Math.ceil(Math.max(0, at - performance.now())), LONGEST_TIMEOUT_MS))
    if (background) backup.unref()
  }

  function spin(): void {
    if (spinning) return
    spinning = true
    setImmediate(spinOrWait)
  }

  function spinOrWait(): void {
    spinning = false
    const next = planned.next
    if (next === undefined) return
    if (next.due - performance.now() <= SPIN_MS) {
      while (performance.now() < next.due);
      runDue()
    }
    arm()
  }

  function runDue(): void {
    for (let next = planned.next; next !== undefined && next.due <= performance.now(); next = planned.next) {
      planned.remove(next)
      const run = next.run!
      next.run = undefined
      run()
    }
  }

  function woken(): void {
    const early = wakeAt - performance.now()
    wakeAt = Infinity
    misses = 0
    startingUntil = -Infinity
    // A late message adds ten times what an early one takes off, so about one message in eleven is late.
    if (early < 0) lead = Math.min(LEAD.most, lead + 0.01)
    else lead = Math.max(LEAD.least, lead - 0.001)
    spinOrWait()
  }

  function backedUp(): void {
    backup = undefined
    backupAt = Infinity
    const next = planned.next
    const now = performance.now()
    if (thread !== undefined && next !== undefined && next.due <= now && wakeAt <= next.due && now > startingUntil) {
      misses += 1
      if (misses > BACKUP.most) threadLost()
    }
    runDue()
    arm()
  }

  function threadLost(): void {
    stopThread()
    fellBack()
  }

  function stopThread(): void {
    thread?.end()
    thread = undefined
    wakeAt = Infinity
    arm()
  }

  if (thread === undefined) fellBack()
  return {
    get precise() {
      return thread !== undefined
    },
    get writes() {
      return thread?.writes
    },
    now: () => performance.now(),
    at(due, run) {
      const entry: Planned = { due, place: -1, run }
      planned.add(entry, due)
      if (planned.next === entry) arm()
      return () => {
        if (entry.run === undefined) return false
        entry.run = undefined
        planned.remove(entry)
        if (planned.size === 0) arm()
        return true
      }
    },
    close: stopThread,
  }
}

interface PacingThread {
  readonly writes: ArmedWrites
  end(): void
}

function startThread(woken: () => void, died: () => void): PacingThread | undefined {
  const writes = new ArmedWrites()
  const { memory } = writes
  memory.asleep[0] = -Infinity
  shortenTimerSlack()
  try {
    // Loaded only now: it would take a tenth of the time in which the library is loaded.
    const { Worker } = process.getBuiltinModule('node:worker_threads')
    const workerData = { memory: { ...memory }, controls: CONTROLS }
    const worker = new Worker(new URL('./pacing-thread.js', import.meta.url), { workerData, execArgv: [], env: {} })
    worker.on('message', message => (message === 'news' ? writes.onNews() : woken()))
    worker.once('error', died)
    worker.once('exit', died)
    worker.unref()
    return {
      writes,
      end() {
        worker.removeAllListeners()
        worker.on('error', () => undefined)
        // It ends by itself, and not in the middle of a write.
        writes.stop()
      },
    }
  } catch {
    return undefined
  }
}

/** By default Linux delays sleeps by up to 50 us. A thread inherits this setting from the thread that starts it. */
function shortenTimerSlack(): void {
  try {
    writeFileSync('/proc/self/timerslack_ns', '1')
  } catch {
    // Not Linux, or not allowed. The lead covers the delay.
  }
}
