import { createHash, randomBytes } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import {
  type AddressInfo,
  connect,
  createServer as createTcpServer,
  type Socket,
  type Server as TcpServer,
} from 'node:net'
import { Readable } from 'node:stream'
import { connect as connectSecurely, createServer as createTlsServer } from 'node:tls'
import util from 'node:util'
import type { Test } from 'tap'
import t from 'tap'
import { WebSocket, WebSocketServer } from 'ws'
import {
  openTunnel,
  type Tunnel,
  type TunnelEnd,
  type TunnelOptions,
  watchUpgradeSocket,
} from '../../src/proxy/upstream/tunnel.js'

const fixture = (name: string) => readFileSync(new URL(`../fixtures/upgrade-${name}.pem`, import.meta.url))
const key = fixture('key')
const cert = fixture('cert')

const ASK = 'GET /chat HTTP/1.1\r\nHost: up.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'
const SWITCH = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'

const warnings: Error[] = []
process.on('warning', warning => warnings.push(warning))

async function listen(server: TcpServer): Promise<number> {
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return (server.address() as AddressInfo).port
}

const shut = (server: TcpServer) => new Promise(resolve => server.close(resolve))

async function closed(socket: Socket): Promise<void> {
  if (!socket.closed) await new Promise(resolve => socket.once('close', resolve))
}

/** All that a socket sends, up to its end or reset. */
async function received(socket: Socket): Promise<{ text: string; error: string | undefined }> {
  const chunks: Buffer[] = []
  let error: string | undefined
  socket.on('data', chunk => chunks.push(chunk))
  socket.on('error', (cause: NodeJS.ErrnoException) => {
    error = cause.code
  })
  await closed(socket)
  return { text: Buffer.concat(chunks).toString('latin1'), error }
}

/** Reads until the text has come, and leaves what follows it. */
async function until(socket: Socket, text: string): Promise<string> {
  let seen = ''
  for (;;) {
    const chunk = socket.read() as Buffer | null
    if (chunk === null) {
      await once(socket, 'readable')
      continue
    }
    seen += chunk.toString('latin1')
    const at = seen.indexOf(text)
    if (at < 0) continue
    const rest = seen.slice(at + text.length)
    if (rest !== '') socket.unshift(Buffer.from(rest, 'latin1'))
    return seen.slice(0, at + text.length)
  }
}

interface Setting extends Partial<Omit<TunnelOptions, 'target'>> {
  target?: Partial<TunnelOptions['target']>
  secureUpstream?: boolean
  secureFront?: boolean
  /** Whether the upstream closes after the other side has; default true. */
  polite?: boolean
  /** Instead of the raw upstream. */
  server?: TcpServer
}

