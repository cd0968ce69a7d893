/** The running program: what serves, its admin server, its reloads and its end. */

import type { Logger } from 'pino'
import type { ProgramMetrics } from '../../admin/counters/metrics.js'
import type { AdminServer, AdminSource } from '../../admin/server.js'
import { type UsedFile, usedFiles } from '../../config/checks/readable-files.js'
import { openFileLimit } from '../../config/derived/open-files.js'
import { watchFiles } from '../../config/read/file-watch.js'
import { CONNECT_PACED, summary } from '../../config/report/longest-waits.js'
import { formatListen } from '../../config/schema/address.js'
import type { Settings } from '../../config/settings.js'
import { certificateWarnings } from '../../config/warnings/certificates.js'
import { warnings } from '../../config/warnings/index.js'
import { openFileWarnings } from '../../config/warnings/open-files.js'
import { type ListenHandle, removeStaleSocket } from '../../http/listening.js'
import { createId } from '../../proxy/http/headers.js'
import type { Drained } from '../../proxy/server/server.js'
import { CommandError, type LogChoice, packageVersion } from '../command.js'
import { closeLog, createLog, flushLog } from '../logging/log.js'
import { takeGivenSockets, withGivenSockets } from './given-sockets.js'
import { onReload } from './hang-up.js'
import { createNotifier } from './notifier.js'
import { createReloader, type Reloader } from './reloader.js'
import type { Surroundings } from './serve.js'
import { type Estate, estateOf, FOREVER, type Predecessor, Succession } from './succession.js'
import { findMeter, flushTelemetry } from './telemetry.js'
import type { Status } from './worker-protocol.js'

interface Service {
  readonly urls: readonly string[]
  readonly source: AdminSource | undefined
  readonly context?: { readonly inProgress: number }
  readonly estate: Estate
  reload(settings: Settings): Promise<ReadonlyMap<string, number>>
  drain(timeout: number, delay: number): Promise<Drained>
  /** Ends processes that would outlive this one. */
  kill(): void
  /** Undefined: a part of it does not answer. */
  status(): Promise<Status | undefined>
}

export interface Loaded {
  readonly settings: Settings
  readonly file: string | undefined
  /** Whether the file was named, and not found in the working directory. */
  readonly isNamed: boolean
  readonly digest: string
  /** The process before this one, which hands over to it. */
  readonly predecessor: Predecessor | undefined
  /** @throws ConfigError */
  reload(): Settings
}

const UNUSED =
  'systemd gives a socket that no listener uses; listen on its name, "systemd:NAME", or remove it from its unit'

/** Serves until a signal ends it. @param workers undefined: this process serves. @throws CommandError */
export async function runService(loaded: Loaded, workers: number | undefined, choice: LogChoice): Promise<void> {
  try {
    await run(loaded, workers, choice)
  } finally {
    await closeLog()
  }
}

