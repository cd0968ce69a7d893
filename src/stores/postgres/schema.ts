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
/** Plans must suit a table of any size, though it may be empty when they are made. No locked row keeps the connection. */
const SETTINGS = `SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
  SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '1s'`

function read(name: string): string {
  return fillConstants(readFileSync(new URL(`./${name}.sql`, import.meta.url), 'utf8'))
}

export interface Schema {
  readonly table: string
  /** SQL. Its parameters are the keys and the operations of decide.sql. */
  readonly decide: string
  readonly prune: string
  readonly channel: string
  /** SQL on the tables of board.ts. */
  fill(template: string): string
  /** SQL: the time, whether the table has the columns that were added later, and whether all exists. */
  readonly probe: string
  /** SQL: creates what does not exist. Several at once wait for each other. `leases`: the table has those columns. */
  create(leases: boolean): string
}

/** @param table with its schema, if any @param timeSource SQL of the time in ms @throws RangeError: no such name can be */
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
  const words: Readonly<Record<string, string>> = {
    table: name,
    now: `(${timeSource})`,
    channel: pg.escapeLiteral(channel),
    views: beside('views'),
    hours: beside('hours'),
    overrides: beside('overrides'),
    secrets: beside('secrets'),
    reports: beside('reports'),
  }
  const fill = (template: string): string =>
    template.replace(/@([a-z]+)@/g, (_, word: string) => ownValue(words, word)!)
  const decideBody = fill(read('decide'))
  const decide = nameOf('decide', SETTINGS + decideBody)
  const isThere = (signature: string): string => `to_regprocedure(${pg.escapeLiteral(signature)}) IS NOT NULL`
  const hasLeases = `(SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass(${pg.escapeLiteral(name)})
      AND attname IN ('leases', 'promises', 'leased_room') AND NOT attisdropped) = 3`
  const ready = [
    hasLeases,
    isThere(`${decide}(text[],float8[])`),
    ...[words.views!, words.hours!, words.overrides!, words.secrets!, words.reports!].map(
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
      ${createFunction(`${decide}(keys text[], ops float8[]) RETURNS float8[] ${SETTINGS}`, decideBody)};
      COMMIT`,
  }
}

function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}

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
