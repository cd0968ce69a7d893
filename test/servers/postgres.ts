/** A PostgreSQL for a test, on a free port, in a directory that is deleted, without sync. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { endWithThisProcess } from './end-with-this-process.js'
import { freePort, isListening } from './free-port.js'
import { until } from './redis.js'

const INSTALL =
  'install PostgreSQL, e.g. apt-get install postgresql, dnf install postgresql-server, brew install postgresql'

/** How long the server may take to start, in ms. */
const PATIENCE = 20_000

export interface PostgresServer {
  readonly url: string
  readonly port: number
  /** The directory of its data and configuration. */
  readonly data: string
  /** Runs one statement on a connection of its own. */
  query<Row extends pg.QueryResultRow>(sql: string, values?: unknown[]): Promise<Row[]>
  /** Ends it like a crash. */
  kill(): Promise<void>
  /** Starts it again after `kill`. */
  start(): Promise<void>
  /** Stops all its processes, and continues them. */
  pause(): void
  resume(): void
  close(): Promise<void>
}

/** Places of its binaries: the PATH, then the folders of packages, the newest first. */
function directories(): string[] {
  const dirs = (process.env.PATH ?? '').split(':')
  for (const root of ['/usr/lib/postgresql', '/usr/local/opt', '/opt/homebrew/opt']) {
    if (!existsSync(root)) continue
    const versions = readdirSync(root).sort((a, b) => b.localeCompare(a, undefined, { numeric: true }))
    for (const version of versions) dirs.push(join(root, version, 'bin'))
  }
  return [...dirs, '/usr/pgsql/bin']
}

function binary(name: string): string {
  const found = directories().find(dir => existsSync(join(dir, name)))
  if (found === undefined) throw new Error(`${name} is missing: ${INSTALL}`)
  return join(found, name)
}

/** PostgreSQL refuses to run as root. */
function identity(): { uid?: number; gid?: number } {
  if (process.getuid?.() !== 0) return {}
  for (const user of ['postgres', 'nobody']) {
    try {
      const id = (flag: string): number =>
        Number(execFileSync('id', [flag, user], { stdio: ['ignore', 'pipe', 'ignore'] }))
      return { uid: id('-u'), gid: id('-g') }
    } catch {}
  }
  throw new Error('PostgreSQL does not run as root, and there is no user postgres or nobody')
}

export async function startPostgres(): Promise<PostgresServer> {
  const who = identity()
  const directory = mkdtempSync(join(tmpdir(), 'shaper-postgres-'))
  if (who.uid !== undefined) chownSync(directory, who.uid, who.gid!)
  const data = join(directory, 'data')
  const port = await freePort()
  const url = `postgres://shaper@127.0.0.1:${port}/postgres`
  execFileSync(binary('initdb'), ['-D', data, '-U', 'shaper', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync'], {
    ...who,
    cwd: directory,
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let server: ChildProcess | undefined
  let log = ''

  /** Its processes, the postmaster first. */
  function processes(): number[] {
    const pid = server!.pid!
    const children = execFileSync('pgrep', ['-P', `${pid}`], { encoding: 'utf8' })
    return [pid, ...children.trim().split('\n').map(Number)]
  }

  function signal(name: NodeJS.Signals): void {
    for (const pid of processes()) {
      try {
        process.kill(pid, name)
      } catch {}
    }
  }

  async function query<Row extends pg.QueryResultRow>(sql: string, values: unknown[] = []): Promise<Row[]> {
    const client = new pg.Client({ connectionString: url })
    client.on('error', () => {})
    await client.connect()
    try {
      return (await client.query<Row>(sql, values)).rows
    } finally {
      await client.end()
    }
  }

  async function start(): Promise<void> {
    const args = ['-D', data, '-p', `${port}`, '-h', '127.0.0.1', '-k', directory, '-F', '-c', 'autovacuum_naptime=1']
    const child = spawn(binary('postgres'), args, { ...who, cwd: directory, stdio: ['ignore', 'ignore', 'pipe'] })
    server = child
    child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      log = `${log}${text}`.slice(-10_000)
    })
    const deadline = Date.now() + PATIENCE
    for (;;) {
      try {
        await query('SELECT 1')
        return
      } catch (error) {
        if (child.exitCode !== null || Date.now() > deadline) {
          throw new Error(`PostgreSQL does not start: ${error}\n${log}`)
        }
        await sleep(20)
      }
    }
  }

  async function kill(): Promise<void> {
    const child = server
    if (child === undefined || child.exitCode !== null) return
    const gone = new Promise(resolve => child.once('exit', resolve))
    signal('SIGCONT')
    // Its children end with it. SIGKILL would leave them behind.
    child.kill('SIGQUIT')
    await gone
  }

  const atExit = (): void => {
    server?.kill('SIGQUIT')
    rmSync(directory, { recursive: true, force: true })
  }
  process.once('exit', atExit)

  async function close(): Promise<void> {
    await kill()
    process.off('exit', atExit)
    rmSync(directory, { recursive: true, force: true, maxRetries: 5 })
  }

  try {
    await start()
  } catch (error) {
    await close()
    throw error
  }
  return {
    url,
    port,
    data,
    query,
    kill,
    start,
    pause: () => signal('SIGSTOP'),
    resume: () => signal('SIGCONT'),
    close,
  }
}

/** A table with a time in ms, 0 at first, and how to set it. */
export async function createTime({ url }: PostgresServer, name: string) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query(`CREATE TABLE ${name} (ms float8)`)
  await client.query(`INSERT INTO ${name} VALUES (0)`)
  return {
    sql: `(SELECT ms FROM ${name})`,
    set: (ms: number) => client.query({ name: 'set', text: `UPDATE ${name} SET ms = $1`, values: [ms] }),
    close: () => client.end(),
  }
}

/** A PgBouncer in front of a PostgreSQL, until the test ends. @returns its URL */
export async function startPgBouncer(
  t: { teardown(run: () => unknown): void },
  { port: server }: PostgresServer,
  mode: 'session' | 'transaction',
): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), 'shaper-pgbouncer-'))
  const port = await freePort()
  const file = join(directory, 'pgbouncer.ini')
  writeFileSync(join(directory, 'users'), '"shaper" ""\n')
  writeFileSync(
    file,
    `[databases]
* = host=127.0.0.1 port=${server} user=shaper
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = trust
auth_file = ${join(directory, 'users')}
pool_mode = ${mode}
`,
  )
  const { uid, gid } = identity()
  if (uid !== undefined) for (const each of ['', 'users', 'pgbouncer.ini']) chownSync(join(directory, each), uid, gid!)
  const program = existsSync('/usr/sbin/pgbouncer') ? '/usr/sbin/pgbouncer' : 'pgbouncer'
  const child = spawn(program, [file], { ...identity(), cwd: directory, stdio: 'ignore' })
  const failed = new Promise<never>((_, reject) =>
    child.once('error', cause => reject(new Error('PgBouncer is needed: apt-get install pgbouncer', { cause }))),
  )
  endWithThisProcess(child)
  t.teardown(() => {
    child.kill('SIGKILL')
    rmSync(directory, { recursive: true, force: true })
  })
  await Promise.race([failed, until('PgBouncer listens', () => isListening(port))])
  return `postgres://shaper@127.0.0.1:${port}/postgres`
}