/** An upstream, a front that opens a tunnel for each upgrade request, and clients. */
async function stage(t: Test, script: (socket: Socket) => void, setting: Setting = {}) {
  const { target, secureUpstream = false, secureFront = false, polite = true, server, ...options } = setting
  const events = new EventEmitter()
  const upstreamSockets: Socket[] = []
  const clients: Socket[] = []
  const ends: TunnelEnd[] = []
  const statuses: number[] = []
  let opened = 0

  function accept(socket: Socket): void {
    upstreamSockets.push(socket)
    socket.on('error', () => undefined)
    if (polite) socket.on('end', () => socket.end())
    script(socket)
  }
  const upstream =
    server ??
    (secureUpstream ? createTlsServer({ key, cert }, accept) : createTcpServer({ allowHalfOpen: true }, accept))
  upstream.on('tlsClientError', () => undefined)
  const upstreamPort = await listen(upstream)

  const front = (secureFront ? createSecureServer({ key, cert }) : createServer()) as Server
  front.on('upgrade', (req, socket, head) => {
    opened += 1
    const before = socket.eventNames().map(name => `${String(name)} ${socket.listenerCount(name)}`)
    const passed: string[] = []
    for (let at = 0; at < req.rawHeaders.length; at += 2) {
      if (!/^(connection|upgrade)$/i.test(req.rawHeaders[at]!)) passed.push(...req.rawHeaders.slice(at, at + 2))
    }
    let returned = false
    const tunnel = openTunnel({
      socket,
      head,
      path: req.url!,
      headers: passed,
      connectTimeout: 10_000,
      handshakeTimeout: 10_000,
      idleTimeout: 60_000,
      tunnelIdleTimeout: 60_000,
      onResponse: status => statuses.push(status),
      onEnd: end => {
        t.ok(returned, 'the end comes after the return')
        ends.push(end)
        if (end.kind === 'failed' || end.kind === 'abandoned') {
          t.ok(socket.writable && !socket.destroyed, 'the socket is left to the caller')
          t.equal((socket as Socket).bytesWritten, 0)
          const after = socket.eventNames().map(name => `${String(name)} ${socket.listenerCount(name)}`)
          t.same(
            after.filter(name => !before.includes(name)),
            ['error 1'],
            'no listeners but the fence',
          )
          socket.resume()
          socket.end(`HTTP/1.1 ${end.kind === 'failed' ? end.status : 503} Sorry\r\n\r\n`)
        } else {
          t.ok(socket.destroyed)
        }
        events.emit('end', end)
      },
      ...options,
      target: { protocol: secureUpstream ? 'https:' : 'http:', host: '127.0.0.1', port: upstreamPort, ...target },
    })
    returned = true
    events.emit('tunnel', tunnel, socket)
  })
  const port = await listen(front)

  return {
    port,
    ends,
    statuses,
    upstreamSockets,
    next: async (name: 'end' | 'tunnel') => (await once(events, name)) as unknown[],
    dial(): Socket {
      const to = { port, host: '127.0.0.1', allowHalfOpen: true }
      const client = secureFront ? connectSecurely({ ...to, ca: cert }) : connect(to)
      client.on('error', () => undefined)
      clients.push(client)
      return client
    },
    /** Checks that every socket is closed and every tunnel has reported its end once. */
    async over(): Promise<void> {
      for (const client of clients) await closed(client)
      for (const socket of upstreamSockets) await closed(socket.resume())
      await shut(front)
      await shut(upstream)
      if (ends.length < opened) await once(events, 'end')
      t.equal(ends.length, opened, 'each end is reported once')
    },
  }
}

const digest = (data: Buffer) => createHash('sha256').update(data).digest('hex')

// These tests wait more than they compute.
t.jobs = 4

t.test('long: ws: large frames both ways', async t => {
  for (const secure of [false, true]) {
    const http = secure ? createSecureServer({ key, cert }) : createServer()
    const wss = new WebSocketServer({ server: http as Server, maxPayload: 2 ** 24, handleProtocols: () => 'echo' })
    wss.on('connection', peer => peer.on('message', data => peer.send(data)))
    const scene = await stage(t, () => undefined, {
      server: http,
      secureUpstream: secure,
      secureFront: secure,
      target: { ca: cert },
    })
    const client = new WebSocket(`${secure ? 'wss' : 'ws'}://127.0.0.1:${scene.port}//a//b?x`, ['other', 'echo'], {
      ca: cert,
    })
    await once(client, 'open')
    t.equal(client.protocol, 'echo')
    const frames = Array.from({ length: 10 }, () => randomBytes(2 ** 20))
    const back: string[] = []
    client.on('message', data => {
      back.push(digest(data as Buffer))
      if (back.length === frames.length) client.close(4001, 'enough')
    })
    for (const frame of frames) client.send(frame)
    const [peer] = [...wss.clients]
    const [[code, reason]] = await Promise.all([once(peer!, 'close'), once(client, 'close'), scene.next('end')])
    t.same(back, frames.map(digest))
    t.equal(code, 4001)
    t.equal(String(reason), 'enough')
    t.same(scene.ends, [{ kind: 'closed' }])
    t.same(scene.statuses, [101])
    await scene.over()
  }
})

t.test('ws: an end or a reset of either side reaches the other', async t => {
  for (const side of ['client', 'server'] as const) {
    for (const how of ['terminate', 'reset'] as const) {
      const http = createServer()
      const wss = new WebSocketServer({ server: http })
      const scene = await stage(t, () => undefined, { server: http })
      const joined = once(wss, 'connection')
      const client = new WebSocket(`ws://127.0.0.1:${scene.port}/`)
      client.on('error', () => undefined)
      const upgraded = once(client, 'upgrade')
      const [peer] = (await joined) as [WebSocket]
      peer.on('error', () => undefined)
      await Promise.all([upgraded, once(client, 'open')])
      const other = side === 'client' ? peer : client
      const gone = once(other, 'close')
      const one = side === 'client' ? client : peer
      if (how === 'terminate') one.terminate()
      else (one as unknown as { _socket: Socket })._socket.resetAndDestroy()
      const [code] = await gone
      t.equal(code, 1006, `${side} ${how}`)
      if (scene.ends.length === 0) await scene.next('end')
      t.same(scene.ends, [{ kind: 'closed' }])
      await scene.over()
    }
  }
})

