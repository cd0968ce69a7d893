import { type FileHandle, open } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'

const CHUNK = 1 << 20
export const STDIN = '-'

/** A log that cannot be read, or not to its end. The message has the remedy. */
export class InputError extends Error {
  readonly code = 'SHAPER_INPUT'
}

/**
 * The pieces of a log, unpacked if it begins with the magic number of gzip. A piece is overwritten by the next but one.
 *
 * @param read called with the number of bytes read from the file
 * @throws InputError
 */
export async function* readInput(
  name: string,
  stdin: AsyncIterable<Buffer>,
  read: (bytes: number) => void = () => undefined,
): AsyncGenerator<Buffer> {
  try {
    const raw = name === STDIN ? stdin : readFile(name)
    yield* unpacked(counted(raw, read))
  } catch (error) {
    throw explainError(name, error as NodeJS.ErrnoException)
  }
}

async function* readFile(name: string): AsyncGenerator<Buffer> {
  const file = await open(name)
  try {
    // One buffer is filled while the other is processed.
    const buffers = [Buffer.allocUnsafeSlow(CHUNK), Buffer.allocUnsafeSlow(CHUNK)]
    let next = fill(file, buffers[0]!)
    for (let turn = 1; ; turn += 1) {
      const chunk = await next
      if (chunk.length === 0) return
      next = fill(file, buffers[turn % 2]!)
      // If the caller stops early, nobody awaits this read.
      next.catch(() => undefined)
      yield chunk
    }
  } finally {
    await file.close()
  }
}

async function fill(file: FileHandle, buffer: Buffer): Promise<Buffer> {
  const { bytesRead } = await file.read(buffer, 0, buffer.length, null)
  return buffer.subarray(0, bytesRead)
}

async function* counted(raw: AsyncIterable<Buffer>, read: (bytes: number) => void): AsyncGenerator<Buffer> {
  for await (const chunk of raw) {
    read(chunk.length)
    yield chunk
  }
}

async function* unpacked(raw: AsyncGenerator<Buffer>): AsyncGenerator<Buffer> {
  const first = await raw.next()
  if (first.done) return
  const whole = prepended(first.value, raw)
  if (first.value[0] !== 0x1f || first.value[1] !== 0x8b) return yield* whole
  const gunzip = createGunzip({ chunkSize: CHUNK >> 2 })
  const source = Readable.from(copies(whole), { objectMode: false })
  source.on('error', error => gunzip.destroy(error))
  yield* source.pipe(gunzip) as AsyncIterable<Buffer>
}

async function* prepended(first: Buffer, rest: AsyncGenerator<Buffer>): AsyncGenerator<Buffer> {
  // The finally block closes the file also when only the first piece is read.
  try {
    yield first
    yield* rest
  } finally {
    await rest.return(undefined)
  }
}

/** Copies the pieces, because a stream keeps them for longer than they are valid. */
async function* copies(chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  for await (const chunk of chunks) yield Buffer.from(chunk)
}

function explainError(name: string, error: NodeJS.ErrnoException): InputError {
  const { code = error.message } = error
  const shown = name === STDIN ? 'standard input' : JSON.stringify(name)
  if (code === 'ENOENT') return new InputError(`${shown} does not exist; name a log that does`, { cause: error })
  if (code === 'EISDIR') return new InputError(`${shown} is a directory; name the logs in it`, { cause: error })
  if (code === 'Z_BUF_ERROR') {
    return new InputError(`${shown} is cut off: its gzip data ends too early; what could be read is reported`, {
      cause: error,
    })
  }
  if (code.startsWith('Z_'))
    return new InputError(`${shown} is damaged gzip data (${code}); what could be read is reported`, { cause: error })
  return new InputError(`${shown} cannot be read (${code}); name a file that can be read`, { cause: error })
}
