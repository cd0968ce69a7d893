import { Socket } from 'node:net'

/**
 * All plain connections of clients read into it. What a read brings is used up or copied before the next one, so a waiting
 * connection holds no buffer.
 */
const INPUT = Buffer.allocUnsafeSlow(64 * 1024)

/** A field of Node that it does not declare. It is the same in Node 20, 22 and 24. */
interface WithHandle {
  _handle: object | null
}

export interface InputReader {
  /**
   * Called with the bytes of a buffer before `end`, which is valid only during the call.
   *
   * @returns false if the reader has pushed bytes to the socket's stream, which takes no more
   */
  read(buffer: Buffer, end: number): boolean
}

/**
 * Reads an accepted socket into a buffer that all sockets share. Node offers that for sockets that connect, and not for
 * those that a server accepts. So the connection moves to a new socket.
 *
 * @param accepted it has not been read yet
 * @returns the socket to use from now on. It emits no `data` until the reader gives bytes back with `push`
 */
export function shareInput(accepted: Socket, reader: InputReader): Socket {
  const from = accepted as unknown as WithHandle
  const handle = from._handle
  from._handle = null
  accepted.destroy()
  const callback = (end: number): boolean => reader.read(INPUT, end)
  const options = { handle, allowHalfOpen: true, readable: true, writable: true, onread: { buffer: INPUT, callback } }
  const socket = new Socket(options as ConstructorParameters<typeof Socket>[0])
  socket.read(0)
  return socket
}
