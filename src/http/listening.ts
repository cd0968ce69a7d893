/** How a server begins to listen, and the URL at which it then does. */
import type { AddressInfo, Server } from 'node:net'
import { Server as TlsServer } from 'node:tls'

/** Resolves when the server listens. Rejects when it cannot. Port 0: any free port. */
export function startListening(server: Server, { host, port }: { host: string; port: number }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** The URL of a server that listens, with the address that it listens on: `0.0.0.0` or `[::]` are all of the machine. */
export function urlOf(server: Server): string {
  const { address, family, port } = server.address() as AddressInfo
  const host = family === 'IPv6' ? `[${address}]` : address
  return `${server instanceof TlsServer ? 'https' : 'http'}://${host}:${port}`
}
