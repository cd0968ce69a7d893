/** Unix sockets, written as `unix:/run/app.sock`. */
import { resolve } from 'node:path'

const SCHEME = 'unix:'
/** Bytes of a path that Linux takes. */
const LONGEST = 107

/** The path of a Unix socket. Undefined: the text names none. */
export function socketPathOf(text: string): string | undefined {
  return text.startsWith(SCHEME) ? text.slice(SCHEME.length) : undefined
}

/** Why a path cannot be that of a Unix socket, with the remedy. Undefined: it can. */
export function faultOfSocketPath(path: string): string | undefined {
  if (path === '') return 'names no path; use e.g. "unix:/run/app.sock"'
  const [, socket, rest] = /^(.+?):(\/.*)$/.exec(path) ?? []
  if (rest !== undefined) return `has a path behind the socket, but requests keep their own; write "unix:${socket}"`
  const slashes = path.replace(/^\/{2,}/, '/')
  if (!path.startsWith('/') || slashes !== path)
    return `needs the full path of the socket; write "unix:${path.startsWith('@') ? '/run/app.sock' : resolve(slashes)}"`
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (/[\x00-\x1f\x7f]/.test(path)) return 'has a control character in its path; use e.g. "unix:/run/app.sock"'
  if (path.endsWith('/')) return `is a directory; name a file in it, e.g. "unix:${path}app.sock"`
  const bytes = Buffer.byteLength(path)
  return bytes > LONGEST
    ? `has ${bytes} bytes in its path, and a socket may have ${LONGEST}; use a shorter path`
    : undefined
}
