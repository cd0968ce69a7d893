/**
 * Connections on their way to a worker. Node's cluster accepts them in the primary, sends each to a worker and keeps it until the
 * worker answers that it has taken it. If the worker dies before that, Node neither closes the connection nor gives it to
 * another one: its client would wait for ever.
 */
import type { Worker } from 'node:cluster'

/** A message of Node's cluster that hands a connection over, or the answer to one. */
interface Message {
  readonly cmd?: string
  readonly act?: string
  readonly seq?: number
  readonly ack?: number
}

interface Handle {
  close(): void
}

/**
 * To be called before the worker listens. When it dies, what it has not taken goes to another worker.
 *
 * @param othersServe whether there is another one
 */
export function rescueHandovers({ process: child }: Worker, othersServe: () => boolean): void {
  const untaken = new Map<number, Handle>()
  const { send, disconnect } = child
  child.send = function (this: typeof child, ...input: Parameters<typeof send>): boolean {
    const [{ act, seq }, handle] = input as unknown as [Message, Handle | undefined]
    if (act === 'newconn' && handle !== undefined) untaken.set(seq!, handle)
    return send.apply(this, input)
  } as typeof send
  child.on('internalMessage', ({ ack }: Message) => untaken.delete(ack!))
  let isGone = false
  // Node calls this when the channel has ended.
  child.disconnect = () => {
    disconnect.call(child)
    // Node would wait for the answer to what it has sent. Until then it would go on dealing connections of other ports to the
    // worker, and lose them, as nothing can be sent any more.
    process.nextTick(() => {
      if (!isGone) child.emit('disconnect')
    })
  }
  child.once('disconnect', () => {
    isGone = true
    const others = othersServe()
    for (const [seq, handle] of untaken) {
      // As a worker answers that shuts down: Node gives it to another one then.
      if (others) child.emit('internalMessage', { cmd: 'NODE_CLUSTER', ack: seq, accepted: false })
      else handle.close()
    }
    untaken.clear()
  })
}
