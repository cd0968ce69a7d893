import { loadConfig } from '../../config/load.js'
import { isWorker } from '../serving/worker-protocol.js'
import type { Terminal } from '../terminal.js'
import { type CommandOptions, sourcesOf, workersOf } from './common-options.js'

/**
 * Runs the proxy until a signal ends it. What serves is imported once the configuration is known to be good.
 *
 * @throws ConfigError, CommandError
 */
export async function runStart(options: CommandOptions, terminal: Terminal): Promise<void> {
  if (isWorker()) return (await import('../serving/worker.js')).runWorker()
  const sources = sourcesOf(options, terminal)
  const { settings, file } = loadConfig(sources)
  const workers = workersOf(options, settings)
  const { runService } = await import('../serving/service.js')
  await runService({ settings, file, reload: () => loadConfig(sources).settings }, workers)
}
