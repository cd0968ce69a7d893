import type { Transform } from 'node:stream'
import * as zlib from 'node:zlib'

/** 8 MiB, the most that RFC 9659 allows on the web. */
const LARGEST_ZSTD_WINDOW = 23

/** As far as this Node has zstd. */
interface Zstd {
  readonly createZstdDecompress?: (options: { params: Record<number, number> }) => Transform
  readonly constants: { readonly ZSTD_d_windowLogMax?: number }
}

/**
 * A stream that undoes a content coding. Undefined: it is not known here.
 *
 * @param first the first byte of what is coded
 */
export function createInflate(coding: string, first: number): Transform | undefined {
  switch (coding) {
    case 'gzip':
    case 'x-gzip':
      return zlib.createGunzip()
    case 'deflate':
      // Some servers leave out the header of zlib, whose lower half is 8.
      return (first & 0x0f) === 8 ? zlib.createInflate() : zlib.createInflateRaw()
    case 'br':
      return zlib.createBrotliDecompress()
    case 'zstd': {
      const { createZstdDecompress, constants } = zlib as unknown as Zstd
      return createZstdDecompress?.({ params: { [constants.ZSTD_d_windowLogMax!]: LARGEST_ZSTD_WINDOW } })
    }
    default:
      return undefined
  }
}
