import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t from 'tap'
import type { buildConnector } from 'undici'
import { createConnector } from '../../src/proxy/connector.js'

type Teardown = { teardown(run: () => unknown): void }

async function listener(
  t: Teardown,
): Promise<{ asked: buildConnector.Options; sockets: Socket[]; next(): Promise<Socket> }> {
  const sockets: Socket[] = []
  const server = createServer(socket => {
    sockets.push(socket.on('error', () => undefined))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const port = String((server.address() as AddressInfo).port)
  const asked = { hostname: '127.0.0.1', host: `127.0.0.1:${port}`, protocol: 'http:', port }
  return {
    asked,
    sockets,
    async next() {
      const [socket] = (await once(server, 'connection')) as [Socket]
      return socket
    },
  }
}

function open(connect: buildConnector.connector, asked: buildConnector.Options): Promise<Socket> {
  return new Promise((resolve, reject) => {
    connect(asked, (error, socket) => (error === null ? resolve(socket!) : reject(error)))
  })
}

t.test('connections are ready before they are asked for', async t => {
  let now = 0
  const { asked, sockets, next } = await listener(t)
  const connector = createConnector({ timeout: 1_000 }, () => now)
  t.teardown(() => connector.close())
  connector.keepReady(0)
  t.equal(sockets.length, 0, 'nothing is opened before it is known where to')
  const first = await open(connector.connect, asked)
  for (let count = 0; count < 10; count += 1) connector.keepReady(1)
  for (let count = sockets.length; count < 5; count += 1) await next()
  t.equal(sockets.length, 5, 'four besides the one in use')
  const spare = await open(connector.connect, asked)
  t.not(spare, first)
  t.equal(sockets.length, 5, 'which is one of them')
  now = 10_000
  await open(connector.connect, asked)
  t.equal(sockets.length, 6, 'one that has waited for long is not trusted')
  for (const socket of [first, spare]) socket.destroy()
})

t.test('one that the other end closes is not given away', async t => {
  const { asked, sockets, next } = await listener(t)
  const connector = createConnector({ timeout: 1_000 }, () => 0)
  t.teardown(() => connector.close())
  const first = await open(connector.connect, asked)
  const opened = next()
  connector.keepReady(1)
  const spare = await opened
  const closed = new Promise(resolve => spare.once('close', resolve))
  spare.destroy()
  await closed
  await new Promise(resolve => setImmediate(() => setImmediate(resolve)))
  const second = await open(connector.connect, asked)
  t.equal(second.destroyed, false)
  t.ok(sockets.length >= 3)
  for (const socket of [first, second]) socket.destroy()
})

t.test('a port that refuses: nothing is ready, nothing is thrown, and who asks is told', async t => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const asked = { hostname: '127.0.0.1', host: `127.0.0.1:${port}`, protocol: 'http:', port: String(port) }
  const connector = createConnector({ timeout: 1_000 }, () => 0)
  server.once('connection', socket => socket.on('error', () => undefined).resume())
  const first = await open(connector.connect, asked)
  first.destroy()
  server.close()
  await once(server, 'close')
  connector.keepReady(0)
  await t.rejects(open(connector.connect, asked), { code: 'ECONNREFUSED' })
})
