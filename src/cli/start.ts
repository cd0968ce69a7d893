import pino, { type Logger } from 'pino'
import { loadConfig } from '../config/load.js'
import type { Settings } from '../config/settings.js'
import { createTimerClock } from '../pacing/timer.js'
import type { Observer } from '../proxy/events.js'
import { type RunningProxy, startProxy } from '../proxy/server.js'
import { CommandError } from './command-error.js'
import { type CommandOptions, flagsOf } from './options.js'

/** Runs the proxy until a signal ends it. */
export async function runStart(options: CommandOptions): Promise<void> {
  const { settings } = loadConfig({
    ...(options.config !== undefined && { file: options.config }),
    flags: flagsOf(options),
    env: process.env,
    cwd: process.cwd(),
  })
  const log = pino({ base: null }, pino.destination({ dest: 2, sync: true }))
  const clock = createTimerClock()
  const proxy = await startProxy({ settings, pacer: clock, clock, observer: createLogObserver(log) }).catch(error => {
    throw explain(error, settings)
  })
  const targets = new Set(settings.routes.map(route => route.upstream.url))
  process.stdout.write(`shaper listening on ${proxy.url} -> ${[...targets].join(', ')}\n`)
  await endOnSignal(proxy, settings, log)
}

async function endOnSignal(proxy: RunningProxy, settings: Settings, log: Logger): Promise<void> {
  process.on('SIGHUP', () => log.warn('SIGHUP: reloading is not yet available; the configuration stays as it is'))
  const signal = await new Promise<string>(resolve => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, resolve)
  })
  for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, () => process.exit(1))
  log.info({ signal, inProgress: proxy.line.inProgress }, 'shutting down')
  await proxy.drain(settings.limits.shutdownTimeout)
}

function createLogObserver(log: Logger): Observer {
  return {
    rehearsed: (route, decision) => log.info({ route, decision }, 'dry run'),
    failed: (route, detail) => log.warn({ route }, detail),
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
