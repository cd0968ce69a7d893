/** Shared state in PostgreSQL: one row for each bucket instance, one call of a function for each batch of decisions. */
import { randomUUID } from 'node:crypto'
import { Listeners } from '../../core/board.js'
import type { Clock } from '../../core/clock.js'
import { type Store, StoreError } from '../../core/store.js'
import { describeTrouble } from '../describe-error.js'
import { shortened } from '../news.js'
import { PostgresBatcher } from './batcher.js'
import { createPostgresBoard } from './board.js'
import { connect } from './connection.js'
import { Connections } from './connections.js'
import { decodePostgresNews, encodePostgresReset } from './news.js'
import { Pruner } from './pruner.js'
import { createSchema, describeSchema } from './schema.js'
import { SideConnection } from './side-connection.js'
import {
  admitOperation,
  beatOperation,
  claimOperation,
  exchangeOperation,
  giveBackOperation,
  leaseOperation,
  leaveOperation,
  type PostgresOperation,
  promiseOperation,
  resetOperation,
  settleOperation,
} from './wire.js'

/** The most connections of an instance. Batches grow while both are busy. More would wait for the same rows. */
const CONNECTIONS = 2

export interface PostgresOptions {
  /**
   * postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS. The modes prefer, require and verify-ca
   * mean the same. no-verify checks no certificate. sslrootcert, sslcert and sslkey name files.
   */
  readonly url: string
  /** Its name, or a schema and its name with a dot between. Created if it does not exist. */
  readonly table: string
  /** ms until a call is rejected */
  readonly timeout: number
  readonly clock: Clock
  /** An error that no call reports, e.g. a lost connection. */
  onError?(error: Error): void
  /** SQL that yields the server's time in ms, for tests. */
  readonly timeSource?: string
  /** ms between two looks for rows that are not needed any more, for tests. Infinity: never. */
  readonly pruneEvery?: number
}

/** @throws RangeError: no table can have this name */
export function createPostgresStore(options: PostgresOptions): Store {
  const { url, clock, timeout } = options
  const onError = (error: Error): void => options.onError?.(new StoreError(`PostgreSQL: ${describeTrouble(error)}`))
  const schema = describeSchema(options.table, options.timeSource)

  const connections = new Connections({
    url,
    size: CONNECTIONS,
    async prepare({ client }) {
      await createSchema(client, schema)
      const sent = clock.now()
      const { rows } = await client.query<{ now: number }>(schema.probe)
      batcher.learn(sent, rows[0]!.now)
    },
    ready: () => batcher.pump(),
    down: error => batcher.fail(error),
    onError,
  })
  const batcher = new PostgresBatcher({
    clock,
    timeout,
    decide: schema.decide,
    take: () => connections.take(),
    giveBack: connection => connections.giveBack(connection),
    failure: () => connections.failure,
    repair: ({ client }) => createSchema(client, schema),
  })
  const pruner = new Pruner({
    sql: schema.prune,
    take: () => (batcher.waiting === 0 ? connections.take() : undefined),
    giveBack: connection => connections.giveBack(connection),
    onError,
    every: options.pruneEvery,
  })

  const listeners = new Listeners()
  const author = randomUUID()
  const side = new SideConnection({
    url,
    timeout,
    channel: schema.channel,
    prepare: client => createSchema(client, schema),
    received(payload) {
      const dated = decodePostgresNews(payload, author)
      if (dated !== undefined) listeners.tell(shortened(dated.news, clock.now() - batcher.ours(dated.at)))
    },
  })

  const ask = <T>(operation: PostgresOperation<T>): Promise<T> => batcher.ask(operation)

  return {
    get horizon() {
      return batcher.horizon
    },
    latenessOf: () => batcher.lateness,
    admit: request => ask(admitOperation(request)),
    claim: request => ask(claimOperation(request)),
    giveBack: request => ask(giveBackOperation(request)),
    settle: request => ask(settleOperation(request)),
    lease: request => ask(leaseOperation(request)),
    promise: request => ask(promiseOperation(request)),
    async reset(bucket) {
      await ask(resetOperation(bucket))
      const payload = encodePostgresReset(author, bucket.limits.name, bucket.key)
      side.query('SELECT pg_notify($1, $2)', [schema.channel, payload]).catch(() => {})
    },
    beat: id => ask(beatOperation(id)),
    leave: id => ask(leaveOperation(id)),
    exchange: (upstream, news) => ask(exchangeOperation(upstream, news)),
    listen(listener) {
      side.listen()
      return listeners.add(listener)
    },
    board: createPostgresBoard(side, schema),
    async close() {
      side.close()
      pruner.close()
      batcher.close()
      await connections.close()
    },
  }
}

/**
 * Creates the table and the functions.
 *
 * @throws StoreError, whose message and cause do not hold the URL
 */
export async function migrate({
  url,
  table,
  timeSource,
}: {
  readonly url: string
  readonly table: string
  readonly timeSource?: string
}): Promise<void> {
  const schema = describeSchema(table, timeSource)
  try {
    const connection = await connect(url)
    try {
      await createSchema(connection.client, schema)
    } finally {
      await connection.end()
    }
  } catch (cause) {
    const { message, code } = cause as NodeJS.ErrnoException
    throw new StoreError(message || code || 'PostgreSQL does not answer', { cause })
  }
}
