/** Unix sockets with the programs that use them: gunicorn and nginx behind, nginx and curl before, and workers. */
import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { endWithThisProcess } from '../servers/end-with-this-process.js'
import { freePort } from '../servers/free-port.js'
import { until } from '../servers/redis.js'
import { socketFolder } from '../servers/socket-folder.js'
import { type Command, shaper, shaperHere } from './command.js'

interface Teardown {
  teardown(run: () => unknown): void
}

const run = promisify(execFile)

/** The status and the body. */
async function curl(socket: string, path = '/', ...more: string[]): Promise<string> {
  // One that was accepted by a worker that was killed gets no answer.
  const args = ['-s', '-m', '10', '--unix-socket', socket, '-w', ' %{http_code}', ...more, `http://shaper.test${path}`]
  return (await run('curl', args)).stdout.trim()
}

function start(t: Teardown, folder: string, config: object, ...args: string[]): Command {
  const file = join(folder, 'shaper.config.json')
  writeFileSync(file, JSON.stringify({ buckets: { all: { key: 'all', rate: '100/s', capacity: 100 } }, ...config }))
  const command = shaper(['start', '-c', file, ...args])
  t.teardown(() => command.child.kill('SIGKILL'))
  return command
}

function other(t: Teardown, program: string, args: readonly string[], cwd: string): ChildProcess {
  const child = spawn(program, args, { cwd, stdio: 'ignore' })
  endWithThisProcess(child)
  t.teardown(() => child.kill())
  return child
}

const nginxArgs = (folder: string): string[] => {
  const user = process.getuid?.() === 0 ? ' user root;' : ''
  return ['-e', 'stderr', '-p', folder, '-c', 'nginx.conf', '-g', `daemon off; pid nginx.pid;${user}`]
}

const TEMPORARY = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  .map(each => `${each}_temp_path ${each};`)
  .join(' ')

async function end({ child, finished }: Command): Promise<number | null> {
  child.kill('SIGTERM')
  return (await finished).code
}

t.test('gunicorn on a Unix socket, curl on ours', async t => {
  const folder = socketFolder(t)
  const app = join(folder, 'app.sock')
  writeFileSync(
    join(folder, 'app.py'),
    `def app(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [(environ['HTTP_HOST'] + ' ' + environ['PATH_INFO']).encode()]
`,
  )
  other(t, 'gunicorn', ['--bind', `unix:${app}`, '--workers', '1', 'app:app'], folder)
  await until('gunicorn listens', () => existsSync(app))
  const own = join(folder, 'own.sock')
  const command = start(t, folder, {
    listen: { address: `unix:${own}`, mode: '0600' },
    upstream: { url: `unix:${app}`, keepAlive: false },
  })
  t.equal(await command.ready, `shaper listening on unix:${own} -> unix:${app}`)
  t.equal(statSync(own).mode & 0o777, 0o600)
  t.equal(await curl(own, '/a'), 'shaper.test /a 200')
  t.equal(await curl(own, '/b', '--http2-prior-knowledge'), 'shaper.test /b 200')
  t.equal(await end(command), 0)
  t.notOk(existsSync(own), 'the socket is removed')
})

t.test('nginx before and behind, over Unix sockets, and a port beside', async t => {
  const folder = socketFolder(t)
  const [front, own, behind] = ['front.sock', 'own.sock', 'behind.sock'].map(name => join(folder, name))
  writeFileSync(
    join(folder, 'nginx.conf'),
    `events {} http { access_log off; ${TEMPORARY}
    server { listen unix:${front};
      location / { proxy_pass http://unix:${own}; proxy_http_version 1.1; proxy_set_header Host $host; proxy_set_header X-Forwarded-For 192.0.2.7; } }
    server { listen unix:${behind}; location / { return 200 "$http_x_forwarded_for $host$request_uri"; } } }`,
  )
  other(t, 'nginx', nginxArgs(folder), folder)
  await until('nginx listens', () => existsSync(front!) && existsSync(behind!))
  const port = await freePort()
  const command = start(t, folder, {
    listen: [`unix:${own}`, `127.0.0.1:${port}`],
    upstream: `unix:${behind}`,
    trustProxy: ['loopback'],
    buckets: { client: { key: 'ip', rate: '1/h', capacity: 2, overflow: 'reject' } },
    routes: [{ name: 'all', mode: 'meter' }],
  })
  t.equal(await command.ready, `shaper listening on unix:${own}, http://127.0.0.1:${port} -> unix:${behind}`)
  t.equal(await curl(front!, '/a'), '192.0.2.7 shaper.test/a 200')
  t.equal(await curl(front!, '/b'), '192.0.2.7 shaper.test/b 200')
  t.match(await curl(front!, '/c'), / 429$/)
  const { stdout } = await run('curl', ['-s', `http://127.0.0.1:${port}/d`])
  t.equal(stdout, '127.0.0.1 127.0.0.1/d')
  t.equal(await end(command), 0)
})

