// @ts-check
/** The participants. Each function starts one, and resolves when it listens. */
import { chmodSync, existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { freePort, hasPackage, hasProgram, scratchDirectory, start, startOwn } from './processes.js'

/** @typedef {import('./processes.js').Program} Program */

const ROOT = fileURLToPath(new URL('../../', import.meta.url))

/** The command of the measured build. SHAPER_BIN names another one, to compare two builds. */
const BIN = process.env.SHAPER_BIN ?? join(ROOT, 'bin/shaper.js')

/** Folders of nginx. */
const TEMPORARY = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']

/** Its compiled files. */
export const DIST = join(dirname(BIN), '../dist')

export function checkBuilt() {
  if (!existsSync(join(DIST, 'cli/main.js'))) throw new Error(`${DIST} is missing: npm run build`)
}

/** A shaper that records what it sends (programs/probe.js). It takes `record` and `stop`. @param {object} config */
export function startProbedShaper(config) {
  const probe = new URL('./programs/probe.js', import.meta.url).href
  return startShaper(config, { nodeArgs: ['--import', probe], name: 'shaper, probed', ipc: true })
}

/**
 * @param {object} config @param {{ nodeArgs?: string[], args?: string[], name?: string, ipc?: boolean }} [options]
 * @returns {Promise<Program>}
 */
export async function startShaper(config, { nodeArgs = [], args = [], name = 'shaper', ipc = false } = {}) {
  const file = join(mkdtempSync(join(scratchDirectory(), 'shaper-')), 'shaper.config.json')
  // The peers do not log requests either.
  writeFileSync(file, JSON.stringify({ listen: '127.0.0.1:0', accessLog: false, ...config }))
  const program = start(process.execPath, [...profiling(), ...nodeArgs, BIN, 'start', '-c', file, ...args], {
    name,
    ipc,
  })
  const [, port] = await program.line(/listening on http:\/\/[^:]+:(\d+)/)
  program.port = Number(port)
  return program
}

/** With BENCH_PROFILE=DIR each shaper process writes a CPU profile there. */
function profiling() {
  const directory = process.env.BENCH_PROFILE
  return directory ? ['--cpu-prof', '--cpu-prof-dir', directory] : []
}

/** @param {number} [port] any free one */
export async function startSink(port = 0) {
  const sink = startOwn('sink.js', [String(port)])
  sink.port = await sink.message()
  return sink
}

/** A process that uses 20 % of a core while it is told to `spin`, and nothing after `rest`. */
export async function startBusy() {
  const busy = startOwn('busy.js')
  await busy.message()
  return busy
}

export async function startLoad() {
  const load = startOwn('load.js')
  await load.message()
  return load
}

/** @param {string} name @param {number} upstreamPort @param {object} [options] */
export async function startPeer(name, upstreamPort, options = {}) {
  const program = startOwn('peer.js', [name, String(upstreamPort), JSON.stringify(options)], { name })
  program.port = await program.message()
  return program
}

/**
 * @param {number} upstreamPort @param {{ http?: string, locations: string, accessLog?: boolean }} config
 */
export async function startNginx(upstreamPort, { http = '', locations, accessLog = false }) {
  const directory = mkdtempSync(join(scratchDirectory(), 'nginx-'))
  // Its workers may run as another user.
  for (const path of [scratchDirectory(), directory]) chmodSync(path, 0o755)
  const port = await freePort()
  const file = join(directory, 'nginx.conf')
  writeFileSync(
    file,
    `daemon off; worker_processes 1; pid ${directory}/pid; error_log stderr crit; worker_rlimit_nofile 20000;
events { worker_connections 19000; }
http {
  access_log ${accessLog ? `${directory}/access.log` : 'off'}; keepalive_requests 1000000000; keepalive_timeout 75s; tcp_nodelay on;
  ${TEMPORARY.map(name => `${name}_temp_path ${directory}/${name};`).join(' ')}
  upstream sink { server 127.0.0.1:${upstreamPort}; keepalive 256; keepalive_requests 1000000000; }
  proxy_http_version 1.1; proxy_set_header Connection "";
  ${http}
  server { listen 127.0.0.1:${port} backlog=4096; ${locations} }
}
`,
  )
  const program = start('nginx', ['-p', directory, '-e', 'stderr', '-c', file])
  program.port = port
  await program.listening()
  return program
}

/**
 * nginx with deploy/gate/nginx.conf.
 *
 * @param {{ shaper: number, application: number }} to ports
 * @param {(text: string) => string} [edit]
 */
export async function startDeployedNginx({ shaper, application }, edit = text => text) {
  const directory = mkdtempSync(join(scratchDirectory(), 'nginx-'))
  for (const path of [scratchDirectory(), directory]) chmodSync(path, 0o755)
  const port = await freePort()
  const file = join(directory, 'nginx.conf')
  const paths = TEMPORARY.map(name => `${name}_temp_path ${directory}/${name};`).join(' ')
  const text = readFileSync(join(ROOT, 'deploy/gate/nginx.conf'), 'utf8')
    .replace('127.0.0.1:8000', `127.0.0.1:${port}`)
    .replace('127.0.0.1:8080;', `127.0.0.1:${shaper};`)
    .replace('127.0.0.1:9000;', `127.0.0.1:${application};`)
    .replace('http {', `http { access_log off; ${paths}`)
  writeFileSync(file, edit(text))
  const global = `daemon off; pid ${directory}/pid; error_log stderr crit; worker_rlimit_nofile 20000;`
  const program = start('nginx', ['-p', directory, '-e', 'stderr', '-c', file, '-g', global])
  program.port = port
  await program.listening()
  return program
}

/** @param {number | readonly string[]} upstream its port, or the lines of its backend @param {string} [rules] lines of its frontend */
export async function startHaproxy(upstream, rules = '') {
  const port = await freePort()
  const file = join(mkdtempSync(join(scratchDirectory(), 'haproxy-')), 'haproxy.cfg')
  writeFileSync(
    file,
    `global
  maxconn 9000
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  http-reuse always
frontend in
  bind 127.0.0.1:${port}
  ${rules}
  default_backend sink
backend sink
  ${typeof upstream === 'number' ? `server sink 127.0.0.1:${upstream}` : upstream.join('\n  ')}
`,
  )
  const program = start('haproxy', ['-db', '-q', '-f', file])
  program.port = port
  await program.listening()
  return program
}

/**
 * @typedef {object} Candidate
 * @property {string} name
 * @property {string} [program] in the PATH
 * @property {string[]} [packages]
 * @property {() => Promise<Program>} start
 */

/** Starts the installed candidates, and adds the others to `missing`. @param {Candidate[]} candidates @param {Set<string>} missing */
export async function startAll(candidates, missing) {
  /** @type {Map<string, Program>} */
  const started = new Map()
  for (const { name, program, packages = [], start: begin } of candidates) {
    const lacks = [...(program && !hasProgram(program) ? [program] : []), ...packages.filter(it => !hasPackage(it))]
    for (const lack of lacks) missing.add(lack)
    if (lacks.length === 0) started.set(name, await begin())
  }
  return started
}
