import type { Socket } from 'node:net'
import { buildConnector } from 'undici'
import type { Clock } from '../../core/clock.js'
import { Deadlines, type Watched } from '../deadlines.js'

/** Most spare connections that are kept ready for coming releases. */
const READY = 4

/** ms. A connection opened ahead is closed after this time unused, because it may occupy a worker of the upstream. */
const UNUSED = 1_000

/** A connection that was opened before a request needed it. */
interface Ahead extends Watched {
  /** Undefined while it is being opened. */
  socket: Socket | undefined
  /** Callback of the request that waits for it to open. */
  onOpen: buildConnector.Callback | undefined
}

/** Opens connections to one upstream, some of them in advance, so that a release need not wait for a handshake. */
export interface Connector {
  readonly connect: buildConnector.connector
  /**
   * Opens a connection in advance if few are ready for the next releases.
   *
   * @param inFlight requests that use connections now
   * @param queued requests that wait for their release
   */
  keepReady(inFlight: number, queued: number): void
  /** Uses other options for new connections. */
  change(options: buildConnector.BuildOptions): void
  close(): void
}

/** @param most most connections, including those opened in advance */
export function createConnector(options: buildConnector.BuildOptions, clock: Clock, most = Infinity): Connector {
  let build = buildConnector(options)
  // The options set the server name. The one that undici asks for may come from a request.
  const open: buildConnector.connector = ({ servername: _, ...wanted }, callback) => build(wanted, callback)
  const unused = new Deadlines(clock, UNUSED)
  const ahead: Ahead[] = []
  /** What undici asked for last. It will ask for the same next. */
  let asked: buildConnector.Options | undefined
  /** Connections that are open or being opened. */
  let connections = 0
  let closed = false

  function count(wanted: buildConnector.Options, callback: buildConnector.Callback): void {
    connections += 1
    open(wanted, (...result) => {
      const [error, socket] = result
      if (error === null) socket.once('close', uncount)
      else uncount()
      callback(...result)
    })
  }

  function uncount(): void {
    connections -= 1
  }

  function remove(entry: Ahead): void {
    unused.unwatch(entry)
    const at = ahead.indexOf(entry)
    if (at >= 0) ahead.splice(at, 1)
  }

  function openAhead(wanted: buildConnector.Options): void {
    const entry: Ahead = {
      list: undefined,
      previous: undefined,
      next: undefined,
      dueAt: 0,
      socket: undefined,
      onOpen: undefined,
      expired() {
        remove(entry)
        entry.socket!.destroy()
      },
    }
    ahead.push(entry)
    count(wanted, (...result) => {
      const [error, socket] = result
      if (entry.onOpen !== undefined) return entry.onOpen(...result)
      // The request that needs a connection will meet the same error and report it.
      if (error !== null || !ahead.includes(entry)) {
        remove(entry)
        socket?.destroy()
        return
      }
      entry.socket = socket
      unused.watch(entry)
      socket.on('error', () => undefined).once('close', () => remove(entry))
    })
  }

  /** Drops all connections opened in advance. Those still being opened are closed once they are open. */
  function abandonAll(): void {
    for (const entry of [...ahead]) {
      remove(entry)
      entry.socket?.destroy()
    }
  }

  return {
    connect(wanted, callback) {
      asked = wanted
      const entry = ahead.find(({ socket }) => socket?.destroyed === false) ?? ahead.find(({ socket }) => !socket)
      if (entry === undefined) return count(wanted, callback)
      remove(entry)
      if (entry.socket === undefined) entry.onOpen = callback
      else process.nextTick(callback, null, entry.socket)
    },
    keepReady(inFlight, queued) {
      if (asked === undefined || closed || connections >= most) return
      if (Math.max(connections - inFlight, ahead.length) < Math.min(READY, queued)) openAhead(asked)
    },
    change(changed) {
      build = buildConnector(changed)
      abandonAll()
    },
    close() {
      closed = true
      unused.close()
      abandonAll()
    },
  }
}
