/** What all commands share. */
import { readFileSync } from 'node:fs'

/** Where a command reads and writes, and where it is: the process, or what stands for it in a test. */
export type Terminal = Pick<NodeJS.Process, 'stdin' | 'stdout' | 'stderr' | 'env' | 'cwd'>

/** Ends a command with exit status 1 and one line on stderr. */
export class CommandError extends Error {
  readonly code = 'SHAPER_COMMAND'
}

export const LOG_FORMATS = ['pretty', 'json'] as const
export const LOG_LEVELS = ['error', 'warn', 'info', 'debug'] as const

export interface LogChoice {
  readonly log?: (typeof LOG_FORMATS)[number]
  /** The least of the levels that are written. Absent: `info`. */
  readonly logLevel?: (typeof LOG_LEVELS)[number]
}

export function packageVersion(): string {
  const manifest = readFileSync(new URL('../../package.json', import.meta.url), 'utf8')
  return (JSON.parse(manifest) as { version: string }).version
}