t.test('path, headers and early bytes arrive byte for byte', async t => {
  const ask = [
    'GET //a//b/%2f;?x=//y?? HTTP/1.1',
    'Host: Up.Test',
    'X-Case: One',
    '__proto__: p',
    'SEC-WebSocket-Key: abc',
    'X-Twice: 1',
    'x-latin: caf\xe9',
    'X-Twice: 2',
    'Cookie: a=1',
  ]
  const head = 'HEAD'
  const scene = await stage(t, socket => {
    void until(socket, '\r\n\r\n').then(async text => {
      t.equal(
        text,
        [
          ...ask.slice(0, 6),
          'X-Twice: 2',
          'x-latin: caf\xe9',
          'Cookie: a=1',
          'Connection: Upgrade',
          'Upgrade: websocket',
          '',
          '',
        ].join('\r\n'),
      )
      client.write(' and more')
      socket.write(
        'HTTP/1.1 101 Sw\r\nUPGRADE: WebSocket\r\nX-B: caf\xe9\r\nSet-Cookie: a\r\nX-Hop: 1\r\n' +
          'Set-Cookie: b\r\nconnection: upgrade, x-hop\r\nKeep-Alive: 1\r\nTrailer: x\r\n__proto__: q\r\n\r\nfirst',
        'latin1',
      )
      t.equal(await until(socket, 'HEAD and more'), 'HEAD and more')
      socket.end(' last')
    })
  })
  const client = scene.dial()
  client.write(`${ask.join('\r\n')}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n${head}`, 'latin1')
  client.on('end', () => client.end())
  const { text } = await received(client)
  t.equal(
    text,
    'HTTP/1.1 101 Switching Protocols\r\nUPGRADE: WebSocket\r\nX-B: caf\xe9\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n' +
      '__proto__: q\r\nConnection: Upgrade\r\n\r\nfirst last',
  )
  await scene.over()
  t.same(scene.ends, [{ kind: 'closed' }])
})

t.test('an invalid path or header fails, and nothing is sent', async t => {
  for (const wrong of [
    { path: '/a b' },
    { path: '/a\r\nX: y' },
    { headers: ['Host', 'a\r\nb'] },
    { headers: ['a b', ''] },
  ]) {
    const scene = await stage(t, socket => socket.on('data', () => t.fail('sent')), wrong)
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    t.match((await received(client)).text, /^HTTP\/1.1 502 /)
    t.match(scene.ends, [{ kind: 'failed', status: 502, error: Error }])
    await scene.over()
  }
})

t.test('the client leaves before the 101', async t => {
  for (const leave of ['end', 'destroy', 'resetAndDestroy'] as const) {
    for (const early of ['', 'early']) {
      const scene = await stage(t, socket => {
        void until(socket, '\r\n\r\n').then(() => client[leave]())
      })
      const client = scene.dial()
      client.write(ASK + early)
      await scene.next('end')
      t.same(scene.ends, [{ kind: 'client-gone' }], `${leave} ${early}`)
      client.destroy()
      await scene.over()
      t.same(scene.statuses, [])
    }
  }
})

t.test('the client leaves before there is a connection', async t => {
  for (const leave of ['end', 'destroy', 'resetAndDestroy'] as const) {
    // A TLS handshake without an answer.
    const scene = await stage(t, () => void client[leave](), { target: { protocol: 'https:' } })
    const client = scene.dial()
    client.write(ASK)
    await scene.next('end')
    t.same(scene.ends, [{ kind: 'client-gone' }])
    client.destroy()
    await scene.over()
  }
})

t.test('the client leaves while the 101 is on its way', async t => {
  for (const leave of ['end', 'destroy', 'resetAndDestroy'] as const) {
    const scene = await stage(t, socket => {
      void until(socket, '\r\n\r\n').then(() => {
        socket.write(`${SWITCH}hello`)
        client[leave]()
        socket.resume()
      })
    })
    const client = scene.dial()
    client.resume().write(ASK)
    await scene.next('end')
    t.match(scene.ends[0]!.kind, /^(client-gone|closed)$/)
    await scene.over()
  }
})

