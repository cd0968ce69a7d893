import { openFileLimit } from '../../config/derived/open-files.js'
import { ConfigError, type ConfigSources, type Flags } from '../../config/load.js'
import { parseUpstreamUrl } from '../../config/schema/address.js'
import type { Terminal } from '../command.js'

export interface CommandOptions extends Flags {
  config?: string
  workers?: string
}

export function sourcesOf(options: CommandOptions, { env, cwd }: Terminal): ConfigSources {
  const { config: file, workers, ...flags } = options
  return { ...(file !== undefined && { file }), flags, env, cwd: cwd(), workers, openFiles: openFileLimit() }
}

/** The URL that `--upstream` names. @throws ConfigError */
export function readUpstream(text: string): string {
  try {
    return parseUpstreamUrl(text)
  } catch (error) {
    throw new ConfigError([{ path: '--upstream', message: (error as Error).message }])
  }
}
