/**
 * A file that keeps the levels of bucket instances over restarts. It is one JSON document, with a line for each instance:
 *
 *     {"shaperLevels":1,"writtenAt":"2026-11-29T09:00:00.000Z","levels":[
 *     ["client","192.0.2.7",3.5,1795942800000,0.005],
 *     ["login","alice",0,1795942800000,0.001,{"blocked":1795942860000}]
 *     ],"count":2}
 *
 * So it is written and read in pieces, whatever its size. It is replaced in one step. One that is torn was not written by this
 * program alone, or its disk has lost some of it.
 */
import { createReadStream } from 'node:fs'
import { type FileHandle, open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import * as z from 'zod'
import { LEVELS_FILE } from '../../config/store-url.js'
import type { Clock } from '../../core/clock.js'

/** ms between the end of a write and the next one. */
export const WRITE_EVERY = 10_000
/** The main thread writes for so long, and then serves for so long, in ms. */
const SLICE = 2
const REST = 6
/** Instances between two looks at the clock. */
const LOOKED = 16
/** Characters of a line. Keys are shorter. */
const LONGEST_LINE = 65_536
const VERSION = 1
/** What comes after `LEVELS_FILE`. */
const HEADER = /^(\d{1,9}),"writtenAt":"[\d:.TZ-]{24}","levels":\[$/
const FOOTER = /^\],"count":(\d{1,15})\}$/

/** What is kept of a bucket instance. Moments are in ms. */
export interface SavedLevel {
  readonly bucket: string
  readonly key: string
  /** Cost units that it held at this moment, and cost units per ms at which they drain. */
  readonly level: number
  readonly at: number
  readonly rate: number
  /** Absent: the one that its requests have without the header of another. */
  readonly tier?: string
  /** When a block ends. Infinity: when it has drained. */
  readonly blocked?: number
  /** Of a store: when what was granted has drained. Absent: as the level says. */
  readonly free?: number
  /** Of a quota, which does not drain: when its period is over, in ms since 1970. */
  readonly quota?: number
}

/** Where levels are. Moments are by its own clock. */
export interface Levels {
  now(): number
  /** Of all instances; undefined: one is idle. It may be read in pieces, while they change. */
  saved(): Iterable<SavedLevel | undefined>
  /** Called before anything else happens. Nothing of it lies ahead, but for blocks and slots. False: it has no place for it. */
  restore(saved: SavedLevel): boolean
}

export interface LevelsFileOptions {
  readonly file: string
  /** For the time between writes. */
  readonly clock: Clock
  readonly log: { info(fields: object, text: string): void; warn(fields: object, text: string): void }
  /** ms since 1970. Default: that of the system. */
  readonly wallNow?: () => number
}

export class LevelsFile {
  readonly #file: string
  readonly #clock: Clock
  readonly #log: LevelsFileOptions['log']
  readonly #wallNow: () => number
  #levels: Levels | undefined
  #cancel: (() => void) | undefined
  #writing: Promise<void> | undefined
  #isClosing = false
  /** Why the last write has failed. Undefined: it has not. */
  #failure: string | undefined

  constructor({ file, clock, log, wallNow = Date.now }: LevelsFileOptions) {
    this.#file = file
    this.#clock = clock
    this.#log = log
    this.#wallNow = wallNow
  }

  /** Restores what the file holds. A damaged one is put aside, and then nothing is restored. */
  async restore(levels: Levels): Promise<void> {
    let latest = -Infinity
    // All of it is read once before anything counts: half a file would be a strange mixture.
    const fault = await readLevels(this.#file, ({ at }) => {
      latest = Math.max(latest, at)
    })
    if (fault !== undefined) return fault === 'absent' ? undefined : this.#putAside(fault)
    const offset = this.#wallNow() - levels.now()
    // If the clock of the machine has gone back, no time has passed.
    const by = Math.min(0, this.#wallNow() - latest) - offset
    let kept = 0
    let dropped = 0
    await readLevels(this.#file, saved => {
      if (levels.restore(moved(saved, by))) kept += 1
      else dropped += 1
    })
    const ageMs = Math.max(0, this.#wallNow() - latest)
    if (kept + dropped === 0) return
    const dropping = dropped > 0 ? '; the others have no bucket any more, or exceed maxKeys' : ''
    this.#log.info(
      { file: this.#file, levels: kept, ageMs: Math.round(ageMs), ...(dropped > 0 && { dropped }) },
      `levels are back from ${this.#file}${dropping}`,
    )
  }

