/** Sends snapshots as server-sent events, at a bounded rate to a bounded number of clients. */
import type { ServerResponse } from 'node:http'
import type { Snapshot } from '../snapshot/snapshot.js'

/** ms between two snapshots of one client. */
const INTERVAL = { least: 200, usual: 500, most: 10_000 }

const MOST_CLIENTS = 16

/** A client with more unread bytes than this gets no snapshots until it has read. */
const UNREAD = 256 * 1024

/** A client that reads nothing for this long is cut off, in ms. */
const PATIENCE = 30_000

export class EventStreams {
  readonly #clients = new Set<ServerResponse>()

  /**
   * Answers with a stream that ends when the client hangs up. False: there are too many streams.
   *
   * @param take takes the snapshots
   * @param wanted ms between two snapshots
   */
  open(res: ServerResponse, take: () => Promise<Snapshot>, wanted: number | undefined): boolean {
    if (this.#clients.size >= MOST_CLIENTS) return false
    const interval = Math.min(INTERVAL.most, Math.max(INTERVAL.least, wanted ?? INTERVAL.usual))
    this.#clients.add(res)
    res.writeHead(200, {
      'Content-Type': 'text/event-stream; charset=utf-8',
      'Cache-Control': 'no-store',
      'X-Accel-Buffering': 'no',
      'X-Content-Type-Options': 'nosniff',
    })
    let readAt = performance.now()
    let timer: NodeJS.Timeout | undefined
    const tick = async (): Promise<void> => {
      if (res.writableLength <= UNREAD) {
        readAt = performance.now()
        const snapshot = await take().catch(() => undefined)
        if (res.destroyed) return
        res.write(
          snapshot === undefined ? ': no snapshot\n\n' : `event: snapshot\ndata: ${JSON.stringify(snapshot)}\n\n`,
        )
      } else if (performance.now() - readAt > PATIENCE) res.destroy()
      timer = setTimeout(tick, interval)
    }
    res.once('close', () => {
      clearTimeout(timer)
      this.#clients.delete(res)
    })
    void tick()
    return true
  }

  close(): void {
    for (const res of this.#clients) res.destroy()
  }
}
