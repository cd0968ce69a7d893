/** The script that sees to the servers and the browser, with a PATH on which nothing is but what a test puts there. */
import { spawnSync } from 'node:child_process'
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { ROOT } from './cli/command.js'
import { openTerminal } from './servers/tmux.js'

/** After Chromium, which some tests leave out. */
const MORE = [
  'gunicorn',
  'apache2',
  'php',
  'python3',
  'promtool',
  'nginx',
  'zsh',
  'fish',
  'tmux',
  'haproxy',
  'caddy',
  'pgbouncer',
  'systemd-notify',
  'systemd-socket-activate',
]
const BINARIES = ['redis-server', 'redis-cli', 'initdb', 'postgres', 'chromium', ...MORE]
const ALL =
  'redis-server, PostgreSQL, Chromium, gunicorn, Apache, PHP, Python, promtool, nginx, zsh, fish, tmux, HAProxy, Caddy, PgBouncer and systemd'
const isRoot = process.getuid?.() === 0

/** A folder with these programs in it, each a script of the shell. */
function folder(t: { testdir(): string }, programs: Record<string, string>): string {
  const path = t.testdir()
  for (const [name, script] of Object.entries(programs)) {
    writeFileSync(join(path, name), `#!/bin/sh\n${script}\n`)
    chmodSync(join(path, name), 0o755)
  }
  return path
}

function setup(path: string, env: Record<string, string> = {}) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [`${ROOT}/scripts/setup.js`], {
    encoding: 'utf8',
    env: { PATH: path, SHAPER_PATH_ONLY: '1', SHAPER_POLICY_FILE: join(path, 'policy-rc.d'), ...env },
  })
  return { status, stdout, stderr }
}

/** Notes how it was called and, where it installs, whether services may start; then does `more`. */
const aptGet = (more: string) => `
folder=\${0%/*}
echo "$DEBIAN_FRONTEND $*" >> "$folder/calls"
if [ "$1" = install ]; then
  "$folder/policy-rc.d"
  echo "policy: $?" >> "$folder/calls"
  ${more}
fi`
const creating = BINARIES.map(name => `: > "$folder/${name}"; /bin/chmod 755 "$folder/${name}"`).join('; ')

t.test('silent when all is there', async t => {
  const path = folder(t, Object.fromEntries(BINARIES.map(name => [name, ''])))
  t.same(setup(path), { status: 0, stdout: '', stderr: '' })
})

t.test('any browser of the family will do', async t => {
  for (const browser of ['chromium-browser', 'google-chrome', 'google-chrome-stable']) {
    const programs = [...BINARIES.filter(name => name !== 'chromium'), browser]
    const path = folder(t, Object.fromEntries(programs.map(name => [name, ''])))
    t.same(setup(path), { status: 0, stdout: '', stderr: '' }, browser)
  }
  const { status, stderr } = setup(
    folder(t, Object.fromEntries(BINARIES.filter(name => name !== 'chromium').map(name => [name, '']))),
  )
  t.equal(status, 1)
  t.equal(stderr, 'the tests need Chromium: install it, with the programs on the PATH\n')
})

t.test('the command to type is told, for what is missing only', async t => {
  const told = (programs: Record<string, string>) => {
    const { status, stderr, stdout } = setup(folder(t, programs))
    t.equal(status, 1)
    t.equal(stdout, '')
    return stderr
  }
  t.equal(told({}), `the tests need ${ALL}: install them, with the programs on the PATH\n`)
  const sudo = isRoot ? '' : 'sudo '
  t.equal(
    told({ dnf: 'exit 9' }),
    `the tests need ${ALL}; type: ${sudo}dnf install -y redis postgresql-server chromium python3-gunicorn httpd php-cli python3 golang-github-prometheus nginx zsh fish tmux haproxy caddy pgbouncer systemd\n`,
  )
})

t.test('with brew only what is missing', async t => {
  const there = ['redis-server', 'redis-cli', ...MORE.filter(name => !name.startsWith('systemd')), 'httpd']
  const { status, stderr } = setup(folder(t, { ...Object.fromEntries(there.map(name => [name, ''])), brew: 'exit 9' }))
  t.equal(status, 1)
  t.equal(stderr, 'the tests need PostgreSQL and Chromium; type: brew install postgresql google-chrome\n')
})

