/** `identity`, and the keys that need it. */
import { generateKeyPairSync } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import t from 'tap'
import { usedFiles } from '../../src/config/checks/readable-files.js'
import { loadConfig } from '../../src/config/load.js'
import { changes } from '../../src/config/report/changes.js'
import { effective } from '../../src/config/report/effective-config.js'
import { warnings } from '../../src/config/warnings/index.js'
import { faults, linesOf, parse } from './sample.js'

const JWKS = 'https://id.example/keys'
const SECRET = 's3cret-of-32-characters-and-more'
const ALL = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'Ed25519', 'EdDSA']

function file(jwt: unknown, key: unknown = 'jwt:sub', more: object = {}) {
  return {
    upstream: 'echo:',
    ...(jwt !== undefined && { identity: { jwt } }),
    buckets: { tenant: { key, rate: '5/s', capacity: 10 } },
    ...more,
  }
}

const told = (config: object): string[] => warnings(parse(config)).map(({ path, message }) => `${path}: ${message}`)

t.test('one way to verify, and what goes with it', async t => {
  t.match(parse(file({ jwksUrl: JWKS })).identity!.jwt, { jwksUrl: JWKS, algorithms: ALL, clockTolerance: 0 })
  t.match(parse(file({ secret: SECRET, clockTolerance: '5s' })).identity!.jwt, {
    algorithms: ['HS256'],
    clockTolerance: 5_000,
  })
  const { issuer, audience } = parse(file({ publicKey: 'a.pem', issuer: 'a', audience: ['b', 'c'] })).identity!.jwt
  t.same([issuer, audience], [['a'], ['b', 'c']])
  for (const [jwt, ...lines] of [
    [{}, 'identity.jwt: nothing verifies a token; add "jwksUrl", "publicKey" or "secret"'],
    [
      { publicKey: 'a.pem', secret: SECRET },
      'identity.jwt.secret: does not go with "publicKey"; remove one: a token is verified in one way only',
    ],
    [
      { jwksUrl: JWKS, publicKey: 'a.pem' },
      'identity.jwt.publicKey: does not go with "jwksUrl"; remove one: a token is verified in one way only',
    ],
    [
      { publicKey: 'a.pem', algorithms: ['RS256', 'HS256'] },
      `identity.jwt.algorithms: "HS256" does not go with "publicKey"; use ${ALL.map(each => `"${each}"`)
        .join(', ')
        .replace(/, (?="EdDSA")/, ' or ')}`,
    ],
    [
      { secret: SECRET, algorithms: ['RS256'] },
      'identity.jwt.algorithms: "RS256" does not go with "secret"; use "HS256", "HS384" or "HS512"',
    ],
    [{ jwksUrl: JWKS, algorithms: [] }, 'identity.jwt.algorithms: the list is empty; use e.g. ["RS256"], or remove it'],
    [
      { jwksUrl: 'id.example/keys' },
      'identity.jwt.jwksUrl: "id.example/keys" is not a URL of http or https; use e.g. "https://id.example.com/.well-known/jwks.json"',
    ],
    [
      { jwksUrl: 'https://u:pw@id.example/keys' },
      'identity.jwt.jwksUrl: "https://***@id.example/keys" has a user, and public keys need none; use e.g. "https://id.example.com/.well-known/jwks.json"',
    ],
    [
      { secret: 'short' },
      `identity.jwt.secret: this text is not a secret; use at least 32 characters, e.g. "\${JWT_SECRET}" with the output of: openssl rand -base64 32`,
    ],
    [{ jwksUrl: JWKS, audiance: 'a' }, 'identity.jwt.audiance: unknown key; did you mean "audience"?'],
    [{ jwksUrl: JWKS, clockTolerance: 5 }, 'identity.jwt.clockTolerance: 5 has no unit; write e.g. "5s" or "5ms"'],
  ] as const)
    t.same(faults(file(jwt)), lines)
  t.match(faults(file({ jwksUrl: JWKS, algorithms: ['none'] })), [
    /^identity\.jwt\.algorithms\[0\]: "none" is not an alg/,
  ])
  t.match(faults({ ...file(undefined), identity: {} }), [/^identity\.jwt: missing; use e\.g\. \{ "jwksUrl"/])
})

t.test('a key from a token needs `identity`, and that needs such a key', async t => {
  const why = /^buckets\.tenant\.key(\.from)?: "jwt:sub" needs a token that is verified, and nothing says how; add/
  t.match(faults(file(undefined)), [why])
  t.match(faults(file(undefined, ['ip', 'jwt:sub'])), [why])
  t.match(faults(file(undefined, { from: 'jwt:sub', missing: 'reject' })), [why])
  const servers = { servers: ['http://127.0.0.1:1', 'http://127.0.0.1:2'], pick: { hash: 'jwt:sub' } }
  t.match(faults(file(undefined, 'ip', { upstream: servers })), [/^upstream\.pick\.hash: "jwt:sub" needs a token/])
  t.same(told(file({ jwksUrl: JWKS }, 'header:a')), [
    'identity.jwt: has no effect, as no key is made of a token; use e.g. "key": "jwt:sub" in a bucket, or remove this',
  ])
  t.same(told(file({ jwksUrl: JWKS })), [])
  t.same(told(file({ jwksUrl: JWKS }, 'header:a', { upstream: servers })), [])
  for (const [url, isTold] of [
    ['http://id.example/keys', true],
    ['http://127.0.0.1.evil/keys', true],
    ['http://localhost:1/keys', false],
    ['http://[::1]/keys', false],
  ] as const)
    t.match(told(file({ jwksUrl: url })), isTold ? [/^identity\.jwt\.jwksUrl: the keys are read without TLS/] : [], url)
})

t.test('keys from bodies: a path, not in a gate, and with a buffer', async t => {
  t.same(parse(file(undefined, 'body:a.b[0].c')).buckets[0]!.key.parts, [{ kind: 'body', name: 'a.b[0].c' }])
  t.match(faults(file(undefined, 'body:a..b')), [/^buckets\.tenant\.key: "a\.\.b" is not a path in JSON; use names/])
  t.same(faults(file(undefined, 'body:')), ['buckets.tenant.key: "body:" names no body; write e.g. "body:NAME"'])
  t.match(faults(file(undefined, 'jtw:sub')), [/did you mean "jwt:sub"/])
  const gate = { upstream: 'gate:', trustProxy: ['loopback'] }
  const unseen = /^buckets\.tenant\.key: "body:a" reads a body, and with "upstream": "gate:" none comes here/
  t.match(faults(file(undefined, 'body:a', gate)), [unseen])
  t.match(faults(file(undefined, 'body:a', { ...gate, routes: [{ buckets: ['tenant'] }] })), [unseen])
  t.same(faults(file(undefined, 'body:a', { ...gate, routes: [{ upstream: 'echo:' }] })), [])
  t.same(faults(file({ jwksUrl: JWKS }, 'jwt:a', gate)), [])
  t.match(told(file(undefined, 'body:a', { upstream: { url: 'http://127.0.0.1:1', requestBuffer: 0 } })), [
    /^buckets\.tenant\.key: no body is read on route "default" with "requestBuffer": 0, so the key "body:a" is always/,
  ])
})

t.test('the file of a public key is read with the configuration, and is watched', async t => {
  const cwd = t.testdir()
  const rsa = (modulusLength: number) => generateKeyPairSync('rsa', { modulusLength })
  const pem = { type: 'spki', format: 'pem' } as const
  const { publicKey, privateKey } = rsa(2_048)
  const text = publicKey.export(pem) as string
  const lines = (key: string | undefined, given = `${cwd}/key.pem`) => {
    if (key !== undefined) writeFileSync(`${cwd}/key.pem`, key)
    writeFileSync(`${cwd}/config.json`, JSON.stringify(file({ publicKey: given })))
    return linesOf(() => loadConfig({ file: `${cwd}/config.json`, flags: {}, env: {}, cwd }))
  }
  t.match(lines(undefined), [/^identity\.jwt\.publicKey: ".*key\.pem" does not exist; name a PEM file$/])
  t.same(lines(text), [])
  t.same(lines(undefined, text), [], 'as a text')
  t.match(lines('junk'), [/is no public key; use one in PEM, "-----BEGIN PUBLIC KEY-----"$/])
  t.match(lines(undefined, '-----BEGIN PUBLIC KEY-----'), [/^identity\.jwt\.publicKey: the text is no public key/])
  const isPrivate = /is a private key, which nobody but the issuer should have; name the file of the public one$/
  t.match(lines(privateKey.export({ type: 'pkcs8', format: 'pem' }) as string), [isPrivate])
  t.match(lines(rsa(1_024).publicKey.export(pem) as string), [/is an RSA key of 1024 bits, and no token is verified/])
  t.same(lines(generateKeyPairSync('ed25519').publicKey.export(pem) as string), [])
  const settings = parse(file({ publicKey: `${cwd}/key.pem` }))
  t.match(usedFiles(settings, settings.listen), [{ path: 'identity.jwt.publicKey', file: `${cwd}/key.pem` }])
  t.same(usedFiles(parse(file({ publicKey: text })), settings.listen), [])
})

t.test('a secret is never shown, and a change of it is told', async t => {
  const [before, after] = [SECRET, `${SECRET}!`].map(secret => parse(file({ secret })))
  const shown = effective(before!) as { identity: { jwt: object } }
  t.match(shown.identity.jwt, { secret: '***', algorithms: ['HS256'], clockTolerance: '0ms' })
  t.same(changes(before!, after!), ['identity.jwt.secret: another secret'])
  const settings = parse(file({ jwksUrl: JWKS, issuer: 'a', clockTolerance: '5s' }, ['jwt:https://a/b', 'body:a[0]']))
  t.same(parse(effective(settings)), settings, 'what is shown parses to the same')
})
