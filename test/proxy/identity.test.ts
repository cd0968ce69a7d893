/** Keys `jwt:CLAIM`: what a token says counts only where it is verified. */
import { writeFileSync } from 'node:fs'
import { exportJWK, exportSPKI, generateKeyPair, type JWTPayload, SignJWT } from 'jose'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Identity } from '../../src/proxy/routing/identity.js'
import { blocks } from '../docs-code.js'
import { connect, eventually, get, httpUpstream, type Rig, type RigOptions, startRig, turns } from './harness.js'
import {
  answerOf,
  block,
  END_HEADERS,
  END_STREAM,
  FRAME,
  frame,
  openSession,
  RawClient,
  REQUEST,
  request,
} from './http2/h2-client.js'
import { bearer, claims, hs256, ISSUER, keyServer, part, pem, rs256, SECRET, START, signer } from './tokens.js'

type Test = Parameters<typeof startRig>[0]

const own = signer('one')
const other = signer('two')
const NOW: RigOptions = { wallNow: () => START }
const VERIFIED = { issuer: ISSUER, audience: 'api' }

/** A request without the claim is answered 400. */
function byClaim(jwt: object, claim = 'sub', more: object = {}) {
  return {
    upstream: 'echo:',
    identity: { jwt: { ...VERIFIED, ...jwt } },
    buckets: { tenant: { key: { from: `jwt:${claim}`, missing: 'reject' }, rate: '1000/s', capacity: 1_000 } },
    routes: [{ name: 'all', mode: 'meter' }],
    ...more,
  }
}

const publicKey = pem(own)

async function statusOf(t: Test, rig: Rig, ...headers: string[]): Promise<number> {
  const client = await connect(t, rig)
  const { status } = await client.ask(get('/', ...headers))
  client.hangUp()
  return status
}

function keysOf(rig: Rig, bucket = 'tenant'): string[] {
  return [...rig.proxy.context.bucketTable.keys(bucket)].sort()
}

const [head, body, signature] = rs256(own).split('.') as [string, string, string]
const flipped = signature.slice(0, -9) + (signature.at(-9) === 'A' ? 'B' : 'A') + signature.slice(-8)
const embedded = { jwk: other.publicKey.export({ format: 'jwk' }) }