  /** Writes it from time to time. */
  begin(levels: Levels): void {
    this.#levels = levels
    this.#later()
  }

  /** Writes it for the last time. */
  async close(): Promise<void> {
    this.#isClosing = true
    this.#cancel?.()
    await this.#writing
    if (this.#levels !== undefined) await this.#write(this.#levels)
  }

  /** Another process writes it from now on. */
  stop(): void {
    this.#cancel?.()
    this.#levels = undefined
  }

  async #putAside(fault: string): Promise<void> {
    const aside = `${this.#file}.damaged`
    const what = `store.file: ${this.#file} ${fault}; all levels start at 0`
    try {
      await rename(this.#file, aside)
      this.#log.warn({ file: aside }, `${what}. It is now ${aside}, for you to look at or remove`)
    } catch (error) {
      this.#log.warn({ cause: (error as Error).message }, `${what}. The next write replaces it`)
    }
  }

  #later(): void {
    if (this.#isClosing || this.#levels === undefined) return
    this.#cancel = this.#clock.at(this.#clock.now() + WRITE_EVERY, () => {
      this.#writing = this.#write(this.#levels!).finally(() => this.#later())
    })
  }

  /** A failure is told once. The file stays as it was. */
  async #write(levels: Levels): Promise<void> {
    try {
      await this.#replace(levels)
      if (this.#failure !== undefined) this.#log.info({ file: this.#file }, `${this.#file} is written again`)
      this.#failure = undefined
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException
      if (this.#failure === (code ?? message)) return
      this.#failure = code ?? message
      this.#log.warn(
        { file: this.#file, cause: message },
        `store.file: ${this.#file} cannot be written (${this.#failure}); a restart finds the levels as they were before`,
      )
    }
  }

  async #replace(levels: Levels): Promise<void> {
    const fresh = `${this.#file}.new`
    // Another program may have left it, with other rights.
    await rm(fresh, { force: true })
    try {
      const handle = await open(fresh, 'wx', 0o600)
      try {
        await this.#fill(handle, levels)
        await handle.sync()
      } finally {
        await handle.close()
      }
      await rename(fresh, this.#file)
    } catch (error) {
      await rm(fresh, { force: true }).catch(() => undefined)
      throw error
    }
    await syncFolder(dirname(this.#file))
  }

  async #fill(handle: FileHandle, levels: Levels): Promise<void> {
    const offset = (): number => this.#wallNow() - levels.now()
    let text = `${LEVELS_FILE}${VERSION},"writtenAt":"${new Date(this.#wallNow()).toISOString()}","levels":[`
    let count = 0
    let looked = 0
    let by = offset()
    let until = performance.now() + SLICE
    for (const saved of levels.saved()) {
      if (saved !== undefined) {
        text += `${count === 0 ? '' : ','}\n${lineOf(saved, by)}`
        count += 1
      }
      looked += 1
      if (looked % LOOKED > 0 || performance.now() < until) continue
      await handle.appendFile(text)
      text = ''
      if (!this.#isClosing) await pause(REST)
      by = offset()
      until = performance.now() + SLICE
    }
    await handle.appendFile(`${text}\n],"count":${count}}\n`)
  }
}

/** So that the new name survives a loss of power. Not all systems can. */
async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r').catch(() => undefined)
  await handle?.sync().catch(() => undefined)
  await handle?.close()
}

/** By another clock. @param by ms that it is ahead */
export function moved(saved: SavedLevel, by: number): SavedLevel {
  const { at, blocked, free } = saved
  return {
    ...saved,
    at: at + by,
    ...(blocked !== undefined && { blocked: blocked + by }),
    ...(free !== undefined && { free: free + by }),
  }
}

/** Moments in the file are in whole ms since 1970: printing others takes longer. What is rounded is rounded to what is stricter. */
function lineOf({ bucket, key, level, at, rate, tier, blocked, free, quota }: SavedLevel, by: number): string {
  const moment = (ms: number): number => Math.ceil(ms + by)
  const then = moment(at)
  const drained = quota === undefined ? (then - at - by) * rate : 0
  const left = Math.ceil(Math.max(0, level - drained) * 1e6) / 1e6
  const head = `[${JSON.stringify(bucket)},${JSON.stringify(key)},${left},${then},${rate}`
  if ([tier, blocked, free, quota].every(each => each === undefined)) return `${head}]`
  const more = {
    tier,
    ...(blocked !== undefined && { blocked: blocked === Infinity ? 'drained' : moment(blocked) }),
    ...(free !== undefined && { free: moment(free) }),
    quota,
  }
  return `${head},${JSON.stringify(more)}]`
}

/** Reads a file in pieces. Returns what is wrong with it; undefined: nothing. What comes before a fault is told, too. */
async function readLevels(file: string, found: (saved: SavedLevel) => void): Promise<string | undefined> {
  const reader = new Reader(found)
  let rest = ''
  try {
    for await (const piece of createReadStream(file, { encoding: 'utf8', highWaterMark: LONGEST_LINE })) {
      const lines = (rest + piece).split('\n')
      rest = lines.pop()!
      for (const line of lines) if (!reader.read(line)) return reader.fault
      if (rest.length > LONGEST_LINE) break
    }
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    return code === 'ENOENT' ? 'absent' : `cannot be read (${code})`
  }
  if (reader.lines === 0 && rest === '') return 'absent'
  return reader.isComplete && rest === '' ? undefined : 'is not complete'
}

class Reader {
  fault: string | undefined
  isComplete = false
  lines = 0
  readonly #found: (saved: SavedLevel) => void
  #count = 0

  constructor(found: (saved: SavedLevel) => void) {
    this.#found = found
  }

  /** Whether it is a good one. */
  read(line: string): boolean {
    this.lines += 1
    if (this.lines === 1) this.fault = faultOfHeader(line)
    else if (this.isComplete || !this.#readLine(line)) this.fault = `is damaged in line ${this.lines}`
    return this.fault === undefined
  }

  #readLine(line: string): boolean {
    const footer = FOOTER.exec(line)
    if (footer !== null) {
      this.isComplete = Number(footer[1]) === this.#count
      return this.isComplete
    }
    const saved = readLine(line)
    if (saved === undefined) return false
    this.#count += 1
    this.#found(saved)
    return true
  }
}

function faultOfHeader(line: string): string | undefined {
  const rest = line.startsWith(LEVELS_FILE) ? line.slice(LEVELS_FILE.length) : ''
  const version = Number(HEADER.exec(rest)?.[1] ?? 0)
  if (version === VERSION) return undefined
  return version > VERSION
    ? `has the version ${version}, and this program reads only ${VERSION}`
    : 'is damaged in line 1'
}

/** JSON has no NaN, but numbers that are too large for a double. */
const amount = z.number().min(0)
const LINE = z.tuple([
  ...([z.string(), z.string(), amount, amount, amount.gt(0)] as const),
  z
    .strictObject({
      tier: z.string().exactOptional(),
      blocked: z.union([z.literal('drained').transform(() => Infinity), amount]).exactOptional(),
      free: amount.exactOptional(),
      quota: amount.exactOptional(),
    })
    .optional(),
])

/** Undefined: it is damaged. */
function readLine(line: string): SavedLevel | undefined {
  let values: unknown
  try {
    values = JSON.parse(line.endsWith(',') ? line.slice(0, -1) : line)
  } catch {
    return undefined
  }
  const { data } = LINE.safeParse(values)
  if (data === undefined) return undefined
  const [bucket, key, level, at, rate, more] = data
  return { bucket, key, level, at, rate, ...more }
}
