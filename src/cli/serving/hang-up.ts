/**
 * SIGHUP of `shaper start`: its terminal has gone, or somebody asks for a reload. Imported before all else, since the signal ends a
 * process that does not listen for it.
 *
 * A terminal that has gone is none any more when the signal comes. `nohup` and services leave no terminal on the standard streams, so
 * there the signal always asks for a reload.
 */
import { closeSync } from 'node:fs'
import { isatty } from 'node:tty'
import { WORKER } from './worker-protocol.js'

/** Some programs signal first and close the terminal then. When to look again, in ms. */
const AGAIN = 1_000
const terminals = [0, 1, 2].filter(fd => isatty(fd))
let isEnding = false
let isAsked = false
let reload = (): void => {
  isAsked = true
}

function endWithTerminal(): void {
  if (isEnding || terminals.every(fd => isatty(fd))) return
  isEnding = true
  process.kill(process.pid, 'SIGTERM')
}

process.on('SIGHUP', () => {
  // Those who signal workers signal their primary, too. Workers wait for its order.
  if (process.env[WORKER] !== undefined) return
  endWithTerminal()
  if (isEnding) return
  reload()
  if (terminals.length > 0) setTimeout(endWithTerminal, AGAIN).unref()
})

// Node aborts where it cannot restore the mode of a terminal.
process.on('exit', () => {
  for (const fd of terminals) if (!isatty(fd)) closeSync(fd)
})

/** Calls `run` for each SIGHUP from now on, and at once for those that have come. */
export function onReload(run: () => void): void {
  reload = run
  if (isAsked) run()
}