const ATTACKS: readonly (readonly [name: string, ...headers: string[]])[] = [
  ['no token'],
  ['alg none', bearer(`${part({ alg: 'none' })}.${body}.`)],
  ['alg NONE with a signature', bearer(`${part({ alg: 'NoNe' })}.${body}.${signature}`)],
  ['no alg', bearer(`${part({ typ: 'JWT' })}.${body}.${signature}`)],
  ['HS256 with the public key as secret', bearer(hs256(publicKey))],
  ['HS256 with the DER of the public key', bearer(hs256(own.publicKey.export({ type: 'spki', format: 'der' })))],
  ['HS256 with an empty secret', bearer(hs256(''))],
  ['the key of someone else', bearer(rs256(other))],
  ['the key of someone else, with our kid', bearer(rs256({ ...other, kid: 'one' }))],
  ['a key in the header (jwk)', bearer(rs256(other, claims(), embedded))],
  ['a key at a URL in the header (jku)', bearer(rs256(other, claims(), { jku: 'http://127.0.0.1:9/keys' }))],
  ['a certificate in the header (x5c)', bearer(rs256(other, claims(), { x5c: ['AAAA'], x5u: 'http://127.0.0.1:9/' }))],
  ['a kid that is a path', bearer(rs256(other, claims(), { kid: '../../../dev/null' }))],
  ['a critical header that nobody knows', bearer(rs256(own, claims(), { crit: ['exp'], exp: 1 }))],
  ['an unencoded payload (b64)', bearer(rs256(own, claims(), { b64: false, crit: ['b64'] }))],
  ['expired', bearer(rs256(own, claims({ exp: START / 1_000 - 1 })))],
  ['expires now', bearer(rs256(own, claims({ exp: START / 1_000 })))],
  ['not yet valid', bearer(rs256(own, claims({ nbf: START / 1_000 + 60 })))],
  ['an expiry that is a text', bearer(rs256(own, claims({ exp: '9999999999' })))],
  ['another audience', bearer(rs256(own, claims({ aud: 'other' })))],
  ['no audience', bearer(rs256(own, claims({ aud: undefined })))],
  ['an audience that begins alike', bearer(rs256(own, claims({ aud: ['api2', 'ap'] })))],
  ['another issuer', bearer(rs256(own, claims({ iss: 'https://id.example.evil/' })))],
  ['no issuer', bearer(rs256(own, claims({ iss: undefined })))],
  ['a changed payload', bearer(`${head}.${part(claims({ sub: 'victim' }))}.${signature}`)],
  ['a changed signature', bearer(`${head}.${body}.${flipped}`)],
  ['a cut signature', bearer(`${head}.${body}.${signature.slice(0, 100)}`)],
  ['no signature', bearer(`${head}.${body}.`)],
  ['two parts', bearer(`${head}.${body}`)],
  ['four parts', bearer(`${head}.${body}.${signature}.${signature}`)],
  ['five parts, as if encrypted', bearer(`${head}.${body}.${body}.${body}.${signature}`)],
  ['not base64url', bearer(`${head}.${body}.${signature.slice(0, -2)}==`)],
  ['spaces inside', bearer(`${head}. ${body}.${signature}`)],
  ['a header that is no JSON', bearer(`${part('{"alg":"RS256"')}.${body}.${signature}`)],
  ['a payload that is a list', bearer(rs256(own, [claims()]))],
  ['a payload that is null', bearer(rs256(own, null))],
  ['oversized', bearer(rs256(own, claims({ pad: 'x'.repeat(16_384) })))],
  ['no claim', bearer(rs256(own, claims({ sub: undefined })))],
  ['a claim that is empty', bearer(rs256(own, claims({ sub: ' ' })))],
  ['a claim that is an object', bearer(rs256(own, claims({ sub: { a: 'acme' } })))],
  ['a claim that is a list', bearer(rs256(own, claims({ sub: ['acme'] })))],
  ['a claim that is true', bearer(rs256(own, claims({ sub: true })))],
  ['two lines, both valid', bearer(rs256(own)), bearer(rs256(own))],
  ['two lines, the first valid', bearer(rs256(own)), bearer(rs256(other))],
  ['two tokens in one line', `${bearer(rs256(own))}, Bearer ${rs256(own)}`],
  ['another scheme', `Authorization: Basic ${rs256(own)}`],
  ['no scheme', `Authorization: ${rs256(own)}`],
  ['in another header', `X-Authorization: Bearer ${rs256(own)}`, `Proxy-Authorization: Bearer ${rs256(own)}`],
  ['in a header that looks alike', `Authorization_: Bearer ${rs256(own)}`],
]

for (const [kind, keyOf] of [
  ['a public key', async () => ({ publicKey })],
  ['keys at a URL', async (t: Test) => ({ jwksUrl: (await keyServer(t, own)).url })],
] as const) {
  t.test(`with ${kind} no attack is a key`, async t => {
    const rig = await startRig(t, byClaim(await keyOf(t), 'sub', { limits: { maxHeaderSize: 65_536 } }), NOW)
    t.equal(await statusOf(t, rig, bearer(rs256(own))), 200, 'a valid token')
    for (const [name, ...headers] of ATTACKS) t.equal(await statusOf(t, rig, ...headers), 400, name)
    t.same(keysOf(rig), ['acme'])
    t.equal(await statusOf(t, rig, `authorization: bEARER   ${rs256(own)} `), 200, 'in any case')
    t.equal(rig.proxy.context.identity!.kept, 6, 'the valid ones are kept, also those without the claim')
  })
}

