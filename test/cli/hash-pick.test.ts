/** A hash pick is the same in each worker, and a server that is gone moves only its own clients (contract 14.1). */
import { createServer, type Server } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { shaper } from './command.js'

const USERS = Array.from({ length: 160 }, (_, at) => `user-${at}`)

async function serve(name: string, port = 0): Promise<Server> {
  const server = createServer((_req, res) => res.end(name))
  await new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve))
  return server
}

const portOf = (server: Server): number => (server.address() as AddressInfo).port

/** By a connection of its own, so that any worker may take it. */
async function ask(port: number, user: string): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  socket.write(`GET / HTTP/1.1\r\nHost: a\r\nX-User: ${user}\r\nConnection: close\r\n\r\n`)
  const [head, body] = (await text(socket)).split('\r\n\r\n')
  return head!.startsWith('HTTP/1.1 200') ? body! : head!.split('\r\n', 1)[0]!
}

t.test('two workers send a user to the same one of four servers', async t => {
  const servers = await Promise.all(['a', 'b', 'c', 'd'].map(name => serve(name)))
  t.teardown(() => servers.map(server => server.close()))
  const config = {
    listen: '127.0.0.1:0',
    upstream: { servers: servers.map(server => `http://127.0.0.1:${portOf(server)}`), pick: { hash: 'header:x-user' } },
    routes: [{ name: 'all', mode: 'off' }],
    accessLog: false,
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const command = shaper(['start', '--workers', '2'], { cwd })
  t.teardown(async () => {
    command.child.kill('SIGTERM')
    await command.finished
  })
  const port = Number(new URL(await command.url).port)
  const look = async (): Promise<string[]> => Promise.all(USERS.map(user => ask(port, user)))
  const before = await look()
  for (let again = 0; again < 4; again += 1) t.same(await look(), before, 'in each worker the same')
  const own = ['a', 'b', 'c', 'd'].map(name => before.filter(each => each === name).length)
  t.ok(Math.min(...own) >= 14 && Math.max(...own) <= 80, `about a quarter each: ${own}`)
  const gone = portOf(servers[0]!)
  servers[0]!.closeAllConnections()
  await new Promise(resolve => servers[0]!.close(resolve))
  const without = await look()
  t.same(
    without.filter((_, at) => before[at] !== 'a'),
    before.filter(each => each !== 'a'),
    'the others stay',
  )
  t.notOk(
    without.some(each => !/^[bcd]$/.test(each)),
    'its own go elsewhere',
  )
  servers[0] = await serve('a', gone)
  // Each worker tries it again by its own breaker.
  for (let same = 0; same < 4; ) same = (await look()).join() === before.join() ? same + 1 : 0
  t.pass('they come back')
})
