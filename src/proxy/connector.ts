import type { Socket } from 'node:net'
import { buildConnector } from 'undici'

/** How many connections are kept ready for releases to come, beyond those in use. */
const READY = 4

/** A connection that has waited for longer, in ms, is not trusted to be open at the other end. */
const FRESH = 4_000

interface Spare {
  readonly socket: Socket
  readonly servername: string | undefined
  readonly since: number
}

/** Opens connections to one upstream, some of them before they are needed: a release does not wait for a handshake. */
export interface Connector {
  readonly connect: buildConnector.connector
  /**
   * Somebody waits for a release: makes sure that connections will be ready for it.
   *
   * @param inFlight how many requests are using connections now
   */
  keepReady(inFlight: number): void
  close(): void
}

/** @param now monotonic ms */
export function createConnector(options: buildConnector.BuildOptions, now: () => number): Connector {
  const open = buildConnector(options)
  let spares: Spare[] = []
  /** What undici asked for last: that is what it will ask for next. */
  let asked: buildConnector.Options | undefined
  let opened = 0
  let opening = 0
  let closed = false

  function track(socket: Socket): void {
    opened += 1
    socket.once('close', () => {
      opened -= 1
    })
  }

  function takeSpare(servername: string | undefined): Socket | undefined {
    const freshest = now() - FRESH
    for (const spare of spares.filter(({ since }) => since < freshest)) spare.socket.destroy()
    const at = spares.findIndex(
      spare => !spare.socket.destroyed && spare.since >= freshest && spare.servername === servername,
    )
    return at < 0 ? undefined : spares.splice(at, 1)[0]!.socket
  }

  return {
    connect(wanted, callback) {
      asked = wanted
      const socket = takeSpare(wanted.servername)
      if (socket !== undefined) {
        process.nextTick(callback, null, socket)
        return
      }
      open(wanted, (...result) => {
        const [error, socket] = result
        if (error === null && socket !== null) track(socket)
        callback(...result)
      })
    },
    keepReady(inFlight) {
      if (asked === undefined || closed || opened + opening - inFlight >= READY || opening >= READY) return
      const { servername } = asked
      opening += 1
      open(asked, (error, socket) => {
        opening -= 1
        // What is wrong the release will find out, and tell.
        if (error !== null || socket === null) return
        track(socket)
        socket.on('error', () => undefined)
        if (closed) {
          socket.destroy()
          return
        }
        const spare = { socket, servername, since: now() }
        spares.push(spare)
        socket.once('close', () => {
          spares = spares.filter(other => other !== spare)
        })
      })
    },
    close() {
      closed = true
      for (const { socket } of spares) socket.destroy()
    },
  }
}
