/**
 * The command line. Exit status: 0 clean, 1 failed while running, 2 usage or configuration.
 *
 * The code of a command is imported when it runs, so that `--help` is fast.
 */
import { Argument, Command, CommanderError, Option } from 'commander'
import { FORMAT_LIST, FORMATS } from '../replay/formats/format-names.js'
import { CommandError, LOG_FORMATS, LOG_LEVELS, packageVersion, type Terminal } from './command.js'
import type { CheckOptions } from './commands/check.js'
import { completion, SHELLS } from './commands/completion.js'
import type { DeliveriesFlags, DeliveryVerb } from './commands/deliveries.js'
import type { InitOptions } from './commands/init.js'
import type { KeyFlags } from './commands/key.js'
import type { ReplayFlags } from './commands/replay.js'
import type { StartOptions } from './commands/start.js'
import type { TopFlags } from './commands/top.js'

/** Runs the command line and leaves the exit status in the process. */
export async function main(argv: readonly string[]): Promise<void> {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    // A proxy goes on without a reader. Any other command has nothing left to do.
    if (argv[2] !== 'start') process.exit(0)
  })
  process.exitCode = await run(argv, process)
}

/** @param argv as in `process.argv`. @returns the exit status */
export async function run(argv: readonly string[], terminal: Terminal): Promise<number> {
  try {
    await createProgram(terminal).parseAsync(argv as string[])
    return 0
  } catch (error) {
    return report(error, terminal)
  }
}

