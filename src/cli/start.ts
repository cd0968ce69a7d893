import type { Logger } from 'pino'
import { type AdminServer, type AdminSource, startAdmin } from '../admin/server.js'
import { formatListen } from '../config/address.js'
import { loadConfig } from '../config/load.js'
import type { Settings } from '../config/settings.js'
import { warnings } from '../config/warnings.js'
import { watchFile } from '../config/watch.js'
import { CommandError } from './command-error.js'
import { createLog, flushLog } from './log.js'
import { type CommandOptions, flagsOf, workersOf } from './options.js'
import { createReloader } from './reloader.js'
import { serve } from './serve.js'
import { isWorker, runWorker } from './worker.js'
import { Workers } from './workers.js'
import { createWorkersSource } from './workers-source.js'

/** What serves: a proxy in this process, or workers. */
interface Service {
  readonly url: string
  /** What the admin server tells. */
  readonly source: AdminSource | undefined
  readonly line?: { readonly inProgress: number }
  /** Answers how many waiters had to go, by route. */
  reload(settings: Settings): Promise<ReadonlyMap<string, number>>
  drain(timeout: number): Promise<void>
  /** Ends what would outlive this process. */
  kill(): void
}

/** Runs the proxy until a signal ends it. */
export async function runStart(options: CommandOptions): Promise<void> {
  if (isWorker()) return runWorker()
  const load = (): { settings: Settings; file: string | undefined } =>
    loadConfig({
      ...(options.config !== undefined && { file: options.config }),
      flags: flagsOf(options),
      env: process.env,
      cwd: process.cwd(),
    })
  const { settings, file } = load()
  const workers = workersOf(options, settings)
  const log = createLog()
  const service: Service =
    workers === undefined
      ? { kill: () => undefined, ...(await serve(settings, log)) }
      : shared(await Workers.start(workers, settings, log))
  const admin = await serveAdmin(settings, service, log)
  for (const { path, message } of warnings(settings)) log.warn(`${path}: ${message}`)
  const { reload, current } = createReloader(
    settings,
    () => load().settings,
    next => service.reload(next),
    log,
  )
  process.on('SIGHUP', reload)
  const unwatch = file === undefined ? undefined : watchFile(file, reload)
  const ending = firstSignal(service)
  // Whoever reads this may signal, or change the file, at once.
  const targets = new Set(settings.routes.map(route => route.upstream.url))
  flushLog()
  process.stdout.write(`shaper listening on ${service.url} -> ${[...targets].join(', ')}\n`)
  const signal = await ending
  log.info({ signal, inProgress: service.line?.inProgress }, 'shutting down')
  await service.drain(current().limits.shutdownTimeout)
  await admin?.close()
  unwatch?.()
}

/** The workers as one service. */
function shared(workers: Workers): Service {
  return {
    url: workers.url,
    source: createWorkersSource(workers),
    reload: settings => workers.reload(settings),
    drain: timeout => workers.drain(timeout),
    kill: () => workers.kill(),
  }
}

/** @throws CommandError, and then nothing is left running */
async function serveAdmin(
  { admin, limits }: Settings,
  service: Service,
  log: Logger,
): Promise<AdminServer | undefined> {
  if (admin === undefined) return undefined
  try {
    const server = await startAdmin(admin, service.source!)
    log.info({ url: server.url }, 'the admin server listens')
    return server
  } catch (error) {
    await service.drain(Math.min(1_000, limits.shutdownTimeout))
    service.kill()
    const { code, message } = error as NodeJS.ErrnoException
    const reason = code === 'EADDRINUSE' ? 'is in use' : `cannot be listened on (${code ?? message})`
    throw new CommandError(
      `the admin address ${formatListen(admin.listen)} ${reason}; choose another with --admin HOST:PORT`,
    )
  }
}

/** The first signal that asks to end; from then on another one ends the process at once. */
async function firstSignal(service: Service): Promise<string> {
  const signal = await new Promise<string>(resolve => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, resolve)
  })
  for (const name of ['SIGTERM', 'SIGINT'] as const) {
    process.on(name, () => {
      service.kill()
      process.exit(1)
    })
  }
  return signal
}
