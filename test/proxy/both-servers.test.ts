/** Our own server and Node's: the same pipelined requests, in any pieces, get the same answers in the same order. */
import * as fc from 'fast-check'
import t from 'tap'
import { sendPieces } from '../hardening/stage.js'
import { connect, get, httpUpstream, post, type Rig, startRig } from './harness.js'

const RUNS = Number(process.env.FUZZ_RUNS ?? 150)

const chunked = (path: string, chunks: readonly string[]): string =>
  `PUT ${path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n` +
  `${chunks.map(chunk => `${chunk.length.toString(16)};x\r\n${chunk}\r\n`).join('')}0\r\nT: u\r\n\r\n`

const path = fc.integer({ min: 0, max: 999 }).map(number => `/on/${number}`)
const body = fc.oneof(
  fc.constantFrom('', 'a', 'GET /x HTTP/1.1\r\n\r\n'),
  fc.nat(70_000).map(length => 'b'.repeat(length)),
)
const request = fc.oneof(
  { weight: 4, arbitrary: path.map(each => get(each)) },
  { weight: 3, arbitrary: fc.tuple(body, path).map(([text, each]) => post(text, each)) },
  {
    weight: 3,
    arbitrary: fc
      .tuple(path, fc.array(fc.constantFrom('a', 'bc', 'd'.repeat(20_000)), { maxLength: 4 }))
      .map(([each, chunks]) => chunked(each, chunks)),
  },
  path.map(each => `HEAD ${each} HTTP/1.1\r\nHost: h\r\n\r\n`),
  path.map(each => `\r\n${get(each)}`),
  fc.constantFrom(get('/off'), post('abc', '/off'), get('/on/204'), get('/on/304'), get('/on/large')),
  fc.constantFrom(
    get('/on/5', 'Connection: Upgrade', 'Upgrade: h2c'),
    'GET /on/6 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n',
  ),
)
/** After these the connection ends. */
const last = fc.constantFrom(
  get('/on/last', 'Connection: close'),
  'GET /on/last HTTP/1.0\r\n\r\n',
  'GET /on/last HTTP/1.1\r\nHost: a b\r\n\r\n',
  'FROB / HTTP/1.1\r\nHost: h\r\n\r\n',
  get('/on/last', 'X : y'),
  post('abc', '/on/last', 'Transfer-Encoding: chunked'),
)
const cuts = fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { maxLength: 8 })

/** Everything that a client gets for these bytes, but for what differs from one moment to the next. */
async function answersOf(t: Parameters<typeof connect>[0], rig: Rig, pieces: readonly string[]): Promise<string> {
  const client = await connect(t, rig)
  await sendPieces(client, pieces)
  await client.end()
  client.hangUp()
  // One puts Transfer-Encoding elsewhere than the other.
  const heads = client.rest.replace(/Date: [^\r]*\r\n/g, '').replace(/Server-Timing: [^\r]*\r\n/g, '')
  return heads.replace(/Transfer-Encoding: chunked\r\n/g, '')
}

t.test('the same answers, in the same order', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    const status = /\d{3}$/.exec(req.url!)?.[0]
    if (status === '204' || status === '304') return void res.writeHead(Number(status)).end()
    if (req.url === '/on/large') return void res.end('x'.repeat(100_000))
    const parts: Buffer[] = []
    req.on('data', part => parts.push(part))
    req.on('end', () => {
      const text = Buffer.concat(parts)
      res.sendDate = false
      const answer = `${req.method} ${req.url} ${text.length} ${text.subarray(0, 10)}`
      res.writeHead(200, { 'Content-Length': answer.length }).end(answer)
    })
  })
  const config = { upstream: upstream.url, routes: [{ name: 'on', match: { path: '/on/*' }, mode: 'off' }] }
  const own = await startRig(t, { ...config, http: 'own' })
  const node = await startRig(t, { ...config, http: 'node' })
  let answered = 0
  await fc.assert(
    fc.asyncProperty(fc.array(request, { maxLength: 12 }), last, cuts, async (requests, end, places) => {
      const bytes = requests.join('') + end
      const at = [0, ...places.map(share => Math.floor(share * bytes.length)).sort((a, b) => a - b), bytes.length]
      const pieces = at.slice(1).map((to, index) => bytes.slice(at[index], to))
      const [mine, theirs] = await Promise.all([own, node].map(rig => answersOf(t, rig, pieces)))
      answered += mine!.split('HTTP/1.1 200').length - 1
      if (mine !== theirs) throw new Error(`own: ${mine!.slice(0, 3_000)}\nnode: ${theirs!.slice(0, 3_000)}`)
    }),
    { numRuns: RUNS },
  )
  t.ok(answered > RUNS, `${answered} were forwarded`)
})
