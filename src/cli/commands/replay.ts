/** `shaper replay`: shows what limits would have done to the requests of access logs. */
import { accessSync, constants, existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { ConfigError, DEFAULT_FILE, type Flags, type Problem } from '../../config/load.js'
import { defined } from '../../core/structures/defined.js'
import { parseDuration } from '../../core/units.js'
import { LimitsError } from '../../proxy/limits/rows.js'
import {
  FIELDS,
  type FieldNames,
  type FieldUse,
  FORMAT_LIST,
  isFormat,
  msOfUnit,
} from '../../replay/formats/format-names.js'
import { InputError, STDIN } from '../../replay/input/log-files.js'
import { kindOf, limitsOfFile, limitsOfFlags, limitsOfOneFile } from '../../replay/plan/limits-file.js'
import { type Plan, type ReplayLimits, singleOf } from '../../replay/plan/plan.js'
import { parseGrid } from '../../replay/plan/sweep-grid.js'
import { parseTarget } from '../../replay/plan/target.js'
import { replay } from '../../replay/replay.js'
import { diffLimits, diffReports } from '../../replay/report/diff.js'
import { type ReplayReport, replayPage } from '../../replay/report/report.js'
import { CommandError, type Terminal } from '../command.js'
import { diffLines, reportLines } from './replay-text.js'

/** ms between two updates of the progress line. */
const PROGRESS_MS = 100
const BAR = 30

/** Errors of reading come after the report of what could be read. @throws ConfigError, CommandError */
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
    throw error instanceof InputError || error instanceof LimitsError ? new CommandError(error.message) : error
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

/** A progress line: a share of the bytes, or for standard input the bytes read. */
function createBar(logs: readonly string[], out: NodeJS.WriteStream) {
  const sizeOf = (log: string): number => statSync(log, { throwIfNoEntry: false })?.size ?? 0
  const total = logs.reduce((sum, log) => sum + (log === STDIN ? Number.NaN : sizeOf(log)), 0)
  const began = performance.now()
  let shownAt = began
  let shown = false
  return {
    show(bytes: number, lines: number): void {
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
    clear(): void {
      if (shown) out.write('\r\x1b[K')
    },
  }
}

export interface ReplayFlags extends Pick<Flags, 'rate' | 'capacity' | 'burst' | 'key' | 'mode'> {
  config?: string
  format: string
  field?: string[]
  spread?: string
  seed: string
  /** True, without a value: the grid follows the traffic. */
  sweep?: string | true
  target?: string
  patience?: string
  diff?: boolean
  json?: boolean
  html?: string
}

interface ReplayOrder {
  readonly plan: Omit<Plan, 'limits' | 'stdin'>
  readonly job:
    | { readonly kind: 'replay'; readonly limits: ReplayLimits }
    | { readonly kind: 'diff limits'; readonly a: ReplayLimits; readonly b: ReplayLimits }
    | { readonly kind: 'diff reports'; readonly a: string; readonly b: string }
  readonly json: boolean
  readonly html: string | undefined
}

/** Where a sweep or a target looks for the rate and the capacity, these stand for them. */
const SOUGHT = { rate: '5/s', capacity: '10' }

/** Collects what is wrong, so that all of it is reported at once. */
class ProblemList {
  readonly problems: Problem[] = []

  refuse(path: string, message: string): void {
    // Files that are compared can have a third in common, with its problems.
    if (this.problems.some(other => other.path === path && other.message === message)) return
    this.problems.push({ path, message })
  }

  /** What `read` returns; undefined where it throws a ConfigError or a RangeError, which is collected. */
  attempt<T>(path: string, read: () => T): T | undefined {
    try {
      return read()
    } catch (error) {
      if (error instanceof ConfigError) for (const { path, message } of error.problems) this.refuse(path, message)
      else if (error instanceof RangeError) this.refuse(path, error.message)
      else throw error
      return undefined
    }
  }
}

/**
 * @param isPiped whether standard input is not a terminal
 * @throws ConfigError with everything that is wrong
 */
export function readReplayFlags(
  names: readonly string[],
  flags: ReplayFlags,
  { env, isPiped }: { env: NodeJS.ProcessEnv; isPiped: boolean },
): ReplayOrder {
  const list = new ProblemList()
  const options = readOptions(flags, list)
  const { job, logs } = readJob(names, flags, env, list)
  if (logs.length === 0 && !isPiped && job?.kind !== 'diff reports')
    list.refuse('', 'no log; name one, e.g. shaper replay access.log --rate 5/s, or pipe one in')
  if (logs.filter(name => name === STDIN).length > 1)
    list.refuse('', 'standard input can be read once only; name - once')
  checkCombinations(flags, job, list)
  if (list.problems.length > 0 || job === undefined) throw new ConfigError(list.problems)
  const plan = { ...options, logs: logs.length === 0 ? [STDIN] : logs }
  return { plan, job, json: flags.json === true, html: flags.html }
}

function readOptions(flags: ReplayFlags, list: ProblemList): Omit<ReplayOrder['plan'], 'logs'> {
  const { format, seed, spread = 'even', sweep, target, patience } = flags
  if (format !== 'auto' && !isFormat(format))
    list.refuse('--format', `${quoted(format)} is not a format; use auto, ${FORMAT_LIST}`)
  if (!/^\d{1,9}$/.test(seed)) list.refuse('--seed', `${quoted(seed)} is not a seed; use a whole number, e.g. 1`)
  if (spread !== 'even' && spread !== 'none') list.refuse('--spread', `${quoted(spread)} is no rule; use even or none`)
  const fields = list.attempt('--field', () => readFields(flags.field ?? []))
  const grid = sweep === undefined ? undefined : list.attempt('--sweep', () => (sweep === true ? {} : parseGrid(sweep)))
  const bounds = target === undefined ? undefined : list.attempt('--target', () => parseTarget(target))
  const leave = patience === undefined ? undefined : list.attempt('--patience', () => parseDuration(patience))
  return {
    seed: spread === 'none' ? undefined : Number(seed),
    ...(isFormat(format) && { format }),
    ...{ fields: fields ?? {}, ...defined({ sweep: grid, target: bounds, patience: leave }) },
  }
}

function readJob(
  names: readonly string[],
  flags: ReplayFlags,
  env: NodeJS.ProcessEnv,
  list: ProblemList,
): { job: ReplayOrder['job'] | undefined; logs: readonly string[] } {
  if (!flags.diff) {
    const limits = list.attempt('', () => limitsOf(flags, env))
    return { job: limits && { kind: 'replay', limits }, logs: names }
  }
  return list.attempt('--diff', () => readDiff(names, flags, env, list)) ?? { job: undefined, logs: names.slice(2) }
}

function checkCombinations(flags: ReplayFlags, job: ReplayOrder['job'] | undefined, list: ProblemList): void {
  const { sweep, target, html, patience } = flags
  const isSweep = sweep !== undefined || target !== undefined
  if (job?.kind === 'replay' && isSweep && singleOf(job.limits.settings) === undefined) {
    const message = `${job.limits.name} has more than one bucket or route, tiers, costs, penalties or patience; try one bucket by itself with --rate, --capacity and --key`
    list.refuse('--sweep', message)
  }
  if (isSweep && patience !== undefined)
    list.refuse('--patience', 'not together with --sweep or --target; try one rate and capacity')
  if (!flags.diff) return
  for (const [flag, value] of Object.entries({ sweep, target, html, patience })) {
    if (value !== undefined) list.refuse(`--${flag}`, 'not together with --diff; leave one out')
  }
}

/** The limits of the flags, or those of a file when there is no rate. */
function limitsOf(
  { config, rate, capacity, burst, key, mode, sweep, target }: ReplayFlags,
  env: NodeJS.ProcessEnv,
): ReplayLimits {
  const flags = defined({ rate, capacity, burst, key, mode })
  if (mode === 'off') throw new ConfigError([{ path: '--mode', message: '"off" limits nothing; use shape or meter' }])
  if (config !== undefined) return limitsOfFile(config, flags, env)
  if (rate !== undefined) return limitsOfFlags(flags, env)
  if (sweep !== undefined || target !== undefined)
    return { ...limitsOfFlags({ ...SOUGHT, ...flags }, env), sought: true }
  if (existsSync(DEFAULT_FILE)) return limitsOfFile(DEFAULT_FILE, flags, env)
  const message = `which limits? give --rate R and --capacity B, e.g. --rate 5/s --capacity 10, or a file with -c FILE`
  throw new ConfigError([{ path: '', message }])
}

function readDiff(
  [a, b, ...rest]: readonly string[],
  { rate, capacity, burst, key, mode, config }: ReplayFlags,
  env: NodeJS.ProcessEnv,
  list: ProblemList,
): { job: ReplayOrder['job'] | undefined; logs: readonly string[] } {
  if (a === undefined || b === undefined)
    throw new RangeError('two files to compare are needed, e.g. --diff before.json after.json access.log')
  if ([rate, capacity, burst, key, mode].some(flag => flag !== undefined))
    throw new RangeError('limits come from the two files; leave --rate, --capacity, --burst, --key and --mode out')
  const kinds = [kindOf(a), kindOf(b)]
  if (kinds[0] === 'report' && kinds[1] === 'report') return { job: { kind: 'diff reports', a, b }, logs: [] }
  if (kinds.includes('report')) throw new RangeError('one is a report and the other is not; name two of the same kind')
  const [third, ...others] = rest
  const isBase = config === undefined && third !== undefined && kindOf(third) === 'config'
  const base = isBase ? third : config
  const before = list.attempt('', () => limitsOfOneFile(a, env, base))
  const after = list.attempt('', () => limitsOfOneFile(b, env, base))
  const job = before && after && ({ kind: 'diff limits', a: before, b: after } as const)
  return { job, logs: isBase ? others : rest }
}

function readFields(given: readonly string[]): FieldNames {
  const fields: Partial<Record<FieldUse, string>> = {}
  for (const text of given) {
    const [, use = '', name = ''] = /^([a-z]+)=(.+)$/.exec(text) ?? []
    if (!FIELDS.includes(use as FieldUse))
      throw new RangeError(`${quoted(text)} names no field; use e.g. ip=remote_addr, with ${FIELDS.join(', ')}`)
    if (use === 'unit' && msOfUnit(name) === undefined)
      throw new RangeError(`${quoted(name)} is no unit of time; use s, ms, us or ns`)
    fields[use as FieldUse] = name
  }
  return fields
}

function quoted(text: string): string {
  return JSON.stringify(text)
}
