/**
 * Verbs that are decided here: leases, and what has to do with appointments. A transaction of two round trips locks the rows and
 * writes them back. Others wait for these rows meanwhile, so only verbs that are seldom asked are decided so.
 *
 * Reports on leases come from each instance all the time. Far away each would keep the row for long. So they are left in a table
 * first, and who has the bucket decides on all that are there: each waits for two transactions at most, however many there are.
 */
import { deserialize, serialize } from 'node:v8'
import type { QueryResult } from 'pg'
import pg from 'pg'
import { appoint } from '../../decider/appointments.js'
import { packPromises, unpackPromises } from '../../decider/appointments-codec.js'
import type { Bucket } from '../../decider/bucket.js'
import { packLeases, unpackLeases } from '../../decider/leases-codec.js'
import type { AppointmentRequest, LeaseRequest } from '../../decider/record.js'
import type { AdmitRequest, StoreVerb } from '../../sharing/store.js'
import type { AskedQuestion } from '../batch.js'
import { KEEP_MARGIN } from '../constants.js'
import { admitIn, leaseIn, placeOf } from '../decided.js'
import type { RoundTrip } from '../timing.js'
import type { PostgresConnection } from './link.js'
import type { PostgresQuestion } from './wire.js'

/** ms. Nobody waits longer for a row, nor keeps one for longer. */
const LONGEST_LOCK = 1_000
/** ms. Where a round trip takes longer, reports are left. Nearer that would take the server more time than it saves. */
export const FAR = 2
/** ms after its deadline a report that nobody has decided on is deleted. */
const FORGOTTEN = 10_000
/** What is left by a process that writes it in another way is left to that. The number grows when `LeaseRequest` changes. */
const FORMAT = `1 ${process.versions.v8} `

interface Row extends Readonly<Pick<Bucket, 'level' | 'at' | 'free' | 'rate' | 'blocked' | 'kept'>> {
  readonly key: string
  readonly leased_rate: number
  readonly leased_until: number
  readonly leased_room: number
  readonly kept_until: number
  /** As leases-codec.ts and appointments-codec.ts say. Null: no question is about them. */
  readonly leases: readonly number[] | null
  readonly promises: readonly number[] | null
}

export function isDecidedHere(verb: StoreVerb, input: readonly unknown[]): boolean {
  return verb === 'lease' || verb === 'appoint' || (verb === 'admit' && (input[0] as AdmitRequest).booked !== undefined)
}

/** A row that is locked, and what becomes of it. */
interface Locked {
  readonly row: Row
  readonly bucket: Bucket
  /** Its leases and promises are in the bucket. */
  isLoaded: boolean
}

export type AskedHere = Pick<AskedQuestion<PostgresQuestion, unknown>, 'question' | 'deadline'>

/** A report that is left, as `serialize` writes it, and the answer of who has decided on it. */
interface Left {
  readonly key: string
  /** FORMAT, and the connection that it came by. */
  readonly id: string
  readonly number: number
  /** ms of the server's clock. */
  readonly deadline: number
  readonly asked: Buffer
  readonly answer: Buffer | null
}

export interface DecidingOptions<Asked> {
  fill(template: string): string
  readonly roundTrip: RoundTrip
  /** ms, `FAR` but for tests. */
  readonly far: number
  /** When the time of the server is known. */
  learn(now: number): void
  /** A moment of ours by the server's clock, in ms. */
  theirs(ours: number): number
  /** Undefined: nobody waits for the answer any more, or a row was pruned meanwhile. */
  answered(asked: Asked, answer: unknown): void
}

let number = 0