t.test('a secret: no public key, no other secret and no other algorithm will do', async t => {
  const rig = await startRig(t, byClaim({ secret: SECRET }), NOW)
  t.equal(await statusOf(t, rig, bearer(hs256(SECRET))), 200)
  for (const token of [
    hs256(`${SECRET}.`),
    hs256(SECRET, claims(), { alg: 'HS512' }),
    hs256(SECRET, claims(), { alg: 'none' }),
    hs256(SECRET, claims({ exp: 1 })),
    rs256(own),
    rs256(own, claims(), { alg: 'HS256' }),
  ])
    t.equal(await statusOf(t, rig, bearer(token)), 400)
})

t.test('algorithms, issuers, audiences and the tolerance of clocks as configured', async t => {
  const ok = async (jwt: object, token: string) =>
    (await statusOf(t, await startRig(t, byClaim({ publicKey, ...jwt }), NOW), bearer(token))) === 200
  t.notOk(await ok({ algorithms: ['ES256', 'PS256'] }, rs256(own)))
  t.ok(await ok({ algorithms: ['ES256', 'RS256'] }, rs256(own)))
  const late = rs256(own, claims({ exp: START / 1_000 - 9 }))
  const early = rs256(own, claims({ nbf: START / 1_000 + 9 }))
  for (const [clockTolerance, wanted] of [
    ['10s', true],
    ['8s', false],
  ] as const) {
    t.equal(await ok({ clockTolerance }, late), wanted, `late, ${clockTolerance}`)
    t.equal(await ok({ clockTolerance }, early), wanted, `early, ${clockTolerance}`)
  }
  t.ok(await ok({ audience: ['other', 'api'], issuer: [ISSUER, 'x'] }, rs256(own, claims({ aud: ['a', 'api'] }))))
  t.ok(await ok({ secret: SECRET, publicKey: undefined }, hs256(SECRET, claims({ exp: undefined }))), 'for ever')
})

t.test('public keys of each kind, and what a library signs with them', async t => {
  for (const alg of ['RS512', 'PS256', 'ES256', 'ES384', 'EdDSA']) {
    const pair = await generateKeyPair(alg, { extractable: true })
    const jwt = new SignJWT(claims() as JWTPayload).setProtectedHeader({ alg, kid: 'k' })
    const token = bearer(await jwt.sign(pair.privateKey))
    const own = await startRig(t, byClaim({ publicKey: await exportSPKI(pair.publicKey) }), NOW)
    t.equal(await statusOf(t, own, token), 200, alg)
    const jwk = { ...(await exportJWK(pair.publicKey)), kid: 'k' }
    const server = await keyServer(t, { ...other, jwk: { ...jwk, use: 'enc' } }, { ...other, jwk })
    const remote = await startRig(t, byClaim({ jwksUrl: server.url }), NOW)
    t.equal(await statusOf(t, remote, token), 200, `${alg} at a URL`)
    server.signers = [{ ...other, jwk: { kty: 'oct', k: part(SECRET), kid: 'k', alg: 'HS256' } }]
    const symmetric = await startRig(t, byClaim({ jwksUrl: server.url }), NOW)
    t.equal(await statusOf(t, symmetric, bearer(hs256(SECRET, claims(), { kid: 'k' }))), 400, 'a secret at a URL')
  }
})

