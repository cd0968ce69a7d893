import { createHash } from 'node:crypto'

/** A style or script inside a page as a source of its Content-Security-Policy (CSP3, 2.3.1), in quotes. */
export function policyHash(text: string): string {
  return `'sha256-${createHash('sha256').update(text).digest('base64')}'`
}
