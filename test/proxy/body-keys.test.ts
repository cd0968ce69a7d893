/** Keys `body:JSON.PATH`: read as costs read a body, and never twice. */
import t from 'tap'
import { type Client, connect, get, httpUpstream, post, type Rig, rawUpstream, startRig, turns } from './harness.js'
import { answerOf, openSession, request } from './http2/h2-client.js'

type Test = Parameters<typeof startRig>[0]

/** A request without the key is answered 400. */
function byBody(upstream: string | object, key = 'body:tenant', more: object = {}) {
  return {
    upstream,
    buckets: { tenant: { key: { from: key, missing: 'reject' }, rate: '1/h', capacity: 1_000 } },
    routes: [{ name: 'all', mode: 'meter' }],
    ...more,
  }
}

async function statusOf(t: Test, rig: Rig, text: string): Promise<number> {
  const client = await connect(t, rig)
  const { status } = await client.ask(text)
  client.hangUp()
  return status
}

function keysOf(rig: Rig): string[] {
  return [...rig.proxy.context.bucketTable.keys('tenant')].sort()
}

/** A chunked request, each piece a chunk. */
function chunked(...pieces: string[]): string {
  const chunks = pieces.map(piece => `${piece.length.toString(16)}\r\n${piece}\r\n`).join('')
  return `POST / HTTP/1.1\r\nHost: example.test\r\nTransfer-Encoding: chunked\r\n\r\n${chunks}0\r\n\r\n`
}

const utf8 = (text: string): string => Buffer.from(text).toString('latin1')

t.test('texts and numbers are keys, and everything else is missing', async t => {
  for (const [key, body, wanted] of [
    ['body:tenant', '{"tenant":"acme"}', 'acme'],
    ['body:tenant', ' { "a" : [1,{"tenant":"no"}], "tenant" : "\\u0061cme" , "b": "}" } ', 'acme'],
    ['body:tenant', '{"tenant":"a","tenant":"b"}', 'b'],
    ['body:tenant', '{"tenant":"a","tenant":null}', undefined],
    ['body:tenant', '{"tenant":"a","tenant":{}}', undefined],
    ['body:tenant', '{"tenant":"a","tenant":5}', '5'],
    ['body:tenant', '{"tenant":5,"tenant":"a"}', 'a'],
    ['body:tenant', '{"tenant":1e2}', '100'],
    ['body:tenant', '{"tenant":1e999}', undefined],
    ['body:tenant', utf8('{"tenant":"größe"}'), 'größe'],
    ['body:tenant', '{"tenant":"\\ud800"}', '\ufffd'],
    ['body:tenant', '{"tenant":"\\x"}', undefined],
    ['body:tenant', '{"tenant":" x "}', 'x'],
    ['body:tenant', '{"tenant":" "}', undefined],
    ['body:tenant', '{"tenant":""}', undefined],
    ['body:tenant', '{"tenant":true}', undefined],
    ['body:tenant', '{"tenant":["acme"]}', undefined],
    ['body:tenant', '{"tenant":{"tenant":"acme"}}', undefined],
    ['body:tenant', '{"other":"acme"}', undefined],
    ['body:tenant', '["tenant","acme"]', undefined],
    ['body:tenant', '"tenant"', undefined],
    ['body:tenant', '{"tenant":"acme"', undefined],
    ['body:tenant', '{"tenant":"acme"}}', undefined],
    ['body:tenant', '{"tenant":"acme"} {"tenant":"other"}', undefined],
    ['body:tenant', 'tenant=acme', undefined],
    ['body:tenant', '', undefined],
    ['body:constructor', '{}', undefined],
    ['body:__proto__', '{"__proto__":"x"}', 'x'],
    ['body:a.b[1].c', '{"a":{"b":[{"c":"0"},{"c":"1"}]}}', '1'],
    ['body:a.b[1].c', '{"a":{"b":[{"c":"0"}]}}', undefined],
    ['body:tenant', `{"tenant":"${'x'.repeat(8_193)}"}`, undefined],
  ] as const) {
    const rig = await startRig(t, byBody('echo:', key))
    t.equal(await statusOf(t, rig, post(body)), wanted === undefined ? 400 : 200, body.slice(0, 80))
    t.same(keysOf(rig), wanted === undefined ? [] : [wanted], body.slice(0, 80))
    if (body === '') continue
    t.equal(
      await statusOf(t, rig, chunked(...body.slice(0, 200), body.slice(200) || ' ')),
      wanted ? 200 : 400,
      'in pieces',
    )
    t.same(keysOf(rig), wanted === undefined ? [] : [wanted], 'in pieces')
  }
  const rig = await startRig(t, byBody('echo:'))
  for (const end of ['a', 'b', 'a']) await statusOf(t, rig, post(`{"tenant":"${'x'.repeat(8_000)}${end}"}`))
  t.same(
    keysOf(rig).map(key => key.length),
    [44, 44],
    'a long one is kept as a digest',
  )
})

