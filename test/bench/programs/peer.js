// @ts-check
/** The peers that are Node programs, set up as in their documentation: `peer.js NAME UPSTREAM-PORT [OPTIONS]`. */
import http from 'node:http'

const [name, upstreamPort, json = '{}'] = process.argv.slice(2)
const target = `http://127.0.0.1:${upstreamPort}`
const options = JSON.parse(json)
const agent = () => new http.Agent({ keepAlive: true, maxSockets: 256, noDelay: true })

/** Imports a peer, which may be missing. @param {string} specifier @returns {Promise<any>} */
async function load(specifier) {
  const module = await import(specifier)
  return module.default ?? module
}

/** @param {any} _req @param {any} res */
const bad = (_req, res) => {
  if (!res.headersSent) res.writeHead(502)
  res.end()
}

/** Whether the client is connected. After a hang-up http-proxy keeps the upstream connection forever. @param {any} req */
const present = req => !req.socket.destroyed

/** A proxy of the http-proxy family as a handler. @param {any} proxy @returns {http.RequestListener} */
function web(proxy) {
  proxy.on?.('error', (/** @type {any} */ _error, /** @type {any} */ req, /** @type {any} */ res) => bad(req, res))
  return (req, res) => void proxy.web(req, res)
}

async function httpProxy() {
  return web((await load('http-proxy')).createProxyServer({ target, agent: agent() }))
}

/** The rate in the first part of a path: `/r100/...`. @param {string} path */
function rateOf(path) {
  return Number(/^\/r(\d+)\//.exec(path)?.[1])
}

/** @type {Record<string, () => Promise<http.RequestListener>>} */
const peers = {
  'http-proxy': httpProxy,
  async 'http-proxy-3'() {
    const { createProxyServer } = await import('http-proxy-3')
    return web(createProxyServer({ target, agent: agent() }))
  },
  async httpxy() {
    const { createProxyServer } = await import('httpxy')
    return web(createProxyServer({ target, agent: agent() }))
  },
  async 'fast-proxy'() {
    const { proxy } = (await load('fast-proxy'))({ base: target })
    return (req, res) => proxy(req, res, req.url, {})
  },
  async undici() {
    const { Pool } = await import('undici')
    const pool = new Pool(target, { pipelining: 1 })
    return (req, res) => {
      const { rawHeaders } = req
      const headers = []
      for (let at = 0; at < rawHeaders.length; at += 2) {
        if (rawHeaders[at].toLowerCase() !== 'connection') headers.push(rawHeaders[at], rawHeaders[at + 1])
      }
      pool.dispatch(
        { path: /** @type {string} */ (req.url), method: /** @type {any} */ (req.method), headers, body: null },
        /** @type {any} */ (new Bare(res)),
      )
    }
  },
  /** Only answers. */
  async bare() {
    const { status, headers, body } = options
    const bytes = Buffer.from(body)
    return (_req, res) => {
      res.writeHead(status, headers)
      res.end(bytes)
    }
  },
  /** Holds every request. */
  async holding() {
    const held = new Set()
    return (_req, res) => void held.add(res)
  },
  async bottleneck() {
    const Bottleneck = await load('bottleneck')
    const proxy = await httpProxy()
    const limiters = new Map()
    return (req, res) => {
      const rate = rateOf(req.url ?? '')
      const key = `${rate} ${req.headers['x-key']}`
      let limiter = limiters.get(key)
      if (limiter === undefined) {
        limiter = new Bottleneck({ minTime: 1000 / rate })
        limiters.set(key, limiter)
      }
      limiter.schedule(async () => present(req) && proxy(req, res))
    }
  },
  async 'rate-limiter-queue'() {
    const { RateLimiterMemory, RateLimiterQueue } = await load('rate-limiter-flexible')
    const proxy = await httpProxy()
    const queues = new Map()
    return (req, res) => {
      const rate = rateOf(req.url ?? '')
      let queue = queues.get(rate)
      if (queue === undefined) {
        queue = new RateLimiterQueue(new RateLimiterMemory({ points: rate, duration: 1 }))
        queues.set(rate, queue)
      }
      queue.removeTokens(1, String(req.headers['x-key'])).then(
        () => present(req) && proxy(req, res),
        () => bad(req, res),
      )
    }
  },
  /** The limiter in a server as in its documentation. */
  async 'rate-limiter-flexible'() {
    const { RateLimiterMemory } = await load('rate-limiter-flexible')
    const limiter = new RateLimiterMemory({ points: 1, duration: 3600 })
    return (req, res) => {
      limiter.consume(req.socket.remoteAddress).then(
        () => res.end('Hello, world!'),
        (/** @type {any} */ { msBeforeNext }) => {
          res.writeHead(429, { 'Retry-After': Math.ceil(msBeforeNext / 1000) })
          res.end('Too Many Requests')
        },
      )
    }
  },
}

/** A minimal handler of undici. */
class Bare {
  /** @param {http.ServerResponse} res */
  constructor(res) {
    this.res = res
  }

  onRequestStart() {}

  /** @param {{ rawHeaders: Buffer[] }} controller @param {number} status @param {unknown} _headers @param {string} message */
  onResponseStart({ rawHeaders }, status, _headers, message) {
    const headers = rawHeaders.map(part => part.toString('latin1'))
    this.res.writeHead(status, message, headers)
  }

  /** @param {unknown} _controller @param {Buffer} chunk */
  onResponseData(_controller, chunk) {
    this.res.write(chunk)
  }

  onResponseEnd() {
    this.res.end()
  }

  onResponseError() {
    bad(undefined, this.res)
  }
}

const server = http.createServer({ noDelay: true, requestTimeout: 0 }, await peers[name]())
server.keepAliveTimeout = 75_000
server.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, () => {
  process.send?.(/** @type {import('node:net').AddressInfo} */ (server.address()).port)
})
process.on('disconnect', () => process.exit())
