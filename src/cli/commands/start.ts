import type { Logger } from 'pino'
import { type AdminServer, type AdminSource, startAdmin } from '../../admin/http/server.js'
import { usedFiles } from '../../config/checks/readable-files.js'
import { loadConfig } from '../../config/load.js'
import { watchFiles } from '../../config/read/file-watch.js'
import { formatListen } from '../../config/schema/address.js'
import type { Settings } from '../../config/settings.js'
import { warnings } from '../../config/warnings/index.js'
import { createId } from '../../proxy/http/via.js'
import { CommandError } from '../command-error.js'
import { closeLog, createLog, flushLog } from '../logging/log.js'
import { createPooledAdminSource } from '../serving/pooled-admin-source.js'
import { createReloader } from '../serving/reloader.js'
import { serve } from '../serving/serve.js'
import { isWorker, runWorker } from '../serving/worker.js'
import { Workers } from '../serving/worker-pool.js'
import { type CommandOptions, flagsOf, workersOf } from './common-options.js'

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
  try {
    await run(options)
  } finally {
    await closeLog()
  }
}

async function run(options: CommandOptions): Promise<void> {
  const load = (): { settings: Settings; file: string | undefined } =>
    loadConfig({
      ...(options.config !== undefined && { file: options.config }),
      flags: flagsOf(options),
      env: process.env,
      cwd: process.cwd(),
    })
  const { settings, file } = load()
  const workers = workersOf(options, settings)
  const files = usedFiles(settings, settings.listen)
  const log = createLog()
  const service: Service =
    workers === undefined
      ? { kill: () => undefined, ...(await serve(settings, log, { id: createId(), workers: 1 })) }
      : poolService(await Workers.start(workers, settings, log))
  const admin = await serveAdmin(settings, service, log)
  for (const { path, message } of warnings(settings)) log.warn(`${path}: ${message}`)
  const apply = async (next: Settings): Promise<ReadonlyMap<string, number>> => {
    const expired = await service.reload(next)
    watchAll(next)
    return expired
  }
  const { reload, current } = createReloader({ settings, files, load: () => load().settings, apply, log })
  process.on('SIGHUP', reload)
  const watch = watchFiles(reload, (directory, { message }) =>
    log.warn({ directory }, `changes of files are not noticed here (${message}); send SIGHUP after one`),
  )
  const watchAll = (next: Settings): void => {
    const files = usedFiles(next, settings.listen).map(each => each.file)
    watch.watch(file === undefined ? files : [file, ...files])
  }
  watchAll(settings)
  const ending = firstSignal(service)
  // Whoever reads this may signal, or change the file, at once.
  const targets = new Set(settings.routes.map(route => route.upstream.url))
  flushLog()
  process.stdout.write(`shaper listening on ${service.url} -> ${[...targets].join(', ')}\n`)
  const signal = await ending
  log.info({ signal, inProgress: service.line?.inProgress }, 'shutting down')
  await service.drain(current().limits.shutdownTimeout)
  await admin?.close()
  watch.close()
}

/** The workers as one service. */
function poolService(workers: Workers): Service {
  return {
    url: workers.url,
    source: createPooledAdminSource(workers),
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
function firstSignal(service: Service): Promise<string> {
  return new Promise(resolve => {
    let first: { name: string; at: number } | undefined
    for (const name of ['SIGTERM', 'SIGINT'] as const) {
      process.on(name, () => {
        if (first === undefined) {
          first = { name, at: performance.now() }
          resolve(name)
        } else if (!(isRunByNpm() && first.name === name && performance.now() - first.at < NPM_REPEAT_MS)) {
          service.kill()
          process.exit(1)
        }
      })
    }
  })
}

/** How long after a signal npm may send the same one again, in ms. */
const NPM_REPEAT_MS = 200

/** npm passes on what a terminal has sent to this process already: Ctrl-C comes twice. */
function isRunByNpm(): boolean {
  return /\bshaper(\.js)?["']?(\s|$)/.test(process.env.npm_lifecycle_script ?? '')
}