t.test('a claim may be nested, have dots, or be a number', async t => {
  const payload = claims({
    'https://id.example/tenant': 'by-url',
    org: { team: { id: 7 }, 'a.b': 'x' },
    'org.team.id': undefined,
    'a.b': 'exact',
    a: { b: 'nested' },
    n: 1e21,
    half: '\ud800\n',
  })
  for (const [claim, wanted] of [
    ['https://id.example/tenant', 'by-url'],
    ['org.team.id', '7'],
    ['a.b', 'exact'],
    ['n', '1e+21'],
    ['half', '\ufffd'],
    ['org.team', undefined],
    ['org.a.b', undefined],
    ['sub.length', undefined],
    ['constructor.name', undefined],
    ['__proto__', undefined],
    ['toString', undefined],
    ['org.team.id.x', undefined],
  ] as const) {
    const rig = await startRig(t, byClaim({ publicKey }, claim), NOW)
    t.equal(await statusOf(t, rig, bearer(rs256(own, payload))), wanted === undefined ? 400 : 200, claim)
    t.same(keysOf(rig), wanted === undefined ? [] : [wanted], claim)
  }
  const proto = `{"iss":"${ISSUER}","aud":"api","__proto__":"own"}`
  const rig = await startRig(t, byClaim({ publicKey }, '__proto__'), NOW)
  t.equal(await statusOf(t, rig, bearer(rs256(own, proto))), 200)
  t.same(keysOf(rig), ['own'])
})

t.test('a missing claim as other missing keys; combined keys; two buckets verify once; the token goes on', async t => {
  const sent: (string | undefined)[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    sent.push(req.headers.authorization)
    res.end()
  })
  const limits = { rate: '1000/s', capacity: 1_000 }
  const rig = await startRig(
    t,
    byClaim({ publicKey }, 'sub', {
      upstream: upstream.url,
      buckets: {
        user: { key: ['jwt:sub', 'method'], ...limits },
        org: { key: { from: ['jwt:half', 'jwt:org'], missing: 'all' }, ...limits },
        some: { key: { from: 'jwt:org', missing: 'skip' }, ...limits },
      },
    }),
    NOW,
  )
  const identity = rig.proxy.context.identity!
  let asked = 0
  const claimsOf = identity.claimsOf.bind(identity)
  identity.claimsOf = headers => {
    asked += 1
    return claimsOf(headers)
  }
  const token = bearer(rs256(own, claims({ half: '\udfff\nx', org: 'o' })))
  t.equal(await statusOf(t, rig, token), 200)
  t.equal(asked, 1)
  t.equal(await statusOf(t, rig, bearer(rs256(other))), 200)
  t.same(keysOf(rig, 'user'), [' 127.0.0.1\nGET', 'acme\nGET'])
  t.same(keysOf(rig, 'org'), [' \n ', `${encodeURIComponent('\ufffd\nx')}\no`])
  t.same(keysOf(rig, 'some'), ['o'])
  t.equal(sent[0], token.slice('Authorization: '.length))
})

t.test('a key of another public key file after a reload; the same configuration keeps what is verified', async t => {
  const file = `${t.testdir({ 'jwt.pem': publicKey })}/jwt.pem`
  const config = byClaim({ publicKey: file })
  const rig = await startRig(t, config, NOW)
  t.equal(await statusOf(t, rig, bearer(rs256(own))), 200)
  const settings = () => parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config }))
  await rig.proxy.reload(settings())
  t.equal(rig.proxy.context.identity!.kept, 1)
  writeFileSync(file, pem(other))
  await rig.proxy.reload(settings())
  t.same([await statusOf(t, rig, bearer(rs256(own))), await statusOf(t, rig, bearer(rs256(other)))], [400, 200])
  writeFileSync(file, 'nothing')
  await t.rejects(rig.proxy.reload(settings()))
  t.equal(await statusOf(t, rig, bearer(rs256(other))), 200, 'the former one stays')
  const { identity: _identity, ...rest } = byClaim({}, 'sub', { buckets: { all: { key: 'ip', rate: '9/s' } } })
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...rest })))
  t.equal(rig.proxy.context.identity, undefined)
})

t.test('a token that is kept is valid until it expires', async t => {
  let now = START
  const rig = await startRig(t, byClaim({ publicKey, clockTolerance: '1s' }), { wallNow: () => now })
  const token = bearer(rs256(own, claims({ exp: START / 1_000 + 5 })))
  for (const [after, status] of [
    [0, 200],
    [5_999, 200],
    [6_000, 400],
    [5_999, 200],
    [6_001, 400],
  ] as const) {
    now = START + after
    t.equal(await statusOf(t, rig, token), status, `${after} ms`)
  }
})