function createProgram(terminal: Terminal): Command {
  const program = new Command('shaper')
    .description('Holds bursts of requests in a queue per client and releases them at exactly r per second.')
    .version(packageVersion())
    .exitOverride()
    .configureOutput({
      writeOut: text => void terminal.stdout.write(text),
      writeErr: text => void terminal.stderr.write(text),
      outputError: (text, write) =>
        write(
          `shaper: ${text
            .replace(/^error: /, '')
            .trim()
            .replace(/\s*\n\s*/g, ' ')}; try --help\n`,
        ),
    })

  withLimits(program.command('start'))
    .description('run the proxy')
    .addOption(
      new Option('--log <format>', 'lines for people or records (default: pretty on a terminal)').choices(LOG_FORMATS),
    )
    .addOption(new Option('--log-level <level>', 'the least that is logged (default: info)').choices(LOG_LEVELS))
    .action(async (options: StartOptions) => (await import('./commands/start.js')).runStart(options, terminal))
  withLimits(program.command('check'))
    .description('validate the configuration; print it as JSON with every default, and the longest waits on stderr')
    .option('--json', 'no text but warnings beside the JSON')
    .option('--quiet', 'print errors only')
    .action(async (options: CheckOptions) => (await import('./commands/check.js')).runCheck(options, terminal))
  program
    .command('init')
    .description('write a configuration to begin with, with comments')
    .option('-c, --config <file>', 'where to (default: ./shaper.config.json)')
    .option('--upstream <url>', 'where to send requests (default: http://127.0.0.1:9000)')
    .action(async (options: InitOptions) => (await import('./commands/init.js')).runInit(options, terminal))
  program
    .command('import')
    .description('print a configuration of nginx as one of shaper; what cannot be said is told on stderr')
    .argument('<nginx.conf>', 'with limit_req or limit_conn; the files that it includes are read, too')
    .option('--upstream <url>', 'where all requests go, e.g. to nginx itself on another port')
    .action(async (file: string, options: { upstream?: string }) =>
      (await import('./commands/import.js')).runImport(file, options, terminal),
    )
  program
    .command('migrate')
    .description('create the table of a PostgreSQL store, which its first use would create otherwise')
    .option('-c, --config <file>', 'configuration (default: ./shaper.config.json)')
    .action(async (options: { config?: string }) =>
      (await import('./commands/migrate.js')).runMigrate(options, terminal),
    )
  program
    .command('demo')
    .description('a fragile upstream, shaper in front of it and bursts, in one process, seen live')
    .action(async () => (await import('./commands/demo.js')).runDemo(terminal.stdout))
  program
    .command('top')
    .description('live tables of instances, buckets, routes and the fullest keys')
    .option('--admin <url>', 'where the admin server is', 'http://127.0.0.1:9090')
    .option('--dry-run', 'what dry runs would have done, and to whom')
    .option('--interval <duration>', 'time between two tables', '1s')
    .option('--count <n>', 'write so many tables and end (default: live, with keys to sort, filter and scroll)')
    .action(async (options: TopFlags) => {
      const { runTop, readTopFlags } = await import('./commands/top.js')
      await runTop(readTopFlags(options, terminal.env), terminal)
    })
  program
    .command('key')
    .description('one key of a bucket: its level, what a newcomer waits, its latest requests; or find keys by a text')
    .argument('<name|text>', 'the bucket; without a key: a part of keys, or the hash of one from the log')
    .argument('[key...]', 'the key; of a bucket with a combined key its parts, in the order of the file')
    .option('--admin <url>', 'where the admin server is', 'http://127.0.0.1:9090')
    .option('--json', 'write the answer as JSON')
    .action(async (nameOrText: string, parts: string[], options: KeyFlags) =>
      (await import('./commands/key.js')).runKey([nameOrText, ...parts], options, terminal),
    )
  program
    .command('deliveries')
    .description(
      'stored requests of routes with "deliver": list them, show one, send a dead letter again, or delete one',
    )
    .addArgument(new Argument('[verb]', 'what to do').choices(DELIVERY_VERBS).default('list'))
    .argument('[id]', 'the delivery')
    .addOption(new Option('--state <state>', 'list only these').choices(DELIVERY_STATES))
    .option('--admin <url>', 'where the admin server is', 'http://127.0.0.1:9090')
    .option('--json', 'write the answer as JSON')
    .action(async (verb: DeliveryVerb, id: string | undefined, options: DeliveriesFlags) =>
      (await import('./commands/deliveries.js')).runDeliveries(verb, id, options, terminal),
    )
  program
    .command('restart')
    .description('start the program anew from disk; who waits goes on waiting in the same order')
    .option('--admin <url>', 'where the admin server is', 'http://127.0.0.1:9090')
    .action(async (options: { admin: string }) => (await import('./commands/restart.js')).runRestart(options, terminal))
  withReplay(program.command('replay'), terminal)
  program
    .command('completion')
    .description('print a script that completes commands and options in a shell')
    .addArgument(new Argument('<shell>', 'which one').choices(SHELLS))
    .action((shell: (typeof SHELLS)[number]) => void terminal.stdout.write(completion(shell, program)))
  for (const command of [program, ...program.commands]) {
    const [text, ...examples] = EXAMPLES[command.name() as keyof typeof EXAMPLES]
    command.addHelpText('after', `${text}\nExample:\n${examples.map(example => `  ${example}`).join('\n')}`)
  }
  for (const command of program.commands)
    command.exitOverride().configureOutput(program.configureOutput()).allowExcessArguments()
  // Commander's own message gives only the number of arguments.
  return program.hook('preAction', (_program, command) => {
    const { args, registeredArguments: known } = command
    if (args.length <= known.length || known.at(-1)?.variadic) return
    const extra = args.slice(known.length).map(arg => `'${arg}'`)
    command.error(`error: too many arguments for '${command.name()}': ${extra.join(', ')}`)
  })
}

const DELIVERY_STATES = ['waiting', 'done', 'dead', 'cancelled']
const DELIVERY_VERBS: readonly DeliveryVerb[] = ['list', 'show', 'retry', 'delete']
const START = 'shaper start --listen 0.0.0.0:8080 --upstream http://127.0.0.1:9000 --rate 5/s --capacity 10'
const TOKEN = '\nThe token of the admin server is taken from SHAPER_TOKEN.\n'

