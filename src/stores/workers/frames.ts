/** Messages over a pipe between two processes of ours: each is a value, and its length before it. */
import type { Duplex } from 'node:stream'
import { Decoder, Encoder } from './codec.js'

/** Bytes of the length. */
const HEADER = 4

export interface Frames {
  send(value: unknown): void
  close(): void
}

/**
 * @param received called with each message of the other end, in order
 * @param closed called once, when no more messages can come or go
 */
export function openFrames(pipe: Duplex, received: (value: unknown) => void, closed: () => void): Frames {
  const encoder = new Encoder()
  const decoder = new Decoder()
  /** The beginning of a message whose end is yet to come. */
  let rest: Buffer[] = []
  let restLength = 0
  let isOpen = true

  /** The messages that are complete with this. @throws RangeError: they cannot be read */
  function read(chunk: Buffer): unknown[] {
    rest.push(chunk)
    restLength += chunk.length
    if (restLength < HEADER) return []
    let bytes = rest.length === 1 ? chunk : Buffer.concat(rest)
    const values: unknown[] = []
    for (let end = endOf(bytes); end <= bytes.length; end = endOf(bytes)) {
      values.push(decoder.decode(bytes.subarray(HEADER, end)))
      bytes = bytes.subarray(end)
    }
    rest = bytes.length > 0 ? [bytes] : []
    restLength = bytes.length
    return values
  }

  function close(): void {
    if (!isOpen) return
    isOpen = false
    pipe.destroy()
    closed()
  }

  pipe.on('data', (chunk: Buffer) => {
    let values: unknown[]
    try {
      values = read(chunk)
    } catch {
      // One end does not understand the other any more.
      return close()
    }
    // The pipes of tests deliver an answer at once, so `read` may be called again meanwhile.
    for (const value of values) received(value)
  })
  // An end of the pipe is the end of its process.
  pipe.on('end', close).on('error', close).on('close', close)
  return {
    send(value) {
      if (!isOpen) return
      const bytes = encoder.encode(value, HEADER)
      bytes.writeUInt32BE(bytes.length - HEADER)
      pipe.write(bytes)
    },
    close,
  }
}

/** Infinity: the length itself is incomplete. */
function endOf(bytes: Buffer): number {
  return bytes.length < HEADER ? Infinity : HEADER + bytes.readUInt32BE(0)
}