t.test('the client leaves after the 101', async t => {
  for (const secureFront of [false, true]) {
    for (const leave of ['end', 'destroy', 'resetAndDestroy'] as const) {
      const scene = await stage(
        t,
        socket => {
          socket.write(SWITCH)
          socket.resume()
        },
        { secureFront },
      )
      const client = scene.dial()
      client.write(ASK)
      await until(client, '\r\n\r\n')
      client.resume()
      if (leave === 'resetAndDestroy' && secureFront) client.destroy()
      else client[leave]()
      await scene.next('end')
      t.same(scene.ends, [{ kind: 'closed' }])
      await scene.over()
    }
  }
})

t.test('what the client sent before it closed still arrives', async t => {
  const data = randomBytes(2 ** 23)
  const scene = await stage(
    t,
    socket => {
      socket.write(SWITCH)
      void until(socket, '\r\n\r\n').then(async () => {
        const chunks: Buffer[] = []
        for await (const chunk of socket.iterator({ destroyOnReturn: false })) chunks.push(chunk)
        t.equal(digest(Buffer.concat(chunks)), digest(data))
        socket.end('bye')
      })
    },
    { polite: false },
  )
  const client = scene.dial()
  client.write(ASK)
  await until(client, '\r\n\r\n')
  client.end(data)
  t.equal((await received(client)).text, 'bye')
  await scene.over()
})

t.test('the upstream fails before it answers: 502', async t => {
  const ways: Record<string, (socket: Socket) => void> = {
    'reset at once': socket => socket.resetAndDestroy(),
    'end at once': socket => socket.end(),
    'reset after the request': socket => void until(socket, '\r\n\r\n').then(() => socket.resetAndDestroy()),
    'end after the request': socket => void until(socket, '\r\n\r\n').then(() => socket.end()),
    'half an answer': socket => void until(socket, '\r\n\r\n').then(() => socket.end(SWITCH.slice(0, 50))),
    garbage: socket => socket.end('SSH-2.0-OpenSSH\r\n'),
    'huge headers': socket => socket.end(`HTTP/1.1 101 X\r\nX-Big: ${'x'.repeat(100_000)}\r\n\r\n`),
    'smuggling answer': socket =>
      socket.end('HTTP/1.1 200 X\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n'),
  }
  for (const [name, script] of Object.entries(ways)) {
    const scene = await stage(t, socket => {
      script(socket)
    })
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    t.match((await received(client)).text, /^HTTP\/1.1 502 /, name)
    t.match(scene.ends, [{ kind: 'failed', status: 502, error: Error }])
    t.same(scene.statuses, [])
    await scene.over()
  }
})

t.test('the upstream cannot be reached: 502', async t => {
  // The port of a client is taken, and nothing listens there.
  const listener = createTcpServer()
  const holder = connect(await listen(listener), '127.0.0.1')
  await once(holder, 'connect')
  const port = holder.localPort!
  for (const protocol of ['http:', 'https:'] as const) {
    const scene = await stage(t, () => undefined, { target: { port, protocol } })
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    t.match((await received(client)).text, /^HTTP\/1.1 502 /)
    t.match(scene.ends, [{ kind: 'failed', error: { code: 'ECONNREFUSED' } }])
    await scene.over()
  }
  holder.destroy()
  await shut(listener)
})

t.test('the upstream is silent: 504', async t => {
  for (const protocol of ['http:', 'https:'] as const) {
    const scene = await stage(t, socket => socket.resume(), {
      target: { protocol },
      ...(protocol === 'http:' ? { handshakeTimeout: 50 } : { connectTimeout: 50 }),
    })
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    t.match((await received(client)).text, /^HTTP\/1.1 504 /)
    t.match(scene.ends, [{ kind: 'failed', status: 504, error: { message: /within 50 ms/ } }])
    await scene.over()
  }
})

t.test('interim answers and a 101 without Upgrade are no answers', async t => {
  const scene = await stage(t, socket => {
    socket.write('HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n')
    socket.end('HTTP/1.1 101 X\r\n\r\n')
    socket.resume()
  })
  const client = scene.dial()
  client.write(ASK)
  client.on('end', () => client.end())
  t.match((await received(client)).text, /^HTTP\/1.1 502 /)
  await scene.over()
})

