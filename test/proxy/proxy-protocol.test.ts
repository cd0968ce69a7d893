/** The PROXY protocol: its parser, and connections that begin with it. */
import { once } from 'node:events'
import { connect as tcpConnect } from 'node:net'
import { Duplex } from 'node:stream'
import { connect as tlsConnect } from 'node:tls'
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import { readProxyHeader } from '../../src/proxy/client/proxy-protocol.js'
import { runs } from '../runs.js'
import { type Client, connect, OFF, type Rig, startRig, TLS, turns } from './harness.js'

const SIGNATURE = Buffer.from('\r\n\r\n\0\r\nQUIT\n', 'latin1')
const GET = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n'

function v2(command: number, family: number, data: Buffer, length = data.length): Buffer {
  const head = Buffer.from([command, family, length >> 8, length & 255])
  return Buffer.concat([SIGNATURE, head, data])
}

const ports = Buffer.from([0x30, 0x39, 0x01, 0xbb])
const ipv4 = Buffer.concat([Buffer.from([192, 0, 2, 1, 192, 0, 2, 2]), ports])
const address6 = Buffer.from('20010db8000000000000000000000001', 'hex')
const ipv6 = Buffer.concat([address6, address6, ports])
const unix = Buffer.alloc(216, '/run/a.sock')
/** A field of a type and 3 bytes. */
const field = Buffer.from([0x05, 0, 3, 1, 2, 3])

const GOOD: readonly (readonly [what: string, header: Buffer, address: string | undefined])[] = [
  ['1, IPv4', Buffer.from('PROXY TCP4 192.0.2.1 192.0.2.2 12345 443\r\n'), '192.0.2.1'],
  ['1, IPv6', Buffer.from('PROXY TCP6 2001:db8::1 2001:db8::2 0 65535\r\n'), '2001:db8::1'],
  ['1, unknown', Buffer.from('PROXY UNKNOWN\r\n'), undefined],
  ['1, the longest', Buffer.from(`PROXY UNKNOWN ${'x'.repeat(91)}\r\n`), undefined],
  ['2, IPv4', v2(0x21, 0x11, ipv4), '192.0.2.1'],
  ['2, IPv4, UDP', v2(0x21, 0x12, ipv4), '192.0.2.1'],
  ['2, IPv6', v2(0x21, 0x21, ipv6), '2001:db8::1'],
  ['2, with fields', v2(0x21, 0x11, Buffer.concat([ipv4, field, field])), '192.0.2.1'],
  ['2, the longest', v2(0x21, 0x11, Buffer.concat([ipv4, Buffer.alloc(4_084)])), '192.0.2.1'],
  ['2, a Unix socket', v2(0x21, 0x31, unix), undefined],
  ['2, no family', v2(0x21, 0x00, field), undefined],
  ['2, local', v2(0x20, 0x00, Buffer.alloc(0)), undefined],
  ['2, local with an address', v2(0x20, 0x11, ipv4), undefined],
]

const BAD: readonly (readonly [what: string, bytes: Buffer])[] = [
  ['a request', Buffer.from(GET)],
  ['TLS', Buffer.from([0x16, 3, 1])],
  ['lower case', Buffer.from('proxy TCP4')],
  ...[
    'PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n',
    'PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n',
    'PROXY TCP4 192.0.2.1  192.0.2.2 1 2\r\n',
    'PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n',
    'PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n',
    'PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n',
    'PROXY TCP4 192.0.2.1 192.0.2.2 -1 2\r\n',
    'PROXY TCP4 192.0.2.256 192.0.2.2 1 2\r\n',
    'PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n',
    'PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n',
    'PROXY TCP6 fe80::1%lo fe80::2 1 2\r\n',
    'PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n',
    'PROXY UNKNOWNS\r\n',
    'PROXY \r\n',
    `PROXY UNKNOWN ${'x'.repeat(92)}\r\n`,
    `PROXY UNKNOWN ${'x'.repeat(93)}`,
  ].map(text => [JSON.stringify(text), Buffer.from(text)] as const),
  ['another signature', Buffer.from('\r\n\r\n\0\r\nQUIT\r')],
  ['version 1 in binary', v2(0x11, 0x11, ipv4)],
  ['an unknown command', v2(0x22, 0x11, ipv4)],
  ['an unknown family', v2(0x21, 0x41, ipv6)],
  ['an unknown transport', v2(0x21, 0x13, ipv4)],
  ['too short for IPv4', v2(0x21, 0x11, ipv4.subarray(1))],
  ['too short for IPv6', v2(0x21, 0x21, ipv4)],
  ['too short for a Unix socket', v2(0x21, 0x31, unix.subarray(1))],
  ['too long', v2(0x21, 0x11, ipv4, 4_097)],
]

t.test('what a header says', t => {
  for (const [what, header, address] of GOOD) {
    t.same(readProxyHeader(header), { length: header.length, address }, what)
    t.same(readProxyHeader(Buffer.concat([header, header])), { length: header.length, address }, `${what}, and more`)
    for (let end = 0; end < header.length; end += 1)
      if (readProxyHeader(header.subarray(0, end)) !== undefined) t.fail(`${what}: whole after ${end} bytes`)
  }
  for (const [what, bytes] of BAD) t.throws(() => readProxyHeader(bytes), { name: 'ProtocolError' }, what)
  t.end()
})