async function run(
  { settings, file, isNamed, digest, reload: read, predecessor }: Loaded,
  workers: number | undefined,
  choice: LogChoice,
): Promise<void> {
  const { settings: started, unused } = await readyToListen(settings, predecessor)
  const files = usedFiles(settings, settings.listen)
  const log = createLog(null, { ...choice, isShared: workers !== undefined })
  const notifier = createNotifier(process.env, process.pid, log)
  const id = predecessor?.id ?? createId()
  // With workers each process exports what it has counted itself.
  const meter = await findMeter(log)
  const service =
    workers === undefined
      ? await alone(started, log, { id, meter, predecessor })
      : await shared(workers, started, { log, id, predecessor })
  const metrics =
    (settings.admin ?? meter) &&
    new (await import('../../admin/counters/metrics.js')).ProgramMetrics(packageVersion(), meter)
  let reloader: Reloader | undefined
  const admin = await serveAdmin(started, service, {
    ...{ log, metrics, failedReload: () => reloader?.failed(), restart: () => succession.ask() },
    handed: settings.admin && predecessor?.adminSocketOf(settings.admin.listen),
  })
  log.info(originOf({ file, isNamed }))
  for (const line of summary(settings)) log.info(line)
  const openFiles = openFileLimit()
  log.debug(
    { maxConnections: settings.limits.maxConnections, openFiles },
    'connections of clients, files that may be open',
  )
  const warned = [
    ...warnings(settings),
    ...certificateWarnings(settings.listen, Date.now()),
    ...openFileWarnings(settings, openFiles, workers),
  ]
  if (settings.egress !== undefined) log.info(CONNECT_PACED)
  for (const { path, message } of warned) log.warn(`${path}: ${message}`)
  for (const { name, fd } of unused) log.warn({ socket: name, fd }, UNUSED)
  const apply = async (next: Settings, used: readonly UsedFile[]): Promise<ReadonlyMap<string, number>> => {
    const expired = await service.reload(next)
    watchAll(used)
    return expired
  }
  const load = (): Settings => {
    notifier?.reloading()
    return read()
  }
  const reloaded = (result: 'ok' | 'failed'): void => {
    metrics?.reloaded(result)
    notifier?.reloaded()
  }
  reloader = createReloader({ settings, files, load, apply, log, reloaded })
  const { reload, current } = reloader
  const watch = watchFiles(reload, {
    unwatched: (directory, { message }) =>
      log.warn({ directory }, `changes of files are not noticed here (${message}); send SIGHUP after one`),
    missing: missing => log.warn({ file: missing }, 'this file is gone; what was read of it stays in use'),
  })
  const watchAll = (used: readonly UsedFile[]): void => {
    watch.watch(file === undefined ? used : [{ file, digest }, ...used])
  }
  watchAll(files)
  onReload(reload)
  const succession = new Succession({ estate: service.estate, admin: admin?.server, settings, id, log })
  process.on('SIGUSR2', () => void succession.ask().catch(() => undefined))
  const ending = Promise.race([firstSignal(service), succession.begun])
  // The reader of this line may send a signal or change the file at once, so it comes after the handlers.
  flushLog()
  process.stdout.write(`shaper listening on ${service.urls.join(', ')} -> ${targetsOf(settings)}\n`)
  notifier?.ready(() => service.status())
  predecessor?.serves()
  const signal = await ending
  const leave = signal === 'restart' ? succession.makeWay({ predecessor, notifier }) : undefined
  if (leave === undefined) {
    notifier?.stopping()
    await succession.giveUp()
  }
  predecessor?.hold()
  try {
    await drain(service, signal, { limits: current().limits, log })
  } finally {
    await flushTelemetry()
    // Each would keep the process alive.
    predecessor?.release()
    await admin?.close()
    watch.close()
  }
  await leave?.()
}

/** Sockets that systemd gives are known from now on, and what other programs have left is gone. */
async function readyToListen(
  settings: Settings,
  predecessor: Predecessor | undefined,
): Promise<ReturnType<typeof withGivenSockets>> {
  const given =
    predecessor === undefined
      ? withGivenSockets(settings, takeGivenSockets(process.env, process.pid))
      : { settings, unused: [] }
  for (const place of [...settings.listen, ...(settings.admin ? [settings.admin.listen] : [])])
    if ('path' in place && predecessor?.listensOn(place) !== true) await removeStaleSocket(place.path)
  return given
}

async function drain(
  service: Service,
  signal: string,
  { limits, log }: { readonly limits: Settings['limits']; readonly log: Logger },
): Promise<void> {
  // SIGINT comes from a terminal, where no balancer looks at /readyz.
  const delay = signal === 'SIGTERM' ? limits.drainDelay : 0
  const acceptsFor = delay > 0 ? { acceptsForMs: delay } : {}
  log.info({ signal, inProgress: service.context?.inProgress, ...acceptsFor }, 'shutting down')
  log.info(await service.drain(signal === 'restart' ? FOREVER : limits.shutdownTimeout, delay), 'shut down')
}

function originOf({ file, isNamed }: Pick<Loaded, 'file' | 'isNamed'>): string {
  if (file === undefined) return 'configuration: the flags alone'
  return `configuration: ${file}${isNamed ? '' : ', found in the working directory; -c FILE names another'}`
}

