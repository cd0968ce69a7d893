/** Shared state in PostgreSQL: one row for each bucket instance, one call of a function for each batch of decisions. */
import { randomUUID } from 'node:crypto'
import type { Clock } from '../../core/clock.js'
import { Listeners } from '../../sharing/board.js'
import { type Store, StoreError } from '../../sharing/store.js'
import { Batcher } from '../batch.js'
import { describeTrouble } from '../describe-error.js'
import { sizeOf } from '../doubles.js'
import { shortened } from '../news.js'
import { Offset, RoundTrip } from '../timing.js'
import { type Ask, readerOf, VERBS, verbsOf } from '../verbs.js'
import { createPostgresBoard } from './board.js'
import { FAR, isDecidedHere } from './deciding.js'
import { Connections, connect, type PostgresConnection, SideConnection, startPruner } from './link.js'
import { createSchema, describeSchema } from './schema.js'
import { HERE, learn, Made, sendBatch, THERE, unavailable } from './sender.js'
import {
  decodePostgresNews,
  encodePostgresReset,
  type PostgresAnswers,
  type PostgresQuestion,
  questionOf,
} from './wire.js'

/** The most questions that wait. */
const MOST_WAITING = 10_000
/** The most connections of an instance. Batches grow while both are busy. More would wait for the same rows. */
const CONNECTIONS = 2

type Source = PostgresAnswers | Made

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
  /** ms that a round trip takes to a server that is far away, for tests. Negative: any is. */
  readonly far?: number
}

/** @throws RangeError: no table can have this name */
export function createPostgresStore(options: PostgresOptions): Store {
  const { url, clock, timeout, far = FAR } = options
  const onError = (error: Error): void => options.onError?.(new StoreError(`PostgreSQL: ${describeTrouble(error)}`))
  const schema = describeSchema(options.table, options.timeSource)

  const offset = new Offset()
  const roundTrip = new RoundTrip()

  const connections = new Connections({
    url,
    size: CONNECTIONS,
    async prepare({ client }) {
      await createSchema(client, schema)
      const sent = clock.now()
      const { rows } = await client.query<{ now: number }>(schema.probe)
      learn({ clock, offset, roundTrip }, sent, rows[0]!.now)
    },
    ready: () => batcher.pump(),
    down: error => batcher.fail(unavailable(error)),
    onError,
  })
  const batcher: Batcher<PostgresQuestion, Source> = new Batcher<PostgresQuestion, Source>({
    ...{ clock, timeout, sizeOf, who: 'PostgreSQL', reasonOf: unavailable },
    sender() {
      const connection = connections.take()
      if (connection === undefined) return undefined
      return (asked, place) =>
        sendBatch(connection, asked, place, sending).finally(() => connections.giveBack(connection))
    },
  })
  const sending = {
    ...{ clock, timeout, far, offset, roundTrip, batcher, schema },
    repair: ({ client }: PostgresConnection) => createSchema(client, schema),
  }

  const pruner = startPruner({
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
      if (dated !== undefined) listeners.tell(shortened(dated.news, clock.now() - offset.ours(dated.at)))
    },
  })

  const ask: Ask = (verb, input) => {
    const { failure } = connections
    if (failure !== undefined) return Promise.reject(unavailable(failure))
    if (batcher.waiting >= MOST_WAITING) return Promise.reject(new StoreError('too many questions wait for PostgreSQL'))
    const read = readerOf(verb, input)
    const answerOf = (source: Source): ReturnType<typeof read> => {
      if (!(source instanceof Made)) return read(source)
      const answer = source.answer as ReturnType<typeof read>
      return VERBS[verb].ours?.(answer, theirs => offset.ours(theirs)) ?? answer
    }
    if (!isDecidedHere(verb, input)) return batcher.ask(questionOf(verb, input), answerOf, THERE)
    // It takes up to three round trips in place of one.
    return batcher.ask(questionOf(verb, input), answerOf, HERE, clock.now() + timeout + 2 * roundTrip.usual)
  }

  return {
    ...verbsOf(ask),
    async reset(bucket) {
      await ask('reset', [bucket])
      const payload = encodePostgresReset(author, bucket.limits.name, bucket.key)
      side.query('SELECT pg_notify($1, $2)', [schema.channel, payload]).catch(() => {})
    },
    get horizon() {
      return roundTrip.horizon
    },
    latenessOf: () => offset.lateness,
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

/** Creates the table and the functions. @throws StoreError, whose message and cause do not hold the URL */
export async function migrate({
  url,
  table,
  timeSource,
}: Pick<PostgresOptions, 'url' | 'table' | 'timeSource'>): Promise<void> {
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
