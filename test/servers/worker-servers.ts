/** Servers that give one of few workers to each connection, or to each request: real ones, as they are installed. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { freePort } from './free-port.js'
import { until } from './redis.js'

export interface WorkerServer {
  readonly url: string
  /** What it has written. */
  output(): string
  stop(): Promise<void>
}

interface Command {
  readonly program: string
  readonly args: readonly string[]
  readonly env?: Record<string, string>
}

interface Kind {
  /** How to install it. */
  readonly install: string
  /** Writes what it serves into the directory. `/` takes `ms`, where it can wait; `/health` nothing. */
  prepare(directory: string, port: number, ms: number): Command
}

/** Node's own server would not do: it serves any number of connections at once. */
const KINDS = {
  'gunicorn, 4 sync workers': {
    install: 'apt-get install gunicorn (Debian), dnf install python3-gunicorn (Fedora), brew install gunicorn (macOS)',
    prepare(directory, port, ms) {
      writeFileSync(
        join(directory, 'app.py'),
        `import time
def app(environ, start_response):
    if environ['PATH_INFO'] != '/health':
        time.sleep(${ms / 1_000})
    start_response('200 OK', [('Content-Length', '3')])
    return [b'ok\\n']
`,
      )
      // A worker that is held for 3 s is killed.
      const args = ['--workers', '4', '--timeout', '3', '--bind', `127.0.0.1:${port}`, '--chdir', directory, 'app:app']
      return { program: 'gunicorn', args }
    },
  },
  'Apache prefork, 4 workers': {
    install: 'apt-get install apache2 (Debian), dnf install httpd (Fedora), brew install httpd (macOS)',
    prepare(directory, port) {
      for (const name of ['index.html', 'off', 'health']) writeFileSync(join(directory, name), 'ok\n')
      chmodSync(directory, 0o755)
      const lines = [
        ...['mpm_prefork', 'unixd', 'authz_core', 'dir'].flatMap(name => [
          `<IfModule !${name}_module>`,
          `LoadModule ${name}_module ${apacheModules()}/mod_${name}.so`,
          '</IfModule>',
        ]),
        `Listen 127.0.0.1:${port}`,
        'ServerName localhost',
        ...(process.getuid?.() === 0 ? ['User nobody', 'Group #65534'] : []),
        `DocumentRoot ${directory}`,
        'DirectoryIndex index.html',
        `PidFile ${directory}/pid`,
        'ErrorLog "|/bin/cat"',
        'StartServers 4',
        'MinSpareServers 1',
        'MaxSpareServers 4',
        'ServerLimit 4',
        'MaxRequestWorkers 4',
        'KeepAlive On',
        'KeepAliveTimeout 5',
      ]
      writeFileSync(join(directory, 'httpd.conf'), `${lines.join('\n')}\n`)
      const program = existsSync('/usr/sbin/apache2') ? '/usr/sbin/apache2' : 'httpd'
      return { program, args: ['-d', directory, '-f', 'httpd.conf', '-D', 'FOREGROUND'] }
    },
  },
  'PHP, 4 workers': {
    install: 'apt-get install php-cli (Debian), dnf install php-cli (Fedora), brew install php (macOS)',
    prepare(directory, port, ms) {
      const router = join(directory, 'router.php')
      writeFileSync(router, `<?php if ($_SERVER['REQUEST_URI'] !== '/health') usleep(${ms * 1_000}); echo "ok\\n";`)
      return { program: 'php', args: ['-S', `127.0.0.1:${port}`, router], env: { PHP_CLI_SERVER_WORKERS: '4' } }
    },
  },
  "Python's http.server, one at a time": {
    install: 'apt-get install python3 (Debian), dnf install python3 (Fedora), brew install python (macOS)',
    prepare(_directory, port, ms) {
      const code = `import time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.path != '/health':
            time.sleep(${ms / 1_000})
        self.send_response(200)
        self.send_header('Content-Length', '3')
        self.end_headers()
        self.wfile.write(b'ok\\n')
    def log_message(self, *args):
        pass
HTTPServer(('127.0.0.1', ${port}), Handler).serve_forever()
`
      return { program: 'python3', args: ['-c', code] }
    },
  },
} satisfies Record<string, Kind>

export type WorkerServerName = keyof typeof KINDS

function apacheModules(): string {
  const places = [
    '/usr/lib/apache2/modules',
    '/usr/lib64/httpd/modules',
    '/opt/homebrew/opt/httpd/lib/httpd/modules',
    '/usr/local/opt/httpd/lib/httpd/modules',
  ]
  return places.find(place => existsSync(place)) ?? '/usr/libexec/apache2'
}

const running = new Set<ChildProcess>()
process.on('exit', () => {
  for (const child of running) signalGroup(child, 'SIGKILL')
})

/** @param ms how long an answer takes, where the server can wait */
export async function startWorkerServer(name: WorkerServerName, ms: number): Promise<WorkerServer> {
  const kind: Kind = KINDS[name]
  const directory = mkdtempSync(join(tmpdir(), 'shaper-workers-'))
  const port = await freePort()
  const { program, args, env } = kind.prepare(directory, port, ms)
  // A group of its own: its workers end with it.
  const child = spawn(program, args, { cwd: directory, detached: true, env: { ...process.env, ...env } })
  running.add(child)
  let output = ''
  let failure: Error | undefined
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', chunk => {
      output += chunk
    })
  }
  child.once('error', error => {
    failure = error
  })
  const url = `http://127.0.0.1:${port}`
  await until(`${name} is ready`, async () => {
    if (failure !== undefined || child.exitCode !== null) return true
    return (await timeOf(`${url}/health`)) !== undefined
  })
  if (failure !== undefined) throw new Error(`${program} is needed: ${kind.install}`, { cause: failure })
  if (child.exitCode !== null) throw new Error(`${name} has ended:\n${output}`)
  return {
    url,
    output: () => output,
    async stop() {
      const ended = child.exitCode === null && child.signalCode === null ? once(child, 'exit') : undefined
      signalGroup(child, 'SIGKILL')
      await ended
      running.delete(child)
      rmSync(directory, { recursive: true, force: true })
    },
  }
}

function signalGroup({ pid }: ChildProcess, signal: NodeJS.Signals): void {
  if (pid === undefined) return
  try {
    process.kill(-pid, signal)
  } catch {
    // It has ended.
  }
}

/** How long an answer takes on a connection of its own, in ms. Undefined: there is none. */
export function timeOf(url: string): Promise<number | undefined> {
  const begin = performance.now()
  return new Promise(resolve => {
    get(url, { agent: false }, response => {
      response.resume().once('end', () => resolve(performance.now() - begin))
    }).once('error', () => resolve(undefined))
  })
}
