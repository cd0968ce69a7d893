// Installs the servers and the browser that the tests need. It prints each command first, and nothing when all are
// installed. On a terminal it asks first, except with CI=true. With SHAPER_NO_INSTALL=1 it only prints the command.
import { spawnSync } from 'node:child_process'
import { accessSync, constants, existsSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { createInterface } from 'node:readline/promises'

/** The folder of the system's own programs. It is not on everybody's PATH. */
const SYSTEM = versions('/usr', '', /^sbin$/)

/**
 * What the tests need, and its packages. A program is installed when all binaries of one of its variants are in one place.
 * `places` are folders to look in beside the PATH.
 */
const PROGRAMS = [
  {
    name: 'redis-server',
    variants: [['redis-server', 'redis-cli']],
    packages: { 'apt-get': 'redis-server', dnf: 'redis', brew: 'redis' },
  },
  {
    name: 'PostgreSQL',
    variants: [['initdb', 'postgres']],
    places: [
      ...versions('/usr/lib/postgresql', 'bin'),
      ...versions('/usr', 'bin', /^pgsql-/),
      ...['/opt/homebrew/opt', '/usr/local/opt'].flatMap(place => versions(place, 'bin', /^postgresql(@|$)/)),
    ],
    packages: { 'apt-get': 'postgresql', dnf: 'postgresql-server', brew: 'postgresql' },
  },
  {
    name: 'Chromium',
    variants: [
      ...[['chromium'], ['chromium-browser'], ['google-chrome'], ['google-chrome-stable']],
      ...[['Chromium'], ['Google Chrome']],
    ],
    places: versions('/Applications', 'Contents/MacOS', /^(Chromium|Google Chrome)\.app$/),
    packages: { 'apt-get': 'chromium', dnf: 'chromium', brew: 'google-chrome' },
  },
  {
    name: 'gunicorn',
    variants: [['gunicorn']],
    packages: { 'apt-get': 'gunicorn', dnf: 'python3-gunicorn', brew: 'gunicorn' },
  },
  {
    name: 'Apache',
    variants: [['apache2'], ['httpd']],
    places: SYSTEM,
    packages: { 'apt-get': 'apache2', dnf: 'httpd', brew: 'httpd' },
  },
  { name: 'PHP', variants: [['php']], packages: { 'apt-get': 'php-cli', dnf: 'php-cli', brew: 'php' } },
  { name: 'Python', variants: [['python3']], packages: { 'apt-get': 'python3', dnf: 'python3', brew: 'python' } },
  {
    name: 'promtool',
    variants: [['promtool']],
    packages: { 'apt-get': 'prometheus', dnf: 'golang-github-prometheus', brew: 'prometheus' },
  },
  {
    name: 'nginx',
    variants: [['nginx']],
    places: SYSTEM,
    packages: { 'apt-get': 'nginx-light', dnf: 'nginx', brew: 'nginx' },
  },
  { name: 'zsh', variants: [['zsh']], packages: { 'apt-get': 'zsh', dnf: 'zsh', brew: 'zsh' } },
  { name: 'fish', variants: [['fish']], packages: { 'apt-get': 'fish', dnf: 'fish', brew: 'fish' } },
  { name: 'tmux', variants: [['tmux']], packages: { 'apt-get': 'tmux', dnf: 'tmux', brew: 'tmux' } },
  {
    name: 'HAProxy',
    variants: [['haproxy']],
    places: SYSTEM,
    packages: { 'apt-get': 'haproxy', dnf: 'haproxy', brew: 'haproxy' },
  },
  { name: 'Caddy', variants: [['caddy']], packages: { 'apt-get': 'caddy', dnf: 'caddy', brew: 'caddy' } },
  {
    name: 'PgBouncer',
    variants: [['pgbouncer']],
    places: SYSTEM,
    packages: { 'apt-get': 'pgbouncer', dnf: 'pgbouncer', brew: 'pgbouncer' },
  },
  {
    // Its tests are skipped where it does not exist.
    name: 'systemd',
    variants: [['systemd-notify', 'systemd-socket-activate']],
    packages: { 'apt-get': 'systemd', dnf: 'systemd' },
  },
]

/** Package managers. The first that is installed is used. */
const MANAGERS = [
  { program: 'apt-get', prepare: ['update'], install: ['install', '-y', '--no-install-recommends'] },
  { program: 'dnf', install: ['install', '-y'] },
  { program: 'brew', install: ['install'] },
]

/** How long it waits for another package manager, and how long between two tries, in s. */
const LONGEST_WAIT = 600
const RETRY_AFTER = Number(process.env.SHAPER_RETRY_AFTER ?? 5)

/** Debian's packages start their services unless this script forbids it. */
const POLICY = process.env.SHAPER_POLICY_FILE ?? '/usr/sbin/policy-rc.d'

const manager = MANAGERS.find(({ program }) => find(program) !== undefined)
const missing = PROGRAMS.filter(each => !isThere(each) && (!manager || manager.program in each.packages))
if (missing.length > 0) {
  const names = listed(missing)
  if (manager === undefined) {
    stop(`the tests need ${names}: install ${missing.length === 1 ? 'it' : 'them'}, with the programs on the PATH`)
  }
  const { program, prepare, install } = manager
  const arguments_ = [...install, ...missing.map(({ packages }) => packages[program])]
  const isRoot = process.getuid?.() === 0
  const by = program === 'brew' || isRoot ? '' : 'sudo '
  const commands = [...(prepare === undefined ? [] : [prepare]), arguments_]
  const typed = commands.map(each => `${by}${program} ${each.join(' ')}`).join(' && ')
  const mayInstall = program === 'apt-get' && isRoot && process.env.SHAPER_NO_INSTALL !== '1'
  if (!mayInstall) stop(`the tests need ${names}; type: ${typed}`)
  process.stdout.write(`the tests need ${names}: ${typed}\n`)
  if (!(await isConfirmed())) stop('nothing was installed')
  withoutServices(() => {
    for (const each of commands) run(program, each, typed)
  })
  const still = missing.filter(each => !isThere(each))
  if (still.length > 0) stop(`${listed(still)} cannot be found after: ${typed}`)
}

/** a, b and c */
function listed(programs) {
  const names = programs.map(({ name }) => name)
  return [names.slice(0, -1).join(', '), names.at(-1)].filter(Boolean).join(' and ')
}

function isThere({ variants, places = [] }) {
  return [undefined, ...places].some(place =>
    variants.some(binaries => binaries.every(binary => find(binary, place) !== undefined)),
  )
}

/** Looks in one place, by default in those of the PATH. */
function find(binary, place = process.env.PATH ?? '') {
  return place
    .split(delimiter)
    .filter(Boolean)
    .map(folder => join(folder, binary))
    .find(isExecutable)
}

function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

function versions(folder, inner, pattern = /./) {
  // For tests of this script: only the PATH counts.
  if (process.env.SHAPER_PATH_ONLY !== undefined || !existsSync(folder)) return []
  return readdirSync(folder)
    .filter(name => pattern.test(name))
    .map(name => join(folder, name, inner))
}

/** Asks the user on a terminal; yes by default. */
async function isConfirmed() {
  if (!process.stdin.isTTY || process.env.CI) return true
  const terminal = createInterface({ input: process.stdin, output: process.stdout })
  const answer = await terminal.question('Install them now? [Y/n] ')
  terminal.close()
  return /^(y|yes)?$/i.test(answer.trim())
}

/** Waits while another package manager holds the lock. */
function run(program, arguments_, typed) {
  for (let waited = 0; ; waited += RETRY_AFTER) {
    const { status, error, stderr } = spawnSync(program, arguments_, {
      stdio: ['ignore', 'ignore', 'pipe'],
      encoding: 'utf8',
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    })
    if (status === 0) return
    const isLocked = /\block\b/i.test(stderr ?? '')
    if (!isLocked || waited >= LONGEST_WAIT) {
      process.stderr.write(stderr ?? '')
      throw new Error(`${program} failed (${error?.code ?? status}); type: ${typed}`)
    }
    if (waited === 0) process.stdout.write(`waiting for another package manager, ${LONGEST_WAIT} s at most\n`)
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_AFTER * 1_000)
  }
}

/** Packages installed by `install` do not start their services. Afterwards the policy of the machine is restored. */
function withoutServices(install) {
  const aside = `${POLICY}.before-setup`
  const had = existsSync(POLICY)
  if (had) renameSync(POLICY, aside)
  writeFileSync(POLICY, '#!/bin/sh\nexit 101\n', { mode: 0o755 })
  process.once('exit', () => {
    if (had) renameSync(aside, POLICY)
    else rmSync(POLICY, { force: true })
  })
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1))
  try {
    install()
  } catch (error) {
    stop(error.message)
  }
}

function stop(message) {
  process.stderr.write(`${message}\n`)
  process.exit(1)
}
