/** Ends a command with exit status 1 and one line on stderr. */
export class CommandError extends Error {
  readonly code = 'SHAPER_COMMAND'
}
