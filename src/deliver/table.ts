/**
 * The table of deliveries in PostgreSQL, and of the instances that send them.
 *
 * A delivery is `waiting` until it is `done`, `dead` or `cancelled`. An instance that is about to send it owns it, and an
 * instance lives as long as it says so. What a dead instance owned waits again. All times are of the server's clock.
 */
import pg from 'pg'
import { clientConfig } from '../stores/postgres/link.js'

export type State = 'waiting' | 'done' | 'dead' | 'cancelled'

export interface NewDelivery {
  readonly id: string
  readonly route: string
  /** A digest of the keys in its buckets. Deliveries of one lane leave in order. */
  readonly lane: Buffer
  /** A digest of its Idempotency-Key and of whose that is. */
  readonly dedupe: Buffer
  /** A digest of what it asks for. */
  readonly fingerprint: Buffer
  /** JSON */
  readonly head: string
  readonly body: Buffer
}

/** Times are in ms since 1970. */
export interface DeliveryRow {
  readonly id: string
  readonly route: string
  readonly state: State
  readonly attempts: number
  readonly sent: boolean
  readonly owned: boolean
  readonly created: number
  readonly due: number
  readonly now: number
  readonly ended: number | null
  /** JSON: a problem document. */
  readonly error: string | null
  /** JSON: status and headers. */
  readonly answer: string | null
  readonly answer_body: Buffer | null
  readonly fingerprint: Buffer
  readonly dedupe: Buffer
}

export interface ClaimedRow {
  readonly id: string
  readonly seq: string
  readonly lane: Buffer
  readonly head: string
  readonly body: Buffer
  readonly attempts: number
}

export interface ClaimAsked {
  readonly owner: string
  readonly route: string
  readonly isOrdered: boolean
  /** Lanes after this one, '' for all. */
  readonly after: string
  readonly most: number
  /** The most of one lane, with those that the owner has. */
  readonly perLane: number
  /** How many the owner has of a lane, by its digest in hex. */
  readonly held: ReadonlyMap<string, number>
  /** What the owner knows to have of this route. Undefined: no claim of it has failed. */
  readonly known: readonly string[] | undefined
}

export interface Result {
  readonly id: string
  readonly owner: string
  /** Before it. So a result that is written again changes nothing. */
  readonly attempts: number
  readonly state: State
  /** 1: it was sent, or could not be sent. 0: it is given back. */
  readonly tried: 0 | 1
  /** ms until it may be sent again. */
  readonly delay: number
  readonly error?: string | undefined
  readonly answer?: string | undefined
  readonly answerBody?: Buffer | undefined
}

/** A change of the columns needs another version, and a migration in `#create`. */
const VERSION = 'shaper deliveries 1'
/** ms for one statement. */
const TIMEOUT = 5_000
const CONNECTIONS = 4
const ASKED = 2
/** Lanes that one claim looks at. */
const LANES = 64
/** Finished deliveries that are deleted at once. */
const PRUNED = 1_000

const CREATE = `
  CREATE TABLE IF NOT EXISTS shaper_deliveries (
    id text PRIMARY KEY, seq bigint GENERATED ALWAYS AS IDENTITY, route text NOT NULL, lane bytea NOT NULL,
    dedupe bytea NOT NULL UNIQUE, fingerprint bytea NOT NULL, head text NOT NULL, body bytea NOT NULL,
    state text NOT NULL DEFAULT 'waiting', attempts int NOT NULL DEFAULT 0,
    created timestamptz NOT NULL DEFAULT clock_timestamp(), due timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended timestamptz, owner text, sent bool NOT NULL DEFAULT false, cancel bool NOT NULL DEFAULT false,
    error text, answer text, answer_body bytea
  );
  CREATE INDEX IF NOT EXISTS shaper_deliveries_due ON shaper_deliveries (route, lane, due, seq)
    WHERE state = 'waiting' AND owner IS NULL;
  CREATE INDEX IF NOT EXISTS shaper_deliveries_lane ON shaper_deliveries (route, lane, seq) WHERE state = 'waiting';
  CREATE INDEX IF NOT EXISTS shaper_deliveries_owner ON shaper_deliveries (owner) WHERE owner IS NOT NULL;
  CREATE INDEX IF NOT EXISTS shaper_deliveries_ended ON shaper_deliveries (route, ended) WHERE ended IS NOT NULL;
  CREATE INDEX IF NOT EXISTS shaper_deliveries_state ON shaper_deliveries (state, seq);
  CREATE TABLE IF NOT EXISTS shaper_delivery_instances (id text PRIMARY KEY, alive_until timestamptz NOT NULL);
  COMMENT ON TABLE shaper_deliveries IS '${VERSION}'`

