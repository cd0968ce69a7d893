/** The table and the function that the PostgreSQL store needs, under any name. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Client } from 'pg'
import pg from 'pg'
import { fillConstants } from '../constants.js'

/** ms by the server's clock. */
const NOW = fillConstants(`date_part('epoch', clock_timestamp() - to_timestamp(@CLOCK_ORIGIN@)) * 1000`)

/** Bytes. PostgreSQL cuts off longer names. */
const LONGEST_NAME = 63

/** ms. Creating may take this long, as other instances may be creating, too. */
const PATIENCE = 10_000

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
  /** SQL: the time, and whether table and function exist. */
  readonly probe: string
  /** SQL: creates what does not exist. Several at once wait for each other. */
  readonly create: string
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
  const fill = (template: string): string =>
    template.replace(/@(table|now)@/g, (_, word) => (word === 'table' ? name : `(${timeSource})`))
  const body = fill(read('decide'))
  // Each version has a function of its own: instances of two versions share one table while they are being replaced.
  const hash = createHash('sha256').update(`${name}\n${body}`).digest('hex').slice(0, 16)
  const run = [...quoted.slice(0, -1), pg.escapeIdentifier(`shaper_decide_${hash}`)].join('.')
  const signature = `${run}(keys text[], ops float8[])`
  const there = `to_regprocedure(${pg.escapeLiteral(`${run}(text[],float8[])`)}) IS NOT NULL
      AND to_regclass(${pg.escapeLiteral(name)}) IS NOT NULL`
  return {
    table,
    decide: `SELECT ${run}($1::text[], $2::float8[]) AS answer`,
    prune: fill(read('prune')),
    probe: `SELECT ${fill('@now@')}::float8 AS now, ${there} AS ready`,
    create: `BEGIN;
      SET LOCAL statement_timeout = ${PATIENCE};
      SELECT pg_advisory_xact_lock(hashtext('shaper'), hashtext(${pg.escapeLiteral(name)}));
      ${fill(read('table'))};
      CREATE OR REPLACE FUNCTION ${signature} RETURNS float8[] LANGUAGE plpgsql AS ${pg.escapeLiteral(body)};
      COMMIT`,
  }
}

/** Creates what does not exist. */
export async function createSchema(client: Client, schema: Schema): Promise<void> {
  const { rows } = await client.query<{ ready: boolean }>(schema.probe)
  if (rows[0]!.ready) return
  try {
    await client.query(schema.create)
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {})
    throw error
  }
}
