/** Puts a server at a distance: a port that forwards to it with a delay. */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { type RedisCluster, type RedisServer, until } from './redis.js'

export interface Relay {
  readonly port: number
  close(): void
}

/** Forwards connections to a local port. @param delay ms each way, up to 1 ms more */
export async function startRelay(port: number, delay: number): Promise<Relay> {
  const sockets = new Set<Socket>()
  const pass = (from: Socket, to: Socket): void => {
    sockets.add(from)
    from.setNoDelay(true)
    from.on('data', chunk => setTimeout(() => to.write(chunk), delay))
    from.on('error', () => {})
    from.on('close', () => {
      sockets.delete(from)
      to.destroy()
    })
  }
  const server = createServer(client => {
    const there = connect(port, '127.0.0.1')
    pass(client, there)
    pass(there, client)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    close() {
      for (const socket of sockets) socket.destroy()
      server.close()
    },
  }
}

/** All clients of the cluster reach this server of it through a relay from now on. */
export async function moveAway(cluster: RedisCluster, server: RedisServer, delay: number): Promise<Relay> {
  const relay = await startRelay(server.port, delay)
  await server.command('CONFIG', 'SET', 'cluster-announce-bus-port', server.port + 10_000)
  await server.command('CONFIG', 'SET', 'cluster-announce-port', relay.port)
  await until('all know where it is', async () => {
    const known = await Promise.all(cluster.masters.map(master => master.command('CLUSTER', 'SLOTS')))
    return known.every(slots => JSON.stringify(slots).includes(String(relay.port)))
  })
  return relay
}
