/** A route whose requests cost requests and tokens: what is reserved, and what answers of model APIs make of it. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { brotliCompressSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import {
  askOnce,
  connect,
  get,
  httpUpstream,
  post,
  type Rig,
  type RigOptions,
  rawUpstream,
  startRig,
  turns,
} from './harness.js'

const TOKENS = { estimate: 'body/4', max: 'max_tokens', after: 'usage.total_tokens' }

/** 500 requests and 30,000 tokens a minute. */
const LIMITS = {
  buckets: {
    requests: { key: 'all', rate: '500/m', capacity: 500, burst: 500 },
    tokens: { key: 'all', rate: '30000/m', capacity: 30_000, burst: 30_000 },
  },
}

function model(upstream: string | object, cost: object = { requests: 1, tokens: TOKENS }, more: object = {}): object {
  return { ...LIMITS, upstream, routes: [{ name: 'chat', cost: { buckets: cost }, ...more }] }
}

/** The only instance's level. */
function level({ proxy, pacer }: Rig, bucket: string): number {
  const [entry] = proxy.context.bucketTable.entries(bucket)
  return entry?.[1].level(pacer.now()) ?? 0
}

/** 100 bytes: 25 tokens of the prompt and 75 of the answer. */
const BODY = `{"max_tokens":75,"prompt":"${'x'.repeat(71)}"}`

const usage = (total: number): string =>
  JSON.stringify({ id: 'x', choices: [{ text: 'héllo' }], usage: { total_tokens: total } })

function sendJson(res: ServerResponse, text: string | Buffer, more: Record<string, string> = {}): void {
  res.writeHead(200, { 'content-type': 'application/json', ...more })
  res.end(text)
}

/** A stream as OpenAI sends it, with the usage in the last event. */
function openAi(total: number): string {
  const piece = (text: string) =>
    `data: ${JSON.stringify({ choices: [{ delta: { content: text } }], usage: null })}\n\n`
  return `${piece('Grüße, ')}${piece('世界 😀')}data: {"choices":[],"usage":{"total_tokens":${total}}}\n\ndata: [DONE]\n\n`
}

/** A stream as Anthropic sends it: the output tokens so far in several events. */
function anthropic(tokens: number): string {
  const event = (type: string, more: object) => `event: ${type}\ndata: ${JSON.stringify({ type, ...more })}\n\n`
  return [
    event('message_start', { message: { id: 'm', usage: { input_tokens: 25, output_tokens: 1 } } }),
    event('content_block_delta', { index: 0, delta: { type: 'text_delta', text: '"usage":{"output_tokens":9999} ü' } }),
    event('ping', {}),
    event('message_delta', { delta: { stop_reason: 'end_turn' }, usage: { output_tokens: tokens } }),
    event('message_stop', {}),
  ].join('')
}

t.test('a JSON answer: the cost is reserved while it comes, then it is what the answer says', async t => {
  for (const [name, total] of [
    ['less', 60],
    ['more', 4_000],
    ['as much', 100],
    ['nothing', 0],
  ] as const) {
    let rig: Rig | undefined
    let reserved: number[] = []
    const upstream = await httpUpstream(t, (_req, res) => {
      reserved = [level(rig!, 'requests'), level(rig!, 'tokens')]
      sendJson(res, usage(total))
    })
    rig = await startRig(t, model(upstream.url))
    const answer = await askOnce(t, rig, post(BODY))
    t.equal(answer.body.toString(), usage(total))
    t.same(reserved, [1, 100], name)
    await rig.finished(1)
    t.same([level(rig, 'requests'), level(rig, 'tokens')], [1, total], name)
    t.same(rig.settled, [`answer tokens=${total}`])
  }
})

