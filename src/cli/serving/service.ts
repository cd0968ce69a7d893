/** The running program: what serves, its admin server, its reloads and its end. */
import type { Logger } from 'pino'
import type { ProgramMetrics } from '../../admin/counters/program-metrics.js'
import type { AdminServer, AdminSource } from '../../admin/http/server.js'
import { type UsedFile, usedFiles } from '../../config/checks/readable-files.js'
import { openFileLimit } from '../../config/derived/open-files.js'
import { watchFiles } from '../../config/read/file-watch.js'
import { summary } from '../../config/report/summary.js'
import { formatListen } from '../../config/schema/address.js'
import type { Settings } from '../../config/settings.js'
import { certificateWarnings } from '../../config/warnings/certificates.js'
import { warnings } from '../../config/warnings/index.js'
import { openFileWarnings } from '../../config/warnings/open-files.js'
import { createId } from '../../proxy/http/via.js'
import type { Drained } from '../../proxy/server/server.js'
import { CommandError } from '../command-error.js'
import { CONNECT_PACED } from '../egress-text.js'
import { closeLog, createLog, flushLog } from '../logging/log.js'
import type { LogChoice } from '../logging/log-options.js'
import { packageVersion } from '../version.js'
import { onReload } from './hang-up.js'
import { createReloader, type Reloader } from './reloader.js'

/** A proxy in this process, or workers. */
interface Service {
  readonly url: string
  /** `host:port`. Undefined: none, or that of the configuration. */
  readonly grpc?: string | undefined
  /** The data of the admin server. */
  readonly source: AdminSource | undefined
  readonly context?: { readonly inProgress: number }
  /** Resolves to the number of expired waiters by route. */
  reload(settings: Settings): Promise<ReadonlyMap<string, number>>
  /** As of a proxy. */
  drain(timeout: number, delay: number): Promise<Drained>
  /** Ends processes that would outlive this one. */
  kill(): void
}

/** A configuration that was read, and how to read it again. */
export interface Loaded {
  readonly settings: Settings
  /** Where it came from; undefined: from flags. */
  readonly file: string | undefined
  /** Whether the file was named, and not found in the working directory. */
  readonly isNamed: boolean
  /** Of what was read of the file. */
  readonly digest: string
  /** @throws ConfigError */
  reload(): Settings
}

/**
 * Serves until a signal ends it.
 *
 * @param workers how many processes serve; undefined: this one
 * @throws CommandError
 */
export async function runService(loaded: Loaded, workers: number | undefined, choice: LogChoice): Promise<void> {
  try {
    await run(loaded, workers, choice)
  } finally {
    await closeLog()
  }
}

async function run(
  { settings, file, isNamed, digest, reload: load }: Loaded,
  workers: number | undefined,
  choice: LogChoice,
): Promise<void> {
  const files = usedFiles(settings, settings.listen)
  const log = createLog(null, { ...choice, isShared: workers !== undefined })
  const service = workers === undefined ? await alone(settings, log) : await shared(workers, settings, log)
  const metrics =
    settings.admin && new (await import('../../admin/counters/program-metrics.js')).ProgramMetrics(packageVersion())
  let reloader: Reloader | undefined
  const admin = await serveAdmin(settings, service, { log, metrics, failedReload: () => reloader?.failed() })
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
  const apply = async (next: Settings, used: readonly UsedFile[]): Promise<ReadonlyMap<string, number>> => {
    const expired = await service.reload(next)
    watchAll(used)
    return expired
  }
  reloader = createReloader({ settings, files, load, apply, log, reloaded: metrics?.reloaded })
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
  const ending = firstSignal(service)
  // The reader of this line may send a signal or change the file at once, so it comes after the handlers.
  flushLog()
  process.stdout.write(`shaper listening on ${service.url} -> ${targetsOf(settings)}${grpcText(service, settings)}\n`)
  const signal = await ending
  const { shutdownTimeout, drainDelay } = current().limits
  // SIGINT comes from a terminal, where no balancer looks at /readyz.
  const delay = signal === 'SIGTERM' ? drainDelay : 0
  const acceptsFor = delay > 0 ? { acceptsForMs: delay } : {}
  log.info({ signal, inProgress: service.context?.inProgress, ...acceptsFor }, 'shutting down')
  try {
    log.info(await service.drain(shutdownTimeout, delay), 'shut down')
  } finally {
    // Either would keep the process alive.
    await admin?.close()
    watch.close()
  }
}

function originOf({ file, isNamed }: Pick<Loaded, 'file' | 'isNamed'>): string {
  if (file === undefined) return 'configuration: the flags alone'
  return `configuration: ${file}${isNamed ? '' : ', found in the working directory; -c FILE names another'}`
}

function grpcText({ grpc }: Service, { listen }: Settings): string {
  return listen.grpc === undefined ? '' : `, gRPC on ${grpc ?? formatListen(listen.grpc)}`
}

/** Where requests go, for the line that says so. */
function targetsOf({ egress, routes }: Settings): string {
  if (egress?.allow.length === 0) return 'nowhere: "egress": { "allow": [] }'
  return (egress?.allow ?? [...new Set(routes.map(route => route.upstream.url))]).join(', ')
}

// What serves is imported when it is needed: the primary of workers needs no proxy, and neither needs Prometheus without
// an admin server.

async function alone(settings: Settings, log: Logger): Promise<Service> {
  const { serve } = await import('./serve.js')
  return { kill: () => undefined, ...(await serve(settings, log, { id: createId(), workers: 1, primary: undefined })) }
}

/** The workers as one service. */
async function shared(count: number, settings: Settings, log: Logger): Promise<Service> {
  const { Workers } = await import('./worker-pool.js')
  const workers = await Workers.start(count, settings, log)
  const source = settings.admin && (await import('./pooled-admin-source.js')).createPooledAdminSource(workers)
  return {
    url: workers.url,
    source,
    reload: next => workers.reload(next),
    drain: (timeout, delay) => workers.drain(timeout, delay),
    kill: () => workers.kill(),
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
  }: { readonly log: Logger; readonly metrics: ProgramMetrics | undefined } & Pick<AdminSource, 'failedReload'>,
): Promise<AdminServer | undefined> {
  if (admin === undefined) return undefined
  const source = service.source!
  const { startAdmin } = await import('../../admin/http/server.js')
  try {
    const server = await startAdmin(admin, {
      ...source,
      ...(failedReload && { failedReload }),
      metrics: async () => [...(await source.metrics()), await metrics!.values()],
    })
    log.info({ url: server.url }, 'the admin server listens')
    return server
  } catch (error) {
    await service.drain(Math.min(1_000, limits.shutdownTimeout), 0)
    service.kill()
    const { code, message, syscall } = error as NodeJS.ErrnoException
    const fault = syscall === 'getaddrinfo' ? 'has a name that does not resolve' : 'cannot be listened on'
    const reason = code === 'EADDRINUSE' ? 'is in use' : `${fault} (${code ?? message})`
    throw new CommandError(
      `the admin address ${formatListen(admin.listen)} ${reason}; choose another with --admin HOST:PORT`,
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
