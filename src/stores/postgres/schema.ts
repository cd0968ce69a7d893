/** The table and the functions that the PostgreSQL store needs, under any name. */

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Client } from 'pg'
import pg from 'pg'
import { ownValue } from '../../core/structures/own-value.js'
import { fillConstants } from '../constants.js'

/** ms by the server's clock. */
const NOW = fillConstants(`date_part('epoch', clock_timestamp() - to_timestamp(@CLOCK_ORIGIN@)) * 1000`)

/** Bytes. PostgreSQL cuts off longer names. */
const LONGEST_NAME = 63

/** ms. Creating may take this long, as other instances may be creating, too. */
const PATIENCE = 10_000

/**
 * What holds while the function decides. Plans must suit a table of any size, though it may be empty when they are made. A row that
 * is locked for long does not keep the connection.
 */
const SETTINGS = `SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
  SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '1s'`

/** Those of lease.sql. */
const LEASE_PARAMETERS = `INOUT lease float8[], INOUT leased_until float8, INOUT level float8, INOUT free float8,
  now float8, instance float8, largest float8, request float8[], reserved float8, OUT leased_rate float8, OUT answer float8[]`
const LEASE_TYPES = 'float8[],float8,float8,float8,float8,float8,float8,float8[],float8'

function read(name: string): string {
  return fillConstants(readFileSync(new URL(`./${name}.sql`, import.meta.url), 'utf8'))
}

export interface Schema {
  /** Its name for messages. */
  readonly table: string
  /** SQL. Its parameters are the keys and the operations of decide.sql. */
  readonly decide: string
  /** SQL: see prune.sql. */
  readonly prune: string
  /** The channel for news. */
  readonly channel: string
  /** SQL on the tables of board.ts. */
  fill(template: string): string
  /** SQL: the time, whether the table has the columns that were added later, and whether all exists. */
  readonly probe: string
  /**
   * SQL: creates what does not exist. Several at once wait for each other.
   *
   * @param leases whether the table has the columns of leases
   */
  create(leases: boolean): string
}

/**
 * @param table a name, or a schema and a name with a dot between
 * @param timeSource SQL that yields the time in ms as a double
 * @throws RangeError for what cannot be a name
 */
export function describeSchema(table: string, timeSource = NOW): Schema {
  const parts = table.split('.')
  const sound = parts.every(part => part !== '' && !part.includes('\0') && Buffer.byteLength(part) <= LONGEST_NAME)
  if (!sound || parts.length > 2) {
    throw new RangeError(`${JSON.stringify(table)} is not the name of a table; use e.g. "shaper_buckets"`)
  }
  const quoted = parts.map(part => pg.escapeIdentifier(part))
  const name = quoted.join('.')
  const channel = `shaper_${hashOf(name)}`
  const last = parts.at(-1)!
  const beside = (suffix: string): string => {
    const long = `${last}_${suffix}`
    const short = Buffer.byteLength(long) <= LONGEST_NAME ? long : `shaper_${suffix}_${hashOf(name)}`
    return [...quoted.slice(0, -1), pg.escapeIdentifier(short)].join('.')
  }
  // Each version has functions of its own: instances of two versions share one table while they are being replaced.
  const nameOf = (verb: string, body: string): string => {
    return [...quoted.slice(0, -1), pg.escapeIdentifier(`shaper_${verb}_${hashOf(`${name}\n${body}`)}`)].join('.')
  }
  const leaseBody = read('lease')
  const lease = nameOf('lease', leaseBody)
  const words: Readonly<Record<string, string>> = {
    table: name,
    now: `(${timeSource})`,
    lease,
    channel: pg.escapeLiteral(channel),
    views: beside('views'),
    hours: beside('hours'),
    overrides: beside('overrides'),
    secrets: beside('secrets'),
    promises: beside('promises'),
  }
  const fill = (template: string): string =>
    template.replace(/@([a-z]+)@/g, (_, word: string) => ownValue(words, word)!)
  const decideBody = fill(read('decide'))
  const decide = nameOf('decide', SETTINGS + decideBody)
  const isThere = (signature: string): string => `to_regprocedure(${pg.escapeLiteral(signature)}) IS NOT NULL`
  const hasLeases = `(SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass(${pg.escapeLiteral(name)})
      AND attname IN ('lease', 'kept_until', 'gap_until') AND NOT attisdropped) = 3`
  const ready = [
    hasLeases,
    isThere(`${decide}(text[],float8[])`),
    isThere(`${lease}(${LEASE_TYPES})`),
    ...[words.views!, words.hours!, words.overrides!, words.secrets!, words.promises!].map(
      each => `to_regclass(${pg.escapeLiteral(each)}) IS NOT NULL`,
    ),
  ].join(' AND ')
  const createFunction = (signature: string, body: string): string =>
    `CREATE OR REPLACE FUNCTION ${signature} LANGUAGE plpgsql AS ${pg.escapeLiteral(body)}`
  return {
    table,
    channel,
    fill,
    decide: `SELECT ${decide}($1::text[], $2::float8[]) AS answer`,
    prune: fill(read('prune')),
    probe: `SELECT ${fill('@now@')}::float8 AS now, ${hasLeases} AS leases, ${ready} AS ready`,
    create: leases => `BEGIN;
      SET LOCAL statement_timeout = ${PATIENCE};
      SELECT pg_advisory_xact_lock(hashtext('shaper'), hashtext(${pg.escapeLiteral(name)}));
      ${fill(read('table'))};
      ${leases ? '' : fill(read('table-leases'))};
      ${createFunction(`${lease}(${LEASE_PARAMETERS})`, leaseBody)};
      ${createFunction(`${decide}(keys text[], ops float8[]) RETURNS float8[] ${SETTINGS}`, decideBody)};
      COMMIT`,
  }
}

function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}

/** Creates what does not exist. */
export async function createSchema(client: Client, schema: Schema): Promise<void> {
  const { rows } = await client.query<{ leases: boolean; ready: boolean }>(schema.probe)
  const { leases, ready } = rows[0]!
  if (ready) return
  try {
    await client.query(schema.create(leases))
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}