t.test('an answer that says more than a bucket holds costs its capacity', async t => {
  for (const said of ['1e999', '1e300', '30001']) {
    const upstream = await httpUpstream(t, (_req, res) => sendJson(res, `{"usage":{"total_tokens":${said}}}`))
    for (const mode of ['meter', 'shape']) {
      const rig = await startRig(t, model(upstream.url, { tokens: TOKENS }, { mode }))
      await askOnce(t, rig, post(BODY))
      await rig.finished(1)
      t.same(rig.settled, ['answer tokens=30000'], `${mode}: ${said}`)
      t.equal(level(rig, 'tokens'), 30_000)
    }
  }
})

t.test('event streams in the style of OpenAI and Anthropic, in pieces of a byte', async t => {
  for (const [text, after, total] of [
    [openAi(512), 'usage.total_tokens', 512],
    [anthropic(77), 'usage.output_tokens', 77],
    [anthropic(77).replaceAll('\n', '\r\n'), 'usage.output_tokens', 77],
  ] as const) {
    const upstream = await rawUpstream(t, async ({ socket, text: got }) => {
      if (!got.endsWith(BODY)) return
      socket.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n')
      for (const byte of Buffer.from(text)) {
        socket.write(Buffer.concat([Buffer.from('1\r\n'), Buffer.from([byte]), Buffer.from('\r\n')]))
        if (byte % 16 === 0) await turns(1)
      }
      socket.write('0\r\n\r\n')
    })
    const rig = await startRig(t, model(upstream.url, { tokens: { ...TOKENS, after } }))
    const answer = await askOnce(t, rig, post(BODY))
    t.equal(answer.body.toString(), text)
    await rig.finished(1)
    t.equal(level(rig, 'tokens'), total)
  }
})

t.test('after as a list: the input tokens of Anthropic in a JSON answer and in a stream, on one route', async t => {
  const json = JSON.stringify({ type: 'message', usage: { input_tokens: 40, output_tokens: 7 } })
  const both = anthropic(7).replace('"usage":{"output_tokens":7}', '"usage":{"input_tokens":30,"output_tokens":7}')
  for (const [text, type, input] of [
    [json, 'application/json', 40],
    [anthropic(7), 'text/event-stream', 25],
    [both, 'text/event-stream', 30],
    ['{"usage":{}}', 'application/json', 100],
  ] as const) {
    const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, { 'content-type': type }).end(text))
    const after = ['usage.input_tokens', 'message.usage.input_tokens']
    const rig = await startRig(t, model(upstream.url, { tokens: { ...TOKENS, after } }))
    await askOnce(t, rig, post(BODY))
    await rig.finished(1)
    t.equal(level(rig, 'tokens'), input, text)
  }
})

t.test('each event reaches the client before the next is sent', async t => {
  const upstream = await httpUpstream(t, (_req, res) => {
    res.writeHead(200, { 'content-type': 'text/event-stream' })
    res.write('data: {"usage":null}\n\n')
    t.context.more = () => res.end('data: {"usage":{"total_tokens":5}}\n\n')
  })
  const rig = await startRig(t, model(upstream.url))
  const client = await connect(t, rig)
  client.send(post(BODY))
  await client.until(({ rest }) => rest.includes('"usage":null'))
  t.equal(level(rig, 'tokens'), 100, 'what is reserved stands until the answer is over')
  ;(t.context.more as () => void)()
  await client.answer()
  await rig.finished(1)
  t.equal(level(rig, 'tokens'), 5)
})

t.test('compressed answers are settled once they are inflated, and reach the client as they are', async t => {
  for (const [coding, code] of [
    ['gzip', gzipSync],
    ['br', brotliCompressSync],
  ] as const) {
    for (const [type, text] of [
      ['application/json', usage(640)],
      ['text/event-stream', openAi(640)],
    ] as const) {
      const body = code(text)
      const upstream = await httpUpstream(t, (_req, res) =>
        sendJson(res, body, { 'content-type': type, 'content-encoding': coding }),
      )
      const rig = await startRig(t, model(upstream.url))
      const answer = await askOnce(t, rig, post(BODY))
      t.same(answer.body, body)
      await rig.until(({ settled }) => settled.length === 1)
      t.same([rig.settled, level(rig, 'tokens')], [['answer tokens=640'], 640], `${coding} ${type}`)
      await rig.until(({ proxy }) => proxy.context.inProgress === 0)
    }
  }
})

