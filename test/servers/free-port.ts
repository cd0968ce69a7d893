import { once } from 'node:events'
import { connect, createServer } from 'node:net'

/** Ports that this process has handed out. Their servers may not listen yet. */
const given = new Set<number>()

/**
 * A port that nobody listens to, below those that the system gives out itself. So no other server gets it by chance. The
 * port + 10000 is free too: the bus of a Redis Cluster uses it.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 12_000 + Math.floor(Math.random() * 10_000)
    if (given.has(port)) continue
    given.add(port)
    if ((await isFree(port)) && (await isFree(port + 10_000))) return port
  }
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer()
  try {
    server.listen(port, '127.0.0.1')
    await once(server, 'listening')
    return true
  } catch {
    return false
  } finally {
    server.close()
  }
}

export function isListening(port: number): Promise<boolean> {
  return new Promise(resolve => {
    const socket = connect(port, '127.0.0.1')
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}
