import type { Flags } from '../config/load.js'

/** Options that `start` and `check` share, as the user gave them. */
export interface CommandOptions extends Flags {
  config?: string
}

export function flagsOf({ config: _config, ...flags }: CommandOptions): Flags {
  return flags
}
