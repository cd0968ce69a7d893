/** Sockets that systemd gives, and what it is told. A small launcher stands for systemd where the subject is what it gives. */
import { execFile, execFileSync, spawn } from 'node:child_process'
import { existsSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { takeGivenSockets } from '../../src/cli/serving/given-sockets.js'
import { makeCertificate } from '../servers/certificate.js'
import { endWithThisProcess } from '../servers/end-with-this-process.js'
import { freePort } from '../servers/free-port.js'
import { until } from '../servers/redis.js'
import { socketFolder } from '../servers/socket-folder.js'
import { type Command, shaper } from './command.js'

if (process.platform !== 'linux') {
  t.plan(0, 'systemd is on Linux only')
  process.exit()
}

const run = promisify(execFile)
const FLAGS = [[], ['--workers', '2']]

/** Opens `kind[:path][=name]` each, from file descriptor 3 on, and becomes the command. With AGAIN it stays, and starts it for each line. */
const LAUNCHER = `
import os, socket, subprocess, sys
names, opened = [], []
specs = sys.argv[1].split()
for spec in specs:
    what, _, name = spec.partition('=')
    kind, _, path = what.partition(':')
    local = kind in ('unix', 'unix-datagram')
    each = socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_DGRAM if 'datagram' in kind else socket.SOCK_STREAM)
    if kind == 'connection':
        each, other = socket.socketpair()
    else:
        if not local: each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(path if local else ('127.0.0.1', int(path or 0)))
        if 'datagram' not in kind: each.listen(64)
    names.append(name)
    opened.append(os.dup(each.fileno()))
high = [os.dup2(fd, 100 + at) for at, fd in enumerate(opened)]
os.closerange(3, 100)
fds = [os.dup2(fd, 3 + at) for at, fd in enumerate(high)]
os.closerange(100, 200)
for fd in fds: os.set_inheritable(fd, True)
os.environ['LISTEN_FDS'] = str(len(fds))
if any(names): os.environ['LISTEN_FDNAMES'] = ':'.join(names)
if 'AGAIN' in os.environ:
    while True:
        child = subprocess.Popen(['sh', '-c', 'LISTEN_PID=$$ exec "$0" "$@"', *sys.argv[2:]], pass_fds=fds)
        print(child.pid, flush=True)
        print('status', child.wait(), flush=True)
        if not sys.stdin.readline(): break
else:
    os.environ.setdefault('LISTEN_PID', str(os.getpid()))
    os.execvp(sys.argv[2], sys.argv[2:])
`

/** Writes a line for each datagram. */
const RECEIVER = `
import socket, sys
socket_ = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
socket_.bind(sys.argv[1].replace('@', chr(0)))
print('up', flush=True)
while True:
    print(repr(socket_.recv(4096).decode()), flush=True)
`

interface Options {
  readonly args?: readonly string[]
  readonly env?: Record<string, string>
}

const BUCKETS = { all: { key: 'all', rate: '1000/s', capacity: 100 } }

function fileOf(t: Test, config: object): string {
  return join(
    t.testdir({ 'shaper.config.json': JSON.stringify({ upstream: 'echo:', buckets: BUCKETS, ...config }) }),
    'shaper.config.json',
  )
}

/** @param sockets as the launcher reads them; undefined: it is started without systemd */
function start(t: Test, sockets: string | undefined, config: object, { args = [], env = {} }: Options = {}): Command {
  const by = sockets === undefined ? {} : { by: ['python3', '-c', LAUNCHER, sockets] }
  const command = shaper(['start', '-c', fileOf(t, config), ...args], { ...by, env })
  t.teardown(() => command.child.kill('SIGKILL'))
  return command
}

async function ends({ child, finished }: Command): Promise<number | null> {
  child.kill('SIGTERM')
  return (await finished).code
}

/** The status, and the client's address as the upstream gets it. */
async function ask(...args: string[]): Promise<string> {
  const { stdout } = await run('curl', ['-sk', '--max-time', '60', '-w', ' %{http_code}', ...args])
  return `${stdout.slice(-3)} ${/"x-forwarded-for":"([^"]*)"/.exec(stdout)?.[1] ?? ''}`.trim()
}

function workersOf(pid: number): number[] {
  const lines = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,args='], { encoding: 'utf8' }).split('\n')
  return lines
    .map(line => line.trim().split(/\s+/))
    .flatMap(([own, parent, program]) => (Number(parent) === pid && program?.includes('node') ? [Number(own)] : []))
}

t.test('listens on its sockets, TCP and Unix', async t => {
  for (const args of FLAGS) {
    const folder = socketFolder(t)
    const port = await freePort()
    const listen = ['systemd:web', { address: 'systemd:app' }, '127.0.0.1:0']
    const command = start(t, `unix:${folder}/app.sock=app tcp:${port}=web`, { listen }, { args })
    t.match(await command.ready, `shaper listening on http://127.0.0.1:${port}, systemd:app, http://127.0.0.1:`)
    t.equal(await ask(`http://127.0.0.1:${port}/`), '200 127.0.0.1', args.join(' '))
    t.equal(await ask('--unix-socket', `${folder}/app.sock`, 'http://a/'), '200 unix')
    for (const pid of workersOf(command.child.pid!)) t.notMatch(readFileSync(`/proc/${pid}/environ`, 'utf8'), 'LISTEN_')
    t.notMatch(command.stderr(), /no listener uses/)
    t.equal(await ends(command), 0)
    t.ok(existsSync(`${folder}/app.sock`), 'the socket is that of systemd')
  }
})

t.test('"systemd" takes those that no other listener names; TLS, PROXY protocol, the admin server', async t => {
  const [one, two, admin, unused] = [await freePort(), await freePort(), await freePort(), await freePort()]
  const tls = makeCertificate(socketFolder(t), 'DNS:localhost')
  const command = start(t, `tcp:${one} tcp:${two} tcp:${admin}=admin`, {
    listen: { address: 'systemd', tls, proxyProtocol: ['127.0.0.1'] },
    admin: { listen: { address: 'systemd:admin' }, token: 'a-token-for-the-tests' },
  })
  t.match(await command.ready, `shaper listening on https://127.0.0.1:${one}, https://127.0.0.1:${two} ->`)
  for (const port of [one, two]) {
    t.equal(await ask('--haproxy-protocol', `https://127.0.0.1:${port}/`), '200 127.0.0.1')
    await t.rejects(ask(`https://127.0.0.1:${port}/`), 'without a PROXY header')
  }
  t.match(await ask('-H', 'Authorization: Bearer a-token-for-the-tests', `http://127.0.0.1:${admin}/metrics`), '200')
  t.equal(await ask(`http://127.0.0.1:${admin}/metrics`), '401')
  t.equal(await ends(command), 0)

  const other = start(t, `tcp:${one}=web tcp:${unused}=old`, { listen: 'systemd:web' })
  await other.ready
  await until('it is said', () => other.stderr().includes('no listener uses'))
  const line = other
    .stderr()
    .split('\n')
    .find(each => each.includes('no listener uses'))!
  t.match(JSON.parse(line), { level: 40, socket: 'old', fd: 4 })
  t.equal(await ends(other), 0)
})

t.test('a socket that is missing or no listening stream socket is exit status 2', async t => {
  const folder = socketFolder(t)
  const cases: [sockets: string | undefined, config: object, message: string, env?: Record<string, string>][] = [
    [
      undefined,
      { listen: 'systemd' },
      'listen: systemd gives no socket for "systemd" (LISTEN_FDS is not set); start shaper by a .socket unit, or name an address',
    ],
    [
      'tcp=web tcp=api',
      { listen: ['127.0.0.1:0', 'systemd:wbe'] },
      'listen[1]: systemd gives no socket for "systemd:wbe", but "web" and "api"; name one of them, or set FileDescriptorName= in its unit',
    ],
    [
      'tcp=web',
      { listen: 'systemd' },
      'listen: systemd gives no socket for "systemd" (LISTEN_PID is "1" and this process ',
      { LISTEN_PID: '1' },
    ],
    [
      'datagram=web',
      { listen: 'systemd' },
      'listen: the socket "web" that systemd gives (file descriptor 3) is no stream socket; use a .socket unit with ListenStream= and Accept=no',
    ],
    [`unix-datagram:${folder}/d`, { listen: 'systemd' }, 'is no stream socket; use'],
    [
      'connection',
      { listen: 'systemd' },
      'listen: the socket "unknown" that systemd gives (file descriptor 3) does not listen; use',
    ],
    [
      `unix:${folder}/s`,
      { listen: { address: 'systemd', proxyProtocol: ['loopback'] } },
      'listen.proxyProtocol: peers on a Unix socket have no address; remove it, or listen on an address',
    ],
    [
      'tcp=admin tcp=admin',
      { listen: '127.0.0.1:0', admin: { listen: 'systemd:admin', token: 'a-token-for-the-tests' } },
      'admin.listen: systemd gives several sockets for "systemd:admin"; name one with FileDescriptorName=',
    ],
  ]
  for (const [sockets, config, message, env = {}] of cases) {
    const { code, stderr, stdout } = await start(t, sockets, config, { env }).finished
    t.equal(code, 2, message)
    t.match(stderr, message)
    t.equal(stdout, '')
  }
})

t.test('the variables are for one process, and are removed', async t => {
  const taken = (env: Record<string, string>) => takeGivenSockets({ LISTEN_PID: '7', ...env }, 7)
  t.same(taken({ LISTEN_FDS: '2', LISTEN_FDNAMES: 'web' }).sockets, [
    { fd: 3, name: 'web' },
    { fd: 4, name: 'unknown' },
  ])
  for (const count of ['x', '-1', '1e9', '']) {
    t.same(taken({ LISTEN_FDS: count }), {
      sockets: [],
      reason: `LISTEN_FDS is ${JSON.stringify(count)}, and no number`,
    })
  }
  const env = { LISTEN_FDS: '1', LISTEN_PID: '8', LISTEN_FDNAMES: 'a', OTHER: '1' }
  t.match(takeGivenSockets(env, 7).reason, 'LISTEN_PID is "8" and this process 7')
  t.same(env, { OTHER: '1' })
})

t.test('systemd-socket-activate starts it with the first connection, and serves that', async t => {
  const port = await freePort()
  const file = fileOf(t, { listen: 'systemd:web' })
  const command = shaper(['start', '-c', file], {
    by: ['systemd-socket-activate', '-l', `127.0.0.1:${port}`, '--fdname=web'],
  })
  t.teardown(() => command.child.kill('SIGKILL'))
  await until('it listens', () => command.stderr().includes('Listening on'))
  t.equal(await ask(`http://127.0.0.1:${port}/`), '200 127.0.0.1')
  t.match(await command.ready, `shaper listening on http://127.0.0.1:${port} ->`)
  t.equal(await ends(command), 0)
})

t.test('connections that come during a restart wait for the next start', async t => {
  const port = await freePort()
  const command = start(t, `tcp:${port}=web`, { listen: 'systemd' }, { env: { AGAIN: '1' } })
  let text = ''
  command.child.stdout.on('data', chunk => {
    text += chunk
  })
  const ready = (times: number) => until('it is ready', () => text.split('shaper listening').length > times)
  await ready(1)
  t.equal(await ask(`http://127.0.0.1:${port}/`), '200 127.0.0.1')
  process.kill(Number.parseInt(text, 10), 'SIGTERM')
  await until('it has ended', () => text.includes('status 0'))
  const waiting = Array.from({ length: 10 }, () => ask(`http://127.0.0.1:${port}/`))
  command.child.stdin.write('\n')
  await ready(2)
  for (const each of waiting) t.equal(await each, '200 127.0.0.1')
  const [last] = text.match(/^\d+$/gm)!.slice(-1)
  process.kill(Number(last), 'SIGTERM')
  command.child.stdin.end()
  await command.finished
})

t.test('one worker is replaced on the same socket; all at once end the program', async t => {
  const port = await freePort()
  const command = start(t, `tcp:${port}`, { listen: 'systemd' }, { args: ['--workers', '2'] })
  await command.ready
  const before = workersOf(command.child.pid!)
  process.kill(before[0]!, 'SIGKILL')
  await until('another one serves', () => {
    const now = workersOf(command.child.pid!)
    return now.length === 2 && !now.includes(before[0]!)
  })
  t.equal(await ask(`http://127.0.0.1:${port}/`), '200 127.0.0.1')
  for (const pid of workersOf(command.child.pid!)) process.kill(pid, 'SIGKILL')
  const { code, stderr } = await command.finished
  t.equal(code, 1)
  t.match(stderr, 'all workers ended at once, and with them the sockets of systemd are closed here; start shaper again')
})

/** What it is told. `at`: the path of the socket, or its name behind "@". */
async function receiver(t: Test, at: string): Promise<() => string[]> {
  const child = spawn('python3', ['-c', RECEIVER, at], { stdio: ['ignore', 'pipe', 'inherit'] })
  endWithThisProcess(child)
  t.teardown(() => child.kill())
  let text = ''
  child.stdout.on('data', chunk => {
    text += chunk
  })
  await until('the receiver is there', () => text.startsWith('up'))
  // systemd-notify waits until this has been read.
  return () =>
    text
      .split('\n')
      .slice(1, -1)
      .filter(each => each !== "'BARRIER=1'")
      .map(each => each.slice(1, -1))
}

t.test('systemd is told: ready, what waits, reloads, the watchdog, the end', async t => {
  for (const [index, args] of FLAGS.entries()) {
    const at = index === 0 ? join(socketFolder(t), 'notify') : `@shaper-test-${process.pid}`
    const told = await receiver(t, at)
    const buckets = { all: { key: 'all', rate: '1/h', capacity: 10 } }
    const file = fileOf(t, { listen: '127.0.0.1:0', buckets })
    const command = shaper(['start', '-c', file, ...args], { env: { NOTIFY_SOCKET: at, WATCHDOG_USEC: '400000' } })
    t.teardown(() => command.child.kill('SIGKILL'))
    const url = await command.url
    await until('it is ready', () => told().includes('STATUS=0 requests wait'))
    t.equal(told()[0], 'READY=1', args.join(' '))
    await until('the watchdog is fed', () => told().filter(each => each === 'WATCHDOG=1').length > 2)
    t.equal(await ask(url), '200 127.0.0.1')
    const away = new AbortController()
    const waiting = fetch(url, { signal: away.signal }).catch(() => undefined)
    await until('one waits', () => told().includes('STATUS=1 request waits'))
    away.abort()
    await waiting
    await until(
      'it has left',
      () => told().at(-1) !== undefined && told().filter(each => each === 'STATUS=0 requests wait').length === 2,
    )

    command.child.kill('SIGHUP')
    await until('it has reloaded', () => told().filter(each => each === 'READY=1').length === 2)
    const [began] = told().filter(each => each.startsWith('RELOADING=1'))
    const [, usec] = /^RELOADING=1\\nMONOTONIC_USEC=(\d+)$/.exec(began!)!
    t.ok(Number(usec) < Number(process.hrtime.bigint() / 1_000n))
    writeFileSync(file, '{')
    await until('a bad file', () => told().filter(each => each === 'READY=1').length === 3)
    t.equal(await ends(command), 0)
    await until('it says that it ends', () => told().includes('STOPPING=1'))
    const order = told()
      .filter(each => /^(READY|RELOADING|STOPPING)/.test(each))
      .map(each => each.slice(0, 8))
    t.same(order, ['READY=1', 'RELOADIN', 'READY=1', 'RELOADIN', 'READY=1', 'STOPPING'])
  }
})

t.test('STATUS names upstreams that fail; a watchdog of another process is not fed', async t => {
  const at = join(socketFolder(t), 'notify')
  const told = await receiver(t, at)
  const port = await freePort()
  const upstream = { url: `http://127.0.0.1:${port}`, breaker: { failures: 1, hold: '0s' } }
  const env = { NOTIFY_SOCKET: at, WATCHDOG_USEC: '1000', WATCHDOG_PID: '1' }
  const command = start(t, undefined, { listen: '127.0.0.1:0', upstream }, { env })
  const url = await command.url
  await ask(url)
  await until('it fails', () =>
    told().some(each => each.startsWith('STATUS=') && each.endsWith(`; failing: ${upstream.url}`)),
  )
  const server = createServer(socket =>
    socket.on('error', () => undefined).end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'),
  )
  await new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  await until('it answers again', async () => (await ask(url)).startsWith('200'))
  await until('that is said', () => told().at(-1) === 'STATUS=0 requests wait')
  t.equal(await ends(command), 0)
  t.notOk(told().includes('WATCHDOG=1'))
})

t.test('without a receiver, or without systemd-notify, one warning and it serves', async t => {
  const folder = socketFolder(t)
  symlinkSync(execFileSync('sh', ['-c', 'command -v sh'], { encoding: 'utf8' }).trim(), join(folder, 'sh'))
  for (const [env, cause] of [
    [{ NOTIFY_SOCKET: `${folder}/none` }, /Failed to notify init system: No such file or directory/],
    [{ NOTIFY_SOCKET: `${folder}/none`, PATH: folder }, /systemd-notify.*not found/],
  ] as const) {
    const command = start(t, undefined, { listen: '127.0.0.1:0' }, { env: { ...env, WATCHDOG_USEC: '100000' } })
    const url = await command.url
    await until('it is said', () => command.stderr().includes('systemd is not told'))
    t.equal(await ask(url), '200 127.0.0.1')
    command.child.kill('SIGHUP')
    await until('it reloads', () => command.stderr().includes('nothing has changed'))
    t.equal(await ends(command), 0)
    const lines = command
      .stderr()
      .split('\n')
      .filter(each => each.includes('systemd is not told'))
    t.equal(lines.length, 1)
    const { level, error, msg } = JSON.parse(lines[0]!)
    t.equal(level, 40)
    t.match(error, cause)
    t.equal(
      msg,
      'systemd is not told how the program is; it needs the program systemd-notify, and NotifyAccess=all in the unit',
    )
  }
})
