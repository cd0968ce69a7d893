import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { ConfigError, DEFAULT_FILE, loadConfig } from '../../config/load.js'
import { CommandError, type Terminal } from '../command.js'
import { sourcesOf } from './common-options.js'

/** Creates the table that the store of a configuration needs. @throws ConfigError, CommandError */
export async function runMigrate(options: { config?: string }, terminal: Terminal): Promise<void> {
  if (options.config === undefined && !existsSync(join(terminal.cwd(), DEFAULT_FILE))) {
    const message = `there is no ./${DEFAULT_FILE} here; name a file with -c FILE`
    throw new ConfigError([{ path: '', message }])
  }
  const { settings } = loadConfig(sourcesOf(options, terminal))
  const { store } = settings
  if (store === 'memory' || store.type !== 'postgres') {
    terminal.stdout.write(`store ${store === 'memory' ? store : store.type}: nothing to create, start as you are\n`)
    return
  }
  const { url, table } = store
  const { migrate } = await import('../../stores/postgres/store.js')
  try {
    await migrate({ url, table })
  } catch (error) {
    const reason = (error as Error).message.replace(/\s*\n\s*/g, ' ')
    throw new CommandError(
      `table ${table} could not be created: ${reason}; check the database and what its user may do`,
    )
  }
  terminal.stdout.write(`store postgres: table ${table} is there\n`)
}
