/** Random pipelines of requests, in any pieces: each gets its own answer, in order, and the upstream gets each one once. */

import * as fc from 'fast-check'
import t from 'tap'
import { sendPieces } from '../hardening/stage.js'
import { runs } from '../runs.js'
import { connect, get, httpUpstream, post, type Rig, startRig } from './harness.js'

const RUNS = runs(150)

/** A request as bytes, and what has to become of it. */
interface Sent {
  readonly bytes: string
  readonly method: string
  readonly status: number
  /** The body of the answer. Undefined: a problem document. */
  readonly body?: string
  /** The path of a request that the upstream gets. */
  readonly path?: string
}

/** A request that is forwarded. */
function forwarded(bytes: string, body = ''): Sent {
  const [, method, path] = /^\s*(\S+) (\S+)/.exec(bytes) as unknown as [string, string, string]
  const status = EMPTY.find(each => path === `/on/${each}`) ?? 200
  const text = path === '/on/large' ? LARGE : `${method} ${path} ${body.length} ${body.slice(0, 10)}`
  return { bytes, method, status, body: status !== 200 || method === 'HEAD' ? '' : text, path }
}

/** Statuses of answers without a body: the upstream answers `/on/204` with 204. */
const EMPTY = [204, 304]
const LARGE = 'x'.repeat(100_000)

function chunked(path: string, chunks: readonly string[]): string {
  const parts = chunks.map(chunk => `${chunk.length.toString(16)};x\r\n${chunk}\r\n`)
  return `PUT ${path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${parts.join('')}0\r\nT: u\r\n\r\n`
}

function refused(bytes: string, status: number): Sent {
  return { bytes, method: bytes.slice(0, bytes.indexOf(' ')), status }
}

const path = fc.integer({ min: 0, max: 999 }).map(number => `/on/${number}`)
const body = fc.oneof(
  fc.constantFrom('', 'a', 'GET /x HTTP/1.1\r\n\r\n'),
  fc.nat(70_000).map(length => 'b'.repeat(length)),
)
const chunks = fc.array(fc.constantFrom('a', 'bc', 'd'.repeat(20_000)), { maxLength: 4 })
const request = fc.oneof(
  { weight: 4, arbitrary: path.map(each => forwarded(get(each))) },
  { weight: 3, arbitrary: fc.tuple(body, path).map(([text, each]) => forwarded(post(text, each), text)) },
  {
    weight: 3,
    arbitrary: fc.tuple(path, chunks).map(([each, parts]) => forwarded(chunked(each, parts), parts.join(''))),
  },
  path.map(each => forwarded(`HEAD ${each} HTTP/1.1\r\nHost: h\r\n\r\n`)),
  path.map(each => forwarded(`\r\n${get(each)}`)),
  fc.constantFrom(refused(get('/off'), 404), refused(post('abc', '/off'), 404)),
  fc.constantFrom(
    ...[get('/on/204'), get('/on/304'), get('/on/large')].map(each => forwarded(each)),
    forwarded(get('/on/5', 'Connection: Upgrade', 'Upgrade: h2c')),
    forwarded('GET /on/6 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n'),
  ),
)
/** After these the connection ends. */
const last = fc.constantFrom(
  forwarded(get('/on/last', 'Connection: close')),
  forwarded('GET /on/last HTTP/1.0\r\n\r\n'),
  refused('GET /on/last HTTP/1.1\r\nHost: a b\r\n\r\n', 400),
  refused('frob / HTTP/1.1\r\nHost: h\r\n\r\n', 400),
  refused(get('/on/last', 'X : y'), 400),
  refused(post('abc', '/on/last', 'Transfer-Encoding: chunked'), 400),
)
const cuts = fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { maxLength: 8 })

function piecesOf(bytes: string, places: readonly number[]): string[] {
  const at = [0, ...places.map(share => Math.floor(share * bytes.length)).sort((a, b) => a - b), bytes.length]
  return at.slice(1).map((to, index) => bytes.slice(at[index], to))
}

/** What a client gets for these requests: status, `Connection` and body of each answer, and what comes behind the last. */
async function answersTo(
  t: Parameters<typeof connect>[0],
  rig: Rig,
  requests: readonly Sent[],
  places: readonly number[],
): Promise<string[]> {
  const client = await connect(t, rig)
  await sendPieces(client, piecesOf(requests.map(({ bytes }) => bytes).join(''), places))
  await client.end()
  const answers: string[] = []
  for (const { method, body } of requests) {
    const answer = await client.answer(method)
    const text = body === undefined ? answer.header('content-type') : answer.text
    answers.push(`${answer.status} ${answer.header('connection')} ${text}`)
  }
  answers.push(client.rest)
  client.hangUp()
  return answers
}

t.test('property: random pipelines in random pieces: each request gets its answer, in order', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    const empty = EMPTY.find(status => req.url === `/on/${status}`)
    if (empty !== undefined) return void res.writeHead(empty).end()
    if (req.url === '/on/large') return void res.end(LARGE)
    const parts: Buffer[] = []
    req.on('data', part => parts.push(part))
    req.on('end', () => {
      const text = Buffer.concat(parts)
      const answer = `${req.method} ${req.url} ${text.length} ${text.subarray(0, 10)}`
      res.writeHead(200, { 'Content-Length': answer.length }).end(answer)
    })
  })
  const routes = [{ name: 'on', match: { path: '/on/*' }, mode: 'off' }]
  const rig = await startRig(t, { upstream: upstream.url, routes })
  let answered = 0
  await fc.assert(
    fc.asyncProperty(fc.array(request, { maxLength: 12 }), last, cuts, async (before, end, places) => {
      const requests = [...before, end]
      upstream.requests.length = 0
      rig.outcomes.length = 0
      const answers = await answersTo(t, rig, requests, places)
      const wanted = requests.map(({ status, body = 'application/problem+json' }) => {
        return `${status} keep-alive ${body}`
      })
      wanted.push(wanted.pop()!.replace('keep-alive', 'close'), '')
      const passed = requests.flatMap(({ method, path }) => (path === undefined ? [] : [`${method} ${path}`]))
      if (JSON.stringify(answers) !== JSON.stringify(wanted)) throw new Error(shown(answers, wanted))
      if (JSON.stringify(upstream.requests) !== JSON.stringify(passed))
        throw new Error(shown(upstream.requests, passed))
      if (rig.outcomes.length !== requests.length)
        throw new Error(`${rig.outcomes.length} of ${requests.length} counted`)
      answered += passed.length
    }),
    { numRuns: RUNS },
  )
  t.ok(answered > RUNS, `${answered} were forwarded`)
})

function shown(found: readonly string[], wanted: readonly string[]): string {
  const short = (list: readonly string[]): string => list.map(each => each.slice(0, 100)).join('\n')
  return `found:\n${short(found)}\nwanted:\n${short(wanted)}`
}