t.test('on Debian: root has it installed, and no service starts; others are told', async t => {
  const path = folder(t, { 'apt-get': aptGet(creating), 'policy-rc.d': 'exit 7' })
  const { status, stdout, stderr } = setup(path)
  const command =
    'apt-get install -y --no-install-recommends redis-server postgresql chromium gunicorn apache2 php-cli python3 prometheus nginx-light zsh fish tmux haproxy caddy pgbouncer systemd'
  if (!isRoot) {
    t.equal(status, 1)
    t.equal(stderr, `the tests need ${ALL}; type: sudo apt-get update && sudo ${command}\n`)
    t.notOk(existsSync(join(path, 'calls')))
    return
  }
  t.equal(stderr, '')
  t.equal(status, 0)
  t.equal(stdout, `the tests need ${ALL}: apt-get update && ${command}\n`)
  t.equal(
    readFileSync(join(path, 'calls'), 'utf8'),
    `noninteractive update\nnoninteractive ${command.slice('apt-get '.length)}\npolicy: 101\n`,
  )
  t.match(readFileSync(join(path, 'policy-rc.d'), 'utf8'), /exit 7/, "the machine's own policy is back")
  t.same(setup(path), { status: 0, stdout: '', stderr: '' }, 'the second time all is there')
})

t.test('SHAPER_NO_INSTALL=1: nothing is installed', async t => {
  const path = folder(t, { 'apt-get': aptGet(creating) })
  const { status, stdout, stderr } = setup(path, { SHAPER_NO_INSTALL: '1' })
  t.equal(status, 1)
  t.equal(stdout, '')
  t.match(stderr, new RegExp(`^the tests need ${ALL}; type: .*apt-get update && .*apt-get install -y `))
  t.notOk(existsSync(join(path, 'calls')))
})

t.test('an installation that fails, or installs something else, is told; nothing of ours stays', async t => {
  if (!isRoot) return
  const failing = folder(t, { 'apt-get': aptGet('exit 100') })
  const failed = setup(failing)
  t.equal(failed.status, 1)
  t.match(failed.stderr, /^apt-get failed \(100\); type: apt-get update && apt-get install .*\n$/)
  t.notOk(existsSync(join(failing, 'policy-rc.d')))
})

t.test('an installation without the programs', async t => {
  if (!isRoot) return
  const { status, stderr } = setup(folder(t, { 'apt-get': aptGet(':') }))
  t.equal(status, 1)
  t.ok(stderr.startsWith(`${ALL} cannot be found after: apt-get update && `), stderr)
})

t.test('another package manager at work is waited for', async t => {
  if (!isRoot) return
  const locked = `
  if [ ! -e "$folder/second" ]; then
    : > "$folder/second"
    echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)' >&2
    exit 100
  fi
  ${creating}`
  const path = folder(t, { 'apt-get': aptGet(locked) })
  const { status, stdout, stderr } = setup(path, { SHAPER_RETRY_AFTER: '0.01' })
  t.equal(stderr, '')
  t.equal(status, 0)
  t.match(stdout, /\nwaiting for another package manager, 600 s at most\n$/)
})

t.test('on a terminal it asks first', async t => {
  if (!isRoot) return
  const answered = async (key: string, env: string[] = []) => {
    const path = folder(t, { 'apt-get': aptGet(creating) })
    const all = [`PATH=${path}`, 'SHAPER_PATH_ONLY=1', `SHAPER_POLICY_FILE=${path}/policy-rc.d`, ...env]
    const command = ['/usr/bin/env', '-u', 'CI', ...all, process.execPath, `${ROOT}/scripts/setup.js`]
    const terminal = await openTerminal(t, command, { columns: 200, rows: 20 })
    if (key !== '') {
      await terminal.shows(/Install them now\? \[Y\/n\]/)
      await terminal.press(key, 'Enter')
    }
    await terminal.shows(/\[status \d\]/)
    const screen = (await terminal.rows()).join('\n')
    return { status: /\[status (\d)\]/.exec(screen)?.[1], called: existsSync(join(path, 'calls')), screen }
  }
  t.match(await answered('n'), { status: '1', called: false, screen: /nothing was installed/ })
  t.match(await answered('y'), { status: '0', called: true })
  const ci = await answered('', ['CI=true'])
  t.match(ci, { status: '0', called: true })
  t.notMatch(ci.screen, /Install them now/)
})