t.test('the upstream breaks while or after it answers', async t => {
  const ways: Record<string, (socket: Socket) => void> = {
    during: socket => socket.write(`${SWITCH}hello`, () => socket.resetAndDestroy()),
    after: socket => void until(socket, 'go').then(() => socket.resetAndDestroy()),
    'after, with an end': socket => void until(socket, 'go').then(() => socket.end()),
  }
  for (const [name, script] of Object.entries(ways)) {
    const scene = await stage(t, socket => {
      if (name !== 'during') socket.write(SWITCH)
      script(socket)
    })
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    if (name !== 'during') {
      await until(client, '\r\n\r\n')
      client.write('go')
    }
    await received(client)
    await scene.over()
    t.match(scene.ends, [{ kind: name === 'during' ? /^(closed|failed)$/ : 'closed' }], name)
  }
})

t.test('backpressure both ways, and an end of the client that does not end the upstream', async t => {
  const data = randomBytes(2 ** 25)
  let most = 0

  /** Sends all of the data and reads with as many pauses. */
  async function exchange(socket: Socket, sample: () => void, last: boolean): Promise<void> {
    const sent = new Promise<void>(resolve => {
      const pieces = Array.from({ length: 2 ** 9 }, (_, at) => data.subarray(at * 2 ** 16, (at + 1) * 2 ** 16))
      Readable.from(pieces).on('end', resolve).pipe(socket, { end: !last })
    })
    const hash = createHash('sha256')
    let size = 0
    for await (const chunk of socket.iterator({ destroyOnReturn: false })) {
      hash.update(chunk)
      size += chunk.length
      sample()
      await new Promise(setImmediate)
    }
    t.equal(size, data.length)
    t.equal(hash.digest('hex'), digest(data))
    await sent
    if (last) socket.end()
  }

  let upstreamDone: Promise<void> | undefined
  const scene = await stage(
    t,
    socket => {
      upstreamDone = until(socket, '\r\n\r\n').then(() => {
        socket.write(SWITCH)
        return exchange(socket, () => undefined, true)
      })
    },
    { polite: false },
  )
  const client = scene.dial()
  client.write(ASK)
  const [, middle] = (await scene.next('tunnel')) as [Tunnel, Socket]
  await until(client, '\r\n\r\n')
  const sample = () => {
    most = Math.max(most, middle.writableLength, middle.readableLength)
  }
  await Promise.all([exchange(client, sample, false), upstreamDone])
  await scene.over()
  t.ok(most < 500_000, `buffered at most ${most}`)
  t.same(scene.ends, [{ kind: 'closed' }])
})

t.test('what the upstream sent before it closed is drained to a slow client', async t => {
  const data = randomBytes(2 ** 24)
  const scene = await stage(t, socket => {
    socket.write(SWITCH)
    socket.end(data)
  })
  const client = scene.dial()
  client.write(ASK)
  await until(client, '\r\n\r\n')
  const hash = createHash('sha256')
  for await (const chunk of client.iterator({ destroyOnReturn: false })) {
    hash.update(chunk)
    client.write('still talking')
    await new Promise(setImmediate)
  }
  t.equal(hash.digest('hex'), digest(data))
  const before = performance.now()
  client.end()
  await scene.over()
  t.ok(performance.now() - before < 4_000, 'its end is seen behind its data, without a timeout')
  t.same(scene.ends, [{ kind: 'closed' }])
})

