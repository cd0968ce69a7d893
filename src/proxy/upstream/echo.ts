import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { performance } from 'node:perf_hooks'

/** An upstream for trials. It answers with the request it got and the time since the previous one. */
export interface Echo {
  readonly url: string
  close(): Promise<void>
}

/** Starts the built-in upstream (`"upstream": "echo:"`) on a free loopback port. */
export async function startEcho(): Promise<Echo> {
  let count = 0
  let last: number | undefined
  const server = createServer((req, res) => {
    const now = performance.now()
    count += 1
    const since = last === undefined ? null : Math.round(now - last)
    last = now
    let bytes = 0
    req.on('data', (chunk: Buffer) => {
      bytes += chunk.length
    })
    req.on('end', () => {
      const answer = {
        request: count,
        msSincePrevious: since,
        method: req.method,
        path: req.url,
        bytes,
        headers: req.headers,
      }
      const body = `${JSON.stringify(answer)}\n`
      res.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) })
      res.end(body)
    })
  })
  server.requestTimeout = 0
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    // Each worker has its own: with a shared port it would go with the worker that took the connection.
    server.listen({ port: 0, host: '127.0.0.1', exclusive: true }, resolve)
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => closeServer(server),
  }
}

function closeServer(server: Server): Promise<void> {
  return new Promise(resolve => {
    server.close(() => resolve())
    server.closeAllConnections()
  })
}
