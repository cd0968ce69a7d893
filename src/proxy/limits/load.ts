/** Reads limits of single keys from where they are kept, in this thread or in one of their own (load-thread.ts). */
import { closeSync, fstatSync, openSync, readSync, type Stats } from 'node:fs'
import { Worker } from 'node:worker_threads'
import type { LimitsSource } from '../../config/settings.js'
import { changedKeys, LimitTable, type TableMemory } from '../../core/structures/limit-table.js'
import type { LimitsReport } from '../observe/observer.js'
import { formOf, LineReader, LONGEST_RECORD, readFile } from './lines.js'
import { LimitsError, Rows, type RowsOf, readColumns } from './rows.js'

/** ms that a query may take, with all of its rows. */
const LONGEST_QUERY = 120_000
/** Rows that are fetched at once. */
const FETCHED = 5_000
/** So often a file is read again that changes meanwhile. */
const ATTEMPTS = 3
/** More keys than this are not told one by one. */
const MOST_CHANGED = 10_000

export interface LoadRequest {
  readonly source: LimitsSource
  readonly of: RowsOf
  readonly before: TableMemory | undefined
}

export interface LoadedLimits {
  readonly memory: TableMemory
  readonly report: LimitsReport
  /** The keys that have other limits than before. Undefined: many, or there was no table before. */
  readonly changed: readonly string[] | undefined
}

/** @param ended nobody waits for it any more @throws LimitsError */
export type LoadLimits = (request: LoadRequest, ended?: AbortSignal) => Promise<LoadedLimits>

export const loadHere: LoadLimits = async ({ source, of, before: memory }) => {
  const before = memory && new LimitTable(memory)
  const rows = 'file' in source ? rowsOfFile(source.file, of, before) : await rowsOfQuery(source.postgres, of, before)
  const { table, report } = rows.end()
  return { memory: table.memory, report, changed: before && changedKeys(before, table, MOST_CHANGED) }
}

/** In a thread: reading a million keys takes a second, for which nothing here is to wait. */
export const loadInThread: LoadLimits = (request, ended) =>
  new Promise((resolve, reject) => {
    const thread = new Worker(new URL('./load-thread.js', import.meta.url), {
      workerData: request,
      execArgv: [],
      env: {},
    })
    thread.once('message', ({ loaded, failure }: ThreadAnswer) =>
      loaded === undefined ? reject(new LimitsError(failure!)) : resolve(loaded),
    )
    thread.once('error', error => reject(new LimitsError(error.message)))
    thread.once('exit', () => reject(new LimitsError('the thread that reads it has ended')))
    ended?.addEventListener('abort', () => void thread.terminate())
  })

export interface ThreadAnswer {
  readonly loaded?: LoadedLimits
  readonly failure?: string
}

function rowsOfFile(file: string, of: RowsOf, before: LimitTable | undefined): Rows {
  for (let attempt = 1; ; attempt += 1) {
    const rows = new Rows(of, 'line', before)
    const [first, last] = readWhole(file, rows)
    if (isSameFile(first, last) || attempt === ATTEMPTS) return rows
  }
}

/** How the file was before and after. */
function readWhole(file: string, rows: Rows): [Stats, Stats] {
  let descriptor: number | undefined
  try {
    descriptor = openSync(file, 'r')
    const first = fstatSync(descriptor)
    if (first.isDirectory()) throw new LimitsError('it is a directory; name a file in it')
    readFile(descriptor, formOf(file), rows)
    return [first, fstatSync(descriptor)]
  } catch (error) {
    if (error instanceof LimitsError) throw error
    const { code, message } = error as NodeJS.ErrnoException
    throw new LimitsError(
      code === 'ENOENT' ? 'the file does not exist' : `the file cannot be read (${code ?? message})`,
    )
  } finally {
    if (descriptor !== undefined) closeSync(descriptor)
  }
}

function isSameFile(first: Stats, last: Stats): boolean {
  return first.size === last.size && first.mtimeMs === last.mtimeMs
}

/** Whether a file has what it begins with. @throws LimitsError, or what the system says */
export function checkBeginning(file: string, of: RowsOf): void {
  const descriptor = openSync(file, 'r')
  try {
    const bytes = Buffer.alloc(LONGEST_RECORD)
    const reader = new LineReader(formOf(file), new Rows(of, 'line', undefined))
    const read = readSync(descriptor, bytes)
    reader.take(bytes.subarray(0, read), read < LONGEST_RECORD ? 'end' : 'more')
    reader.end()
  } finally {
    closeSync(descriptor)
  }
}

interface Query {
  readonly url: string
  readonly query: string
}

/** The rows come through a cursor, as texts. */
async function rowsOfQuery({ url, query }: Query, of: RowsOf, before: LimitTable | undefined): Promise<Rows> {
  const rows = new Rows(of, 'row', before)
  const { describeTrouble } = await import('../../stores/describe-error.js')
  const { connect } = await import('../../stores/postgres/link.js')
  const { inTime } = await import('../../stores/timing.js')
  try {
    const { client, destroy, end } = await connect(url)
    const late = (): Error => new LimitsError(`the query has not ended within ${LONGEST_QUERY / 1_000} s`)
    try {
      await inTime(LONGEST_QUERY, late, async check => {
        const types = { getTypeParser: () => (value: string) => value }
        await client.query(`BEGIN READ ONLY; DECLARE limits NO SCROLL CURSOR FOR ${query.replace(/[;\s]+$/, '')}`)
        let count = 0
        let places: number[] | undefined
        for (;;) {
          check()
          const text = `FETCH FORWARD ${FETCHED} FROM limits`
          const { rows: fetched, fields } = await client.query<(string | null)[]>({ text, rowMode: 'array', types })
          places ??= readColumns(fields.map(({ name }) => name))
          for (const row of fetched) addRow(rows, ++count, row, places)
          if (fetched.length < FETCHED) break
        }
        await client.query('COMMIT')
      })
    } catch (error) {
      destroy()
      throw error
    }
    await end()
    return rows
  } catch (error) {
    throw error instanceof LimitsError ? error : new LimitsError(describeTrouble(error as Error))
  }
}

function addRow(rows: Rows, number: number, values: readonly (string | null)[], places: readonly number[]): void {
  const key = values[places.indexOf(-1)]
  const texts = ['', '', '', '', '']
  for (const [at, place] of places.entries()) if (place >= 0) texts[place] = values[at] ?? ''
  if (key === undefined || key === null) return rows.refuse(number, 'there is no key')
  rows.add(number, key, texts.join('\0'), () => texts)
}
