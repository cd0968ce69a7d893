// @ts-check
/**
 * The upstream, in its own process. It does what the path says, counts each id that it sees, and has faults on
 * demand.
 */
import { createServer } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { WebSocketServer } from 'ws'

/** The header that marks its answers. */
const MARK = { 'x-upstream': 'yes' }

const CHUNK = Buffer.alloc(16 * 1024, 'x')

/** The number of requests by id. */
let seen = new Uint8Array(1 << 16)
let requests = 0
let hanging = false

/** Requests to answer when the upstream no longer hangs. @type {(() => void)[]} */
const held = []

/** @param {import('node:http').IncomingMessage} req */
function count(req) {
  requests += 1
  const id = Number(/[?&]id=(\d+)/.exec(req.url ?? '')?.[1] ?? Number.NaN)
  if (Number.isNaN(id)) return
  while (id >= seen.length) {
    const more = new Uint8Array(seen.length * 2)
    more.set(seen)
    seen = more
  }
  seen[id] = Math.min(255, seen[id] + 1)
}

/** @type {Record<string, (req: import('node:http').IncomingMessage, res: import('node:http').ServerResponse) => void>} */
const PAGES = {
  get(req, res) {
    const body = `ok ${/id=(\d+)/.exec(req.url ?? '')?.[1]}`
    res.writeHead(200, { ...MARK, 'Content-Length': body.length }).end(body)
  },
  none(_req, res) {
    res.writeHead(204, MARK).end()
  },
  async late(req, res) {
    await sleep(20 + (requests % 10) * 20)
    PAGES.get(req, res)
  },
  echo(req, res) {
    let bytes = 0
    let sum = 0
    req.on('data', chunk => {
      bytes += chunk.length
      for (const byte of chunk) sum = (sum + byte) % 65_521
    })
    req.on('end', () => res.writeHead(200, MARK).end(`${bytes} ${sum}`))
  },
  big(req, res) {
    let left = Number(/size=(\d+)/.exec(req.url ?? '')?.[1] ?? 0)
    res.writeHead(200, { ...MARK, 'Content-Length': left })
    const go = () => {
      while (left > 0) {
        const piece = CHUNK.subarray(0, Math.min(left, CHUNK.length))
        left -= piece.length
        if (!res.write(piece)) return res.once('drain', go)
      }
      res.end()
    }
    go()
  },
  hang() {},
  break(req) {
    req.socket.destroy()
  },
  half(req, res) {
    res.writeHead(200, { ...MARK, 'Content-Length': 1_000 })
    res.write('half', () => req.socket.destroy())
  },
}

const server = createServer((req, res) => {
  count(req)
  const page = /\/([a-z]+)\?/.exec(req.url ?? '')?.[1] ?? 'get'
  const go = () => {
    const act = PAGES[page] ?? PAGES.get
    act(req, res)
    req.resume()
  }
  // The body is not read meanwhile.
  if (hanging) held.push(go)
  else go()
})
// Connections that were opened in advance and never used are closed, too.
server.headersTimeout = 4_000
Object.assign(server, { connectionsCheckingInterval: 1_000 })
const websockets = new WebSocketServer({ noServer: true })
/** @type {Set<import('node:stream').Duplex>} */
const upgraded = new Set()
server.on('upgrade', (req, socket, head) => {
  count(req)
  upgraded.add(socket)
  socket.once('close', () => upgraded.delete(socket)).on('error', () => undefined)
  const accept = () =>
    websockets.handleUpgrade(req, socket, head, client => {
      client.on('error', () => undefined)
      client.on('message', (data, isBinary) => {
        const text = isBinary ? '' : String(data)
        if (text === 'close') client.close(4_001, 'as told')
        else if (text === 'reset') /** @type {import('node:net').Socket} */ (socket).resetAndDestroy()
        else client.send(data, { binary: isBinary })
      })
    })
  if (hanging) held.push(accept)
  else accept()
})

let port = 0
const listen = () =>
  new Promise(resolve => {
    server.listen(port, '127.0.0.1', () => {
      port = /** @type {import('node:net').AddressInfo} */ (server.address()).port
      resolve(undefined)
    })
  })

process.on('message', async message => {
  const { verb, ms } = /** @type {{ verb: string, ms: number }} */ (message)
  if (verb === 'restart') {
    server.close()
    server.closeAllConnections()
    for (const socket of upgraded) socket.destroy()
    await sleep(ms)
    await listen()
  } else if (verb === 'hang') {
    hanging = true
    await sleep(ms)
    hanging = false
    for (const go of held.splice(0)) go()
  } else if (verb === 'report') process.send?.({ requests, seen })
})
process.once('disconnect', () => process.exit())
await listen()
process.send?.({ port })