/** @throws the server's error */
export async function decideHere<Asked extends AskedHere>(
  { client, id: connection }: Pick<PostgresConnection, 'client' | 'id'>,
  asked: readonly Asked[],
  options: DecidingOptions<Asked>,
): Promise<void> {
  const { fill, roundTrip, far, learn, theirs, answered } = options
  number += 1
  const own = { id: FORMAT + connection, number, reports: new Map<string, Asked>() }
  const isFar = roundTrip.usual > far
  for (const each of asked) {
    const [key] = each.question.keys as [string]
    if (isFar && each.question.verb === 'lease' && !own.reports.has(key)) own.reports.set(key, each)
  }
  try {
    const results = (await client.query(lockingSql(asked, own, options))) as unknown as QueryResult[]
    const [rows, left, [{ now }]] = results.slice(-3).map(({ rows }) => rows) as [Row[], Left[], [{ now: number }]]
    learn(now)
    const locked = new Map(rows.map(row => [row.key, { row, bucket: bucketOf(row), isLoaded: false }]))
    const isOwn = ({ id, number }: Left): boolean => id === own.id && number === own.number
    const isDone = new Set<Asked>()
    for (const each of left.filter(isOwn)) {
      const report = own.reports.get(each.key)!
      if (each.answer === null) continue
      isDone.add(report)
      answered(report, deserialize(each.answer))
    }
    const made = asked.flatMap((each): [Asked, unknown][] => {
      if (isDone.has(each)) return []
      const { question, deadline } = each
      const found = question.keys.flatMap(key => locked.get(key) ?? [])
      const isLost = found.length < question.keys.length || now > theirs(deadline)
      return [[each, isLost ? undefined : decide(question, found, now, roundTrip)]]
    })
    const answers = left.flatMap(each => {
      const { key, id, number, deadline, asked } = each
      const at = locked.get(key)
      if (at === undefined) return []
      // Nobody looks for the answer to one of ours, but it must not be decided on again.
      let answer: unknown
      if (!isOwn(each)) {
        if (deadline < now) return []
        const request = deserialize(asked) as LeaseRequest
        answer = decide({ verb: 'lease', input: [request], stack: [request.bucket] }, [at], now, roundTrip)
      }
      return `(${literals([key, id, number, serialize(answer)])})`
    })
    const forgotten = left.filter(({ deadline }) => deadline < now - FORGOTTEN).map(({ key }) => key)
    await client.query(savingSql([...locked.values()], { answers, forgotten }, now, fill))
    for (const [each, answer] of made) answered(each, answer)
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}

interface Own extends Pick<Left, 'id' | 'number'> {
  /** That are left: one for each bucket. What else is asked is decided on here in any case. */
  readonly reports: ReadonlyMap<string, AskedHere>
}

/**
 * Leaves the reports. Then locks the rows of all keys, in their order, with those that were not there, but for those whose report
 * somebody decides on meanwhile. Answers the rows, what is left and the time.
 */
function lockingSql(
  asked: readonly AskedHere[],
  { id, number, reports }: Own,
  { fill, theirs }: Pick<DecidingOptions<never>, 'fill' | 'theirs'>,
): string {
  const [table, leavings] = [fill('@table@'), fill('@reports@')]
  const list = (keys: Iterable<string>): string => `ARRAY[${literals([...new Set(keys)].sort())}]::text[]`
  const keysOf = (some: readonly AskedHere[]): string => list(some.flatMap(({ question }) => question.keys))
  const keys = keysOf(asked.filter(each => reports.get(each.question.keys[0]!) !== each))
  const leases = asked.some(({ question }) => question.verb === 'lease') ? `coalesce(t.leases, '{}')` : 'NULL'
  const promises = asked.some(({ question }) => question.verb !== 'lease') ? `coalesce(t.promises, '{}')` : 'NULL'
  // A key may have anything in it.
  const insert = `INSERT INTO ${table} AS t (key, level, at, free, rate, blocked, expires)
    SELECT k, 0, '-Infinity', '-Infinity', 1, '-Infinity', '-Infinity' FROM unnest(${keysOf(asked)}) k
    WHERE NOT EXISTS (SELECT FROM ${table} t WHERE t.key = k) ORDER BY k COLLATE "C" ON CONFLICT DO NOTHING;`
  const begin = `BEGIN ISOLATION LEVEL READ COMMITTED;
    SET LOCAL lock_timeout = ${LONGEST_LOCK};
    SET LOCAL idle_in_transaction_session_timeout = ${LONGEST_LOCK};`
  const select = (keys: string): string => `SELECT t.key, t.level, t.at, t.free, t.rate, t.blocked,
      t.leased_rate, t.leased_until, t.leased_room, t.kept, t.kept_until, ${leases} AS leases, ${promises} AS promises
    FROM ${table} t WHERE t.key = ANY (${keys}) ORDER BY t.key FOR NO KEY UPDATE;`
  const time = fill('SELECT @now@::float8 AS now')
  if (reports.size === 0) return `${begin} ${insert} ${select(keys)} SELECT WHERE false; ${time}`
  const left = [...reports].sort().map(([key, { question, deadline }]) => {
    return `(${literals([key, id, number, theirs(deadline), serialize(question.input[0])])})`
  })
  const leave = `INSERT INTO ${leavings} AS r (key, id, number, deadline, asked) VALUES ${left}
    ON CONFLICT (key, id) DO UPDATE
    SET number = excluded.number, deadline = excluded.deadline, asked = excluded.asked, answer = NULL;`
  // They queue for a lock of their own. An error gives it back at once: all whose answer is there go on one after the other.
  const turns = `DECLARE
      k text;
      held text[] := ${keys};
    BEGIN
      FOREACH k IN ARRAY ${list(reports.keys())} LOOP
        BEGIN
          PERFORM pg_advisory_xact_lock(hashtextextended(${pg.escapeLiteral(table)} || k, 0));
          IF EXISTS (SELECT FROM ${leavings} r
            WHERE r.key = k AND r.id = ${literals([id])} AND r.number = ${number} AND r.answer IS NOT NULL)
          THEN RAISE EXCEPTION 'decided'; END IF;
          held := held || k;
        EXCEPTION WHEN raise_exception THEN
        END;
      END LOOP;
      PERFORM set_config('shaper.held', held::text, true);
    END`
  return `BEGIN; ${leave} ${insert} COMMIT; ${begin} DO ${pg.escapeLiteral(turns)};
    ${select(`current_setting('shaper.held')::text[]`)}
    SELECT r.* FROM ${leavings} r WHERE r.key = ANY (${list(reports.keys())})
      AND (r.id = ${literals([id])} OR r.deadline < ${fill('@now@')} - ${FORGOTTEN}
        OR r.answer IS NULL AND left(r.id, ${FORMAT.length}) = ${literals([FORMAT])});
    ${time}`
}

function literals(values: readonly (string | number | Buffer)[]): string {
  return values
    .map(value => {
      if (typeof value === 'number') return `'${value}'::float8`
      return typeof value === 'string' ? pg.escapeLiteral(value) : `decode('${value.toString('hex')}', 'hex')`
    })
    .join(',')
}

/** Without its leases and promises: a clock that went back moves them with the bucket. */
function bucketOf(row: Row): Bucket {
  const { level, at, free, blocked, rate, kept, kept_until: keptUntil } = row
  return {
    // A NaN that an older version has left counts as 0: it would never drain.
    ...{
      level: level || 0,
      at,
      free: Number.isNaN(free) ? -Infinity : free,
      blocked,
      rate,
      kept: kept || 0,
      keptUntil,
    },
    ...{ leasedRate: row.leased_rate, leasedUntil: row.leased_until, leasedRoom: row.leased_room },
    ...{ leases: undefined, promises: undefined },
  }
}

function load(locked: Locked): void {
  const { row, bucket, isLoaded } = locked
  if (isLoaded) return
  locked.isLoaded = true
  if (row.leases !== null && row.leases.length > 0 && bucket.leasedUntil > -Infinity)
    bucket.leases = unpackLeases(row.leases, bucket.leasedUntil)
  if (row.promises !== null && row.promises.length > 0 && bucket.keptUntil > -Infinity)
    bucket.promises = unpackPromises(row.promises, bucket.keptUntil)
}

function decide(
  { verb, input, stack }: Pick<PostgresQuestion, 'verb' | 'input' | 'stack'>,
  rows: Locked[],
  now: number,
  roundTrip: RoundTrip,
): unknown {
  const request = input[0] as AdmitRequest | AppointmentRequest | LeaseRequest
  const cost = 'cost' in request ? request.cost : 0
  const places = rows.map((locked, index) => {
    const place = placeOf(locked.bucket, stack[index]!, cost, now)
    load(locked)
    return place
  })
  if (verb === 'admit') return admitIn(places, request as AdmitRequest, roundTrip, now)
  if (verb === 'appoint') return appoint(places[0]!, request as AppointmentRequest, now)
  // The answer comes one way later than that of other verbs.
  const report = request as LeaseRequest
  return leaseIn(places[0]!, { ...report, lead: report.lead + roundTrip.usual }, now)
}

/** Writes those that have changed and the answers to others, and ends the transaction. */
function savingSql(
  rows: Locked[],
  { answers, forgotten }: { readonly answers: readonly string[]; readonly forgotten: readonly string[] },
  now: number,
  fill: DecidingOptions<never>['fill'],
): string {
  const values = rows.filter(({ bucket, isLoaded }) => isLoaded && bucket.at === now).map(valuesOf)
  const names = 'level, at, free, rate, blocked, leased_rate, leased_until, leased_room, kept, kept_until, expires'
  const set = names.replace(/\w+/g, name => `${name} = u.${name}`)
  const save = `UPDATE ${fill('@table@')} t
    SET ${set}, leases = coalesce(u.leases, t.leases), promises = coalesce(u.promises, t.promises)
    FROM (VALUES ${values}) u (key, ${names}, leases, promises) WHERE t.key = u.key;`
  const reports = fill('@reports@')
  const answer = `UPDATE ${reports} r SET answer = u.answer FROM (VALUES ${answers}) u (key, id, number, answer)
    WHERE r.key = u.key AND r.id = u.id AND r.number = u.number;`
  const forget = `DELETE FROM ${reports} WHERE key = ANY (ARRAY[${literals(forgotten)}]) AND deadline < ${now - FORGOTTEN};`
  const isThere = (list: readonly unknown[], sql: string): string => (list.length > 0 ? sql : '')
  return `${isThere(values, save)} ${isThere(answers, answer)} ${isThere(forgotten, forget)} COMMIT`
}

function valuesOf({ row, bucket }: Locked): string {
  const { level, at, free, rate, blocked, leasedRate, leasedUntil, leasedRoom, kept, keptUntil } = bucket
  const { leases, promises } = bucket
  const ends = Math.max(Math.max(at, leasedUntil) + level / rate, free, blocked < Infinity ? blocked : at, keptUntil)
  const leased = [leasedRate, leasedUntil, leasedRoom]
  const numbers = [level, at, free, rate, blocked, ...leased, kept, keptUntil]
  const arrays = [
    row.leases === null ? undefined : leases === undefined ? [] : packLeases(leases, leasedUntil),
    row.promises === null ? undefined : promises === undefined ? [] : packPromises(bucket),
  ]
  return `(${[
    literals([row.key, ...numbers, ends + KEEP_MARGIN]),
    ...arrays.map(list => (list === undefined ? 'NULL::float8[]' : `'{${list.join(',')}}'::float8[]`)),
  ].join(',')})`
}
