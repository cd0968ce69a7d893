/** The files that a configuration names. They are read when it is checked, not when they are first needed. */
import { createHash, createPublicKey, X509Certificate } from 'node:crypto'
import { accessSync, closeSync, constants, openSync, readFileSync, readSync, type Stats, statSync } from 'node:fs'
import { dirname, isAbsolute, join, resolve } from 'node:path'
import { createSecureContext } from 'node:tls'
import { orElse } from '../../core/structures/or-else.js'
import { faultOfSocketPath, socketPathOf } from '../../http/unix-socket.js'
import { quote, quoteFile } from '../messages.js'
import type { Finding } from '../problems.js'
import type { Listen, Settings } from '../settings.js'
import { LEVELS_FILE } from '../store-url.js'
import { faultOfTemplate } from '../waiting-template.js'
import { isObject, listensOf, routesOf, upstreamsOf } from './partial-config.js'

const PEM = '-----BEGIN'

/** The contents of PEM files: a certificate and its key, and the authorities that the other side is checked by. */
export interface TlsFiles {
  readonly cert?: Buffer
  readonly key?: Buffer
  readonly ca?: Buffer
}

/** @throws when a file cannot be read, does not hold whole certificates, or when the key does not belong to the certificate */
export function readTlsFiles({ cert, key, ca }: { cert?: string; key?: string; ca?: string }): TlsFiles {
  const files = {
    ...(cert !== undefined && { cert: readFileSync(cert) }),
    ...(key !== undefined && { key: readFileSync(key) }),
    ...(ca !== undefined && { ca: readFileSync(ca) }),
  }
  if (files.ca !== undefined) checkAuthorities(files.ca)
  if (files.cert !== undefined) createSecureContext(files)
  return files
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

/** Finds files that cannot be used. Looks at the file as written, so that all errors are reported together. */
export function fileFaults(file: Record<string, unknown>): Finding[] {
  const { egress, identity, waitingPage } = file
  return [
    ...templateFaults(waitingPage, ['waitingPage']),
    ...routesOf(file).flatMap(({ route, path }) => templateFaults(route.waitingPage, [...path, 'waitingPage'])),
    ...listensOf(file).flatMap(({ listen, path }) => tlsFaults(tlsOf(listen), path, 'clientCa')),
    ...socketsOf(file).flatMap(({ text, path }) => socketFaults(text, path)),
    ...(isObject(file.store) && file.store.type === 'memory' ? levelsFaults(file.store.file) : []),
    ...Object.entries(isObject(file.buckets) ? file.buckets : {}).flatMap(([name, bucket]) =>
      limitsFaults(name, bucket),
    ),
    ...upstreamsOf(file).flatMap(({ upstream, path }) => tlsFaults(tlsOf(upstream), path, 'ca')),
    ...upstreamsOf(file).flatMap(({ upstream, path }) =>
      isObject(upstream) ? directoryFaults(upstream.url, [...path, 'url']) : directoryFaults(upstream, path),
    ),
    ...(isObject(identity) && isObject(identity.jwt) ? publicKeyFaults(identity.jwt.publicKey) : []),
    ...(isObject(egress) ? tlsFaults(tlsOf(egress.upstream), ['egress', 'upstream'], 'ca') : []),
  ]
}

function tlsOf(value: unknown): Record<string, unknown> {
  return isObject(value) && isObject(value.tls) ? value.tls : {}
}

function tlsFaults(
  tls: Record<string, unknown>,
  path: readonly PropertyKey[],
  authorities: 'ca' | 'clientCa',
): Finding[] {
  const { cert, key } = tls
  const at = (name: string): PropertyKey[] => [...path, 'tls', name]
  const alone = [
    ...pemFaults(at('cert'), cert, content => createSecureContext({ cert: content })),
    ...pemFaults(at('key'), key, content => createSecureContext({ key: content })),
    ...pemFaults(at(authorities), tls[authorities], checkAuthorities),
  ]
  if (alone.length > 0 || typeof cert !== 'string') return alone
  return pemFaults(at('key'), key, content => createSecureContext({ cert: readFileSync(cert), key: content }))
}

/** Where the program itself listens on a Unix socket. */
function socketsOf(file: Record<string, unknown>): { text: unknown; path: readonly PropertyKey[] }[] {
  const { admin } = file
  const ofAdmin = isObject(admin) ? [{ listen: admin.listen, path: ['admin', 'listen'] }] : []
  return [...listensOf(file), ...ofAdmin].map(({ listen, path }) =>
    isObject(listen) ? { text: listen.address, path: [...path, 'address'] } : { text: listen, path },
  )
}

/** The path of a Unix socket, if it is a good one. */
function goodSocketPath(text: unknown): string | undefined {
  const socket = typeof text === 'string' ? socketPathOf(text) : undefined
  return socket === undefined || faultOfSocketPath(socket) !== undefined ? undefined : socket
}

function directoryFaults(text: unknown, path: readonly PropertyKey[]): Finding[] {
  const socket = goodSocketPath(text)
  if (socket === undefined || !statOf(socket)?.isDirectory()) return []
  return [
    { path, message: `${quote(text)} is a directory; name a file in it, e.g. "unix:${join(socket, 'app.sock')}"` },
  ]
}

/** The socket need not exist, but its folder. What else is there is not replaced. */
function socketFaults(text: unknown, path: readonly PropertyKey[]): Finding[] {
  const socket = goodSocketPath(text)
  if (socket === undefined) return []
  const found = statOf(socket)
  if (found?.isDirectory()) return directoryFaults(text, path)
  if (found !== undefined && !found.isSocket())
    return [{ path, message: `${quote(text)} is a file, and no socket; name another path, or remove the file` }]
  return folderFaults(dirname(socket), quote(text), path)
}

function folderFaults(folder: string, needing: string, path: readonly PropertyKey[]): Finding[] {
  if (statOf(folder)?.isDirectory()) return []
  const message = `${needing} needs the folder ${quoteFile(folder)}, which this program cannot find; create it, or name another path`
  return [{ path, message }]
}

/** The file for levels need not exist. It is replaced, so the folder has to allow that, and no other file is to be lost. */
function levelsFaults(file: unknown): Finding[] {
  if (typeof file !== 'string' || file === '') return []
  const path = ['store', 'file']
  const found = statOf(file)
  const quoted = quoteFile(file)
  if (found?.isDirectory())
    return [
      { path, message: `${quoted} is a directory; name a file in it, e.g. ${quoteFile(join(file, 'levels.json'))}` },
    ]
  const folder = dirname(resolve(file))
  const missing = folderFaults(folder, quoted, path)
  if (missing.length > 0) return missing
  try {
    accessSync(folder, constants.W_OK | constants.X_OK)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    const message = `${quoted} cannot be written, as this program may not write in the folder ${quoteFile(folder)} (${code}); give it to the user of this program, or name another path`
    return [{ path, message }]
  }
  if (found === undefined) return []
  const beginning = found.isFile() ? beginningOf(file) : ''
  if (beginning instanceof Error)
    return [
      {
        path,
        message: `${quoted} cannot be read (${(beginning as NodeJS.ErrnoException).code}); give it to the user of this program, or remove it`,
      },
    ]
  if (found.isFile() && (found.size === 0 || beginning.startsWith(LEVELS_FILE))) return []
  return [{ path, message: `${quoted} is there and was not written by this program; name another path, or remove it` }]
}

/** It is read later, in a thread. */
function limitsFaults(name: string, bucket: unknown): Finding[] {
  if (!isObject(bucket) || !isObject(bucket.limits) || typeof bucket.limits.file !== 'string') return []
  const { file } = bucket.limits
  const beginning = beginningOf(file)
  if (!(beginning instanceof Error)) return []
  const fault = faultOf(file, (beginning as NodeJS.ErrnoException).code)
  const message = `${fault}; name a file with a line for each key, e.g. key,rate and below it customer-1,5/s`
  return [{ path: ['buckets', name, 'limits', 'file'], message }]
}

function beginningOf(file: string): string | Error {
  try {
    const descriptor = openSync(file, 'r')
    try {
      const bytes = Buffer.alloc(64)
      return bytes.toString('latin1', 0, readSync(descriptor, bytes))
    } finally {
      closeSync(descriptor)
    }
  } catch (error) {
    return error as Error
  }
}

/** Undefined: there is nothing, or it cannot be looked at. */
function statOf(path: string): Stats | undefined {
  return orElse(() => statSync(path), undefined)
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

const LEAST_RSA = 2048

function publicKeyFaults(given: unknown): Finding[] {
  if (typeof given !== 'string' || given === '') return []
  const path = ['identity', 'jwt', 'publicKey']
  const isText = given.startsWith(PEM)
  const content = isText ? Buffer.from(given) : contentOf(given)
  if (typeof content === 'string') return [{ path, message: `${content}; name a PEM file` }]
  const subject = isText ? 'the text' : quoteFile(given)
  // Node would make a public key of it.
  if (content.includes('PRIVATE KEY-----'))
    return [
      {
        path,
        message: `${subject} is a private key, which nobody but the issuer should have; name the file of the public one`,
      },
    ]
  const key = orElse(() => createPublicKey(content), undefined)
  if (key === undefined)
    return [{ path, message: `${subject} is no public key; use one in PEM, "-----BEGIN PUBLIC KEY-----"` }]
  const { modulusLength = LEAST_RSA } = key.asymmetricKeyDetails ?? {}
  if (modulusLength >= LEAST_RSA) return []
  return [
    {
      path,
      message: `${subject} is an RSA key of ${modulusLength} bits, and no token is verified with less than ${LEAST_RSA}; use a longer one`,
    },
  ]
}

/** The text of a public key, which may stand in a file. */
export function readPublicKey(given: string): string {
  return given.startsWith(PEM) ? given : readFileSync(given, 'utf8')
}

/** What a file holds, or why it cannot be read. */
function contentOf(file: string): Buffer | string {
  try {
    return readFileSync(file)
  } catch (error) {
    return faultOf(file, (error as NodeJS.ErrnoException).code)
  }
}

function faultOf(file: string, code: string | undefined): string {
  const fault = code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`
  const sought = isAbsolute(file) ? '' : ` (looked for at ${quoteFile(resolve(file))})`
  return `${quoteFile(file)} ${fault}${sought}`
}

function templateFaults(page: unknown, path: PropertyKey[]): Finding[] {
  if (!isObject(page) || typeof page.template !== 'string' || page.template === '') return []
  const { template } = page
  const at = [...path, 'template']
  const content = contentOf(template)
  if (typeof content === 'string') return [{ path: at, message: `${content}; name an HTML file` }]
  const fault = faultOfTemplate(content)
  return fault === undefined ? [] : [{ path: at, message: `${quoteFile(template)} ${fault}` }]
}

export interface UsedFile {
  readonly path: string
  readonly file: string
  readonly digest: string
}

/** Reads the files in use. @param listen that of the start: a reload does not change its files */
export function usedFiles({ routes, identity }: Settings, listen: readonly Listen[]): UsedFile[] {
  const towards = (name: 'ca' | 'cert' | 'key'): UsedFile[] =>
    Array.from(new Set(routes.flatMap(({ upstream }) => upstream.tls[name] ?? [])), file =>
      usedFile(`upstream.tls.${name}`, file),
    )
  const templates = new Set(routes.flatMap(({ waitingPage }) => waitingPage?.template ?? []))
  return [
    ...listen.flatMap(({ tls }, index) =>
      Object.entries(tls ?? {}).map(([name, file]) => usedFile(`${pathOfListen(listen, index)}.tls.${name}`, file)),
    ),
    ...[...towards('ca'), ...towards('cert'), ...towards('key')],
    ...[identity?.jwt.publicKey ?? PEM].flatMap(file =>
      file.startsWith(PEM) ? [] : [usedFile('identity.jwt.publicKey', file)],
    ),
    ...Array.from(templates, file => usedFile('waitingPage.template', file)),
  ]
}

/** The path of a listener in messages. */
export function pathOfListen(listen: readonly Listen[], index: number): string {
  return listen.length === 1 ? 'listen' : `listen[${index}]`
}

function usedFile(path: string, file: string): UsedFile {
  // The code that uses the file reports that it cannot be read.
  return { path, file, digest: digestOfFile(file) ?? '' }
}

/** Undefined for a file that cannot be read. */
export function digestOfFile(file: string): string | undefined {
  return orElse(() => digestOf(readFileSync(file)), undefined)
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
