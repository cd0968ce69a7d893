/** Warns of a certificate of ours outside of its time. Clients refuse it. */
import { X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { orElse } from '../../core/structures/or-else.js'
import { pathOfListen } from '../checks/readable-files.js'
import type { Problem } from '../load.js'
import { quoteFile } from '../messages.js'
import type { Listen } from '../settings.js'

/** @param listen that of the start: a reload does not change its files. @param now ms since 1970 */
export function certificateWarnings(listen: readonly Listen[], now: number): Problem[] {
  return listen.flatMap((each, index) => warningsOf(each, pathOfListen(listen, index), now))
}

function warningsOf({ tls }: Listen, path: string, now: number): Problem[] {
  if (tls === undefined) return []
  // The server's own, which is the first in the file. The code that uses the file reports that it cannot be read.
  const certificate = orElse(() => new X509Certificate(readFileSync(tls.cert)), undefined)
  if (certificate === undefined) return []
  const from = Date.parse(certificate.validFrom)
  const to = Date.parse(certificate.validTo)
  if (now >= from && now <= to) return []
  const fault = now > to ? `expired at ${instant(to)}` : `is not valid before ${instant(from)}`
  return [{ path: `${path}.tls.cert`, message: `${quoteFile(tls.cert)} ${fault}, so clients refuse it; renew it` }]
}

function instant(ms: number): string {
  return new Date(ms).toISOString().replace('.000', '')
}