t.test('answers without a cost', async t => {
  const json = { 'Content-Type': 'application/json' }
  for (const [what, status, headers, body, left, by] of [
    ['no figure', 200, json, '{"choices":[]}', 100, 'unknown'],
    ['no JSON', 200, { 'Content-Type': 'text/plain' }, usage(5), 100, 'unknown'],
    ['broken JSON', 200, json, '{"usage":{"total_tokens":5}', 100, 'unknown'],
    ['a figure below 0', 200, json, usage(-5), 100, 'unknown'],
    ['a text', 200, json, '{"usage":{"total_tokens":"5"}}', 100, 'unknown'],
    ['a server error', 500, json, '{"error":{}}', 100, 'unknown'],
    ['a server error that says a cost', 500, json, usage(7), 7, 'answer tokens=7'],
    ['not served: a client error', 400, json, '{"error":{}}', 0, 'unserved tokens=0'],
    ['not served: too many', 429, {}, '', 0, 'unserved tokens=0'],
    ['not served: unavailable', 503, {}, '', 0, 'unserved tokens=0'],
    ['not content', 204, {}, '', 100, 'unknown'],
  ] as const) {
    const upstream = await httpUpstream(t, (_req, res) => res.writeHead(status, headers).end(body))
    const rig = await startRig(t, model(upstream.url))
    t.equal((await askOnce(t, rig, post(BODY))).status, status)
    await rig.finished(1)
    t.same([level(rig, 'requests'), level(rig, 'tokens'), rig.settled], [1, left, [by]], what)
  }
})

t.test('an answer that is cut, a client that leaves, and no connection', async t => {
  const half =
    'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"usage":{"total_tokens":5},'
  const cutting = await rawUpstream(t, ({ socket, text }) => {
    if (text.endsWith(BODY)) socket.end(half)
  })
  const cut = await startRig(t, model(cutting.url))
  await askOnce(t, cut, post(BODY))
  t.same(await cut.finished(1), ['chat failed 200'])
  t.same([level(cut, 'tokens'), cut.settled], [100, ['unknown']], 'cut')

  const standing = await rawUpstream(t, ({ socket, text }) => {
    if (text.endsWith(BODY)) socket.write(half)
  })
  const left = await startRig(t, model(standing.url))
  const client = await connect(t, left)
  client.send(post(BODY))
  await client.until(({ rest }) => rest.includes('usage'))
  client.hangUp()
  t.same(await left.finished(1), ['chat cancelled 499'])
  t.same([level(left, 'tokens'), left.settled], [100, ['unknown']], 'its client has left')

  const gone = await rawUpstream(t)
  const unsent = await startRig(t, model({ url: gone.url, breaker: false }))
  // Not earlier: the proxy could get its port.
  await gone.close()
  t.equal((await askOnce(t, unsent, post(BODY))).status, 502)
  t.same([level(unsent, 'tokens'), unsent.settled], [0, ['unserved tokens=0']], 'no connection')
})

t.test('a request that is sent again costs once', async t => {
  let count = 0
  const upstream = await httpUpstream(t, (_req, res) => {
    count += 1
    if (count < 3) res.writeHead(429).end()
    else sendJson(res, usage(40))
  })
  const retry = { url: upstream.url, retry: { status: [429], max: 3 }, pauseOn: { status: [418] } }
  const rig = await startRig(t, model(retry, { tokens: { estimate: 300, after: 'usage.total_tokens' } }))
  const answer = askOnce(t, rig, get())
  t.equal((await answer).status, 200)
  t.same(rig.settled, ['unserved tokens=0', 'unserved tokens=0', 'answer tokens=40'])
  t.equal(level(rig, 'tokens'), 40)
})

