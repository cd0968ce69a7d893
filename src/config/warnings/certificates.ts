/** Warns of a certificate of ours outside of its time. Clients refuse it. */
import { X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Problem } from '../load.js'
import { quoteFile } from '../messages.js'
import type { Listen } from '../settings.js'

/**
 * @param listen that of the start: a reload does not change its files
 * @param now ms since 1970
 */
export function certificateWarnings({ tls }: Listen, now: number): Problem[] {
  const certificate = tls && readCertificate(tls.cert)
  if (tls === undefined || certificate === undefined) return []
  const from = Date.parse(certificate.validFrom)
  const to = Date.parse(certificate.validTo)
  if (now >= from && now <= to) return []
  const fault = now > to ? `expired at ${instant(to)}` : `is not valid before ${instant(from)}`
  return [{ path: 'listen.tls.cert', message: `${quoteFile(tls.cert)} ${fault}, so clients refuse it; renew it` }]
}

/** The server's own, which is the first in the file. Undefined: the code that uses the file reports the error. */
function readCertificate(file: string): X509Certificate | undefined {
  try {
    return new X509Certificate(readFileSync(file))
  } catch {
    return undefined
  }
}

function instant(ms: number): string {
  return new Date(ms).toISOString().replace('.000', '')
}
