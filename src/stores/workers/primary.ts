/**
 * The primary's end of the store of workers: it asks a store in its memory for each question, in order. The news of that
 * store goes to all workers at once.
 */
import type { Duplex } from 'node:stream'
import { createMemoryStore, type Reach } from '../memory/store.js'
import { MACHINE } from './clock.js'
import { type Frames, openFrames } from './frames.js'
import { type AnswerMessage, type AskedMessage, type AskedVerb, isOfBoard, type NewsMessage, VERBS } from './verbs.js'

/** Bytes that a worker has not read. With more it is told no news: it asks from time to time as well. */
const MOST_UNREAD = 1_048_576

export interface Primary {
  /** Answers a worker until its pipe ends. Then its instances have left. */
  serve(pipe: Duplex): void
}

/** @param now the clock of the store: ms of the machine's, but in tests */
export function createPrimary(now = MACHINE.now): Primary {
  const reach: Reach = { horizon: 0, back: 0 }
  const store = createMemoryStore({ clock: { now }, reach })
  /** The worker whose questions are answered now. */
  let asking: Frames | undefined

  function answer([verb, ...input]: AskedVerb): unknown {
    const name = VERBS[verb]!
    const run = isOfBoard(name) ? store.board[name] : store[name]
    return (run as (...input: readonly unknown[]) => unknown)(...input)
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
    serve(pipe) {
      const ids = new Set<string>()
      const frames = openFrames(
        pipe,
        received => {
          const asked = received as AskedMessage
          for (const [verb, id] of asked.questions) if (VERBS[verb] === 'beat') ids.add(id as string)
          asking = frames
          const answers = answerAll(asked)
          asking = undefined
          frames.send(answers)
        },
        () => {
          stopListening()
          for (const id of ids) store.leave(id)
        },
      )
      const stopListening = store.listen(news => {
        // Who resets a bucket does not hear of it.
        if (pipe.writableLength > MOST_UNREAD || (news.about === 'reset' && asking === frames)) return
        // Durations begin when they arrive, so no clock has to be mapped.
        frames.send({ news } satisfies NewsMessage)
      })
    },
  }
}