const EXAMPLES = {
  shaper: ['', START],
  restart: [TOKEN, 'shaper restart', 'shaper restart --admin unix:/run/shaper-admin.sock'],
  start: ['', START],
  check: ['', 'shaper check -c shaper.config.json', 'shaper check --quiet && systemctl reload shaper'],
  init: ['', 'shaper init --upstream http://127.0.0.1:9000'],
  import: ['', 'shaper import /etc/nginx/nginx.conf > shaper.config.json'],
  migrate: ['', 'shaper migrate -c shaper.config.json'],
  demo: ['', 'shaper demo'],
  top: [TOKEN, 'shaper top --admin http://127.0.0.1:9090'],
  deliveries: [TOKEN, 'shaper deliveries list --state dead', 'shaper deliveries retry Zk4u1mNq0c9dWc3yq3m5Ag'],
  key: [TOKEN, 'shaper key client 203.0.113.7', 'shaper key login 203.0.113.7 login', 'shaper key 203.0.113'],
  replay: [
    '',
    'shaper replay /var/log/nginx/access.log --rate 5/s --capacity 10',
    'shaper replay access.log* --target "reject<=0.1%,p99<=2s"',
  ],
  completion: [
    '',
    'eval "$(shaper completion bash)"      # in ~/.bashrc; in ~/.zshrc, after compinit, with zsh',
    'shaper completion fish > ~/.config/fish/completions/shaper.fish',
  ],
}

/** For an option that may be given again. */
function more(given: string, before: readonly string[] = []): readonly string[] {
  return [...before, given]
}

function withLimits(command: Command): Command {
  return command
    .option('-c, --config <file>', 'configuration (default: ./shaper.config.json)')
    .option('--listen <address>', 'where to listen: host:port, unix:PATH or systemd; again for another', more)
    .option('--upstream <url>', 'where to send requests; "echo:" is built in')
    .option('--rate <rate>', 'what leaves a bucket, e.g. 5/s or 6/30s')
    .option('--capacity <units>', "what a bucket holds (default: one second's worth)")
    .option('--mode <mode>', 'shape: queue and release evenly; meter: only reject')
    .option('--key <key>', 'what tells clients apart, e.g. ip or header:x-api-key')
    .option('--admin <address>', 'where to serve metrics, state and the dashboard')
    .option('--workers <n>', 'how many processes serve together, or auto: one for each core')
    .option('--egress', 'serve programs that call outside APIs: send requests where they say, if the file allows it')
    .option('--dry-run', 'decide and log, but hold and reject nothing')
}

function withReplay(command: Command, terminal: Terminal): Command {
  return command
    .description('what limits would have done to the requests of access logs')
    .argument('[log...]', `${Object.values(FORMATS).join(', ')}; also gzipped; - or none: standard input`)
    .option('-c, --config <file>', 'limits (default: ./shaper.config.json where there is no --rate)')
    .option('--rate <rate>', 'what leaves a bucket, e.g. 5/s or 6/30s')
    .option('--capacity <units>', "what a bucket holds (default: one second's worth)")
    .option('--burst <units>', 'what leaves without spacing after idling (default: one request)')
    .option('--key <key>', 'what tells clients apart (default: ip)')
    .option('--mode <mode>', 'shape: queue and release evenly; meter: only reject')
    .option('--sweep [grid]', 'try many, e.g. "rate=1/s..20/s,capacity=5..100" (default: about what is seen)')
    .option('--target <bounds>', 'find the smallest, e.g. "reject<=0.1%,p99<=2s"')
    .option(
      '--patience <time>',
      'if clients leave after it, e.g. 2s: what would be for nobody, and what giving up saves',
    )
    .option('--diff', 'compare: two configurations and then the logs, or two reports of --json')
    .option('--json', 'write the report as JSON')
    .option('--html <file>', 'write a page with plots')
    .option('--format <format>', `auto, ${FORMAT_LIST}`, 'auto')
    .option('--field <use=name>', 'where JSON or W3C has it, e.g. ip=remote_addr or time=ts; again for another', more)
    .option('--spread <rule>', 'times of whole seconds: even (spread in the second) or none', 'even')
    .option('--seed <n>', 'of the spreading', '1')
    .action(async (logs: string[], options: ReplayFlags) =>
      (await import('./commands/replay.js')).runReplay(logs, options, terminal),
    )
}

/** Writes an error as lines without a stack; returns the exit status. */
async function report(error: unknown, { stderr }: Terminal): Promise<number> {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
  if (error instanceof CommandError) {
    stderr.write(`shaper: ${error.message}\n`)
    return 1
  }
  const { ConfigError } = await import('../config/load.js')
  if (!(error instanceof ConfigError)) throw error
  for (const line of error.message.split('\n')) stderr.write(`shaper: ${line}\n`)
  return 2
}
