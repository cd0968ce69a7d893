import pino, { type Logger } from 'pino'
import { changes } from '../config/changes.js'
import { ConfigError, loadConfig } from '../config/load.js'
import type { Settings } from '../config/settings.js'
import { warnings } from '../config/warnings.js'
import { watchFile } from '../config/watch.js'
import { createPreciseClock } from '../pacing/precise.js'
import { createTimerClock } from '../pacing/timer.js'
import type { Observer } from '../proxy/events.js'
import { type RunningProxy, startProxy } from '../proxy/server.js'
import { CommandError } from './command-error.js'
import { type CommandOptions, flagsOf } from './options.js'

const FELL_BACK = 'no thread to time releases by: they are now up to 2 ms late, as with "pacing": "timer"'

/** Runs the proxy until a signal ends it. */
export async function runStart(options: CommandOptions): Promise<void> {
  const load = (): { settings: Settings; file: string | undefined } =>
    loadConfig({
      ...(options.config !== undefined && { file: options.config }),
      flags: flagsOf(options),
      env: process.env,
      cwd: process.cwd(),
    })
  const { settings, file } = load()
  const log = pino({ base: null }, pino.destination({ dest: 2, sync: true }))
  const clock = createTimerClock()
  const pacer = settings.pacing === 'precise' ? createPreciseClock(() => log.warn(FELL_BACK)) : clock
  const proxy = await startProxy({ settings, pacer, clock, observer: createLogObserver(log) }).catch(error => {
    throw explain(error, settings)
  })
  for (const { path, message } of warnings(settings)) log.warn(`${path}: ${message}`)
  const targets = new Set(settings.routes.map(route => route.upstream.url))
  process.stdout.write(`shaper listening on ${proxy.url} -> ${[...targets].join(', ')}\n`)
  const reload = createReloader(proxy, settings, () => load().settings, log)
  process.on('SIGHUP', reload)
  const unwatch = file === undefined ? undefined : watchFile(file, reload)
  await endOnSignal(proxy, settings, log)
  unwatch?.()
}

/** Reads the configuration again and puts it into effect; a bad one is told, and nothing changes. One at a time. */
function createReloader(proxy: RunningProxy, first: Settings, load: () => Settings, log: Logger): () => void {
  let current = first
  let last = Promise.resolve()
  const reload = async (): Promise<void> => {
    try {
      const next = load()
      const changed = changes(current, next)
      if (changed.length === 0) return log.info('reloaded: nothing has changed')
      const expired = await proxy.reload(next)
      current = next
      log.info({ changes: changed }, 'reloaded')
      for (const line of changed.filter(isFixed)) log.warn(`${line}: takes effect at the next start`)
      for (const [route, count] of expired) {
        log.warn({ route, count }, `route ${route}: ${count} waiters now exceed maxWait and are answered 503`)
      }
    } catch (error) {
      const problems = error instanceof ConfigError ? error.message.split('\n') : [(error as Error).message]
      log.error({ problems }, 'not reloaded: the configuration stays as it was')
    }
  }
  return () => {
    last = last.then(reload)
  }
}

function isFixed(change: string): boolean {
  return /^(listen|pacing|limits\.maxHeaderSize)\b/.test(change)
}

async function endOnSignal(proxy: RunningProxy, settings: Settings, log: Logger): Promise<void> {
  const signal = await new Promise<string>(resolve => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, resolve)
  })
  for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, () => process.exit(1))
  log.info({ signal, inProgress: proxy.line.inProgress }, 'shutting down')
  await proxy.drain(settings.limits.shutdownTimeout)
}

function createLogObserver(log: Logger): Observer {
  return {
    rehearsed: (route, decision, bucket, wait) =>
      log.info({ route, decision, bucket, waitMs: Math.ceil(wait) }, 'dry run'),
    failed: (route, detail, cause) => log.warn({ route, cause: cause?.message }, detail),
  }
}

function explain(error: NodeJS.ErrnoException, { listen }: Settings): Error {
  const address = `${listen.host}:${listen.port}`
  switch (error.syscall === 'listen' || error.syscall === 'getaddrinfo' ? error.code : error.syscall) {
    case 'EADDRINUSE':
      return new CommandError(`${address} is in use; choose another address with --listen HOST:PORT`)
    case 'EACCES':
      return new CommandError(`${address} needs privileges; choose a port above 1023 with --listen HOST:PORT`)
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
      return new CommandError(`${address} is not an address of this machine; choose another with --listen HOST:PORT`)
    case 'open':
      return new CommandError(`cannot read ${error.path}: ${error.code}`)
    default:
      return new CommandError(error.message)
  }
}
