// @ts-check
/**
 * The servers of an upstream: nginx, gunicorn on a Unix socket, Apache prefork and Node, as they are installed. Each answers with its
 * name, keeps its address, and can be ended by any signal and started again.
 */
import { chmodSync, existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort, scratchDirectory, start } from './processes.js'

/** ms */
const PATIENCE = 30_000

const APACHE_MODULES = [
  '/usr/lib/apache2/modules',
  '/usr/lib64/httpd/modules',
  '/usr/local/opt/httpd/lib/httpd/modules',
]

/**
 * @typedef {object} Site
 * @property {string} directory
 * @property {string} address a port, or the path of a socket
 * @typedef {object} Kind
 * @property {string} program
 * @property {string} [family] it serves on a Unix socket
 * @property {(site: Site) => string[]} prepare writes its files, and returns its arguments
 */

/** By names that begin with different letters. @type {Record<string, Kind>} */
const KINDS = {
  nginx: {
    program: 'nginx',
    prepare: ({ directory, address }) => {
      const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
        name => `${name}_temp_path ${directory}/${name};`,
      )
      writeFileSync(
        join(directory, 'nginx.conf'),
        `daemon off; worker_processes 1; pid ${directory}/pid; error_log stderr crit;
events { worker_connections 1024; }
http { access_log off; keepalive_requests 1000000000; ${paths.join(' ')}
  server { listen 127.0.0.1:${address}; location / { return 200 "nginx\\n"; } } }
`,
      )
      return ['-p', directory, '-e', 'stderr', '-c', join(directory, 'nginx.conf')]
    },
  },
  gunicorn: {
    program: 'gunicorn',
    family: 'unix',
    prepare: ({ directory, address }) => {
      writeFileSync(
        join(directory, 'app.py'),
        `def app(environ, start_response):
    start_response('200 OK', [('Content-Length', '9')])
    return [b'gunicorn\\n']
`,
      )
      const workers = ['--workers', '1', '--threads', '16', '--keep-alive', '75', '--graceful-timeout', '5']
      return [...workers, '--bind', `unix:${address}`, '--chdir', directory, 'app:app']
    },
  },
  apache: {
    program: existsSync('/usr/sbin/apache2') ? 'apache2' : 'httpd',
    prepare: ({ directory, address }) => {
      const modules = APACHE_MODULES.find(path => existsSync(path)) ?? '/usr/libexec/apache2'
      for (const name of ['index.html', 'healthz']) writeFileSync(join(directory, name), 'apache\n')
      const lines = [
        ...['mpm_prefork', 'unixd', 'authz_core', 'dir'].flatMap(name => [
          `<IfModule !${name}_module>`,
          `LoadModule ${name}_module ${modules}/mod_${name}.so`,
          '</IfModule>',
        ]),
        `Listen 127.0.0.1:${address}`,
        'ServerName localhost',
        ...(process.getuid?.() === 0 ? ['User nobody', 'Group #65534'] : []),
        `DocumentRoot ${directory}`,
        'DirectoryIndex index.html',
        `PidFile ${directory}/pid`,
        'ErrorLog "|/bin/cat"',
        ...['StartServers 16', 'MinSpareServers 1', 'MaxSpareServers 16', 'ServerLimit 16', 'MaxRequestWorkers 16'],
        ...['KeepAlive On', 'KeepAliveTimeout 75', 'MaxKeepAliveRequests 0'],
      ]
      writeFileSync(join(directory, 'httpd.conf'), `${lines.join('\n')}\n`)
      return ['-d', directory, '-f', 'httpd.conf', '-D', 'FOREGROUND']
    },
  },
  http: {
    program: process.execPath,
    prepare: ({ address }) => [
      '-e',
      `require('node:http').createServer({ keepAliveTimeout: 75000 }, (req, res) => {
        req.resume()
        res.setHeader('Content-Length', 5)
        res.end('http\\n')
      }).listen(${address}, '127.0.0.1')`,
    ],
  },
}

export class FleetServer {
  /** @param {string} name @param {Kind} kind @param {Site} site */
  constructor(name, kind, site) {
    this.name = name
    this.url = kind.family === 'unix' ? `unix:${site.address}` : `http://127.0.0.1:${site.address}`
    this.port = kind.family === 'unix' ? undefined : Number(site.address)
    this.kind = kind
    this.args = kind.prepare(site)
    this.site = site
    /** @type {import('./processes.js').Program | undefined} */
    this.process = undefined
  }

  /** Starts it, and waits until it answers. */
  async start() {
    const { kind, site } = this
    // A group of its own: all its workers can be stopped.
    this.process = start(kind.program, this.args, { name: this.name, cwd: site.directory, group: true })
    for (const last = Date.now() + PATIENCE; !(await this.#answers()); await sleep(20)) {
      if (this.process.child.exitCode !== null || Date.now() > last) throw this.process.failure('does not answer')
    }
  }

  /** SIGTERM goes to it, as `kill` sends it. Others go to its workers, too. @param {NodeJS.Signals} signal */
  signal(signal) {
    const { pid } = /** @type {import('./processes.js').Program} */ (this.process)
    try {
      process.kill(signal === 'SIGTERM' ? pid : -pid, signal)
    } catch {
      // It has ended.
    }
  }

  async stop() {
    if (this.process === undefined) return
    this.signal('SIGCONT')
    this.signal('SIGKILL')
    await this.ended()
  }

  async ended() {
    const { child } = /** @type {import('./processes.js').Program} */ (this.process)
    while (child.exitCode === null && child.signalCode === null) await sleep(5)
  }

  /** @returns {Promise<boolean>} */
  #answers() {
    const { port, site } = this
    const to = port === undefined ? { socketPath: site.address } : { port, host: '127.0.0.1' }
    return new Promise(resolve => {
      get({ ...to, path: '/healthz', agent: false, timeout: 1_000 }, answer => {
        answer.resume().once('end', () => resolve(answer.statusCode === 200))
      })
        .once('timeout', () => resolve(false))
        .once('error', () => resolve(false))
    })
  }
}

/** The programs that it needs. */
export const FLEET_PROGRAMS = ['nginx', 'gunicorn', KINDS.apache.program]

/** @returns {Promise<FleetServer[]>} all four, started */
export async function startFleet() {
  const fleet = []
  for (const [name, kind] of Object.entries(KINDS)) {
    const directory = mkdtempSync(join(scratchDirectory(), `${name}-`))
    for (const path of [scratchDirectory(), directory]) chmodSync(path, 0o755)
    const address = kind.family === 'unix' ? join(directory, 'socket') : String(await freePort())
    fleet.push(new FleetServer(name, kind, { directory, address }))
  }
  await Promise.all(fleet.map(server => server.start()))
  return fleet
}