/** What is reserved for a request, seen while its answer has not come. */
async function reserved(
  request: string,
  { cost = { tokens: TOKENS }, upstream: more = {} }: { cost?: object; upstream?: object } = {},
): Promise<number> {
  let rig: Rig | undefined
  let seen = NaN
  const upstream = await httpUpstream(t, (req: IncomingMessage, res) => {
    seen = level(rig!, 'tokens')
    req.resume().on('end', () => res.end())
  })
  rig = await startRig(t, model({ url: upstream.url, ...more }, cost))
  t.equal((await askOnce(t, rig, request)).status, 200)
  return seen
}

const CHUNKED = 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n'

function chunks(...texts: string[]): string {
  return `${CHUNKED}${texts.map(text => `${text.length.toString(16)}\r\n${text}\r\n`).join('')}0\r\n\r\n`
}

t.test('what is reserved', async t => {
  const long = `{"prompt":"${'x'.repeat(1_000_000)}","max_tokens":50}`
  const byPath = { cost: { tokens: { estimate: 'n' } } }
  t.equal(await reserved(post(BODY)), 100)
  t.equal(await reserved(chunks(BODY.slice(0, 14), BODY.slice(14, 15), BODY.slice(15))), 100, 'in chunks')
  t.equal(await reserved(post('{"max_tokens":"75"}')), 19 / 4, 'what is no number bounds nothing')
  t.equal(await reserved(post('{"max_tokens":-75}')), 18 / 4)
  t.equal(await reserved(post('{"max_tokens":7,"max_tokens":9}')), 9 + 31 / 4, 'the last one counts')
  t.equal(await reserved(get()), 1, 'without a body')
  const byTens = { cost: { tokens: { ...TOKENS, estimate: 'body/100' } } }
  t.equal(
    await reserved(post(long), byTens),
    long.length / 100,
    'beyond the buffer its length is known, and its end is not',
  )
  const early = `{"max_tokens":9,${long.slice(1)}`
  t.equal(await reserved(post(early), byTens), 9 + early.length / 100, 'what has come counts')
  const sum = await reserved(chunks(long), byTens)
  t.ok(sum >= 655.36 && sum < long.length / 200, `beyond the buffer nobody knows its length: ${sum}`)
  const unread = { upstream: { requestBuffer: 0 } }
  t.equal(await reserved(post(BODY), unread), 25, 'no body is read')
  t.equal(await reserved(post('{"n":40}'), byPath), 40)
  for (const n of ['0.01', '-3', '"9"', 'null']) t.equal(await reserved(post(`{"n":${n}}`), byPath), 1, n)
  t.equal(await reserved(post('no JSON'), byPath), 1)
  t.equal(await reserved(post('x'), { cost: { tokens: 12.5 } }), 12.5, 'a number')
  t.equal(await reserved(post('x'), { cost: { requests: 1 } }), 1, 'a bucket without a cost of its own')
})

t.test('a request waits for its body before it is decided on', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => sendJson(res, usage(9))))
  const rig = await startRig(t, model(upstream.url))
  const slow = await connect(t, rig)
  const text = post(BODY)
  slow.send(text.slice(0, -1))
  await turns(50)
  t.equal(level(rig, 'tokens'), 0, 'it has not asked yet')
  t.equal((await askOnce(t, rig, post(BODY))).status, 200, 'others pass')
  slow.send(text.slice(-1))
  t.equal((await slow.answer()).status, 200)
  const left = await connect(t, rig)
  left.send(text.slice(0, -1))
  await turns(50)
  left.hangUp()
  t.same(await rig.finished(3), ['chat forwarded 200', 'chat forwarded 200', 'chat cancelled 499'])
  t.equal(level(rig, 'tokens'), 18, 'one that leaves before costs nothing')
  t.equal(rig.proxy.context.openBodies.size, 0)
})