function targetsOf({ egress, routes }: Settings): string {
  if (egress?.allow.length === 0) return 'nowhere: "egress": { "allow": [] }'
  return (egress?.allow ?? [...new Set(routes.map(route => route.upstream.url))]).join(', ')
}

// What serves is imported when it is needed: the primary of workers needs no proxy, and neither needs Prometheus without
// an admin server.

async function alone(
  settings: Settings,
  log: Logger,
  program: Pick<Surroundings, 'id' | 'meter' | 'predecessor'>,
): Promise<Service> {
  const { serve } = await import('./serve.js')
  const served = await serve(settings, log, { ...program, workers: 1, primary: undefined })
  return { ...served, kill: () => undefined, status: async () => served.status(), estate: estateOf(served) }
}

async function shared(
  count: number,
  settings: Settings,
  program: { readonly log: Logger } & Pick<Surroundings, 'id' | 'predecessor'>,
): Promise<Service> {
  const { Workers } = await import('./worker-pool.js')
  if (settings.buckets.some(({ outside }) => outside !== undefined))
    (await import('../../proxy/limits/key-limits.js')).checkFiles(settings.buckets)
  const workers = await Workers.start(count, settings, program)
  const source = settings.admin && (await import('./pooled-admin-source.js')).createPooledAdminSource(workers)
  return {
    urls: workers.urls,
    source,
    estate: workers,
    reload: next => workers.reload(next),
    drain: (timeout, delay) => workers.drain(timeout, delay),
    kill: () => workers.kill(),
    status: () => workers.status(),
  }
}

/** @throws CommandError, and then nothing is left running */
async function serveAdmin(
  { admin, limits }: Settings,
  service: Service,
  {
    log,
    metrics,
    failedReload,
    restart,
    handed,
  }: {
    readonly log: Logger
    readonly metrics: ProgramMetrics | undefined
    readonly handed: ListenHandle | undefined
  } & Pick<AdminSource, 'failedReload' | 'restart'>,
): Promise<AdminServer | undefined> {
  if (admin === undefined) return undefined
  const source = service.source!
  const { startAdmin } = await import('../../admin/server.js')
  try {
    const server = await startAdmin(
      admin,
      {
        ...source,
        ...(failedReload && { failedReload }),
        ...(restart && { restart }),
        metrics: async () => [...(await source.metrics()), await metrics!.values()],
      },
      handed,
    )
    log.info({ url: server.url }, 'the admin server listens')
    return server
  } catch (error) {
    await service.drain(Math.min(1_000, limits.shutdownTimeout), 0)
    service.kill()
    const { code, message, syscall } = error as NodeJS.ErrnoException
    const fault = syscall === 'getaddrinfo' ? 'has a name that does not resolve' : 'cannot be listened on'
    const reason = code === 'EADDRINUSE' ? 'is in use' : `${fault} (${code ?? message})`
    throw new CommandError(
      `the admin address ${formatListen(admin.listen)} ${reason}; choose another with --admin ${'path' in admin.listen ? 'unix:PATH' : 'HOST:PORT'}`,
    )
  }
}

/** Resolves to the first signal that asks to end. A second one ends the process at once. */
function firstSignal(service: Service): Promise<string> {
  return new Promise(resolve => {
    let first: { name: string; at: number } | undefined
    for (const name of ['SIGTERM', 'SIGINT'] as const) {
      process.on(name, () => {
        if (first === undefined) {
          first = { name, at: performance.now() }
          resolve(name)
        } else if (!(isRunByNpm() && first.name === name && performance.now() - first.at < COPY)) {
          service.kill()
          process.exit(1)
        }
      })
    }
  })
}

/** How long after a signal npm may repeat it, in ms. */
const COPY = 200

/** Whether npm runs this process. npm passes on signals that the terminal sends to this process, too: Ctrl-C comes twice. */
function isRunByNpm(): boolean {
  return /\bshaper(\.js)?["']?(\s|$)/.test(process.env.npm_lifecycle_script ?? '')
}
