/** The command line. Exit status: 0 clean, 1 failed while running, 2 usage or configuration. */
import { readFileSync } from 'node:fs'
import { Command, CommanderError } from 'commander'
import { ConfigError } from '../config/load.js'
import { runCheck } from './check.js'
import { CommandError } from './command-error.js'
import { runDemo } from './demo.js'
import { runMigrate } from './migrate.js'
import type { CommandOptions } from './options.js'
import { runStart } from './start.js'
import { runTop } from './top.js'
import { readTopFlags, type TopFlags } from './top-flags.js'

/** Runs the command line and leaves the exit status in the process. */
export async function main(argv: readonly string[]): Promise<void> {
  try {
    await createProgram().parseAsync(argv as string[])
  } catch (error) {
    process.exitCode = report(error)
  }
}

function createProgram(): Command {
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string
  }
  const program = new Command('shaper')
    .description('Holds bursts of requests in a queue per client and releases them at exactly r per second.')
    .version(version)
    .exitOverride()
    .configureOutput({
      outputError: (text, write) =>
        write(
          `shaper: ${text
            .replace(/^error: /, '')
            .trim()
            .replace(/\s*\n\s*/g, ' ')}; try --help\n`,
        ),
    })
    .addHelpText('after', '\nExample:\n  shaper start --upstream http://127.0.0.1:9000 --rate 5/s --capacity 10')

  withLimits(program.command('start'))
    .description('run the proxy')
    .action(async (options: CommandOptions) => runStart(options))
    .addHelpText('after', '\nExample:\n  shaper start --upstream http://127.0.0.1:9000 --rate 5/s --capacity 10')
  withLimits(program.command('check'))
    .description('validate the configuration; print it with every default, and the longest wait of each bucket')
    .action((options: CommandOptions) => runCheck(options))
    .addHelpText('after', '\nExample:\n  shaper check -c shaper.config.json')
  program
    .command('migrate')
    .description('create the table of a PostgreSQL store, which its first use would create otherwise')
    .option('-c, --config <file>', 'configuration (default: ./shaper.config.json)')
    .action(async (options: { config?: string }) => runMigrate(options))
    .addHelpText('after', '\nExample:\n  shaper migrate -c shaper.config.json')
  program
    .command('demo')
    .description('a fragile upstream, shaper in front of it and bursts, in one process, seen live')
    .action(async () => runDemo(process.stdout))
    .addHelpText('after', '\nExample:\n  shaper demo')
  program
    .command('top')
    .description('a live table of buckets: level, queued, released/s, rejected/s')
    .option('--admin <url>', 'where the admin server is', 'http://127.0.0.1:9090')
    .option('--dry-run', 'what dry runs would have done, and to whom')
    .option('--interval <duration>', 'time between two tables', '1s')
    .option('--count <n>', 'how many tables to show (default: until interrupted)')
    .action(async (options: TopFlags) => runTop(readTopFlags(options, process.env)))
    .addHelpText(
      'after',
      '\nThe token of the admin server is taken from SHAPER_TOKEN.\n\nExample:\n  shaper top --admin http://127.0.0.1:9090',
    )
  for (const command of program.commands) command.exitOverride().configureOutput(program.configureOutput())
  return program
}

function withLimits(command: Command): Command {
  return command
    .option('-c, --config <file>', 'configuration (default: ./shaper.config.json)')
    .option('--listen <host:port>', 'where to listen')
    .option('--upstream <url>', 'where to send requests; "echo:" is built in')
    .option('--rate <rate>', 'what leaves a bucket, e.g. 5/s or 6/30s')
    .option('--capacity <units>', "what a bucket holds (default: one second's worth)")
    .option('--mode <mode>', 'shape: queue and release evenly; meter: only reject')
    .option('--key <key>', 'what tells clients apart, e.g. ip or header:x-api-key')
    .option('--admin <host:port>', 'where to serve metrics, state and the dashboard')
    .option('--workers <n>', 'how many processes serve, or auto; they need a shared store')
    .option('--dry-run', 'decide and log, but hold and reject nothing')
}

/** Writes an error as lines without a stack; returns the exit status. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
  if (error instanceof ConfigError) {
    for (const line of error.message.split('\n')) process.stderr.write(`shaper: ${line}\n`)
    return 2
  }
  if (error instanceof CommandError) {
    process.stderr.write(`shaper: ${error.message}\n`)
    return 1
  }
  throw error
}
