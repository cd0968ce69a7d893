/** Starts a proxy in this process with its log. */

import type { Duplex } from 'node:stream'
import type { Logger } from 'pino'
import type { AdminSource } from '../../admin/http/server.js'
import { exactRate } from '../../config/report/exact-units.js'
import type { Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import { type Store, StoreError } from '../../core/store.js'
import { ownValue } from '../../core/structures/own-value.js'
import { createPreciseClock } from '../../pacing/precise.js'
import { createTimerClock } from '../../pacing/timer.js'
import { combineObservers } from '../../proxy/observe/fan-out.js'
import type { Observer, RequestRecord } from '../../proxy/observe/observer.js'
import { hashedKey } from '../../proxy/routing/key.js'
import { type ProxyOptions, type RunningProxy, startProxy } from '../../proxy/server/server.js'
import { failureText } from '../../proxy/upstream/upstream-error.js'
import { isRefusal } from '../../stores/describe-error.js'
import { openStore } from '../../stores/open.js'
import { CommandError } from '../command-error.js'
import { createAccessLog } from '../logging/access-log.js'
import { writeLine } from '../logging/log.js'
import { createStoreLog } from '../logging/store-log.js'
import type { Instrumentation } from './instrumentation.js'
import type { Tracing } from './tracing.js'

const FELL_BACK = 'there is no thread to time releases, so they are up to 2 ms late, as with "pacing": "timer"'

const DUPLICATED =
  'a request has several lines of a header that is its key, and the first counts; "duplicates": "reject" refuses such requests'

/** The memory of the primary as a store. It answers in well under a millisecond, unless it was stopped. Time in ms. */
const OF_PRIMARY = { type: 'memory', timeout: 1_000, onOutage: 'local' } as const

/** ms between two lines about the same upstream. */
const QUIET_MS = 10_000

/** ms between two lines about what clients of the same route send. */
const QUIET_CLIENTS_MS = 60_000

/** A proxy, and the data for its admin server. */
export interface Served extends RunningProxy {
  readonly source: AdminSource | undefined
}

/** Values that all processes of one `shaper start` share. */
export interface Program {
  /** The pseudonym in `Via`. */
  readonly id: string
  /** How many processes serve this configuration, this one included. */
  readonly workers: number
}

/** What a process that serves knows of the others. */
export interface Surroundings extends Program {
  /** The primary keeps the buckets of its workers there, if the configuration has no store. Undefined: there is no primary. */
  readonly primary: Duplex | undefined
}

/**
 * @throws CommandError
 */
export async function serve(settings: Settings, log: Logger, surroundings: Surroundings): Promise<Served> {
  const clock = createTimerClock()
  const pacer = settings.pacing === 'precise' ? createPreciseClock(() => log.warn(FELL_BACK)) : clock
  const instrumentation =
    settings.admin && (await import('./instrumentation.js')).createInstrumentation(settings, pacer)
  const observers = [createLogObserver(log, () => clock.now()), ...(instrumentation?.observers ?? [])]
  const tracing = await findTracing(pacer, log)
  const traceOf = tracing && ((request: RequestRecord) => tracing.traceOf(request))
  const least = ownValue(log.levels.values, log.level)
  if (settings.accessLog) observers.push(createAccessLog(log.bindings(), writeLine, { traceOf, least }))
  else observers.push(createFailureLog(log))
  // Last: the others may ask for the trace.
  if (tracing !== undefined) observers.push(tracing)
  const observer = combineObservers(observers)
  const options = { settings, pacer, clock, observer, propagate: tracing?.propagate, id: surroundings.id }
  const proxy = await start(options, log, instrumentation, surroundings)
  const source = instrumentation?.join(proxy.context)
  if (tracing === undefined) return { ...proxy, source }
  return {
    ...proxy,
    source,
    async drain(timeout, delay) {
      const drained = await proxy.drain(timeout, delay)
      await tracing.flush()
      return drained
    },
  }
}

/** Every copy of OpenTelemetry's API, version 1, keeps here what an SDK has given it. Reading it here needs no copy of the API. */
const OPEN_TELEMETRY = Symbol.for('opentelemetry.js.api.1')

/** Undefined: no SDK is loaded (`node --import`). */
async function findTracing(clock: Clock, log: Logger): Promise<Tracing | undefined> {
  const given = (globalThis as { [OPEN_TELEMETRY]?: { version?: string; trace?: object } })[OPEN_TELEMETRY]
  if (given?.trace === undefined) return undefined
  const tracing = (await import('./tracing.js')).Tracing.create(clock)
  if (tracing === undefined)
    log.warn(`no traces: the OpenTelemetry SDK has version ${given.version} of @opentelemetry/api, which is too old`)
  return tracing
}

async function start(
  options: ProxyOptions,
  log: Logger,
  instrumentation: Instrumentation | undefined,
  { workers, primary }: Surroundings,
): Promise<RunningProxy> {
  const { settings, pacer, observer } = options
  const store = settings.store === 'memory' ? primary && { ...OF_PRIMARY, known: workers } : settings.store
  if (store === undefined) {
    return startProxy(options).catch(error => {
      throw explainStartError(error, settings)
    })
  }
  // Lines are held back until the start has succeeded, so that a failed start logs one line only.
  let deferred: (() => void)[] | undefined = []
  const writeLater = (write: () => void): void => void (deferred === undefined ? write() : deferred.push(write))
  const storeLog = createStoreLog(store, log, writeLater)
  const opened =
    store.type === 'memory'
      ? await openPrimary(primary!)
      : await openStore(store, pacer, error => storeLog.complain(error))
  const proxy = await startProxy({
    ...options,
    observer: { ...observer, shared: news => storeLog.shared(news) },
    shared: {
      store: instrumentation?.timed(opened) ?? opened,
      onOutage: store.onOutage,
      least: { assumed: 'instances' in store ? store.instances : undefined, workers },
    },
  }).catch(error => {
    throw error instanceof StoreError
      ? unreachable(store.type, storeLog.reason ?? error.message)
      : explainStartError(error, settings)
  })
  for (const write of deferred) write()
  deferred = undefined
  return proxy
}

async function openPrimary(pipe: Duplex): Promise<Store> {
  const { createWorkerStore } = await import('../../stores/workers/store.js')
  return createWorkerStore({ pipe, timeout: OF_PRIMARY.timeout })
}

function unreachable(type: string, reason: string): CommandError {
  const [what, remedy] = isRefusal(reason)
    ? ['refuses', 'give its user the rights that docs/scaling.md names']
    : ['does not answer', 'start it']
  return new CommandError(`the store ${type} ${what} (${reason}); ${remedy}, or set "onOutage" to "local" or "open"`)
}

/**
 * Writes a line for what operators should know.
 *
 * @param now ms
 */
export function createLogObserver(log: Pick<Logger, 'info' | 'warn' | 'debug'>, now: () => number): Observer {
  const learnedAt = new Map<string, number>()
  const duplicatedAt = new Map<string, number>()
  const unreachableAt = new Map<string, number>()
  const isDue = (toldAt: Map<string, number>, about: string, quiet: number): boolean => {
    if (now() - (toldAt.get(about) ?? -Infinity) < quiet) return false
    toldAt.set(about, now())
    return true
  }
  return {
    paused: (upstream, ms, expired) =>
      log.warn({ upstream, pauseMs: Math.ceil(ms), expired }, 'the upstream asks for a pause'),
    learned(upstream, rate, limited) {
      if (!isDue(learnedAt, `${limited} ${upstream}`, QUIET_MS)) return
      const allowed = Number.isFinite(rate) ? { perSecond: Number(rate.toPrecision(4)) } : {}
      log.info({ upstream, limited, ...allowed }, 'the upstream has said what it allows')
    },
    rescheduled(rates, expired) {
      const shown = rates.map(
        ({ bucket, tier, rate }) => `${tier === undefined ? '' : `${tier} of `}${bucket}: ${exactRate(rate)}`,
      )
      log.info({ rates: shown }, 'the time of day has changed the rates')
      for (const [route, count] of expired) {
        log.warn({ route, count }, `route ${route}: ${count} waiters now exceed maxWait and are answered 503`)
      }
    },
    overridden({ bucket, key, rate, capacity, endsIn }, what) {
      const limits = {
        ...(rate !== undefined && { rate: exactRate(rate) }),
        ...(capacity !== undefined && { capacity }),
      }
      // Keys are not logged in clear text.
      const fields = { bucket, key: hashedKey(key), ...limits }
      if (what === 'set') log.info({ ...fields, forMs: Math.ceil(endsIn) }, 'limits of a key are overridden')
      else log.info(fields, 'an override of limits has ended')
    },
    broken(upstream, state, failure) {
      if (state === 'failing')
        log.warn(
          { upstream, cause: failure && failureText(failure) },
          'the upstream fails: requests wait, and one from time to time tries it',
        )
      else log.info({ upstream }, 'the upstream answers again')
    },
    duplicated(route, header) {
      if (isDue(duplicatedAt, route, QUIET_CLIENTS_MS)) log.warn({ route, header }, DUPLICATED)
    },
    rehearsed: ({ route }, decision, bucket, wait) =>
      log.info({ route, decision, bucket, waitMs: Math.ceil(wait) }, 'dry run'),
    unreachable(route, { detail, cause }) {
      const level = isDue(unreachableAt, route, QUIET_MS) ? 'warn' : 'debug'
      log[level]({ route, cause: cause?.message }, detail)
    },
    tunnelClosed: (route, detail) => log.warn({ route }, detail),
  }
}

/** Says why requests failed, where no access log does. */
function createFailureLog(log: Pick<Logger, 'warn'>): Observer {
  return {
    finished({ route, failure }, outcome) {
      if (outcome === 'failed' && failure !== undefined && !failure.isEarlier)
        log.warn({ route, cause: failure.cause?.message }, failure.detail)
    },
  }
}

function explainStartError(error: NodeJS.ErrnoException, { listen }: Settings): Error {
  const address = `${listen.host}:${listen.port}`
  // For a worker the primary binds the port, so the call has another name.
  const isAddress = ['listen', 'bind'].includes(error.syscall ?? '')
  if (error.syscall === 'getaddrinfo') {
    return new CommandError(
      `listen: the name in ${address} does not resolve (${error.code}); use an address of this machine, e.g. --listen 0.0.0.0:${listen.port}`,
    )
  }
  switch (isAddress ? error.code : error.syscall) {
    case 'EADDRINUSE':
      return new CommandError(`${address} is in use; choose another address with --listen HOST:PORT`)
    case 'EACCES':
      return new CommandError(`${address} needs privileges; choose a port above 1023 with --listen HOST:PORT`)
    case 'EADDRNOTAVAIL':
      return new CommandError(`${address} is not an address of this machine; choose another with --listen HOST:PORT`)
    case 'open':
      return new CommandError(`cannot read ${error.path}: ${error.code}`)
    default:
      return new CommandError(error.message)
  }
}
