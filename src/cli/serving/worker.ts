/** One of several processes that serve the same port. It obeys the primary and reads no configuration file. */
import { Socket } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import type { AdminSource } from '../../admin/http/server.js'
import { closeLog, createLog } from '../logging/log.js'
import type { LogChoice } from '../logging/log-options.js'
import { WORKER } from './instance-name.js'
import { type Served, serve } from './serve.js'
import { type Order, PIPE, type Question, type WorkerReport } from './worker-protocol.js'

/** Serves until the primary orders it to drain. Without its primary a worker ends by itself. */
export async function runWorker(choice: LogChoice): Promise<void> {
  // V8's helper threads would wait for each other in a loop, on cores that the other workers need (docs/decisions/workers-pipe.md).
  setFlagsFromString('--no-parallel-scavenge')
  const log = createLog({ worker: Number(process.env[WORKER]) }, { ...choice, isShared: true })
  let proxy: Served | undefined
  let timeout = 0
  const primary = new Socket({ fd: PIPE })
  const drain = async (delay: number): Promise<void> => {
    const { answered, cut } = (await proxy?.drain(timeout, delay)) ?? { answered: 0, cut: 0 }
    await closeLog()
    if (!process.connected) process.exit(0)
    report({ verb: 'drained', answered, cut }, () => process.exit(0))
  }
  const obey = async (order: Order): Promise<void> => {
    if (order.verb === 'drain') {
      timeout = order.timeout
      void drain(order.delay)
    } else if (order.verb === 'start') {
      timeout = order.settings.limits.shutdownTimeout
      try {
        proxy = await serve(order.settings, log, { ...order.program, primary })
        report({ verb: 'ready', url: proxy.url })
      } catch (error) {
        report({ verb: 'failed', message: (error as Error).message }, () => process.exit(1))
      }
    } else if (order.verb === 'ask') {
      const { id, question } = order
      // Answered out of turn: a worker in a long reload must not seem dead.
      answer(proxy?.source, question).then(
        value => report({ verb: 'answered', id, answer: value }),
        (error: Error) => report({ verb: 'refused', id, message: error.message }),
      )
    } else {
      const { id, settings } = order
      try {
        report({ verb: 'reloaded', id, expired: (await proxy?.reload(settings)) ?? new Map() })
        timeout = settings.limits.shutdownTimeout
      } catch (error) {
        report({ verb: 'refused', id, message: (error as Error).message })
      }
    }
  }
  // A terminal signals the workers, too. They ignore that and wait for the order of the primary. So with SIGHUP (hang-up.ts).
  process.on('SIGINT', () => undefined)
  process.on('SIGTERM', () => void drain(0))
  let last = Promise.resolve()
  process.on('message', (order: Order) => {
    last = last.then(() => obey(order))
  })
  report({ verb: 'up' })
}

async function answer(source: AdminSource | undefined, question: Question): Promise<unknown> {
  if (source === undefined) throw new Error('the worker is not ready')
  // Undefined would mean that there is no answer.
  return (await ask(source, question)) ?? null
}

function ask(source: AdminSource, question: Question): Promise<unknown> {
  switch (question.about) {
    case 'whyNoKey':
      return source.whyNoKey(question.bucket, question.key)
    case 'key':
      return source.key(question.bucket, question.key)
    case 'watch':
      return source.watch(question.bucket, question.key)
    case 'reset':
      return source.reset(question.bucket, question.key)
    case 'search':
      return source.search(question.text)
    case 'override':
      return source.override(question.change)
    case 'views':
      return source.views(question.kind)
    default:
      return source[question.about]()
  }
}

function report(message: WorkerReport, sent?: () => void): void {
  // Errors are ignored: without its primary this process is about to end.
  process.send?.(message, undefined, undefined, () => sent?.())
}
