import { loadConfig } from '../config/load.js'
import { effective, longestWaits } from '../config/report.js'
import { formatDuration } from '../core/rate.js'
import { type CommandOptions, flagsOf } from './options.js'

/** Prints the effective configuration as JSON that `start` would read the same, and the longest wait per bucket. */
export function runCheck(options: CommandOptions): void {
  const { settings, file } = loadConfig({
    ...(options.config !== undefined && { file: options.config }),
    flags: flagsOf(options),
    env: process.env,
    cwd: process.cwd(),
  })
  process.stdout.write(`${JSON.stringify(effective(settings), null, 2)}\n\n`)
  for (const { name, rate, capacity, longestWaitMs } of longestWaits(settings)) {
    const limits = `${rate}, capacity ${capacity}`
    process.stdout.write(`bucket "${name}" (${limits}): the longest wait is ${formatDuration(longestWaitMs)}\n`)
  }
  process.stdout.write(`${file ?? 'the flags'}: valid\n`)
}
