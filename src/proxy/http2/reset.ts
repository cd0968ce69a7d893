import type { Http2Stream } from 'node:http2'

/** The code of an error where the other side says that it has not processed a request, or has never got it. */
export const UNTAKEN = 'SHAPER_UNTAKEN'

/**
 * Resets a stream in the next turn of the event loop.
 *
 * Node tells of frames from within nghttp2, and a reset sends what waits. While nghttp2 closes another stream, it would send empty
 * frames of that one without end, or free it twice. Either ends the process.
 */
export function resetSoon(stream: Http2Stream, code: number): void {
  setImmediate(() => stream.close(code))
}

/** Resets a stream in the next turn, so that its end is not sent before. */
export function breakOffSoon(stream: Http2Stream, why: string): void {
  setImmediate(() => stream.destroy(new Error(why)))
}
