import { chmodSync, linkSync, renameSync, rmSync } from 'node:fs'
import { unlink } from 'node:fs/promises'
import { type AddressInfo, connect, type ListenOptions, type Server } from 'node:net'
import { Server as TlsServer } from 'node:tls'

/** A socket of systemd is known by its file descriptor. */
type Place =
  | { readonly host: string; readonly port: number }
  | { readonly path: string; readonly mode?: number }
  | { readonly systemd: string; readonly fd?: number }

/** @param handed the socket, if another process listens on it already */
export function startListening(server: Server, place: Place, handed?: HandedSocket): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    const mode = 'path' in place && handed === undefined ? place.mode : undefined
    // Node makes the file before `listen` returns, so nothing else of this process is made with this umask. In a worker the primary
    // makes it.
    const umask = mode === undefined ? undefined : process.umask(~mode & 0o777)
    try {
      server.listen(handed ?? whereOf(place), () => {
        server.off('error', reject)
        if ('path' in place && mode !== undefined) chmodSync(place.path, mode)
        // A worker has no more than its number: the primary closes it.
        if ('path' in place && handed !== undefined && 'close' in handed) removeOnClose(handleOf(server), place.path)
        resolve()
      })
    } finally {
      if (umask !== undefined) process.umask(umask)
    }
  })
}

/** Node's types do not know `fd`. */
function whereOf(place: Place): ListenOptions | { fd: number } {
  if ('host' in place) return { host: place.host, port: place.port }
  return 'path' in place ? { path: place.path } : { fd: place.fd! }
}

/** A socket that another process listens on, too. */
export interface HandedSocket {
  readonly fd: number
}

/** The socket of a server that listens. It can be sent to another process. */
export interface ListenHandle extends HandedSocket {
  close(): void
}

export function handleOf(server: Server): ListenHandle {
  // Node does not declare this field. It is the same in Node 20, 22 and 24.
  return (server as unknown as { _handle: ListenHandle })._handle
}

/** Of a Unix socket that was handed over. Node removes the path only of one that it has made. */
export function removeOnClose(handle: ListenHandle, path: string): void {
  const { close } = handle
  handle.close = (...given: []) => {
    // Once: after `leaveListening` the path is that of another process.
    handle.close = close
    rmSync(path, { force: true })
    close.apply(handle, given)
  }
}

/** Closes a socket that another process has, too. That removes the path of a Unix socket, so it is put back. Never throws. */
export function leaveListening(handle: ListenHandle, place: Place): void {
  if (!('path' in place)) return handle.close()
  const { path } = place
  const kept = `${path}.${process.pid}`
  try {
    linkSync(path, kept)
  } catch {
    // Somebody has removed it, or its file system has no links. Then it is away for a moment.
    attempt(() => renameSync(path, kept))
  }
  handle.close()
  attempt(() => renameSync(kept, path))
  // Nothing is renamed if both are there still, as they are one file.
  rmSync(kept, { force: true })
}

function attempt(run: () => void): void {
  try {
    run()
  } catch {}
}

/** Whether a server that listens does so on a Unix socket. Of one that systemd has given Node does not know the path. */
export function isOnUnixSocket(server: Server): boolean {
  const at = server.address()
  return at === null || typeof at === 'string'
}

/**
 * The URL of a server that listens, with the address that it listens on: `0.0.0.0` or `[::]` are all of the machine.
 *
 * @param given what stands for a Unix socket without a known path
 */
export function urlOf(server: Server, given = 'unix:'): string {
  const at = server.address() as AddressInfo | string | null
  if (at === null) return given
  if (typeof at === 'string') return `unix:${at}`
  const { address, family, port } = at
  const host = family === 'IPv6' ? `[${address}]` : address
  return `${server instanceof TlsServer ? 'https' : 'http'}://${host}:${port}`
}

/**
 * Removes the socket that a program has left which could not do so itself. One that somebody listens on stays, and cannot be
 * listened on.
 */
export async function removeStaleSocket(path: string): Promise<void> {
  const isStale = await new Promise<boolean>(resolve => {
    const socket = connect(path)
    socket.once('error', ({ code }: NodeJS.ErrnoException) => resolve(code === 'ECONNREFUSED'))
    socket.once('connect', () => {
      socket.destroy()
      resolve(false)
    })
  })
  // One that may not be removed cannot be listened on, either.
  if (isStale) await unlink(path).catch(() => undefined)
}
