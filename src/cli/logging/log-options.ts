export const LOG_FORMATS = ['pretty', 'json'] as const
export const LOG_LEVELS = ['error', 'warn', 'info', 'debug'] as const

/** What users can choose about the log. */
export interface LogChoice {
  /** Absent: `pretty` on a terminal, else `json`. */
  readonly log?: (typeof LOG_FORMATS)[number]
  /** The least of the levels that are written. Absent: `info`. */
  readonly logLevel?: (typeof LOG_LEVELS)[number]
}