/** The identity alone, on a virtual clock. */
async function identityOf(t: Test, jwt: object) {
  const clock = createVirtualClock()
  const told: (string | undefined)[] = []
  const settings = parseConfig(JSON.stringify(byClaim(jwt))).identity!.jwt
  const identity = await Identity.open({
    settings,
    claims: ['sub'],
    clock,
    wallNow: () => START + clock.now(),
    told: (_url, failure) => void told.push(failure && `${failure.detail}: ${failure.cause?.message}`),
  })
  t.teardown(() => identity.close())
  const subject = async (token: string): Promise<string | undefined> =>
    (await identity.claimsOf(['Authorization', `Bearer ${token}`])).get('sub')
  return { identity, clock, told, subject }
}

const LONG = claims({ exp: START / 1_000 + 9e6 })

t.test('keys of a URL are rotated, and read once a minute at most for a kid that nobody knows', async t => {
  const server = await keyServer(t, own)
  const { clock, subject, told, identity } = await identityOf(t, { jwksUrl: server.url })
  t.equal(await subject(rs256(own, LONG)), 'acme')
  t.equal(server.asked, 1)
  server.signers = [own, other]
  t.equal(await subject(rs256(other, LONG)), 'acme', 'a new key is looked for at once')
  t.equal(server.asked, 2)
  const third = signer('three')
  for (let count = 0; count < 50; count += 1)
    t.equal(await subject(rs256({ ...third, kid: `kid-${count}` }, LONG)), undefined)
  clock.runUntil(59_999)
  t.equal(await subject(rs256(third, LONG)), undefined)
  t.equal(server.asked, 2, 'not before a minute has passed')
  clock.runUntil(60_000)
  server.signers = [other, third]
  const asked = Array.from({ length: 50 }, () => subject(rs256(third, LONG)))
  t.strictSame(await Promise.all(asked), Array(50).fill('acme'))
  t.equal(server.asked, 3, 'once for all who wait')
  t.equal(await subject(rs256(own, LONG)), undefined, 'what a key has verified that is gone counts no more')
  server.signers = [other]
  clock.runUntil(60_000 + 600_000)
  await eventually(() => server.asked === 4)
  await eventually(() => identity.kept === 0)
  t.equal(await subject(rs256(third, LONG)), undefined, 'read again every ten minutes')
  t.same(told, [])
})

t.test('keys that cannot be read: missing at once, told once, and read again', async t => {
  const server = await keyServer(t, own)
  server.answer = 'error'
  const { clock, subject, told } = await identityOf(t, { jwksUrl: server.url })
  t.equal(await subject(rs256(own, LONG)), undefined)
  const detail = 'the public keys of tokens cannot be read: tokens that need them are as good as none'
  t.same(told, [`${detail}: the answer is 500`])
  t.equal(await subject(rs256(own, LONG)), undefined)
  t.equal(server.asked, 1)
  let asked = 1
  for (const answer of ['long', 'elsewhere', 'no keys', 'nothing'] as const) {
    server.answer = answer
    clock.runUntil(clock.now() + 10_000)
    asked += 1
    await eventually(() => server.asked === asked)
    t.equal(await subject(rs256(own, LONG)), undefined, answer)
    if (answer === 'nothing') clock.runUntil(clock.now() + 5_000)
    await eventually(() => clock.next() < Infinity && clock.next() > clock.now() + 5_000)
  }
  t.equal(told.length, 1)
  server.answer = 'keys'
  clock.runUntil(clock.now() + 10_000)
  await eventually(() => told.length === 2)
  t.same(told[1], undefined)
  t.equal(await subject(rs256(own, LONG)), 'acme')

  server.answer = 'error'
  clock.runUntil(clock.now() + 600_000)
  await eventually(() => told.length === 3)
  t.equal(await subject(rs256(own, claims({ exp: START / 1_000 + 9e6, jti: 'new' }))), 'acme', 'they are kept')
  clock.runUntil(clock.now() + 25 * 3_600_000)
  await eventually(() => clock.next() < Infinity)
  t.equal(await subject(rs256(own, LONG)), undefined, 'for a day')
})

