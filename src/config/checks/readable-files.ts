/** The files that a configuration names. They are read when it is checked, not when they are first needed. */
import { createHash, X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { isAbsolute, resolve } from 'node:path'
import { createSecureContext } from 'node:tls'
import { quoteFile } from '../messages.js'
import type { Finding } from '../problems.js'
import type { Listen, Settings } from '../settings.js'
import { faultOfTemplate } from '../waiting-template.js'
import { isObject } from './partial-config.js'

/** A certificate chain and its key. */
export interface KeyPair {
  readonly cert: Buffer
  readonly key: Buffer
}

/** @throws when a file cannot be read, or when the key does not belong to the certificate */
export function readKeyPair(files: { cert: string; key: string }): KeyPair {
  const pair = { cert: readFileSync(files.cert), key: readFileSync(files.key) }
  createSecureContext(pair)
  return pair
}

/** @throws when the file cannot be read, or does not hold whole certificates */
export function readAuthorities(file: string): Buffer {
  const ca = readFileSync(file)
  checkAuthorities(ca)
  return ca
}

/** Checks every certificate. OpenSSL skips unreadable ones silently, so half a file could mean no trusted authority. */
function checkAuthorities(ca: Buffer): void {
  const text = ca.toString('latin1')
  const begun = text.match(/-----BEGIN [A-Z0-9 ]*CERTIFICATE-----/g)?.length ?? 0
  const whole = text.match(/-----BEGIN ([A-Z0-9 ]*CERTIFICATE)-----[^-]*-----END \1-----/g) ?? []
  if (begun === 0 || whole.length < begun) throw new Error('the file does not hold whole certificates')
  for (const certificate of whole) new X509Certificate(certificate)
  createSecureContext({ ca })
}

/**
 * Finds files that cannot be used, each with its path in the configuration. Looks at the configuration as written, so that
 * these are reported together with all other errors.
 */
export function fileFaults(file: Record<string, unknown>): Finding[] {
  const { listen, upstream, egress, routes, waitingPage } = file
  const list: unknown[] = Array.isArray(routes) ? routes : []
  return [
    ...templateFaults(waitingPage, ['waitingPage']),
    ...list.flatMap((route, index) =>
      isObject(route) ? templateFaults(route.waitingPage, ['routes', index, 'waitingPage']) : [],
    ),
    ...keyPairFaults(tlsOf(listen)),
    ...authorityFaults(tlsOf(upstream), ['upstream']),
    ...(isObject(egress) ? authorityFaults(tlsOf(egress.upstream), ['egress', 'upstream']) : []),
    ...list.flatMap((route, index) =>
      isObject(route) ? authorityFaults(tlsOf(route.upstream), ['routes', index, 'upstream']) : [],
    ),
  ]
}

function tlsOf(value: unknown): Record<string, unknown> {
  return isObject(value) && isObject(value.tls) ? value.tls : {}
}

function keyPairFaults({ cert, key }: Record<string, unknown>): Finding[] {
  const paths = { cert: ['listen', 'tls', 'cert'], key: ['listen', 'tls', 'key'] }
  const alone = [
    ...pemFaults(paths.cert, cert, content => createSecureContext({ cert: content })),
    ...pemFaults(paths.key, key, content => createSecureContext({ key: content })),
  ]
  if (alone.length > 0 || typeof cert !== 'string') return alone
  return pemFaults(paths.key, key, content => createSecureContext({ cert: readFileSync(cert), key: content }))
}

function authorityFaults({ ca }: Record<string, unknown>, path: PropertyKey[]): Finding[] {
  return pemFaults([...path, 'tls', 'ca'], ca, checkAuthorities)
}

/** @param file any value of the configuration; the schema reports one that is no text */
function pemFaults(path: PropertyKey[], file: unknown, parse: (content: Buffer) => unknown): Finding[] {
  if (typeof file !== 'string') return []
  const content = contentOf(file)
  if (typeof content === 'string') return [{ path, message: `${content}; name a PEM file` }]
  try {
    parse(content)
    return []
  } catch {
    const message = `${quoteFile(file)} is not a usable PEM file, or its key does not belong to the certificate; name another file`
    return [{ path, message }]
  }
}

/** What a file holds, or why it cannot be read. */
function contentOf(file: string): Buffer | string {
  try {
    return readFileSync(file)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    const fault = code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`
    const sought = isAbsolute(file) ? '' : ` (looked for at ${quoteFile(resolve(file))})`
    return `${quoteFile(file)} ${fault}${sought}`
  }
}

/** @param page any value of the configuration; the schema reports one that is none */
function templateFaults(page: unknown, path: PropertyKey[]): Finding[] {
  if (!isObject(page) || typeof page.template !== 'string' || page.template === '') return []
  const { template } = page
  const at = [...path, 'template']
  const content = contentOf(template)
  if (typeof content === 'string') return [{ path: at, message: `${content}; name an HTML file` }]
  const fault = faultOfTemplate(content)
  return fault === undefined ? [] : [{ path: at, message: `${quoteFile(template)} ${fault}` }]
}

/** A file in use: its path in the configuration, its name, and a digest of its contents. */
export interface UsedFile {
  readonly path: string
  readonly file: string
  readonly digest: string
}

/**
 * Reads the files in use.
 *
 * @param listen that of the start: a reload does not change its files
 */
export function usedFiles(settings: Settings, { tls }: Listen): UsedFile[] {
  return [
    ...(tls === undefined ? [] : [usedFile('listen.tls.cert', tls.cert), usedFile('listen.tls.key', tls.key)]),
    ...[...authoritiesOf(settings)].map(file => usedFile('upstream.tls.ca', file)),
    ...[...templatesOf(settings)].map(file => usedFile('waitingPage.template', file)),
  ]
}

function usedFile(path: string, file: string): UsedFile {
  // The code that uses the file reports that it cannot be read.
  return { path, file, digest: digestOfFile(file) ?? '' }
}

/** Undefined for a file that cannot be read. */
export function digestOfFile(file: string): string | undefined {
  try {
    return digestOf(readFileSync(file))
  } catch {
    return undefined
  }
}

export function digestOf(content: Buffer): string {
  return createHash('sha256').update(content).digest('hex')
}

/** One line for each file with new contents. */
export function changedFiles(before: readonly UsedFile[], now: readonly UsedFile[]): string[] {
  return now.flatMap(({ path, file, digest }) => {
    const old = before.find(each => each.path === path && each.file === file)
    return old === undefined || old.digest === digest ? [] : [`${path}: ${file} was read again`]
  })
}

function authoritiesOf({ routes }: Settings): Set<string> {
  return new Set(routes.flatMap(({ upstream }) => upstream.tls.ca ?? []))
}

function templatesOf({ routes }: Settings): Set<string> {
  return new Set(routes.flatMap(({ waitingPage }) => waitingPage?.template ?? []))
}
