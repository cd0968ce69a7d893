/** Starts a proxy in this process with its log. */
import type { Duplex } from 'node:stream'
import type { Meter } from '@opentelemetry/api'
import type { Logger } from 'pino'
import type { AdminSource } from '../../admin/server.js'
import { ConfigError } from '../../config/load.js'
import { quote } from '../../config/messages.js'
import { exactRate } from '../../config/read-values.js'
import { formatListen } from '../../config/schema/address.js'
import type { Listen, Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import { ownValue } from '../../core/structures/own-value.js'
import { DeliveryError, StoredDeliveries } from '../../deliver/deliveries.js'
import { createPreciseClock } from '../../pacing/precise.js'
import { createTimerClock } from '../../pacing/timer.js'
import type { ProxyContext } from '../../proxy/context.js'
import { combineObservers, type Observer, type RequestRecord } from '../../proxy/observe/observer.js'
import { hashedKey } from '../../proxy/routing/key.js'
import { type ProxyOptions, type RunningProxy, startProxy } from '../../proxy/server/server.js'
import { failureText } from '../../proxy/upstream/upstream-error.js'
import { type Store, StoreError } from '../../sharing/store.js'
import { describeTrouble, isRefusal } from '../../stores/describe-error.js'
import { openStore } from '../../stores/open.js'
import { CommandError } from '../command.js'
import { createAccessLog } from '../logging/access-log.js'
import { writeLine } from '../logging/log.js'
import { createStoreLog } from '../logging/store-log.js'
import type { Instrumentation } from './instrumentation.js'
import type { Predecessor } from './succession.js'
import { findTracing } from './telemetry.js'
import { type Program, type Status, WORKER } from './worker-protocol.js'

const FELL_BACK = 'there is no thread to time releases, so they are up to 2 ms late, as with "pacing": "timer"'

const FORMER_LIMITS = 'limits of single keys cannot be read, and the former ones stay'

const DUPLICATED =
  'a request has several lines of a header that is its key, and the first counts; "duplicates": "reject" refuses such requests'

const UNANNOUNCED =
  'a connection without a good PROXY header was closed; let what is in front send one, or take its address out of "proxyProtocol"'

const UNLISTED =
  'a connection began with bytes that are no TLS, as a PROXY header of a peer that "proxyProtocol" does not list; list it there if it is your balancer'

/** The memory of the primary as a store. It answers in well under a millisecond, unless it was stopped. Time in ms. */
const OF_PRIMARY = { type: 'memory', timeout: 1_000, onOutage: 'local' } as const
/** ms between two lines about the same upstream. */
const QUIET_MS = 10_000
/** ms between two lines about what clients of the same route send. */
const QUIET_CLIENTS_MS = 60_000

export interface Served extends RunningProxy {
  readonly source: AdminSource | undefined
  status(): Status
}

export interface Surroundings extends Program, Pick<ProxyOptions, 'handed'> {
  /** The process before this one, which hands over to it. Absent for workers: their primary knows it. */
  readonly predecessor?: Predecessor | undefined
  /** Called before it listens. */
  prepared?(context: ProxyContext): Promise<void>
  /** The primary keeps the buckets of its workers there, if the configuration has no store. Undefined: there is no primary. */
  readonly primary: Duplex | undefined
  /** For the metrics. Undefined: no SDK of OpenTelemetry takes them. */
  readonly meter: Meter | undefined
}

/** @throws CommandError */
export async function serve(settings: Settings, log: Logger, surroundings: Surroundings): Promise<Served> {
  const clock = createTimerClock()
  const pacer = settings.pacing === 'precise' ? createPreciseClock(() => log.warn(FELL_BACK)) : clock
  const { meter } = surroundings
  const instrumentation =
    (settings.admin ?? meter) && (await import('./instrumentation.js')).createInstrumentation(settings, pacer, meter)
  const observers = [createLogObserver(log, () => clock.now()), ...(instrumentation?.observers ?? [])]
  const tracing = await findTracing(pacer, log)
  const traceOf = tracing && ((request: RequestRecord) => tracing.traceOf(request))
  const least = ownValue(log.levels.values, log.level)
  if (settings.accessLog) observers.push(createAccessLog(log.bindings(), writeLine, { traceOf, least }))
  else observers.push(createFailureLog(log))
  // Last: the others may ask for the trace.
  if (tracing !== undefined) observers.push(tracing)
  const observer = combineObservers(observers)
  // With workers the primary has them.
  const kept = surroundings.primary === undefined ? await keptLevels(settings, clock, log) : undefined
  const deliveries = new StoredDeliveries({ clock, wallNow: Date.now, onError: createDeliveryLog(log, clock) })
  const { predecessor, handed = predecessor?.socketsOf(settings.listen) ?? [] } = surroundings
  const options = {
    ...{ settings, pacer, clock, observer, deliveries, propagate: tracing?.propagate, id: surroundings.id, handed },
    prepared: async (context: ProxyContext) => {
      await surroundings.prepared?.(context)
      if (predecessor !== undefined) await predecessor.takeOver(context)
      else await kept?.file.restore(kept.of(context))
    },
  }
  const proxy = await start(options, log, instrumentation, surroundings)
  const served = { ...proxy, source: instrumentation?.join(proxy.context), status: () => statusOf(proxy) }
  if (kept === undefined) return served
  kept.file.begin(kept.of(proxy.context))
  return {
    ...served,
    handOver(link) {
      // From now on the successor writes it.
      kept.file.stop()
      const handed = served.handOver(link)
      const end = (): void => {
        handed.end()
        if (!proxy.context.draining) kept.file.begin(kept.of(proxy.context))
      }
      return { ...handed, end }
    },
    async drain(timeout, delay) {
      const drained = await proxy.drain(timeout, delay)
      await kept.file.close()
      return drained
    },
  }
}

/** Where levels are kept over restarts, and what these are. Undefined: they are lost. */
async function keptLevels({ levelsFile: file }: Settings, clock: Clock, log: Logger) {
  if (file === undefined) return undefined
  const { LevelsFile } = await import('../../stores/memory/levels-file.js')
  const { ownLevels } = await import('./own-levels.js')
  return { file: new LevelsFile({ file, clock, log }), of: ownLevels }
}

function statusOf({ context: { shaper, routes } }: RunningProxy): Status {
  const failing = routes.flatMap(({ upstream }) => (upstream.isDown ? upstream.settings.url : []))
  return { waiting: shaper.queued, failing: [...new Set(failing)] }
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
  const rights = /NOPERM|permission denied/.test(reason)
    ? 'give its user the rights that docs/scaling.md names'
    : undefined
  const [what, remedy] = isRefusal(reason)
    ? ['refuses', rights ?? 'change what it names']
    : ['does not answer', 'start it']
  return new CommandError(`the store ${type} ${what} (${reason}); ${remedy}, or set "onOutage" to "local" or "open"`)
}

/** Writes a line for what operators should know. @param now ms */
export function createLogObserver(log: Pick<Logger, 'info' | 'warn' | 'debug'>, now: () => number): Observer {
  const learnedAt = new Map<string, number>()
  const duplicatedAt = new Map<string, number>()
  const unreachableAt = new Map<string, number>()
  const unannouncedAt = new Map<string, number>()
  const unlistedAt = new Map<string, number>()
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
    limitsRead({ bucket, ...news }) {
      // Workers read the same.
      if (Number(process.env[WORKER] ?? 1) > 1) return
      if (news.failure !== undefined) return log.warn({ bucket, cause: news.failure }, FORMER_LIMITS)
      const { keys, bad, told, more } = news
      for (const line of told) log.warn({ bucket }, line)
      if (more > 0) log.warn({ bucket, more }, 'there are more such lines')
      log.info({ bucket, keys, bad }, 'limits of single keys have been read')
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
    broken(upstream, state, failure, others) {
      if (state === 'failing')
        log.warn(
          { upstream, cause: failure && failureText(failure) },
          others === 'up'
            ? 'the upstream server fails: others take its requests'
            : 'the upstream fails: requests wait, and one from time to time tries it',
        )
      else log.info({ upstream }, 'the upstream answers again')
    },
    resolved(upstream, addresses, failure) {
      if (failure === undefined) log.info({ upstream, addresses }, 'DNS says where the upstream is')
      else log.warn({ upstream, known: addresses.length, cause: failure.cause?.message }, failure.detail)
    },
    keysRead(url, failure) {
      if (failure === undefined) log.info({ url }, 'the public keys of tokens can be read again')
      else log.warn({ url, cause: failure.cause?.message }, failure.detail)
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
    unannounced(peer, cause) {
      const level = isDue(unannouncedAt, 'any', QUIET_MS) ? 'warn' : 'debug'
      log[level]({ peer, cause }, UNANNOUNCED)
    },
    unlisted(peer) {
      const level = isDue(unlistedAt, 'any', QUIET_MS) ? 'warn' : 'debug'
      log[level]({ peer }, UNLISTED)
    },
  }
}

function createFailureLog(log: Pick<Logger, 'warn'>): Observer {
  return {
    finished({ route, failure }, outcome) {
      if (outcome === 'failed' && failure !== undefined && !failure.isEarlier)
        log.warn({ route, cause: failure.cause?.message }, failure.detail)
    },
  }
}

/** Once in a while: a database that is away fails often. */
function createDeliveryLog(log: Pick<Logger, 'warn'>, clock: Clock): (error: Error) => void {
  let toldAt = -Infinity
  return error => {
    if (clock.now() - toldAt < QUIET_MS) return
    toldAt = clock.now()
    log.warn({ cause: describeTrouble(error) }, 'the database of deliveries fails: what it keeps waits')
  }
}

type StartError = NodeJS.ErrnoException & { readonly listen?: Listen }

/** @param error with `listen` if it is about listening there */
function explainStartError(error: StartError, { listen: [first] }: Settings): Error {
  if (error instanceof ConfigError) return error
  if (error instanceof DeliveryError)
    return new CommandError(
      `the database of deliveries cannot be used (${error.message}); start it, or correct "deliver"`,
    )
  const { syscall, code, listen = first! } = error
  const address = formatListen(listen)
  if ('systemd' in listen) {
    const message = `${quote(address)} cannot be listened on (${code ?? error.message}); use a .socket unit with ListenStream= and Accept=no`
    return new ConfigError([{ path: 'listen', message }])
  }
  if ('path' in listen && error.listen !== undefined) {
    return new CommandError(
      code === 'EADDRINUSE'
        ? `${address} is in use, or another user has left it; choose another path, or remove the file`
        : `${address} cannot be made (${code ?? error.message}); name a path where this program may write`,
    )
  }
  // For a worker the primary binds the port, so the call has another name.
  const isAddress = ['listen', 'bind'].includes(syscall ?? '')
  if (syscall === 'getaddrinfo' && 'port' in listen) {
    return new CommandError(
      `listen: the name in ${address} does not resolve (${code}); use an address of this machine, e.g. --listen 0.0.0.0:${listen.port}`,
    )
  }
  switch (isAddress ? code : syscall) {
    case 'EADDRINUSE':
      return new CommandError(`${address} is in use; choose another address with --listen HOST:PORT`)
    case 'EACCES':
      return new CommandError(`${address} needs privileges; choose a port above 1023 with --listen HOST:PORT`)
    case 'EADDRNOTAVAIL':
      return new CommandError(`${address} is not an address of this machine; choose another with --listen HOST:PORT`)
    case 'open':
      return new CommandError(`cannot read ${error.path}: ${code}`)
    default:
      return new CommandError(error.message)
  }
}
