/**
 * The store of a worker: the memory of its primary, at the other end of a pipe.
 *
 * The questions of one tick go in one message, and so do their answers. The next questions collect until that is answered
 * and, after a message of several, `APART` has passed. So questions of one client after another are sent at once, and a busy
 * worker sends few messages. Messages are answered in their order. News comes in between. Only moments have to be mapped, as
 * this process counts from its own start.
 */
import type { Duplex } from 'node:stream'
import { type Board, Listeners } from '../../sharing/board.js'
import { type Store, StoreError } from '../../sharing/store.js'
import { type AskedQuestion, Batcher } from '../batch.js'
import { RoundTrip } from '../timing.js'
import { type Ask, asking, BOARD_VERBS, VERBS, verbsOf } from '../verbs.js'
import { openFrames } from './frames.js'
import {
  ALL_VERBS,
  type AnswerMessage,
  type AskedMessage,
  type AskedVerb,
  isNewsMessage,
  MACHINE,
  type NewsMessage,
  type StoreClock,
} from './protocol.js'

/** ms. The least time from a message of several questions to the next. */
const APART = 1

export interface WorkerStoreOptions {
  readonly pipe: Duplex
  /** ms after which a question rejects */
  readonly timeout: number
  /** That of the machine, but in tests. */
  readonly clock?: StoreClock
}

interface Message {
  /** When the first of its questions was asked, in ms: they may have waited for other answers. */
  readonly askedAt: number
  readonly asked: readonly AskedQuestion<AskedVerb, unknown>[]
  answered(): void
}

export function createWorkerStore({ pipe, timeout, clock = MACHINE }: WorkerStoreOptions): Store {
  const roundTrip = new RoundTrip()
  const listeners = new Listeners()
  /** Those without an answer, in their order. */
  const messages: Message[] = []
  /** When the last message of several questions was sent. */
  let busyAt = -Infinity
  let next: NodeJS.Timeout | undefined

  const frames = openFrames(
    pipe,
    value => received(value as AnswerMessage | NewsMessage),
    () => {
      clearTimeout(next)
      batcher.close('the primary is gone')
    },
  )
  const batcher = new Batcher<AskedVerb, unknown>({
    ...{ clock, timeout, who: 'the primary', reasonOf: ({ message }) => new StoreError(message) },
    sender() {
      if (messages.some(({ asked }) => asked.some(({ isOver }) => !isOver))) return undefined
      if (clock.now() - busyAt >= APART) return send
      next ??= setTimeout(() => {
        next = undefined
        batcher.pump()
      }, APART)
      return undefined
    },
  })

  function send(asked: Message['asked']): Promise<void> {
    if (asked.length > 1) busyAt = clock.now()
    const { deadline } = asked[0]!
    const { horizon, back } = roundTrip
    const questions = asked.map(({ question }) => question)
    return new Promise(answered => {
      messages.push({ askedAt: deadline - timeout, asked, answered })
      frames.send({ deadline, horizon, back, questions } satisfies AskedMessage)
    })
  }

  function received(message: AnswerMessage | NewsMessage): void {
    if (isNewsMessage(message)) return listeners.tell(message.news)
    const sent = messages.shift()
    if (sent === undefined) return
    const took = clock.now() - sent.askedAt
    // Moments of the machine's clock are mapped exactly, so an answer is late by its way.
    roundTrip.learn(took, took)
    for (const [place, each] of sent.asked.entries()) {
      try {
        if (typeof message === 'string') each.failed(new StoreError(message))
        else each.answered(message[place])
      } catch (cause) {
        each.failed(new StoreError('the answer of the primary cannot be read', { cause }))
      }
    }
    sent.answered()
    batcher.pump()
  }

  const ask: Ask = (verb, input) => {
    const { theirs, ours } = VERBS[verb]
    const question = [ALL_VERBS.indexOf(verb), ...(theirs?.(clock.theirs, ...input) ?? input)] as const
    return batcher.ask(question, answer => {
      return (ours === undefined ? answer : ours(answer as never, clock.ours)) as never
    })
  }

  return {
    ...verbsOf(ask),
    get horizon() {
      return roundTrip.horizon
    },
    // The moments at which requests came are exact.
    keepsOrder: true,
    listen: listener => listeners.add(listener),
    board: asking<keyof Board, Board>(BOARD_VERBS, (verb, input) =>
      batcher.ask([ALL_VERBS.indexOf(verb), ...input], answer => answer),
    ),
    close: async () => frames.close(),
  }
}