t.test('a body that never ends is cut by limits.bodyTimeout', async t => {
  const upstream = await httpUpstream(t)
  const limits = { limits: { bodyTimeout: '2s', minBodyRate: 0 } }
  const rig = await startRig(t, { ...model(upstream.url), ...limits }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send(post(BODY).slice(0, -1))
  await turns(50)
  rig.clock.runUntil(3_000)
  t.equal((await client.answer()).status, 408)
  t.same(await rig.finished(1), ['chat failed 408'])
  t.equal(level(rig, 'tokens'), 0)
})

t.test('a reload while the body comes: the new route counts', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end('ok')))
  const rig = await startRig(t, model(upstream.url))
  const client = await connect(t, rig)
  client.send(post(BODY).slice(0, -1))
  await turns(50)
  const next = model(upstream.url, { requests: 3, tokens: { estimate: 'body/10' } })
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...next })))
  client.send(post(BODY).slice(-1))
  t.equal((await client.answer()).status, 200)
  await rig.finished(1)
  t.same([level(rig, 'requests'), level(rig, 'tokens')], [3, 10])
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...model(upstream.url) })))
  client.send(post(BODY).slice(0, -1))
  await turns(50)
  const off = { upstream: upstream.url, ...LIMITS, routes: [{ name: 'none', match: { path: '/none' } }] }
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...off })))
  client.send(post(BODY).slice(-1))
  t.equal((await client.answer()).status, 404, 'no route matches any more')
})

t.test('a request that declares more than a bucket holds is rejected for good', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, model(upstream.url))
  for (const most of ['30001', '1e300', '1e999']) {
    const answer = await askOnce(t, rig, post(`{"max_tokens":${most}}`))
    t.equal(answer.status, 429)
    t.equal(answer.header('retry-after'), undefined)
    t.match(answer.json().detail, /the cost [\de.+]+ can never fit bucket "tokens" of 30000/)
  }
  t.same(rig.rejections, ['too-costly tokens', 'too-costly tokens', 'too-costly tokens'])
  t.same([level(rig, 'requests'), level(rig, 'tokens'), rig.settled], [0, 0, []])
})

const memory: RigOptions['shared'] = clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' })

t.test('what waits leaves sooner if an answer cost less, and later if it cost more', async t => {
  for (const [what, options] of [
    ['alone', {}],
    ['with a store', { shared: memory }],
  ] as const) {
    for (const [total, wait] of [
      [10, 20],
      [100, 200],
      [300, 600],
    ] as const) {
      let answer: ServerResponse | undefined
      const upstream = await httpUpstream(t, (_req, res) => {
        if (answer !== undefined) return res.end()
        answer = res
      })
      const buckets = { tokens: { key: 'all', rate: '500/s', capacity: 30_000 } }
      const rig = await startRig(t, { ...model(upstream.url, { tokens: TOKENS }), buckets }, options)
      const first = askOnce(t, rig, post(BODY))
      await upstream.until(({ requests }) => requests.length === 1)
      const second = askOnce(t, rig, post(BODY))
      await rig.until(({ queued }) => queued.length === 1)
      sendJson(answer!, usage(total))
      await first
      await turns(50)
      for (let at = 0; at < 1_000 && upstream.requests.length < 2; at += 1) {
        rig.pacer.runUntil(rig.pacer.now() + 1)
        await turns(2)
      }
      await second
      await rig.finished(2)
      const late = rig.waits[1]! - wait
      t.ok(late >= 0 && late <= (what === 'alone' ? 0.001 : 3), `${what}: ${rig.waits[1]} ms for ${total} tokens`)
    }
  }
})

t.test('meter and dry runs settle, too', async t => {
  const upstream = await httpUpstream(t, (_req, res) => sendJson(res, usage(30)))
  for (const more of [{ mode: 'meter' }, { dryRun: true }, { mode: 'meter', dryRun: true }]) {
    for (const options of [{}, { shared: memory }]) {
      const rig = await startRig(t, model(upstream.url, { tokens: TOKENS }, more), options)
      t.equal((await askOnce(t, rig, post(BODY))).status, 200)
      await rig.finished(1)
      await turns(5)
      t.same([level(rig, 'tokens'), rig.settled], [30, ['answer tokens=30']], JSON.stringify(more))
    }
  }
})