function read(bytes: Buffer): object | string | undefined {
  try {
    return readProxyHeader(bytes)
  } catch (error) {
    return (error as Error).message
  }
}

t.test('property: a header is read the same in any pieces, and something is decided within its bound', t => {
  const headers = fc.constantFrom(...GOOD.map(([, header]) => header), ...BAD.map(([, bytes]) => bytes))
  const changes = fc.array(fc.tuple(fc.nat(260), fc.nat(255)), { maxLength: 2 })
  const cuts = fc.array(fc.nat(4_200), { maxLength: 4 })
  const isRead = (header: Buffer, changed: [number, number][], ends: number[]): boolean => {
    const bytes = Buffer.concat([header, Buffer.alloc(5_000, 'x')])
    for (const [at, value] of changed) bytes[at] = value
    const whole = read(bytes)
    const parts = ends.map(end => read(bytes.subarray(0, end))).filter(part => part !== undefined)
    // A part may show another fault than the whole.
    return typeof whole === 'object'
      ? parts.every(part => isDeepStrictEqual(part, whole))
      : whole !== undefined && parts.every(part => typeof part === 'string')
  }
  fc.assert(fc.property(headers, changes, cuts, isRead), { numRuns: runs(20_000) })
  t.end()
})

const BEHIND = { address: '127.0.0.1:0', proxyProtocol: ['127.0.0.1'] }
/** One request at a time for each address. */
const PER_CLIENT = {
  upstream: 'echo:',
  buckets: { client: { key: 'ip', rate: '1/s', capacity: 1 } },
  routes: [{ name: 'all' }],
}

const keysOf = (rig: Rig): string[] => [...rig.proxy.context.bucketTable.keys('client')].sort()

async function asks(t: Parameters<typeof connect>[0], rig: Rig, pieces: (Buffer | string)[]): Promise<number> {
  const client = await connect(t, rig)
  for (const piece of pieces) {
    client.send(piece)
    await turns()
  }
  const { status } = await client.answer()
  client.hangUp()
  return status
}

t.test('its address is that of the client, in one piece and torn', async t => {
  const rig = await startRig(t, { listen: BEHIND, ...PER_CLIENT })
  const first = Buffer.from('PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n')
  const second = v2(0x21, 0x21, Buffer.concat([ipv6, field]))
  t.equal(await asks(t, rig, [Buffer.concat([first, Buffer.from(GET)])]), 200)
  t.equal(await asks(t, rig, [first, GET]), 429, 'the same client')
  t.equal(await asks(t, rig, [...second].map(byte => Buffer.from([byte])).concat(Buffer.from(GET))), 200)
  t.equal(await asks(t, rig, [Buffer.concat([second, Buffer.from(GET.slice(0, 9))]), GET.slice(9)]), 429)
  t.equal(await asks(t, rig, [v2(0x20, 0, Buffer.alloc(0)), GET]), 200, "the balancer's own")
  t.equal(await asks(t, rig, [`PROXY UNKNOWN\r\n${GET}`]), 429, 'nobody is told: it is the balancer')
  t.equal(await asks(t, rig, [v2(0x21, 0x31, unix), GET]), 429)
  t.same(keysOf(rig), ['127.0.0.1', '192.0.2.1', '2001:db8:0:0::/64'])

  const client = await connect(t, rig)
  client.send('PROXY TCP4 192.0.2.7 192.0.2.9 1 2\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0')
  await client.until(({ rest }) => rest.length >= 9)
  t.equal(client.rest.charCodeAt(3), 4, 'HTTP/2 answers with its settings')
  client.hangUp()
})

t.test('trustProxy looks at its address, and so does match.ip', async t => {
  const rig = await startRig(t, {
    ...PER_CLIENT,
    listen: BEHIND,
    trustProxy: ['192.0.2.1'],
    routes: [{ name: 'own', match: { ip: ['192.0.2.8'] } }, { name: 'all' }],
  })
  const forwarded = GET.replace('\r\n\r\n', '\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n')
  t.equal(await asks(t, rig, [`PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n${forwarded}`]), 200)
  t.equal(await asks(t, rig, [`PROXY TCP4 192.0.2.8 192.0.2.9 1 2\r\n${forwarded}`]), 200)
  t.same(keysOf(rig), ['192.0.2.8', '203.0.113.5'])
  t.same(
    rig.outcomes.map(outcome => outcome.split(' ')[0]),
    ['all', 'own'],
  )
})