t.test('an answer other than 101 reaches the client as it is', async t => {
  const cases: [name: string, answer: string, client: string][] = [
    [
      'Content-Length, case, order, duplicates, latin1',
      'HTTP/1.1 403 Verbot\xe9n\r\nX-B: caf\xe9\r\nSET-cookie: a\r\nContent-Length: 4\r\nSet-Cookie: b\r\nX-A: 1\r\nConnection: keep-alive, x-a\r\nKeep-Alive: timeout=5\r\n\r\nnope',
      'HTTP/1.1 403 Verbot\xe9n\r\nX-B: caf\xe9\r\nSET-cookie: a\r\nContent-Length: 4\r\nSet-Cookie: b\r\nConnection: close\r\n\r\nnope',
    ],
    [
      'headers of 40 kB',
      `HTTP/1.1 401 No\r\nX-Big: ${'x'.repeat(40_000)}\r\nContent-Length: 0\r\n\r\n`,
      `HTTP/1.1 401 No\r\nX-Big: ${'x'.repeat(40_000)}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`,
    ],
    [
      'chunks and trailers',
      'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\nX-A: 1\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\nX-Sum: 1\r\n\r\n',
      'HTTP/1.1 200 OK\r\nX-A: 1\r\nConnection: close\r\n\r\nabcdefg',
    ],
    [
      'no body',
      'HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n',
      'HTTP/1.1 204 No Content\r\nX-A: 1\r\nConnection: close\r\n\r\n',
    ],
    ['to the end', 'HTTP/1.0 200 OK\r\n\r\nabc', 'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc'],
    [
      'Upgrade that is not 101',
      'HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 1\r\n\r\nx',
      'HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 1\r\nConnection: close, Upgrade\r\n\r\nx',
    ],
    [
      'interim answers before it',
      'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n',
      'HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n',
    ],
  ]
  for (const secureFront of [false, true]) {
    for (const [name, answer, expected] of cases) {
      const scene = await stage(
        t,
        socket => {
          socket.write(answer, 'latin1')
          if (name === 'to the end') socket.end()
          else socket.resume()
        },
        { secureFront },
      )
      const client = scene.dial()
      client.write(`${ASK}early`)
      client.on('end', () => client.end('late'))
      t.equal((await received(client)).text, expected, name)
      await scene.over()
      const status = Number(expected.slice(9, 12))
      t.same(scene.ends, [{ kind: 'answered', status }])
      t.same(scene.statuses, [status])
    }
  }
})