const MS = (time: string): string => `(extract(epoch FROM ${time}) * 1000)::float8`
/** A lane that a limit holds up is there until then, beside the instances: all of them tell of it. */
const HELD_UP = `(SELECT alive_until FROM shaper_delivery_instances WHERE id = 'lane ' || encode(lane, 'hex'))`
const ROW = `id, route, state, attempts, sent, owner IS NOT NULL AS owned, ${MS('created')} AS created,
  ${MS(`greatest(due, ${HELD_UP})`)} AS due,
  ${MS('clock_timestamp()')} AS now, ${MS('ended')} AS ended, error, answer, answer_body, fingerprint, dedupe`

/** Nobody is about to send it any more. Who asked for what was not sent to be cancelled may have been told so. */
const FREED = `owner = NULL, sent = false, cancel = false,
  state = CASE WHEN cancel AND NOT sent THEN 'cancelled' ELSE state END,
  ended = CASE WHEN cancel AND NOT sent THEN clock_timestamp() END,
  head = CASE WHEN cancel AND NOT sent THEN '' ELSE head END, body = CASE WHEN cancel AND NOT sent THEN '' ELSE body END`
/** Nobody owns it, and it is its time. */
const READY = `route = $1 AND state = 'waiting' AND owner IS NULL AND due <= now()`
const ROOM = 'greatest(0, $5 - coalesce(held.count, 0))'
/** The first of a lane that are due. */
const ANY_ORDER = `SELECT id FROM shaper_deliveries d WHERE ${READY} AND d.lane = lanes.lane ORDER BY due, seq LIMIT ${ROOM}`
/** The first of a lane, as far as each is ready. The first of it is owned as long as any is. */
const IN_ORDER = `SELECT id FROM (
    SELECT id, bool_and(owner IS NULL AND due <= now()) OVER (ORDER BY seq) AS ready FROM (
      SELECT id, seq, owner, due FROM shaper_deliveries d
      WHERE route = $1 AND state = 'waiting' AND d.lane = lanes.lane ORDER BY seq LIMIT ${ROOM}) firsts
  ) run WHERE ready`

const claimOf = (lane: string): string => `
  WITH RECURSIVE lanes(lane, place) AS (
    (SELECT lane, 1 FROM shaper_deliveries WHERE ${READY} AND lane > $2 ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT d.lane FROM shaper_deliveries d WHERE ${READY} AND d.lane > lanes.lane ORDER BY d.lane LIMIT 1), place + 1
    FROM lanes WHERE lane IS NOT NULL AND place < ${LANES}
  ), picked AS (
    SELECT first.id FROM lanes LEFT JOIN unnest($6::bytea[], $7::int[]) AS held(lane, count) USING (lane)
    CROSS JOIN LATERAL (${lane}) first WHERE lanes.lane IS NOT NULL LIMIT $4
  ), claimed AS (
    UPDATE shaper_deliveries d SET owner = $3, sent = false FROM picked
    WHERE d.id = picked.id AND d.owner IS NULL AND d.state = 'waiting' AND NOT d.cancel
    RETURNING d.id, d.seq, d.lane, d.head, d.body, d.attempts
  )
  SELECT claimed.*, (SELECT lane FROM lanes WHERE lane IS NOT NULL ORDER BY place DESC LIMIT 1) AS last, (SELECT count(*)::int FROM lanes) AS looked
  FROM (SELECT 1) one LEFT JOIN claimed ON true ORDER BY claimed.seq`

/** A claim looks at a few rows of an index, whatever the statistics of a young table say. */
const PLANS = ['jit', 'enable_seqscan', 'enable_bitmapscan', 'enable_hashjoin', 'enable_mergejoin']
  .map(name => `SET LOCAL ${name} = off`)
  .join('; ')
const CLAIMS = { any: claimOf(ANY_ORDER), ordered: claimOf(IN_ORDER) }

export class DeliveryTable {
  readonly #pool: pg.Pool
  /** For clients that ask about a delivery: they keep no connection from those that send. */
  readonly #asked: pg.Pool

