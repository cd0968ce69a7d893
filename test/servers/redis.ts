/** Redis servers for tests: each on a free port, in its own directory, and stopped after the test. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { endWithThisProcess } from './end-with-this-process.js'
import { freePort } from './free-port.js'

/** ms. On a busy machine a process that is started may take half of it. */
const PATIENCE = 60_000

const SLOTS = 16_384

const INSTALL = 'apt-get install redis-server (Debian), dnf install redis (Fedora), brew install redis (macOS)'

/** Polls until `check` succeeds. */
export async function until(what: string, check: () => Promise<boolean> | boolean, patience = PATIENCE): Promise<void> {
  const last = performance.now() + patience
  for (;;) {
    if (await Promise.resolve(check()).catch(() => false)) return
    if (performance.now() > last) throw new Error(`not within ${patience} ms: ${what}`)
    await sleep(10)
  }
}

export class RedisServer {
  readonly port: number
  args: readonly string[]
  readonly #directory = mkdtempSync(resolve(tmpdir(), 'shaper-redis-'))
  #child: ChildProcess | undefined
  #output = ''

  constructor(port: number, args: readonly string[]) {
    this.port = port
    this.args = args
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`
  }

  get pid(): number {
    return this.#child!.pid!
  }

  file(name: string, text: string): string {
    const path = resolve(this.#directory, name)
    writeFileSync(path, text)
    return path
  }

  async start(): Promise<void> {
    const own = ['--port', `${this.port}`, '--bind', '127.0.0.1', '--dir', this.#directory, '--daemonize', 'no']
    const child = spawn('redis-server', [...this.args, ...own], { stdio: ['ignore', 'pipe', 'pipe'] })
    this.#child = child
    endWithThisProcess(child)
    child.stdout.on('data', chunk => {
      this.#output = (this.#output + chunk).slice(-2_000)
    })
    let failure: Error | undefined
    child.once('error', error => {
      failure = error
    })
    await until('redis-server is ready', async () => {
      if (failure !== undefined || child.exitCode !== null) return true
      return /^PONG|^NOAUTH/.test(await this.command('PING').then(String, (error: Error) => error.message))
    })
    if (failure !== undefined) throw new Error(`redis-server is needed: ${INSTALL}`, { cause: failure })
    if (child.exitCode !== null) throw new Error(`redis-server has ended:\n${this.#output}`)
  }

  /** Sends one command, on a connection of its own. */
  async command(name: string, ...args: (string | number)[]): Promise<unknown> {
    const redis = new Redis({
      ...{ host: '127.0.0.1', port: this.port, protocol: 2, lazyConnect: true, retryStrategy: () => null },
      ...{ enableReadyCheck: false, disableClientInfo: true },
    })
    redis.on('error', () => {})
    // Outside of the try: to disconnect after a refused connection holds the process for 2 s.
    await redis.connect()
    try {
      return await redis.call(name, args)
    } finally {
      redis.disconnect()
    }
  }

  signal(name: 'SIGSTOP' | 'SIGCONT'): void {
    this.#child!.kill(name)
  }

  async kill(): Promise<void> {
    const child = this.#child
    if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, 'exit')
    child.kill('SIGKILL')
    await ended
  }

  async stop(): Promise<void> {
    await this.kill()
    rmSync(this.#directory, { recursive: true, force: true })
  }
}

const PLAIN = ['--save', '', '--appendonly', 'no']

/** @param args e.g. `--requirepass`, `secret` */
export async function startRedis(args: readonly string[] = []): Promise<RedisServer> {
  for (let attempt = 1; ; attempt += 1) {
    const server = new RedisServer(await freePort(), [...PLAIN, ...args])
    try {
      await server.start()
      return server
    } catch (error) {
      await server.stop()
      // Another test has taken the port meanwhile.
      if (attempt === 3 || !/in use/.test(String(error))) throw error
    }
  }
}

/** Starts a Sentinel that knows the master `mymaster` on a port. */
export async function startSentinel(masterPort: number): Promise<RedisServer> {
  const server = new RedisServer(await freePort(), [])
  const lines = [
    `sentinel monitor mymaster 127.0.0.1 ${masterPort} 1`,
    'sentinel down-after-milliseconds mymaster 300',
    'sentinel failover-timeout mymaster 2000',
  ]
  server.args = [server.file('sentinel.conf', `${lines.join('\n')}\n`), '--sentinel']
  await server.start()
  return server
}

export interface RedisCluster {
  readonly masters: readonly RedisServer[]
  readonly replicas: readonly RedisServer[]
  readonly urls: readonly string[]
  stop(): Promise<void>
}

/** Three masters, each with a third of the slots, and replicas of the first. */
export async function startCluster({ replicas = 0 } = {}): Promise<RedisCluster> {
  const args = ['--cluster-enabled', 'yes', '--cluster-node-timeout', '500', '--cluster-replica-validity-factor', '0']
  const servers = await Promise.all(Array.from({ length: 3 + replicas }, () => startRedis(args)))
  const stop = async () => void (await Promise.all(servers.map(server => server.stop())))
  try {
    await join(servers)
  } catch (error) {
    await stop()
    throw error
  }
  const masters = servers.slice(0, 3)
  return { masters, replicas: servers.slice(3), urls: masters.map(({ url }) => url), stop }
}

async function join(servers: readonly RedisServer[]): Promise<void> {
  const [first, ...others] = servers as readonly [RedisServer, ...RedisServer[]]
  const third = Math.ceil(SLOTS / 3)
  for (const [at, master] of servers.slice(0, 3).entries()) {
    await master.command('CLUSTER', 'SET-CONFIG-EPOCH', at + 1)
    await master.command('CLUSTER', 'ADDSLOTSRANGE', at * third, Math.min((at + 1) * third, SLOTS) - 1)
  }
  for (const { port } of others) await first.command('CLUSTER', 'MEET', '127.0.0.1', port)
  const id = String(await first.command('CLUSTER', 'MYID'))
  for (const replica of servers.slice(3)) {
    await until('a replica knows its master', async () =>
      String(await replica.command('CLUSTER', 'NODES')).includes(`${id} 127.0.0.1`),
    )
    await replica.command('CLUSTER', 'REPLICATE', id)
    await until('a replica follows', async () =>
      String(await replica.command('INFO', 'replication')).includes('master_link_status:up'),
    )
  }
  const complete = `cluster_known_nodes:${servers.length}\r`
  await until('the cluster is complete', async () => {
    const states = await Promise.all(servers.map(server => server.command('CLUSTER', 'INFO')))
    return states.every(state => String(state).includes('cluster_state:ok') && String(state).includes(complete))
  })
}