t.test('a dry run whose shadow waits is settled when that passes, and one that is rejected never', async t => {
  const upstream = await httpUpstream(t, (_req, res) => sendJson(res, usage(250)))
  const buckets = { tokens: { key: 'all', rate: '100/s', capacity: 450 } }
  const rig = await startRig(t, { ...model(upstream.url, { tokens: TOKENS }, { dryRun: true }), buckets })
  await askOnce(t, rig, post(BODY))
  t.equal(level(rig, 'tokens'), 250)
  await askOnce(t, rig, post(BODY))
  t.same(rig.rehearsed, ['chat would_delay'])
  t.equal(level(rig, 'tokens'), 350, 'the shadow waits with what was reserved')
  await askOnce(t, rig, post(BODY))
  t.equal(level(rig, 'tokens'), 450)
  await askOnce(t, rig, post(BODY))
  t.same(rig.rehearsed, ['chat would_delay', 'chat would_delay', 'chat would_reject'])
  t.equal(level(rig, 'tokens'), 450, 'nothing is counted of what was rejected')
  rig.pacer.runUntil(2_500)
  t.equal(level(rig, 'tokens'), 350, 'the first shadow has passed and cost 250, the other waits with 100')
})

t.test('the adaptive bucket of an upstream counts requests', async t => {
  const upstream = await httpUpstream(t, (_req, res) => sendJson(res, usage(30)))
  const adapt = { min: '10/s', max: '1000/s' }
  const rig = await startRig(t, model({ url: upstream.url, adapt }, { requests: 2, tokens: TOKENS }))
  t.equal((await askOnce(t, rig, post(BODY))).status, 200)
  await rig.finished(1)
  const names = [...rig.proxy.context.routes[0]!.buckets].map(({ settings }) => settings.name)
  t.equal(names.length, 3)
  t.same(
    names.map(name => level(rig, name)),
    names.map(name => ({ requests: 2, tokens: 30 })[name] ?? 1),
  )
})

t.test('explain tells the cost in the bucket that decided', async t => {
  const upstream = await httpUpstream(t, (_req, res) => sendJson(res, usage(30)))
  const rig = await startRig(t, model(upstream.url, { requests: 2, tokens: TOKENS }, { explain: true }))
  const costOf = async (): Promise<string> => {
    const text = (await askOnce(t, rig, post(BODY))).header('shaper-explain')!
    return `${text.split(';', 1)[0]} ${/cost=([\d.]+)/.exec(text)?.[1]}`
  }
  t.equal(await costOf(), '"requests" 2', 'nothing delays it: the first one')
})

t.test('long: a stream of 100 MB takes no more memory than its buffers', async t => {
  const event = Buffer.from(`data: {"delta":"${'x'.repeat(16_000)}","usage":null}\n\n`)
  const upstream = await httpUpstream(t, async (_req, res) => {
    res.writeHead(200, { 'content-type': 'text/event-stream' })
    for (let sent = 0; sent < 100e6; sent += event.length) {
      if (!res.write(event)) await new Promise(resolve => res.once('drain', resolve))
    }
    res.end('data: {"usage":{"total_tokens":321}}\n\n')
  })
  const rig = await startRig(t, model(upstream.url))
  const client = await connect(t, rig)
  let bytes = 0
  client.socket.removeAllListeners('data').on('data', chunk => {
    bytes += chunk.length
  })
  let most = 0
  const before = process.memoryUsage().rss
  const watch = setInterval(() => {
    most = Math.max(most, process.memoryUsage().rss - before)
  }, 10)
  client.send(post(BODY))
  await rig.finished(1)
  for (let at = 0; at < 1_000 && bytes < 100e6; at += 1) await turns(10)
  clearInterval(watch)
  t.equal(level(rig, 'tokens'), 321)
  t.ok(bytes > 100e6, 'all of it has come')
  t.ok(most < 64 * 1024 * 1024, `${most} bytes`)
})
