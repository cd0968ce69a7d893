/** Who a request is from: how its token is verified. */
import * as z from 'zod'
import { either, quoteUrl, wants, wantsSecret } from '../messages.js'
import { duration, maybe, object, oneOf, oneOrMany, read, report, someOf, text } from './values.js'

const ASYMMETRIC = [
  ...(['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'Ed25519', 'EdDSA'] as const),
]
const SYMMETRIC = ['HS256', 'HS384', 'HS512'] as const
/** What tokens are verified with. One of them is set. */
const KEYS = ['jwksUrl', 'publicKey', 'secret'] as const
const JWKS = 'use e.g. "https://id.example.com/.well-known/jwks.json"'
const PEM = 'use the name of a PEM file, e.g. "jwt.pem", or its text'
const ISSUER = 'use e.g. "https://id.example.com/"'
const AUDIENCE = 'use e.g. "api"'
const ALGORITHMS = wants('a list of algorithms', 'use e.g. ["RS256"]')
const LEAST_SECRET = 32
const SECRET = {
  error: wantsSecret(
    'a secret',
    `use at least ${LEAST_SECRET} characters, e.g. "\${JWT_SECRET}" with the output of: openssl rand -base64 32`,
  ),
}

const url = read(text('a URL', JWKS), value => {
  const { protocol, username, password } = URL.canParse(value) ? new URL(value) : { protocol: '' }
  if (protocol !== 'https:' && protocol !== 'http:')
    throw new RangeError(`${quoteUrl(value)} is not a URL of http or https; ${JWKS}`)
  if (username || password) throw new RangeError(`${quoteUrl(value)} has a user, and public keys need none; ${JWKS}`)
  return value
})

const jwt = read(
  object(
    {
      jwksUrl: maybe(url).describe(`Where the public keys are read, ${JWKS.slice(4)}.`),
      publicKey: maybe(text('a public key', PEM)).describe(
        'The public key in place of a URL: the name of a PEM file, e.g. "jwt.pem", or its text.',
      ),
      secret: maybe(z.string(SECRET).refine(value => value.length >= LEAST_SECRET, SECRET)).describe(
        `The secret that signs (HMAC) in place of a public key, e.g. "\${JWT_SECRET}".`,
      ),
      issuer: maybe(
        oneOrMany(text('an issuer', ISSUER), `the list is empty; ${ISSUER}`, wants('an issuer', ISSUER)),
      ).describe(`What "iss" has to be, or one of a list, ${ISSUER.slice(4)}; anything when absent.`),
      audience: maybe(
        oneOrMany(text('an audience', AUDIENCE), `the list is empty; ${AUDIENCE}`, wants('an audience', AUDIENCE)),
      ).describe(`What "aud" has to have, or one of a list, ${AUDIENCE.slice(4)}; anything when absent.`),
      algorithms: maybe(
        someOf(oneOf([...ASYMMETRIC, ...SYMMETRIC], 'an algorithm'), ALGORITHMS, 'use e.g. ["RS256"], or remove it'),
      ).describe('What tokens may be signed with, e.g. ["RS256"]; all of a public key, and HS256 of a secret.'),
      clockTolerance: duration.prefault('0s').describe('How far the clock of the issuer may be from ours, e.g. "5s".'),
    },
    'use e.g. { "jwksUrl": "https://id.example.com/.well-known/jwks.json", "audience": "api" }',
  ),
  (given, issues) => {
    const [key, other] = KEYS.filter(each => given[each] !== undefined)
    if (key === undefined) {
      const message = `nothing verifies a token; add ${either(KEYS)}`
      issues.issues.push({ code: 'custom', message, input: undefined })
    } else if (other !== undefined) {
      report(issues, other, `does not go with "${key}"; remove one: a token is verified in one way only`)
    }
    const fitting: readonly string[] = key === 'secret' ? SYMMETRIC : ASYMMETRIC
    const odd = given.algorithms?.find(each => !fitting.includes(each))
    if (odd !== undefined && key !== undefined)
      report(issues, 'algorithms', `"${odd}" does not go with "${key}"; use ${either(fitting)}`)
    return { ...given, algorithms: given.algorithms ?? (key === 'secret' ? [SYMMETRIC[0]] : ASYMMETRIC) }
  },
)

export const identity = object(
  {
    jwt: jwt.describe(
      'How tokens are verified (JWT, RFC 7519), e.g. { "jwksUrl": "https://id.example.com/.well-known/jwks.json" }.',
    ),
  },
  'use e.g. { "jwt": { "jwksUrl": "https://id.example.com/.well-known/jwks.json" } }',
)
