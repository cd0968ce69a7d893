/** Puts a server at a distance: a port that forwards to it with a delay. */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type RedisCluster, type RedisServer, until } from './redis.js'

export interface Relay {
  readonly port: number
  /**
   * For some time answers are lost, though what they answer is carried out. Then the connections that lost some are closed, or at once if
   * they are `cut`.
   *
   * @param ms how long
   */
  lose(how: 'cut' | 'silent', ms: number): Promise<void>
  close(): void
}

/** Forwards connections to a local port. @param delay ms each way, up to 1 ms more */
export async function startRelay(port: number, delay: number): Promise<Relay> {
  const sockets = new Set<Socket>()
  const broken = new Set<Socket>()
  let loses: 'cut' | 'silent' | undefined
  const pass = (from: Socket, to: Socket, isAnswer: boolean): void => {
    sockets.add(from)
    from.setNoDelay(true)
    from.on('data', chunk => {
      if (isAnswer && (loses !== undefined || broken.has(from))) {
        if (loses === 'cut') from.destroy()
        else broken.add(from)
      } else if (delay === 0) to.write(chunk)
      else setTimeout(() => to.write(chunk), delay)
    })
    from.on('error', () => {})
    from.on('close', () => {
      sockets.delete(from)
      to.destroy()
    })
  }
  const server = createServer(client => {
    const there = connect(port, '127.0.0.1')
    pass(client, there, false)
    pass(there, client, true)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    async lose(how, ms) {
      loses = how
      await sleep(ms)
      loses = undefined
      for (const socket of broken) socket.destroy()
      broken.clear()
    },
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
