/** The primary's end of the store of workers: it asks a store in its memory, in order, and tells the news to all at once. */
import type { Duplex } from 'node:stream'
import { ignore } from '../../core/maybe-promise.js'
import { Listeners } from '../../sharing/board.js'
import type { Reach } from '../decided.js'
import { createMemoryStore, type MemoryStore } from '../memory/store.js'
import { type Frames, openFrames } from './frames.js'
import {
  ALL_VERBS,
  type AnswerMessage,
  type AskedMessage,
  type AskedVerb,
  isNewsMessage,
  MACHINE,
  type NewsMessage,
} from './protocol.js'

/** Bytes that a worker has not read. With more it is told no news: it asks from time to time as well. */
const MOST_UNREAD = 1_048_576

export interface Primary {
  readonly store: MemoryStore
  /** Answers a worker, or a primary that follows, until its pipe ends. Then its instances have left. */
  serve(pipe: Duplex): void
  /** Another primary answers from now on, until the pipe to it ends. Then the store here goes on as it was. */
  follow(pipe: Duplex): void
}

type Ask = (asked: AskedMessage, answered: (answer: AnswerMessage) => void) => void

const LEAVE = ALL_VERBS.indexOf('leave')

/** @param now the clock of the store: ms of the machine's, but in tests */
export function createPrimary(now = MACHINE.now): Primary {
  const reach: Reach = { horizon: 0, back: 0 }
  const store = createMemoryStore({ clock: { now }, reach })
  const verbs = ALL_VERBS.map(verb => ({ ...store, ...store.board })[verb] as (...input: readonly unknown[]) => unknown)
  const listeners = new Listeners()
  store.listen(news => listeners.tell(news))
  let asking: Frames | undefined
  const askHere: Ask = (asked, answered) => answered(answerAll(asked))
  let ask = askHere

  function answer([verb, ...input]: AskedVerb): unknown {
    return verbs[verb]!(...input)
  }

  function answerAll({ deadline, horizon, back, questions }: AskedMessage): AnswerMessage {
    if (now() > deadline) return 'the primary was asked too late'
    reach.horizon = horizon
    reach.back = back
    try {
      return questions.map(answer)
    } catch (error) {
      return `the primary has failed: ${(error as Error).message}`
    }
  }

  return {
    store,

    serve(pipe) {
      const ids = new Set<string>()
      const frames = openFrames(
        pipe,
        received => {
          const asked = received as AskedMessage
          for (const [verb, id] of asked.questions) if (ALL_VERBS[verb] === 'beat') ids.add(id as string)
          asking = frames
          ask(asked, answers => frames.send(answers))
          asking = undefined
        },
        () => {
          stopListening()
          const questions = [...ids].map(id => [LEAVE, id] as const)
          ask({ deadline: Infinity, horizon: 0, back: 0, questions }, ignore)
        },
      )
      const stopListening = listeners.add(news => {
        // Who resets a bucket does not hear of it.
        if (pipe.writableLength > MOST_UNREAD || (news.about === 'reset' && asking === frames)) return
        // Durations begin when they arrive, so no clock has to be mapped.
        frames.send({ news } satisfies NewsMessage)
      })
    },

    follow(pipe) {
      /** Those without an answer, in their order. */
      const unanswered: Parameters<Ask>[] = []
      const frames = openFrames(
        pipe,
        received => {
          const message = received as AnswerMessage | NewsMessage
          if (isNewsMessage(message)) listeners.tell(message.news)
          else unanswered.shift()?.[1](message)
        },
        () => {
          store.resume()
          ask = askHere
          for (const each of unanswered) ask(...each)
        },
      )
      ask = (asked, answered) => {
        unanswered.push([asked, answered])
        frames.send(asked)
      }
    },
  }
}