t.test('a body that does not fit the buffer has no key, and goes on whole', async t => {
  const bodies: string[] = []
  const upstream = await httpUpstream(t, async (req, res) => {
    let text = ''
    for await (const piece of req) text += piece
    bodies.push(text)
    res.end()
  })
  const config = byBody({ url: upstream.url, requestBuffer: 1_000 })
  config.buckets.tenant.key.missing = 'all'
  const rig = await startRig(t, config)
  const short = '{"tenant":"acme"}'
  const long = short + ' '.repeat(5_000)
  for (const text of [post(short), chunked(short), post(long), chunked(long), chunked(short, ' '.repeat(5_000))])
    t.equal(await statusOf(t, rig, text), 200)
  t.same(bodies, [short, short, long, long, long])
  t.same(keysOf(rig), [' ', 'acme'])
  const levels = ['acme', ' '].map(key => rig.proxy.context.bucketTable.peek('tenant', key)!.level(rig.pacer.now()))
  t.same(levels, [2, 3])
})

t.test('one pass for costs and keys: what is reserved and who it is', async t => {
  const rig = await startRig(t, {
    upstream: 'echo:',
    buckets: {
      tokens: { key: { from: ['body:user.id', 'body:tenant'], missing: 'reject' }, rate: '1/s', capacity: 1_000 },
      all: { key: 'all', rate: '1/s', capacity: 1_000 },
    },
    routes: [
      {
        name: 'model',
        mode: 'meter',
        cost: { buckets: { tokens: { estimate: 'n', max: 'user.id' }, all: { estimate: 'body/10' } } },
      },
    ],
  })
  const body = '{"user":{"id":7},"tenant":"acme","n":20,"pad":"......."}'
  t.equal(await statusOf(t, rig, post(body)), 200)
  const { bucketTable } = rig.proxy.context
  t.equal(bucketTable.peek('tokens', '7\nacme')!.level(0), 27)
  t.equal(bucketTable.peek('all', 'all')!.level(0), body.length / 10)
  t.equal(await statusOf(t, rig, post('{"user":{"id":"7"},"tenant":"acme"}')), 200, 'as a text it is no bound')
  t.equal(bucketTable.peek('tokens', '7\nacme')!.level(0), 28)
})

t.test('pipelined requests of one connection keep their order and their own keys', async t => {
  const upstream = await rawUpstream(t, ({ socket, text }) => {
    if (text.endsWith('}')) socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')
  })
  const rig = await startRig(t, byBody(upstream.url))
  const client = await connect(t, rig)
  const tenants = ['a', 'b', 'a', 'c']
  client.send(tenants.map(tenant => post(`{"tenant":"${tenant}"}`, `/${tenant}`)).join('') + get('/none'))
  const statuses: number[] = []
  for (let count = 0; count < 5; count += 1) {
    await turns()
    rig.pacer.runUntil(rig.pacer.now() + 10)
    statuses.push((await client.answer()).status)
  }
  t.same(statuses, [200, 200, 200, 200, 400])
  t.same(
    [...upstream.text.matchAll(/POST \/(\w)/g)].map(([, tenant]) => tenant),
    tenants,
  )
  t.same(keysOf(rig), ['a', 'b', 'c'])
})

t.test('a body that comes slowly is waited for, and a client that leaves costs nothing', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    req.resume().on('end', () => res.end())
  })
  const rig = await startRig(t, byBody(upstream.url))
  const begin = async (): Promise<Client> => {
    const client = await connect(t, rig)
    client.send(post('{"tenant":"acme"}').slice(0, -4))
    return client
  }
  const [slow, gone] = [await begin(), await begin()]
  await turns()
  t.same(keysOf(rig), [])
  gone.hangUp()
  t.same(await rig.finished(1), ['all cancelled 499'])
  t.equal((await slow.ask('me"}')).status, 200)
  t.same(keysOf(rig), ['acme'])

  const late = await startRig(t, byBody(upstream.url), { virtualClock: true })
  const open = await connect(t, late)
  open.send('POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"tenant":"acme"}\r\n')
  await turns(40)
  late.clock.runUntil(1_000)
  t.equal((await open.answer()).status, 400, 'one of unknown length that does not end has no key')
})

t.test('over HTTP/2', async t => {
  const upstream = await httpUpstream(t, (req, res) => void req.resume().on('end', () => res.end()))
  const rig = await startRig(t, byBody(upstream.url))
  const session = openSession(t, rig.port)
  for (const [pieces, type, status] of [
    [['{"ten', 'ant":"acme"}'], 'application/json', 200],
    [['{"tenant":"acme"'], 'application/json', 400],
    [[], 'application/json', 400],
    [['{"tenant":"grpc"}'], 'application/grpc', 200],
  ] as const) {
    const stream = request(session, { ':method': 'POST', 'content-type': type }, 'open')
    const answer = answerOf(stream)
    for (const piece of pieces) stream.write(piece)
    stream.end()
    const { status: found, headers } = await answer
    t.equal(found, status)
    if (type === 'application/grpc') t.not(headers['grpc-status'], '0', 'it is streamed at once, so there is no key')
  }
  t.same(keysOf(rig), ['acme'])
})
