import { workerCount } from '../../config/checks/workers.js'
import { loadConfig } from '../../config/load.js'
import type { LogChoice, Terminal } from '../command.js'
import { isWorker } from '../serving/worker-protocol.js'
import { type CommandOptions, sourcesOf } from './common-options.js'

export interface StartOptions extends CommandOptions, LogChoice {}

/** What serves is imported once the configuration is known to be good. @throws ConfigError, CommandError */
export async function runStart({ log, logLevel, ...options }: StartOptions, terminal: Terminal): Promise<void> {
  const choice = { ...(log && { log }), ...(logLevel && { logLevel }) }
  if (isWorker()) return (await import('../serving/worker.js')).runWorker(choice)
  const predecessor = await (await import('../serving/succession.js')).Predecessor.meet()
  try {
    const sources = sourcesOf(options, terminal)
    const { workers } = sources
    const { settings, file, digest } = loadConfig(sources)
    const { runService } = await import('../serving/service.js')
    const reload = () => loadConfig(sources).settings
    const isNamed = sources.file !== undefined
    const count = workers === undefined ? undefined : workerCount(workers)
    await runService({ settings, file, isNamed, digest, reload, predecessor }, count, choice)
  } catch (error) {
    await predecessor?.failed((error as Error).message)
    throw error
  }
}
