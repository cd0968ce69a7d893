/** The proxies that ask a gate, with their configurations of deploy/gate. Each runs on free ports, and is stopped after the test. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { endWithThisProcess } from './end-with-this-process.js'
import { freePort, isListening } from './free-port.js'
import { until } from './redis.js'

const DEPLOY = new URL('../../deploy/gate/', import.meta.url)

/** The ports in the files of deploy/gate. */
const PORTS = { proxy: 8000, shaper: 8080, application: 9000 }

interface Program {
  readonly file: string
  readonly install: string
  /** The files that the first one names. */
  readonly beside?: readonly string[]
  /** What a test changes in the file, so that nobody needs the folders of the system. */
  change?(text: string, folder: string): string
  args(file: string, folder: string): string[]
}

const PROGRAMS = {
  nginx: {
    file: 'nginx.conf',
    install: 'apt-get install nginx-light (Debian), dnf install nginx (Fedora), brew install nginx (macOS)',
    change: (text, folder) =>
      text.replace(
        'http {',
        `http { access_log off; ${['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(each => `${each}_temp_path ${folder}/${each};`).join(' ')}`,
      ),
    args: (file, folder) => {
      // Else its workers may not use the folder of this test.
      const user = process.getuid?.() === 0 ? 'user root;' : ''
      return ['-p', folder, '-c', file, '-e', 'stderr', '-g', `daemon off; pid ${folder}/nginx.pid; ${user}`]
    },
  },
  haproxy: {
    file: 'haproxy.cfg',
    install: 'apt-get install haproxy (Debian), dnf install haproxy (Fedora), brew install haproxy (macOS)',
    beside: ['shaper-gate.lua'],
    args: file => ['-db', '-f', file],
  },
  caddy: {
    file: 'Caddyfile',
    install: 'apt-get install caddy (Debian), dnf install caddy (Fedora), brew install caddy (macOS)',
    args: file => ['run', '--config', file, '--adapter', 'caddyfile'],
  },
} as const satisfies Record<string, Program>

export type ProxyName = keyof typeof PROGRAMS

export interface GateProxy {
  readonly port: number
  readonly output: string
}

interface Teardown {
  teardown(run: () => unknown): void
}

/** The text of a file of deploy/gate. */
export function deployed(file: string): string {
  return readFileSync(new URL(file, DEPLOY), 'utf8')
}

/**
 * Starts the real server with its file. Only the ports differ.
 *
 * @param edit changes the text further
 */
export async function startGateProxy(
  t: Teardown,
  name: ProxyName,
  to: { readonly shaper: number; readonly application: number },
  edit = (text: string) => text,
): Promise<GateProxy> {
  const { file, install, args, change, beside = [] }: Program = PROGRAMS[name]
  const folder = mkdtempSync(join(tmpdir(), `shaper-${name}-`))
  const port = await freePort()
  const ports = { proxy: port, ...to }
  const put = (each: string, text: string): string => {
    const path = join(folder, each)
    writeFileSync(path, text)
    return path
  }
  const placed = (text: string): string =>
    text.replace(/(127\.0\.0\.1|\/\/):(\d+)\b/g, (whole, host, found) => {
      const [what] = Object.entries(PORTS).find(([, each]) => each === Number(found)) ?? []
      return what === undefined ? whole : `${host}:${ports[what as keyof typeof PORTS]}`
    })
  for (const each of beside) put(each, edit(placed(deployed(each))))
  const text = edit(placed(deployed(file)))
  const path = put(file, change?.(text, folder) ?? text)
  return startServer(t, { name, install, args: args(path, folder), folder, port })
}

/** nginx with a file of a test. @param http what stands in `http { }` */
export function startNginx(t: Teardown, port: number, http: string): Promise<GateProxy> {
  return startWith(t, 'nginx', port, `events {}\nerror_log stderr warn;\nhttp {\n${http}\n}\n`)
}

/** HAProxy with a file of a test. */
export function startHaproxy(t: Teardown, port: number, text: string): Promise<GateProxy> {
  return startWith(t, 'haproxy', port, text)
}

function startWith(t: Teardown, name: ProxyName, port: number, text: string): Promise<GateProxy> {
  const { file, install, args, change }: Program = PROGRAMS[name]
  const folder = mkdtempSync(join(tmpdir(), `shaper-${name}-`))
  const path = join(folder, file)
  writeFileSync(path, change?.(text, folder) ?? text)
  return startServer(t, { name, install, args: args(path, folder), folder, port })
}

interface ServerStart {
  readonly name: ProxyName
  readonly install: string
  readonly args: string[]
  /** It is removed after the test. */
  readonly folder: string
  readonly port: number
}

async function startServer(t: Teardown, { name, install, args, folder, port }: ServerStart): Promise<GateProxy> {
  const proxy = { port, output: '' }
  const env = { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder }
  const child = spawn(name, args, { cwd: folder, env, stdio: ['pipe', 'pipe', 'pipe'] })
  endWithThisProcess(child)
  t.teardown(async () => {
    await end(child)
    rmSync(folder, { recursive: true, force: true })
  })
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', chunk => {
      proxy.output = (proxy.output + chunk).slice(-4_000)
    })
  }
  let failure: Error | undefined
  child.once('error', error => {
    failure = error
  })
  await until(
    `${name} is ready`,
    async () => failure !== undefined || child.exitCode !== null || (await isListening(port)),
  )
  if (failure !== undefined) throw new Error(`${name} is needed: ${install}`, { cause: failure })
  if (child.exitCode !== null) throw new Error(`${name} has ended:\n${proxy.output}`)
  return proxy
}

async function end(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
  const ended = once(child, 'exit')
  child.kill('SIGTERM')
  const killer = setTimeout(() => child.kill('SIGKILL'), 2_000)
  await ended
  clearTimeout(killer)
}