t.test('who comes before the keys waits for them; a client may leave meanwhile', async t => {
  const server = await keyServer(t, own)
  server.answer = 'nothing'
  const rig = await startRig(t, byClaim({ jwksUrl: server.url }), NOW)
  const [one, gone] = [await connect(t, rig), await connect(t, rig)]
  one.send(get('/', bearer(rs256(own))) + get('/second', bearer(rs256(own))))
  gone.send(get('/', bearer(rs256(own, claims({ sub: 'gone' })))))
  await eventually(() => rig.began === 2)
  gone.hangUp()
  t.same(await rig.finished(1), ['all cancelled 499'], 'the rest of the connection waits behind')
  server.release()
  t.same([(await one.answer()).status, (await one.answer()).status], [200, 200])
  t.same(keysOf(rig), ['acme'])
  t.equal(rig.proxy.context.inProgress, 0)
})

t.test('a reload while a token is verified: the new configuration decides', async t => {
  const server = await keyServer(t, own)
  server.answer = 'nothing'
  const rig = await startRig(t, byClaim({ jwksUrl: server.url }), NOW)
  const clients = [await connect(t, rig), await connect(t, rig)]
  for (const [place, client] of clients.entries()) client.send(get('/', bearer(rs256([own, other][place]!))))
  await eventually(() => rig.began === 2)
  server.signers = [other]
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...byClaim({ publicKey }) })))
  t.same(await Promise.all(clients.map(async client => (await client.answer()).status)), [200, 400])
})

t.test('a shutdown ends requests whose token is being verified', async t => {
  const server = await keyServer(t, own)
  server.answer = 'nothing'
  const rig = await startRig(t, byClaim({ jwksUrl: server.url }), NOW)
  const client = await connect(t, rig)
  client.send(get('/', bearer(rs256(own))))
  await eventually(() => rig.began === 1)
  const drained = rig.proxy.drain(0)
  t.equal((await client.answer()).status, 503)
  await drained
  server.release()
  await turns()
  t.same(rig.outcomes, ['all expired 503'])
})

t.test('what is kept of tokens is bounded, and the oldest go first', async t => {
  const { identity, subject } = await identityOf(t, { secret: SECRET })
  const pad = 'x'.repeat(8_000)
  const tokens = Array.from({ length: 1_700 }, (_, id) => hs256(SECRET, claims({ sub: `user-${id}`, pad })))
  for (const token of tokens) await subject(token)
  const most = (16 * 1024 * 1024) / (tokens[0]!.length + 512)
  t.ok(identity.kept <= most && identity.kept > most - 20, `${identity.kept} of ${most}`)
  t.ok(identity.claimsOf(['authorization', `Bearer ${tokens.at(-1)}`]) instanceof Map, 'the newest is known')
  t.notOk(identity.claimsOf(['authorization', `Bearer ${tokens[0]}`]) instanceof Map, 'the oldest is verified again')
  for (let count = 0; count < 50; count += 1)
    t.equal(await subject(hs256('x'.repeat(40), claims({ count }))), undefined)
  t.equal(await subject(tokens[0]!), 'user-0')
})

