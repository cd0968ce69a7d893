/** One of several processes that serve the same port. It obeys the primary and reads no configuration file. */
import { Socket } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import type { RunningProxy } from '../../proxy/server/server.js'
import { Houses } from '../../proxy/succession/guests.js'
import { MACHINE } from '../../stores/workers/protocol.js'
import type { LogChoice } from '../command.js'
import { closeLog, createLog } from '../logging/log.js'
import { type Served, serve } from './serve.js'
import { findMeter, flushTelemetry } from './telemetry.js'
import {
  type Order,
  type OrderOfSuccession,
  PIPE,
  type Question,
  WORKER,
  type WorkerReport,
} from './worker-protocol.js'

/** Serves until the primary orders it to drain. Without its primary a worker ends by itself. */
export async function runWorker(choice: LogChoice): Promise<void> {
  // V8's helper threads would wait for each other in a loop, on cores that the other workers need (docs/decisions/workers-pipe.md).
  setFlagsFromString('--no-parallel-scavenge')
  const log = createLog({ worker: Number(process.env[WORKER]) }, { ...choice, isShared: true })
  let proxy: Served | undefined
  let timeout = 0
  let listen = (): void => undefined
  const mayListen = new Promise<void>(resolve => {
    listen = resolve
  })
  let houses: Houses | undefined
  let handed: ReturnType<RunningProxy['handOver']> | undefined
  const succeed = (order: OrderOfSuccession): void => {
    if (order.verb === 'guest') houses?.obey(order.order, order.from)
    else if (order.verb === 'news') handed?.told(order.news)
    else if (order.verb === 'hand-over') {
      handed = proxy?.handOver({ send: order => report({ verb: 'order', order }), machine: MACHINE })
      void handed?.complete.then(() => report({ verb: 'handed-over' }))
    } else {
      handed?.end()
      handed = undefined
    }
  }
  const primary = new Socket({ fd: PIPE })
  const drain = async (delay: number): Promise<void> => {
    const { answered, cut } = (await proxy?.drain(timeout, delay)) ?? { answered: 0, cut: 0 }
    await flushTelemetry()
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
        proxy = await serve(order.settings, log, {
          ...{ ...order.program, primary, meter: await findMeter(log) },
          handed: order.sockets.map(fd => (fd === undefined ? undefined : { fd })),
          prepared(context) {
            houses = new Houses(context, MACHINE, (news, from) => report({ verb: 'news', news, from }))
            report({ verb: 'prepared' })
            return mayListen
          },
        })
        report({ verb: 'ready', urls: proxy.urls })
      } catch (error) {
        report({ verb: 'failed', message: (error as Error).message }, () => process.exit(1))
      }
    } else if (order.verb === 'ask') {
      const { id, question } = order
      // Answered out of turn: a worker in a long reload must not seem dead.
      answer(proxy, question).then(
        value => report({ verb: 'answered', id, answer: value }),
        (error: Error) => report({ verb: 'refused', id, message: error.message }),
      )
    } else if (order.verb === 'reload') {
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
    if (order.verb === 'listen') listen()
    else if (isOfSuccession(order)) succeed(order)
    else last = last.then(() => obey(order))
  })
  report({ verb: 'up' })
}

async function answer(proxy: Served | undefined, question: Question): Promise<unknown> {
  if (question.about === 'status') return proxy?.status()
  if (proxy?.source === undefined) throw new Error('the worker is not ready')
  const ask = proxy.source[question.about] as (...given: unknown[]) => Promise<unknown>
  // Undefined would mean that there is no answer.
  return (await ask(...question.given)) ?? null
}

function isOfSuccession(order: Order): order is OrderOfSuccession {
  return ['hand-over', 'news', 'go-on', 'guest'].includes(order.verb)
}

function report(message: WorkerReport, sent?: () => void): void {
  // Errors are ignored: without its primary this process is about to end.
  process.send?.(message, undefined, undefined, () => sent?.())
}