t.test('a socket that a killed program has left is replaced; one in use is exit 1', async t => {
  const folder = socketFolder(t)
  const [own, admin] = [join(folder, 'own.sock'), join(folder, 'admin.sock')]
  const config = { listen: `unix:${own}`, upstream: 'echo:', admin: { listen: `unix:${admin}` } }
  const killed = start(t, folder, config)
  t.match(await killed.ready, /^shaper listening/)
  killed.child.kill('SIGKILL')
  await killed.finished
  t.ok(existsSync(own) && existsSync(admin), 'they are left')
  const command = start(t, folder, config)
  t.match(await command.ready, /^shaper listening/)
  t.match(await curl(own), / 200$/)
  t.match(await curl(admin, '/healthz'), /^ok\s+200$/)
  t.match(await curl(admin, '/metrics', '-H', 'Host: localhost'), /shaper_requests/)
  const top = await shaperHere(['top', '--admin', `unix:${admin}`, '--count', '1'])
  t.match(top.stdout, /all/, top.stderr)
  const away = await shaperHere(['top', '--admin', `unix:${folder}/none.sock`, '--count', '1'])
  t.match(away.stderr, `the admin server at unix:${folder}/none.sock does not answer (connect ENOENT`)
  const second = await start(t, folder, config).finished
  t.equal(second.code, 1)
  t.match(second.stderr, `unix:${own} is in use, or another user has left it; choose another path, or remove the file`)
  const third = await start(t, folder, { ...config, listen: '127.0.0.1:0' }).finished
  t.equal(third.code, 1)
  t.match(third.stderr, `the admin address unix:${admin} is in use; choose another with --admin unix:PATH`)
  t.match(await curl(own), / 200$/, 'it is still there')
  t.equal(await end(command), 0)
  t.notOk(existsSync(own) || existsSync(admin))
})

t.test('workers on a Unix socket and a port', async t => {
  const folder = socketFolder(t)
  const own = join(folder, 'own.sock')
  const config = {
    listen: [{ address: `unix:${own}`, mode: '0660' }, '127.0.0.1:0'],
    upstream: 'echo:',
    admin: { listen: `unix:${folder}/admin.sock` },
  }
  const killed = start(t, folder, config, '--workers', '2')
  await killed.ready
  const workersOf = ({ child }: Command): number[] => {
    const lines = execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8' }).split('\n')
    return lines
      .map(line => line.trim().split(/\s+/).map(Number))
      .flatMap(([pid, of]) => (of === child.pid ? [pid!] : []))
  }
  killed.child.kill('SIGKILL')
  await once(killed.child, 'close')
  t.ok(existsSync(own))
  const command = start(t, folder, config, '--workers', '2')
  const [, port] = /unix:\S+, http:\/\/127\.0\.0\.1:(\d+) ->/.exec(await command.ready) ?? []
  t.equal(statSync(own).mode & 0o777, 0o660)
  const statuses = await Promise.all(Array.from({ length: 10 }, () => curl(own)))
  for (const each of statuses) t.match(each, / 200$/)
  t.match(await curl(join(folder, 'admin.sock'), '/healthz'), /^ok/)
  const before = workersOf(command)
  for (const pid of before) process.kill(pid, 'SIGKILL')
  await until('other workers serve', async () => (await curl(own).catch(() => '')).endsWith(' 200'))
  await until('the port too', async () =>
    run('curl', ['-sf', '-m', '10', `http://127.0.0.1:${port}/`]).then(
      () => true,
      () => false,
    ),
  )
  t.equal(statSync(own).mode & 0o777, 0o660)
  t.equal(await end(command), 0)
  t.notOk(existsSync(own))
})