t.test('it comes before TLS, and connections are counted by its address', async t => {
  const rig = await startRig(t, {
    ...PER_CLIENT,
    listen: { ...TLS.listen, proxyProtocol: ['loopback'] },
    limits: { connectionsPerClient: 1 },
  })
  const ask = async (header: Buffer | string, ALPNProtocols = ['http/1.1']): Promise<string> => {
    const tcp = tcpConnect(rig.port, '127.0.0.1')
    t.teardown(() => void tcp.destroy())
    tcp.write(header)
    await turns()
    const socket = tlsConnect({ socket: tcp, rejectUnauthorized: false, ALPNProtocols })
    socket.write(GET)
    const [first] = await once(socket, 'data')
    return ALPNProtocols[0] === 'h2' ? String(first[3]) : String(first).slice(9, 12)
  }
  t.equal(await ask('PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n'), '200')
  t.equal(await ask('PROXY TCP4 192.0.2.2 192.0.2.9 1 2\r\n'), '200', 'another client')
  t.equal(await ask('PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n'), '503', 'its second connection')
  t.equal(await ask(v2(0x21, 0x21, ipv6), ['h2']), '4', 'HTTP/2 answers with its settings')

  const tcp = tcpConnect(rig.port, '127.0.0.1')
  let header = Buffer.from('PROXY TCP4 192.0.2.3 192.0.2.9 1 2\r\n')
  const joined = new Duplex({
    read: () => undefined,
    write(chunk, _encoding, done) {
      tcp.write(Buffer.concat([header, chunk]), done)
      header = Buffer.alloc(0)
    },
  })
  tcp.on('data', chunk => void joined.push(chunk))
  const socket = tlsConnect({ socket: joined, rejectUnauthorized: false })
  socket.write(GET)
  t.match(String((await once(socket, 'data'))[0]), /^HTTP\/1\.1 200/, 'in one piece with the first bytes of TLS')
  tcp.destroy()
  t.same(keysOf(rig), ['192.0.2.1', '192.0.2.2', '192.0.2.3'])
})

/** Ended without an answer. */
async function isClosed(client: Client): Promise<boolean> {
  await client.end()
  return client.rest === ''
}

t.test('a balancer has to send one, in time; all others may not', async t => {
  const rig = await startRig(t, { listen: BEHIND, ...OFF, upstream: 'echo:' }, { virtualClock: true })
  const told: string[] = []
  rig.proxy.context.observer.unannounced = (peer, why) => void told.push(`${peer}: ${why}`)
  for (const bytes of [GET, 'PROXY TCP4 1 2 3 4\r\n', v2(0x21, 0x41, ipv6)]) {
    const client = await connect(t, rig)
    client.send(bytes)
    t.ok(await isClosed(client))
  }
  const slow = await connect(t, rig)
  slow.send('PROXY TCP4 192.0.2.1 ')
  const silent = await connect(t, rig)
  await turns()
  rig.clock.runUntil(rig.clock.now() + 60_000)
  t.ok(await isClosed(slow))
  t.ok(await isClosed(silent))
  const torn = await connect(t, rig)
  torn.send('PROXY ')
  torn.socket.end()
  t.ok(await isClosed(torn))
  const probe = await connect(t, rig)
  probe.socket.end()
  t.ok(await isClosed(probe))
  t.same(told, [
    '127.0.0.1: there is no PROXY header',
    '127.0.0.1: the PROXY header has a bad address or port',
    '127.0.0.1: the PROXY header has an unknown family, or is too short for it',
    '127.0.0.1: the PROXY header did not come in time',
    '127.0.0.1: the PROXY header did not come in time',
    '127.0.0.1: the connection ended inside the PROXY header',
  ])
  t.same(rig.outcomes, [], 'nothing of it was a request')

  const other = await connect(t, rig, { from: '127.0.0.2' })
  other.send(`PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n${GET}`)
  t.equal((await other.answer()).status, 400)
  t.match(rig.refused, [/looks like the PROXY protocol, and "proxyProtocol" does not list this peer/])
  const plain = await connect(t, rig, { from: '127.0.0.2' })
  t.equal((await plain.ask(GET)).status, 200, 'others go without')
})

t.test('over TLS a peer that is not listed and sends one is told of', async t => {
  const rig = await startRig(t, { listen: { ...BEHIND, tls: TLS.listen.tls }, ...OFF, upstream: 'echo:' })
  const told: string[] = []
  rig.proxy.context.observer.unlisted = peer => void told.push(peer)
  const from = { from: '127.0.0.2' }
  for (const bytes of ['PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n', v2(0x21, 0x11, ipv4)]) {
    const client = await connect(t, rig, from)
    client.send(bytes)
    await client.end()
  }
  t.same(told, ['127.0.0.2', '127.0.0.2'])
  const http = await connect(t, rig, from)
  http.send(GET)
  await http.end()
  t.equal(told.length, 2, 'HTTP is another mistake')
})

t.test('a FIN behind the header is a hang-up, and the end waits for no header', async t => {
  const rig = await startRig(t, { listen: BEHIND, ...PER_CLIENT })
  t.equal(await asks(t, rig, [`PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n${GET}`]), 200)
  const bare = tcpConnect({ port: rig.port, host: '127.0.0.1', allowHalfOpen: true })
  t.teardown(() => void bare.destroy())
  bare.end('PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n')
  await once(bare.resume(), 'end')
  const waiting = await connect(t, rig)
  await turns()
  await rig.proxy.drain(0)
  t.ok(await isClosed(waiting))
})
