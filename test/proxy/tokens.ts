/** Tokens for tests: signed as an issuer does, and forged. */
import { createHmac, generateKeyPairSync, type KeyObject, sign } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

export const ISSUER = 'https://id.example/'
export const SECRET = 'a secret of at least thirty-two characters'
/** 2026-01-01 */
export const START = 1_767_225_600_000

export interface Signer {
  readonly kid: string
  readonly publicKey: KeyObject
  readonly privateKey: KeyObject
  /** As at a URL of keys. */
  readonly jwk: object
}

export function signer(kid: string, modulusLength = 2_048): Signer {
  const pair = generateKeyPairSync('rsa', { modulusLength })
  return { kid, ...pair, jwk: { ...pair.publicKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'RS256' } }
}

export function pem({ publicKey }: Signer): string {
  return publicKey.export({ type: 'spki', format: 'pem' }) as string
}

export function part(value: unknown): string {
  return Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url')
}

/** What most tokens of tests say, an hour valid. */
export function claims(more: object = {}): object {
  return { iss: ISSUER, aud: 'api', sub: 'acme', exp: START / 1_000 + 3_600, ...more }
}

export function rs256({ privateKey, kid }: Signer, payload: unknown = claims(), header: object = {}): string {
  const text = `${part({ alg: 'RS256', typ: 'JWT', kid, ...header })}.${part(payload)}`
  return `${text}.${sign('sha256', Buffer.from(text), privateKey).toString('base64url')}`
}

export function hs256(secret: string | Buffer, payload: unknown = claims(), header: object = {}): string {
  const text = `${part({ alg: 'HS256', typ: 'JWT', ...header })}.${part(payload)}`
  return `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`
}

export function bearer(token: string): string {
  return `Authorization: Bearer ${token}`
}

export interface KeyServer {
  readonly url: string
  /** How often it was asked. */
  asked: number
  answer: 'keys' | 'nothing' | 'error' | 'long' | 'elsewhere' | 'no keys'
  signers: readonly Signer[]
  /** Gives the answers that are owed since `nothing`. */
  release(): void
}

export async function keyServer(
  t: { teardown(run: () => unknown): void },
  ...signers: readonly Signer[]
): Promise<KeyServer> {
  const owed: (() => void)[] = []
  const server = createServer((req, res) => {
    keys.asked += 1
    const json = (): void => void res.end(JSON.stringify({ keys: keys.signers.map(({ jwk }) => jwk) }))
    if (keys.answer === 'nothing') owed.push(json)
    else if (keys.answer === 'error') res.writeHead(500).end()
    else if (keys.answer === 'long') res.end(`{"keys":[]}${' '.repeat(300_000)}`)
    else if (keys.answer === 'no keys') res.end('{"keys":{}}')
    else if (keys.answer === 'elsewhere' && req.url !== '/else') res.writeHead(302, { location: '/else' }).end()
    else json()
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  const keys: KeyServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/keys`,
    asked: 0,
    answer: 'keys',
    signers,
    release: () => {
      for (const answer of owed.splice(0)) answer()
    },
  }
  return keys
}
