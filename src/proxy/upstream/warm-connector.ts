import type { Socket } from 'node:net'
import { buildConnector } from 'undici'
import type { Clock } from '../../core/clock.js'
import { Deadlines, type Watched } from '../deadlines.js'

/** How many connections are kept ready for releases to come, beyond those in use. */
const READY = 4

/** A connection that was opened ahead is closed after this time without a request, in ms: it may occupy a worker. */
const UNUSED = 1_000

/** A connection that was opened before a request asked for one. */
interface Ahead extends Watched {
  /** Undefined while it is being opened. */
  socket: Socket | undefined
  /** The request that waits for it to be open. */
  onOpen: buildConnector.Callback | undefined
}

/** Opens connections to one upstream, some of them before they are needed: a release does not wait for a handshake. */
export interface Connector {
  readonly connect: buildConnector.connector
  /**
   * Makes sure that connections are ready for the next releases.
   *
   * @param inFlight how many requests are using connections now
   * @param queued how many requests wait for their release
   */
  keepReady(inFlight: number, queued: number): void
  /** Opens connections with other options from now on. */
  change(options: buildConnector.BuildOptions): void
  close(): void
}

/** @param most how many connections there may be, opened ahead or not */
export function createConnector(options: buildConnector.BuildOptions, clock: Clock, most = Infinity): Connector {
  let build = buildConnector(options)
  // The server name is that of the options: what undici asks for may come from a request.
  const open: buildConnector.connector = ({ servername: _, ...wanted }, callback) => build(wanted, callback)
  const unused = new Deadlines(clock, UNUSED)
  const ahead: Ahead[] = []
  /** What undici asked for last: that is what it will ask for next. */
  let asked: buildConnector.Options | undefined
  /** Open or being opened. */
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
      // The request that needs a connection will meet the same error, and report it.
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

  /** Those that are still being opened are closed once they are open. */
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
