import type { ConfigSources, Flags } from '../../config/load.js'
import type { Terminal } from '../terminal.js'

/** Options that `start` and `check` share, as the user gave them. */
export interface CommandOptions extends Flags {
  config?: string
  /** How many processes serve; `"auto"`: one for each core. */
  workers?: string
}

/** What `loadConfig` reads for these options. */
export function sourcesOf(options: CommandOptions, { env, cwd }: Terminal): ConfigSources {
  const { config: file, workers, ...flags } = options
  return { ...(file !== undefined && { file }), flags, env, cwd: cwd(), workers }
}
