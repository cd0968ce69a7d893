/**
 * Sends batches, one for each connection at a time: one call of the function in decide.sql, one transaction that locks each row
 * once, or a transaction of deciding.ts. Nothing is done for a question that arrives after its deadline. A question is asked again
 * only if it is known that nothing was done.
 */
import type { Clock } from '../../core/clock.js'
import { StoreError } from '../../sharing/store.js'
import type { AskedQuestion, Batcher } from '../batch.js'
import type { Offset, RoundTrip } from '../timing.js'
import { decideHere } from './deciding.js'
import type { PostgresConnection } from './link.js'
import type { Schema } from './schema.js'
import { encodeBatch, PostgresAnswers, type PostgresQuestion } from './wire.js'

/** ms. A connection whose answer is overdue by more is given up. */
const STUCK = 1_000
/** The transaction was undone and may be tried again: serialization failure, deadlock, changed plan. */
const PASSING = new Set(['40001', '40P01', '0A000'])
/** A function, table, column or schema is missing. */
const MISSING = new Set(['42883', '42P01', '42703', '3F000'])

const PREPARED = { name: 'shaper' }
/** Numbers are read by `PostgresAnswers`. */
const AS_TEXT = { getTypeParser: () => (text: string) => text }

/** The places of the batcher: what the function in decide.sql decides, and what is decided here. */
export const [THERE, HERE] = [0, 1]

/** An answer that was made here, with moments by the server's clock. */
export class Made {
  constructor(readonly answer: unknown) {}
}

type AskedPostgres = AskedQuestion<PostgresQuestion, PostgresAnswers | Made>

export interface SenderOptions {
  readonly clock: Clock
  /** ms */
  readonly timeout: number
  readonly far: number
  readonly schema: Pick<Schema, 'decide' | 'fill'>
  readonly offset: Offset
  readonly roundTrip: RoundTrip
  readonly batcher: Pick<Batcher<PostgresQuestion, PostgresAnswers | Made>, 'again'>
  repair(connection: PostgresConnection): Promise<void>
}

/** @throws StoreError, or the server's error */
export async function sendBatch(
  connection: PostgresConnection,
  asked: readonly AskedPostgres[],
  place: number,
  options: SenderOptions,
): Promise<void> {
  const { timeout, batcher, repair } = options
  let isOver = false
  const stuck = setTimeout(() => {
    // An answer that arrived while this process was suspended is read first.
    setImmediate(() => {
      if (!isOver) connection.destroy()
    })
  }, timeout + STUCK)
  try {
    await (place === HERE ? sendHere : sendThere)(connection, asked, options)
  } catch (error) {
    const { code = '' } = error as { code?: string }
    if (MISSING.has(code)) await repair(connection)
    else if (!PASSING.has(code)) throw error
    for (const each of asked) batcher.again(each, place, unavailable(error as Error))
  } finally {
    isOver = true
    clearTimeout(stuck)
  }
}

async function sendThere(
  { client, isPooled }: PostgresConnection,
  asked: readonly AskedPostgres[],
  options: SenderOptions,
): Promise<void> {
  const { clock, schema, offset, roundTrip, batcher } = options
  const sent = clock.now()
  const values = encodeBatch(asked, roundTrip, offset)
  const query = { ...(!isPooled && PREPARED), text: schema.decide, values, types: AS_TEXT }
  const { rows } = await client.query<{ answer: string }>(query)
  const answers = new PostgresAnswers(rows[0]!.answer, theirs => offset.ours(theirs))
  learn(options, sent, answers.time)
  for (const each of asked) {
    if (answers.begin(each.question.verb)) each.answered(answers)
    else batcher.again(each, THERE, tooLate())
  }
}

function sendHere(
  connection: PostgresConnection,
  asked: readonly AskedPostgres[],
  options: SenderOptions,
): Promise<void> {
  const { clock, far, schema, offset, roundTrip, batcher } = options
  const sent = clock.now()
  return decideHere(connection, asked, {
    ...{ fill: schema.fill, roundTrip, far },
    learn: now => learn(options, sent, now),
    theirs: ours => offset.theirs(ours),
    answered(each, answer) {
      if (answer === undefined) batcher.again(each, HERE, tooLate())
      else each.answered(new Made(answer))
    },
  })
}

const tooLate = (): StoreError => new StoreError('PostgreSQL got the call too late')

/** Learns the server's time from an answer. All in ms. */
export function learn(
  { clock, offset, roundTrip }: Pick<SenderOptions, 'clock' | 'offset' | 'roundTrip'>,
  sent: number,
  theirs: number,
): void {
  const received = clock.now()
  offset.learn(sent, received, theirs)
  roundTrip.learn(received - sent, received - offset.ours(theirs))
}

export function unavailable(cause: Error): StoreError {
  const { message, code } = cause as NodeJS.ErrnoException
  return new StoreError(`PostgreSQL does not answer: ${message || code || 'no reason given'}`, { cause })
}