t.test('over HTTP/2 requests with one token leave in their order, and are one client', async t => {
  const upstream = await httpUpstream(t)
  const config = byClaim({ publicKey }, 'sub', {
    // Over several connections a server may read them in another order.
    upstream: { url: upstream.url, connections: 1 },
    buckets: { tenant: { key: { from: 'jwt:sub', missing: 'reject' }, rate: '100/s', capacity: 20 } },
    routes: [{ name: 'all', mode: 'shape' }],
  })
  const rig = await startRig(t, config, { ...NOW, realPacer: true })
  const session = openSession(t, rig.port)
  const authorization = bearer(rs256(own)).slice('Authorization: '.length)
  const paths = Array.from({ length: 20 }, (_, place) => `/${place}`)
  const answers = paths.map(path => answerOf(request(session, { ':path': path, authorization })))
  for (const { status } of await Promise.all(answers)) t.equal(status, 200)
  t.same(
    upstream.requests,
    paths.map(path => `GET ${path}`),
  )
  t.same(keysOf(rig), ['acme'])
  const raw = new RawClient(t, rig.port).open()
  const twice = block(...REQUEST, 'authorization', authorization, 'authorization', authorization)
  raw.send(frame(FRAME.headers, END_STREAM | END_HEADERS, 1, twice))
  await raw.frame(FRAME.headers, 1)
  t.equal(rig.outcomes.at(-1), 'all refused 400', 'two fields')
})

t.test('a gate verifies what the asking proxy passes on', async t => {
  const config = byClaim({ publicKey }, 'sub', { upstream: 'gate:', trustProxy: ['loopback'] })
  const rig = await startRig(t, config, NOW)
  const asked = ['X-Original-URI: /x', 'X-Original-Method: POST']
  t.equal(await statusOf(t, rig, ...asked, bearer(rs256(own))), 204)
  t.equal(await statusOf(t, rig, ...asked, bearer(rs256(other))), 400)
  t.same(keysOf(rig), ['acme'])
})

t.test('a server is picked by a claim, also where nothing is limited', async t => {
  const [a, b] = [await httpUpstream(t), await httpUpstream(t)]
  const rig = await startRig(
    t,
    {
      upstream: { servers: [a.url, b.url], pick: { hash: 'jwt:sub' } },
      identity: { jwt: { publicKey } },
      routes: [{ name: 'all', mode: 'off' }],
    },
    NOW,
  )
  // The ports, and with them the hashes, are others in each run: all 40 at one server is 1 in 10^12.
  const subjects = Array.from({ length: 40 }, (_, at) => `user-${at}`)
  const takers = async () => {
    const found: boolean[] = []
    for (const sub of subjects) {
      const before = a.requests.length
      t.equal(await statusOf(t, rig, bearer(rs256(own, claims({ sub })))), 200)
      found.push(a.requests.length > before)
    }
    return found
  }
  const first = await takers()
  t.same(await takers(), first)
  t.ok(first.includes(true) && first.includes(false))
})

t.test('the recipe of the guide: each user and each tenant has its own limit', async t => {
  const example = blocks('docs/guide.md', 'json').find(block => block.includes('"jwt:sub"'))!
  const config = JSON.parse(example)
  const { issuer, audience } = config.identity.jwt
  config.identity.jwt = { issuer, audience, publicKey }
  const rig = await startRig(t, { ...config, upstream: 'echo:' }, NOW)
  let asked = 0
  const asks = async (path: string, ...headers: string[]) => {
    const client = await connect(t, rig)
    client.send(get(path, ...headers))
    asked += 1
    await eventually(() => asked === rig.outcomes.length + rig.proxy.context.shaper.queued)
    return client
  }
  const token = (sub: string) => bearer(rs256(own, claims({ iss: issuer, sub })))
  t.equal((await (await asks('/t/acme/x')).answer()).status, 400)
  for (let count = 0; count < 11; count += 1) await asks('/t/acme/x', token('ann'))
  t.same(rig.outcomes.at(-1), 'tenants rejected 429', 'the eleventh of a user')
  await asks('/t/acme/y', token('bob'))
  await asks('/t/other/y', token('bob'))
  t.same(keysOf(rig, 'tenant'), ['acme', 'other'])
  t.same(keysOf(rig, 'user'), ['ann', 'bob'])
  t.equal((await (await asks('/public')).answer()).status, 200)
})
