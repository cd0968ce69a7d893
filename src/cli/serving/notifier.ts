/**
 * Tells systemd how the program is: sd_notify(3).
 *
 * Node cannot write to a Unix datagram socket, so `systemd-notify` does, which is where systemd is. A shell beside this process starts it
 * for each message: a start by Node itself would hold up the event loop.
 */
import { spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import type { Logger } from 'pino'
import type { Status } from './worker-protocol.js'

/** ms between two looks at what STATUS says: it is sent where that has changed. */
const STATUS_MS = 1_000
/** The longest time of Node's timers, in ms. */
const LONGEST = 2 ** 31 - 1
/** Bytes that may wait for the shell, beside those in its pipe. Further messages are dropped. */
const MOST_UNREAD = 4_096
/** Each line has one or two assignments. The shell ends with this process, and not by the signals to its group. Output is a failure. */
const SCRIPT = `trap '' HUP INT TERM
while IFS='\t' read -r first second; do
  error=$(systemd-notify "$first" \${second:+"$second"} 2>&1) || echo "$error"
done`
const REMEDY = 'it needs the program systemd-notify, and NotifyAccess=all in the unit'

export interface Notifier {
  /** @param status undefined: nobody knows it now */
  ready(status: () => Promise<Status | undefined>): void
  reloading(): void
  reloaded(): void
  stopping(): void
  /** Another process serves from now on, and tells itself how it is. */
  succeeded(pid: number): void
}

/** Undefined: nobody wants to know. */
export function createNotifier(env: NodeJS.ProcessEnv, pid: number, log: Pick<Logger, 'warn'>): Notifier | undefined {
  const { NOTIFY_SOCKET: socket, WATCHDOG_USEC: limit = '', WATCHDOG_PID: watched } = env
  if (socket === undefined || socket === '') return undefined
  const tell = openShell(error => log.warn({ error }, `systemd is not told how the program is; ${REMEDY}`))
  const guard =
    /^[1-9]\d*$/.test(limit) && (watched === undefined || watched === String(pid)) ? Number(limit) / 1_000 : 0
  let shown: string | undefined
  let watchdog: NodeJS.Timeout | undefined
  let isSucceeded = false
  return {
    ready(status) {
      tell('READY=1')
      // By a timer of this thread, so that an event loop that is stuck is noticed.
      if (guard > 0) watchdog = setInterval(() => tell('WATCHDOG=1'), Math.min(LONGEST, guard / 2)).unref()
      const show = async (): Promise<void> => {
        const text = textOf(await status().catch(() => undefined))
        if (isSucceeded) return
        if (text !== shown) tell(`STATUS=${text}`)
        shown = text
        setTimeout(show, STATUS_MS).unref()
      }
      void show()
    },
    reloading: () => tell(`RELOADING=1\tMONOTONIC_USEC=${process.hrtime.bigint() / 1_000n}`),
    reloaded: () => tell('READY=1'),
    stopping: () => tell('STOPPING=1'),
    succeeded(pid) {
      isSucceeded = true
      clearInterval(watchdog)
      tell(`MAINPID=${pid}`)
    },
  }
}

function textOf(status: Status | undefined): string {
  if (status === undefined) return 'a worker does not answer'
  const { waiting, failing } = status
  const upstreams = failing.length === 0 ? '' : `; failing: ${failing.join(', ')}`
  return `${waiting} ${waiting === 1 ? 'request waits' : 'requests wait'}${upstreams}`
}

/** @param failed called once @returns writes a message */
function openShell(failed: (error: string) => void): (line: string) => void {
  let hasFailed = false
  const fail = (error: string): void => {
    if (!hasFailed) failed(error)
    hasFailed = true
  }
  try {
    const shell = spawn('sh', ['-c', SCRIPT], { stdio: ['pipe', 'pipe', 'ignore'] })
    shell.on('error', ({ message }) => fail(message)).unref()
    // Without a process there may be none, whatever the types say.
    const [stdin, stdout] = shell.stdio as unknown as (Socket | undefined)[]
    stdin?.on('error', ({ message }) => fail(message)).unref()
    stdout?.on('data', (text: Buffer) => fail(text.toString().trim())).unref()
    return line => {
      if (stdin !== undefined && stdin.writableLength < MOST_UNREAD) stdin.write(`${line}\n`)
    }
  } catch (error) {
    fail((error as Error).message)
    return () => undefined
  }
}
