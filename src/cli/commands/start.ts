import { workerCount } from '../../config/checks/workers.js'
import { loadConfig } from '../../config/load.js'
import type { LogChoice } from '../logging/log-options.js'
import { isWorker } from '../serving/worker-protocol.js'
import type { Terminal } from '../terminal.js'
import { type CommandOptions, sourcesOf } from './common-options.js'

export interface StartOptions extends CommandOptions, LogChoice {}

/**
 * Runs the proxy until a signal ends it. What serves is imported once the configuration is known to be good.
 *
 * @throws ConfigError, CommandError
 */
export async function runStart({ log, logLevel, ...options }: StartOptions, terminal: Terminal): Promise<void> {
  const choice = { ...(log && { log }), ...(logLevel && { logLevel }) }
  if (isWorker()) return (await import('../serving/worker.js')).runWorker(choice)
  const sources = sourcesOf(options, terminal)
  const { workers } = sources
  const { settings, file, digest } = loadConfig(sources)
  const { runService } = await import('../serving/service.js')
  const reload = () => loadConfig(sources).settings
  const isNamed = sources.file !== undefined
  const count = workers === undefined ? undefined : workerCount(workers)
  await runService({ settings, file, isNamed, digest, reload }, count, choice)
}
