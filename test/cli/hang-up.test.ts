/** SIGHUP: while starting, and of a terminal that closes. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { request } from 'undici'
import { until } from '../servers/redis.js'
import { ROOT, shaper } from './command.js'

const FLAGS = [[], ['--workers', '2']]

/** A terminal: runs a command, tells its process, and closes when its input ends. Its exit status is that of the command. */
const TERMINAL = `
import os, pty, select, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
print(pid, flush=True)
while True:
    ready, _, _ = select.select([terminal, 0], [], [])
    if terminal in ready:
        os.write(1, os.read(terminal, 65536))
    if 0 in ready:
        break
os.close(terminal)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(status if status >= 0 else 128 - status)
`

const config = (rate: string, more = {}) =>
  JSON.stringify({ listen: '127.0.0.1:0', upstream: 'echo:', buckets: { all: { key: 'all', rate } }, ...more })

interface OnTerminal {
  readonly terminal: ChildProcessWithoutNullStreams
  readonly url: string
  /** Of the command. */
  readonly pid: number
  log(): string
}

/** @param line a line for a shell; `SHAPER` stands for the command, whose log goes to a file */
async function onTerminal(t: Test, line: string): Promise<OnTerminal> {
  const cwd = t.testdir({ 'shaper.config.json': config('5/s'), log: '' })
  const command = line.replace('SHAPER', `${process.execPath} ${ROOT}/bin/shaper.js start --log json`)
  const terminal = spawn('python3', ['-c', TERMINAL, 'sh', '-c', command], { cwd })
  t.teardown(() => terminal.kill('SIGKILL'))
  let text = ''
  terminal.stdout.on('data', (chunk: Buffer) => {
    text += chunk
  })
  const log = () => readFileSync(`${cwd}/log`, 'utf8')
  const address = () => /listening on (http\S+) ->/.exec(text + log())?.[1]
  await until('it listens', () => address() !== undefined)
  return { terminal, url: address()!, pid: Number.parseInt(text, 10), log }
}

async function serves(url: string): Promise<boolean> {
  const answer = await request(url).catch(() => undefined)
  await answer?.body.dump()
  return answer?.statusCode === 200
}

t.test('a terminal that closes ends it as SIGTERM does', async t => {
  for (const flags of FLAGS) {
    const { terminal, url, log } = await onTerminal(t, `exec SHAPER ${flags.join(' ')} 2> log`)
    terminal.stdin.end()
    t.same(await once(terminal, 'exit'), [0, null], flags.join(' '))
    t.match(log(), /"signal":"SIGTERM".*"shutting down"[\s\S]*"shut down"/)
    t.notOk(await serves(url), 'its port is free')
  }
})

t.test('SIGHUP on a terminal that stays reloads', async t => {
  for (const flags of FLAGS) {
    const { terminal, url, pid, log } = await onTerminal(t, `exec SHAPER ${flags.join(' ')} 2> log`)
    process.kill(pid, 'SIGHUP')
    await until('it has reloaded', () => log().includes('nothing has changed'))
    t.ok(await serves(url))
    terminal.stdin.end()
    t.same(await once(terminal, 'exit'), [0, null], 'and then it still ends with the terminal')
  }
})

t.test('with nohup it goes on without its terminal', async t => {
  for (const flags of FLAGS) {
    const line = `nohup SHAPER ${flags.join(' ')} > log 2>&1 < /dev/null & echo $! > pid; wait`
    const { terminal, url, log } = await onTerminal(t, line)
    terminal.stdin.end()
    await once(terminal, 'exit')
    await until('the signal has come', () => log().includes('nothing has changed'))
    t.ok(await serves(url))
    const pid = Number(readFileSync(`${t.testdirName}/pid`, 'utf8'))
    process.kill(pid, 'SIGTERM')
    await until('it is gone', () => log().includes('"shut down"'))
  }
})

/** A store that delays the start: it answers no connection until it ends. */
async function silentStore(t: Test) {
  const sockets = new Set<Socket>()
  const server = createServer(socket => void sockets.add(socket.on('error', () => undefined))).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const end = (): void => {
    server.close()
    for (const socket of sockets) socket.destroy()
  }
  t.teardown(end)
  const url = `redis://127.0.0.1:${(server.address() as AddressInfo).port}`
  return { store: { type: 'redis', url, timeout: '1s' }, connected: once(server, 'connection'), end }
}

t.test('SIGHUP while it starts does not end it, and reloads then', async t => {
  for (const flags of FLAGS) {
    const { store, connected, end } = await silentStore(t)
    const cwd = t.testdir({ 'shaper.config.json': config('5/s', { store }) })
    const command = shaper(['start', ...flags], { cwd })
    await connected
    t.equal(command.stderr(), '', 'it is not ready')
    command.child.kill('SIGHUP')
    end()
    t.match(await command.ready, /^shaper listening on /)
    await until('it has reloaded', () => command.stderr().includes('nothing has changed'))
    command.child.kill('SIGTERM')
    t.equal((await command.finished).code, 0)
  }
})

t.test('a file that changes while it starts is loaded', async t => {
  for (const flags of FLAGS) {
    const { store, connected, end } = await silentStore(t)
    const cwd = t.testdir({ 'shaper.config.json': config('5/s', { store }) })
    const command = shaper(['start', ...flags], { cwd })
    await connected
    writeFileSync(`${cwd}/shaper.config.json`, config('7/s', { store }))
    end()
    await command.ready
    await until('it is loaded', () => command.stderr().includes('"buckets.all.rate: 5/s -> 7/s"'))
    command.child.kill('SIGTERM')
    t.equal((await command.finished).code, 0)
  }
})
