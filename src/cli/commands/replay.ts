/** `shaper replay`: shows what limits would have done to the requests of access logs. */
import { accessSync, constants, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { InputError, STDIN } from '../../replay/input/log-files.js'
import { replay } from '../../replay/replay.js'
import { diffLimits, diffReports } from '../../replay/report/diff.js'
import { replayPage } from '../../replay/report/page.js'
import type { ReplayReport } from '../../replay/report/report.js'
import { CommandError } from '../command-error.js'
import type { Terminal } from '../terminal.js'
import { type ReplayFlags, readReplayFlags } from './replay-flags.js'
import { diffLines, reportLines } from './replay-text.js'

/** ms between two updates of the progress line. */
const PROGRESS_MS = 100

const BAR = 30

/**
 * Prints the report. Errors of reading come after the report of what could be read, alone if that is nothing.
 *
 * @throws ConfigError, CommandError
 */
export async function runReplay(
  names: readonly string[],
  flags: ReplayFlags,
  { stdin, stdout, stderr, env }: Terminal,
): Promise<void> {
  const { plan, job, json, html } = readReplayFlags(names, flags, { env, isPiped: !stdin.isTTY })
  const print = (value: object, lines: () => string[]): void => {
    stdout.write(json ? `${JSON.stringify(value)}\n` : `${lines().join('\n')}\n`)
  }
  if (job.kind === 'diff reports') {
    const diff = diffReports(readReport(job.a), readReport(job.b))
    return print(diff, () => diffLines(diff))
  }
  if (html !== undefined) checkWritable(html)
  const bar = stderr.isTTY ? createBar(plan.logs, stderr) : undefined
  const whole = { ...plan, stdin: stdin as AsyncIterable<Buffer>, ...(bar && { progress: bar.show }) }
  let report: ReplayReport
  try {
    if (job.kind === 'replay') {
      report = await replay({ ...whole, limits: job.limits })
      bar?.clear()
      refuseUnread(report)
      if (html !== undefined) writePage(html, report)
      print(report, () => reportLines(report))
    } else {
      const diff = await diffLimits(job.a, job.b, whole)
      bar?.clear()
      report = diff.a
      refuseUnread(report)
      print(diff, () => diffLines(diff))
    }
  } catch (error) {
    bar?.clear()
    throw error instanceof InputError ? new CommandError(error.message) : error
  }
  if (report.errors.length > 0) throw unreadable(report)
  if (report.requests > 0) return
  if (report.bad + report.skipped > 0)
    throw new CommandError('no line is a request that could be read; say what it is with --format')
  throw new CommandError('the log is empty, so there is nothing to say of any limits; name one with requests in it')
}

/** @throws CommandError where nothing could be read */
function refuseUnread(report: ReplayReport): void {
  if (report.errors.length > 0 && report.lines === 0) throw unreadable(report)
}

function unreadable({ errors }: ReplayReport): CommandError {
  return new CommandError(errors.join('\nshaper: '))
}

function readReport(file: string): ReplayReport {
  const report = JSON.parse(readFileSync(file, 'utf8')) as ReplayReport
  return { ...report, limits: { ...report.limits, name: file } }
}

/** Checks before a long run that its page can be written. @throws CommandError */
function checkWritable(file: string): void {
  try {
    const stat = statSync(file, { throwIfNoEntry: false })
    if (stat?.isDirectory()) throw Object.assign(new Error('a directory'), { code: 'EISDIR' })
    accessSync(stat === undefined ? dirname(file) : file, constants.W_OK)
  } catch (error) {
    throw unwritable(file, error)
  }
}

function writePage(file: string, report: ReplayReport): void {
  try {
    writeFileSync(file, replayPage(report))
  } catch (error) {
    throw unwritable(file, error)
  }
}

function unwritable(file: string, error: unknown): CommandError {
  const { code = String(error) } = error as NodeJS.ErrnoException
  return new CommandError(`${JSON.stringify(file)} cannot be written (${code}); name a file that can, with --html FILE`)
}

interface Bar {
  show(bytes: number, lines: number): void
  clear(): void
}

/** A progress line: a share of the bytes, or for standard input the bytes read. */
function createBar(logs: readonly string[], out: NodeJS.WriteStream): Bar {
  const total = logs.reduce((sum, log) => sum + (log === STDIN ? Number.NaN : sizeOf(log)), 0)
  const began = performance.now()
  let shownAt = began
  let shown = false
  return {
    show(bytes, lines) {
      const now = performance.now()
      if (now - shownAt < PROGRESS_MS) return
      shownAt = now
      shown = true
      const done = Math.min(1, bytes / total)
      const filled = Math.round(done * BAR)
      const bar = Number.isNaN(done)
        ? `${(bytes / 1e6).toFixed(0)} MB`
        : `[${'#'.repeat(filled)}${'.'.repeat(BAR - filled)}] ${(100 * done).toFixed(0)} %`
      const speed = Math.round(lines / ((now - began) / 1_000) / 1_000)
      out.write(`\r${bar}, ${(lines / 1e6).toFixed(1)} M lines, ${speed} k/s\x1b[K`)
    },
    clear() {
      if (shown) out.write('\r\x1b[K')
    },
  }
}

function sizeOf(log: string): number {
  return statSync(log, { throwIfNoEntry: false })?.size ?? 0
}