t.test('a long answer is streamed whole to a slow client', async t => {
  const data = randomBytes(2 ** 24)
  const scene = await stage(t, socket => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${data.length}\r\n\r\n`)
    socket.end(data)
    socket.resume()
  })
  const client = scene.dial()
  client.write(ASK)
  await until(client, '\r\n\r\n')
  const hash = createHash('sha256')
  for await (const chunk of client.iterator({ destroyOnReturn: false })) {
    hash.update(chunk)
    await new Promise(setImmediate)
  }
  client.end()
  t.equal(hash.digest('hex'), digest(data))
  await scene.over()
})

t.test('an answer that is cut short is a reset for the client', async t => {
  for (const head of [
    'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n',
    'Content-Length: 100\r\n\r\nhello',
    '\r\nhello',
  ]) {
    for (const secureFront of [false, true]) {
      const scene = await stage(
        t,
        socket => {
          socket.write(`HTTP/1.1 200 OK\r\n${head}`)
        },
        { secureFront },
      )
      const client = scene.dial()
      client.write(ASK)
      client.on('end', () => client.end())
      await until(client, 'hello')
      const ended = scene.next('end')
      scene.upstreamSockets[0]!.resetAndDestroy()
      const { error } = await received(client)
      // Node does not report a missing close_notify.
      if (!secureFront) t.equal(error, 'ECONNRESET')
      await ended
      t.same(scene.ends, [{ kind: 'answered', status: 200 }])
      await scene.over()
    }
  }
})

t.test('the client leaves during an answer', async t => {
  for (const leave of ['destroy', 'resetAndDestroy'] as const) {
    const scene = await stage(t, socket => {
      socket.write('HTTP/1.1 200 OK\r\n\r\nhello')
      socket.resume()
    })
    const client = scene.dial()
    client.write(ASK)
    await until(client, 'hello')
    client[leave]()
    await scene.next('end')
    await scene.over()
    t.same(scene.ends, [{ kind: 'answered', status: 200 }])
  }
})

t.test('idle: both sides are closed', async t => {
  for (const answer of [SWITCH, 'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello']) {
    const scene = await stage(
      t,
      socket => {
        socket.write(answer)
        socket.resume()
      },
      answer === SWITCH ? { tunnelIdleTimeout: 100 } : { idleTimeout: 100 },
    )
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    await received(client)
    await scene.over()
    t.same(scene.ends, [answer === SWITCH ? { kind: 'closed', idle: true } : { kind: 'answered', status: 200 }])
  }
})

t.test('idle: traffic one way is enough to live', async t => {
  let ticks = 0
  const scene = await stage(
    t,
    socket => {
      socket.write(SWITCH)
      const ticking = setInterval(() => {
        socket.write('tick')
        ticks += 1
        if (ticks === 20) {
          clearInterval(ticking)
          socket.end()
        }
      }, 50)
    },
    { tunnelIdleTimeout: 500 },
  )
  const client = scene.dial()
  client.write(ASK)
  client.on('end', () => client.end())
  const { text } = await received(client)
  t.equal(
    text,
    SWITCH.replace('Connection: Upgrade\r\nUpgrade: websocket', 'Upgrade: websocket\r\nConnection: Upgrade') +
      'tick'.repeat(20),
  )
  await scene.over()
})

t.test('long: a peer that does not close after the other side is cut off', async t => {
  const client = await stage(t, socket => socket.end(SWITCH), { tunnelIdleTimeout: 0 })
  const lingering = client.dial()
  lingering.resume().write(ASK)
  const upstream = await stage(t, socket => socket.write(SWITCH), { tunnelIdleTimeout: 0, polite: false })
  const leaving = upstream.dial()
  leaving.write(ASK)
  await until(leaving, '\r\n\r\n')
  leaving.resume().end()
  await Promise.all([client.next('end'), upstream.next('end')])
  lingering.end()
  upstream.upstreamSockets[0]!.end()
  await client.over()
  await upstream.over()
})

t.test('close destroys both sides; before an answer the client is left to the caller', async t => {
  for (const answer of ['', SWITCH, 'HTTP/1.1 200 OK\r\n\r\nhello']) {
    const scene = await stage(t, socket => {
      void until(socket, '\r\n\r\n').then(() => {
        if (answer === '') tunnel.close()
        else socket.write(answer)
      })
    })
    const client = scene.dial()
    client.write(ASK)
    const [tunnel] = (await scene.next('tunnel')) as [Tunnel]
    const ended = scene.next('end')
    if (answer !== '') await until(client, '\r\n\r\n')
    tunnel.close()
    tunnel.close()
    await ended
    tunnel.close()
    client.resume().end()
    await scene.over()
    const end = answer.includes('200') ? { kind: 'answered', status: 200 } : { kind: 'closed' }
    t.same(scene.ends, [answer === '' ? { kind: 'abandoned' } : end])
  }
})

t.test('TLS upstream', async t => {
  const script = (socket: Socket) => {
    void until(socket, '\r\n\r\n').then(() => socket.end(`${SWITCH}${(socket as { servername?: string }).servername}`))
  }
  const cases: [target: Setting['target'], expected: RegExp][] = [
    [{ ca: cert }, /^HTTP\/1.1 101 [\s\S]*(false|null|undefined)$/],
    [{ ca: cert, host: 'localhost' }, /^HTTP\/1.1 101 [\s\S]*localhost$/],
    [{ ca: cert, servername: 'named.test' }, /^HTTP\/1.1 101 [\s\S]*named.test$/],
    [{ ca: cert, servername: 'wrong.test' }, /^HTTP\/1.1 502 /],
    [{}, /^HTTP\/1.1 502 /],
  ]
  for (const [target, expected] of cases) {
    const scene = await stage(t, script, { secureUpstream: true, target: target! })
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    t.match((await received(client)).text, expected)
    await scene.over()
  }
})

t.test('close as soon as there is an answer', async t => {
  for (const answer of [SWITCH, 'HTTP/1.1 200 OK\r\n\r\nhello']) {
    let tunnel: Tunnel | undefined
    const scene = await stage(t, socket => socket.write(answer), { onResponse: () => tunnel!.close() })
    const client = scene.dial()
    client.write(ASK)
    client.on('end', () => client.end())
    ;[tunnel] = (await scene.next('tunnel')) as [Tunnel]
    t.equal((await received(client)).text, '')
    await scene.over()
    t.same(scene.ends, [answer === SWITCH ? { kind: 'closed' } : { kind: 'answered', status: 200 }])
  }
})

t.test('a socket that is already closed', async t => {
  const server = createServer()
  let connections = 0
  const upstream = createTcpServer(() => {
    connections += 1
  })
  const port = await listen(upstream)
  const upgrade = once(server, 'upgrade')
  connect(await listen(server), '127.0.0.1').end(ASK)
  const [, socket, head] = (await upgrade) as [unknown, Socket, Buffer]
  socket.destroy(new Error('gone'))
  const times = { connectTimeout: 1_000, handshakeTimeout: 1_000, idleTimeout: 1_000, tunnelIdleTimeout: 1_000 }
  const target = { protocol: 'http:', host: '127.0.0.1', port } as const
  const ends: TunnelEnd[] = []
  await new Promise<void>(resolve => {
    openTunnel({ ...times, target, socket, head, path: '/', headers: [], onEnd: end => resolve(void ends.push(end)) })
    t.same(ends, [])
  })
  t.same(ends, [{ kind: 'client-gone' }])
  await shut(server)
  const probe = connect(port, '127.0.0.1')
  await once(upstream, 'connection')
  t.equal(connections, 1, 'the probe alone')
  probe.destroy()
  upstream.close()
})

/** A server whose upgrade sockets are only watched. */
async function watched(t: Test) {
  const server = createServer()
  t.teardown(() => shut(server))
  const port = await listen(server)
  const client = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
  client.on('error', () => undefined)
  t.teardown(() => client.destroy())
  client.write(ASK)
  const [, socket] = (await once(server, 'upgrade')) as [unknown, Socket]
  t.teardown(() => socket.destroy())
  let calls = 0
  const events = new EventEmitter()
  const gone = once(events, 'gone')
  const stop = watchUpgradeSocket(socket, () => {
    calls += 1
    events.emit('gone')
  })
  return { client, socket, gone, stop, calls: () => calls }
}

t.test('watching: a hang-up is reported once', async t => {
  for (const leave of ['end', 'destroy', 'resetAndDestroy'] as const) {
    for (const early of ['', 'early', 'x'.repeat(10_000)]) {
      const { client, socket, gone, calls } = await watched(t)
      if (early !== '') client.write(early)
      client[leave]()
      await gone
      socket.destroy(new Error('caller'))
      await closed(socket)
      t.equal(calls(), 1)
      t.equal(socket.listenerCount('readable'), 0)
      t.equal(socket.listenerCount('error'), 1, 'the fence stays')
    }
  }
})

t.test('watching: little is read, and all of it is given back', async t => {
  const { client, socket, stop, calls } = await watched(t)
  const data = randomBytes(2 ** 23)
  client.end(data)
  while (!(socket.readableLength >= socket.readableHighWaterMark)) await new Promise(setImmediate)
  t.ok(socket.bytesRead < 300_000, `read ${socket.bytesRead}`)
  stop()
  stop()
  const chunks: Buffer[] = []
  for await (const chunk of socket) chunks.push(chunk)
  t.equal(digest(Buffer.concat(chunks)), digest(data))
  t.equal(calls(), 0)
})

t.test('watching: an error after it has stopped is not uncaught', async t => {
  const { client, socket, stop, calls } = await watched(t)
  stop()
  client.resetAndDestroy()
  await closed(socket)
  t.equal(calls(), 0)
})

t.test('watched, then tunnelled: early bytes keep their order', async t => {
  const { client, socket, stop } = await watched(t)
  const upstream = createTcpServer(peer => {
    peer.write(SWITCH)
    void until(peer, '\r\n\r\n').then(async () => {
      t.equal(await until(peer, 'head early late'), 'head early late')
      peer.end()
    })
  })
  const port = await listen(upstream)
  client.write('early ')
  while (socket.bytesRead < ASK.length + 6) await new Promise(setImmediate)
  stop()
  const times = { connectTimeout: 1_000, handshakeTimeout: 1_000, idleTimeout: 1_000, tunnelIdleTimeout: 1_000 }
  const target = { protocol: 'http:', host: '127.0.0.1', port } as const
  const end = new Promise<TunnelEnd>(onEnd => {
    openTunnel({ ...times, target, socket, head: Buffer.from('head '), path: '/', headers: ['Host', 'h'], onEnd })
  })
  client.write('late')
  client.resume().on('end', () => client.end())
  t.same(await end, { kind: 'closed' })
  await shut(upstream)
})

t.test('no deprecation warning of http-proxy, and Node is left as it was', async t => {
  // util._extend and url.parse.
  t.same(
    warnings.filter(warning => 'code' in warning && ['DEP0060', 'DEP0169'].includes(String(warning.code))),
    [],
  )
  t.not((util as unknown as { _extend: unknown })._extend, Object.assign)
})