  constructor(url: string) {
    const open = (max: number): pg.Pool => {
      const pool = new pg.Pool({ ...clientConfig(url), max, query_timeout: TIMEOUT })
      // A connection has ended. The next statement opens another one, or fails.
      pool.on('error', () => {})
      pool.on('connect', client => void client.on('error', () => {}))
      return pool
    }
    this.#pool = open(CONNECTIONS)
    this.#asked = open(ASKED)
  }

  /** Creates what is missing. @throws if the server does not answer, or the table is of another version */
  async open(): Promise<void> {
    const version = async () => {
      const { rows } = await this.#pool.query<{ version: string | null; is: boolean }>(
        `SELECT to_regclass('shaper_deliveries') IS NOT NULL AS is,
          obj_description(to_regclass('shaper_deliveries'), 'pg_class') AS version`,
      )
      return rows[0]!
    }
    const found = await version()
    if (!found.is) {
      await this.#together(async client => {
        await client.query(`SELECT pg_advisory_xact_lock(hashtext('shaper'), hashtext('deliveries'))`)
        await client.query(CREATE)
      })
    } else if (found.version !== VERSION)
      throw new RangeError(
        `its table shaper_deliveries is of another version (${found.version}); use the program that made it`,
      )
  }

  async close(): Promise<void> {
    await Promise.all([this.#pool.end(), this.#asked.end()])
  }

  async #together<T>(use: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#pool.connect()
    try {
      // An instance that is stopped in the middle must not keep others from its locks.
      await client.query(`BEGIN; SET LOCAL idle_in_transaction_session_timeout = ${TIMEOUT}`)
      const found = await use(client)
      await client.query('COMMIT')
      client.release()
      return found
    } catch (error) {
      client.release(error as Error)
      throw error
    }
  }

  /** Commits them, but for those whose key was accepted before. @returns the rows of all, in the same order */
  async insert(rows: readonly NewDelivery[]): Promise<(DeliveryRow | undefined)[]> {
    const columns = ['id', 'route', 'lane', 'dedupe', 'fingerprint', 'head', 'body'] as const
    const types = ['text', 'text', 'bytea', 'bytea', 'bytea', 'text', 'bytea']
    const arrays = types.map((type, at) => `$${at + 1}::${type}[]`).join(', ')
    const { rows: fresh } = await this.#pool.query<DeliveryRow>(
      `INSERT INTO shaper_deliveries (${columns}) SELECT ${columns}
       FROM unnest(${arrays}) WITH ORDINALITY AS n(${columns}, place) ORDER BY place ON CONFLICT (dedupe) DO NOTHING
       RETURNING ${ROW}`,
      columns.map(column => rows.map(row => row[column])),
    )
    const byKey = new Map(fresh.map(row => [row.dedupe.toString('hex'), row]))
    const find = ({ dedupe }: NewDelivery): DeliveryRow | undefined => byKey.get(dedupe.toString('hex'))
    const known = rows.filter(row => find(row) === undefined).map(({ dedupe }) => dedupe)
    if (known.length > 0) {
      const { rows: found } = await this.#pool.query<DeliveryRow>(
        `SELECT ${ROW} FROM shaper_deliveries WHERE dedupe = ANY($1::bytea[])`,
        [known],
      )
      for (const row of found) byKey.set(row.dedupe.toString('hex'), row)
    }
    return rows.map(find)
  }

  async find(id: string): Promise<(DeliveryRow & { readonly ahead: number }) | undefined> {
    const { rows } = await this.#asked.query<DeliveryRow & { ahead: number }>(
      `SELECT ${ROW}, (SELECT count(*)::int FROM (SELECT 1 FROM shaper_deliveries a
         WHERE a.state = 'waiting' AND d.state = 'waiting' AND a.route = d.route AND a.lane = d.lane AND a.seq < d.seq
         LIMIT 10000) before) AS ahead
       FROM shaper_deliveries d WHERE id = $1`,
      [id],
    )
    return rows[0]
  }

  /** The latest. */
  async list(states: readonly string[], most: number): Promise<DeliveryRow[]> {
    const { rows } = await this.#pool.query<DeliveryRow>(
      `SELECT ${ROW} FROM shaper_deliveries WHERE state = ANY($1::text[]) ORDER BY seq DESC LIMIT $2`,
      [states, most],
    )
    return rows
  }

  /** How many wait and how many are dead, by route, and the age of the oldest in ms. */
  async counts(): Promise<{ route: string; state: State; count: number; age: number }[]> {
    const { rows } = await this.#pool.query(
      `SELECT route, state, count(*)::int AS count, ${MS('clock_timestamp() - min(created)')} AS age
       FROM shaper_deliveries WHERE state IN ('waiting', 'dead') GROUP BY route, state`,
    )
    return rows
  }

  /** Cancels what nobody is about to send. What is owned and not sent is marked: its owner decides. */
  async cancel(id: string): Promise<DeliveryRow | undefined> {
    const { rows } = await this.#asked.query<DeliveryRow>(
      `UPDATE shaper_deliveries SET cancel = true,
         state = CASE WHEN owner IS NULL THEN 'cancelled' ELSE state END,
         ended = CASE WHEN owner IS NULL THEN clock_timestamp() END,
         head = CASE WHEN owner IS NULL THEN '' ELSE head END, body = CASE WHEN owner IS NULL THEN '' ELSE body END
       WHERE id = $1 AND state = 'waiting' AND NOT sent RETURNING ${ROW}`,
      [id],
    )
    return rows[0] ?? this.find(id)
  }

  /** Who wants to cancel is about to be told that it is too late. @returns whether it was cancelled before that */
  async keep(id: string): Promise<boolean> {
    await this.#asked.query(`UPDATE shaper_deliveries SET cancel = false WHERE id = $1 AND state = 'waiting'`, [id])
    return (await this.find(id))?.state === 'cancelled'
  }

  /** Sends a dead letter again, with all its attempts. @returns whether it was one */
  async retry(id: string): Promise<boolean> {
    const { rowCount } = await this.#pool.query(
      `UPDATE shaper_deliveries SET state = 'waiting', attempts = 0, due = clock_timestamp(), ended = NULL, error = NULL,
         cancel = false WHERE id = $1 AND state = 'dead'`,
      [id],
    )
    return rowCount === 1
  }

  /** @returns whether it was finished */
  async remove(id: string): Promise<boolean> {
    const { rowCount } = await this.#pool.query(`DELETE FROM shaper_deliveries WHERE id = $1 AND state <> 'waiting'`, [
      id,
    ])
    return rowCount === 1
  }

  /** A new instance. @param lease ms */
  async join(owner: string, lease: number): Promise<void> {
    await this.#pool.query(
      `INSERT INTO shaper_delivery_instances VALUES ($1, clock_timestamp() + $2::float8 * interval '1 ms')`,
      [owner, lease],
    )
  }

  /**
   * An instance lives on, and what dead ones owned waits again.
   *
   * @returns which of its deliveries are to be cancelled. Undefined: it was taken for dead, and owns nothing any more
   */
  async beat(owner: string, lease: number): Promise<string[] | undefined> {
    const { rowCount } = await this.#pool.query(
      `UPDATE shaper_delivery_instances SET alive_until = clock_timestamp() + $2::float8 * interval '1 ms'
       WHERE id = $1 AND alive_until > clock_timestamp()`,
      [owner, lease],
    )
    // Two statements: the second sees what a claim committed that the first has waited for.
    await this.#pool.query('DELETE FROM shaper_delivery_instances WHERE alive_until < clock_timestamp()')
    await this.#pool.query(
      `UPDATE shaper_deliveries SET ${FREED} WHERE owner IS NOT NULL AND owner NOT IN (SELECT id FROM shaper_delivery_instances)`,
    )
    if (rowCount === 0) return undefined
    const { rows } = await this.#pool.query<{ id: string }>(
      'SELECT id FROM shaper_deliveries WHERE owner = $1 AND cancel AND NOT sent',
      [owner],
    )
    return rows.map(({ id }) => id)
  }

  /** Limits hold lanes up. @param lanes ms by digest in hex; 0: not any more */
  async holdUp(lanes: ReadonlyMap<string, number>): Promise<void> {
    await this.#pool.query(
      `INSERT INTO shaper_delivery_instances
       SELECT 'lane ' || lane, clock_timestamp() + ms * interval '1 ms' FROM unnest($1::text[], $2::float8[]) AS u(lane, ms)
       ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until`,
      [[...lanes.keys()], [...lanes.values()]],
    )
  }

  async leave(owner: string): Promise<void> {
    await this.#pool.query(`UPDATE shaper_deliveries SET ${FREED} WHERE owner = $1`, [owner])
    await this.#pool.query('DELETE FROM shaper_delivery_instances WHERE id = $1', [owner])
  }

  /**
   * Takes deliveries to send. One instance at a time does so for a route, so that the order of a lane is seen as a whole.
   *
   * @returns them in order, and the lane after which to look next; '': from the first
   */
  claim(asked: ClaimAsked): Promise<{ rows: ClaimedRow[]; next: string }> {
    const { owner, route, isOrdered, after, most, perLane, held, known } = asked
    return this.#together(async client => {
      await client.query(PLANS)
      await client.query('SELECT pg_advisory_xact_lock(hashtext($1), hashtext($2))', ['shaper deliveries', route])
      // The row cannot be deleted before the claim is committed.
      const alive = await client.query(
        'SELECT 1 FROM shaper_delivery_instances WHERE id = $1 AND alive_until > clock_timestamp() FOR KEY SHARE',
        [owner],
      )
      if (alive.rowCount === 0) return { rows: [], next: '' }
      // A claim whose commit was not heard of. It had this lock until then.
      if (known !== undefined)
        await client.query(
          `UPDATE shaper_deliveries SET ${FREED} WHERE owner = $1 AND route = $2 AND id <> ALL($3::text[])`,
          [owner, route, known],
        )
      const lanes = [...held.keys()].map(lane => Buffer.from(lane, 'hex'))
      const { rows } = await client.query<ClaimedRow & { last: Buffer | null; looked: number }>(
        CLAIMS[isOrdered ? 'ordered' : 'any'],
        [route, Buffer.from(after, 'hex'), owner, most, perLane, lanes, [...held.values()]],
      )
      const { last, looked } = rows[0]!
      const next = last === null || looked < LANES ? '' : last.toString('hex')
      return { rows: rows.filter(({ id }) => id !== null), next }
    })
  }

  /** What is about to be answered, for who asks and for who wants to cancel: it is too late for that. */
  async noteSent(owner: string, ids: readonly string[]): Promise<void> {
    await this.#pool.query(
      'UPDATE shaper_deliveries SET sent = true, cancel = false WHERE id = ANY($1::text[]) AND owner = $2',
      [ids, owner],
    )
  }

  /** Writes results. A delivery that was made counts as made, even if another instance owns it now. Other results count only from the owner. */
  async record(results: readonly Result[]): Promise<void> {
    const columns = ['id', 'owner', 'attempts', 'state', 'tried', 'delay', 'error', 'answer', 'answerBody'] as const
    const types = ['text', 'text', 'int', 'text', 'int', 'float8', 'text', 'text', 'bytea']
    await this.#pool.query(
      `UPDATE shaper_deliveries d SET
         state = n.state, attempts = d.attempts + n.tried, due = clock_timestamp() + n.delay * interval '1 ms',
         owner = NULL, sent = false, cancel = false,
         ended = CASE WHEN n.state <> 'waiting' THEN clock_timestamp() END,
         error = CASE WHEN n.tried = 1 OR n.state = 'dead' THEN n.error ELSE d.error END, answer = n.answer, answer_body = n.body,
         head = CASE WHEN n.state IN ('done', 'cancelled') THEN '' ELSE d.head END,
         body = CASE WHEN n.state IN ('done', 'cancelled') THEN '' ELSE d.body END
       FROM (SELECT id, owner, attempts, CASE WHEN state = 'waiting' AND (SELECT cancel FROM shaper_deliveries o WHERE o.id = u.id)
           THEN 'cancelled' ELSE state END AS state, tried, delay, error, answer, body
         FROM unnest(${types.map((type, at) => `$${at + 1}::${type}[]`).join(', ')})
           AS u(id, owner, attempts, state, tried, delay, error, answer, body)) n
       WHERE d.id = n.id AND d.state = 'waiting' AND ((d.owner = n.owner AND d.attempts = n.attempts) OR n.state = 'done')`,
      columns.map(column => results.map(result => result[column] ?? null)),
    )
  }

  /** Deletes what has been finished for longer than `keep` ms. @returns whether there may be more */
  async prune(route: string, keep: number): Promise<boolean> {
    const { rowCount } = await this.#pool.query(
      `DELETE FROM shaper_deliveries WHERE id IN (SELECT id FROM shaper_deliveries
         WHERE route = $1 AND ended < clock_timestamp() - $2::float8 * interval '1 ms' LIMIT ${PRUNED})`,
      [route, keep],
    )
    return rowCount === PRUNED
  }
}
