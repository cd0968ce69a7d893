/** Servers for requests to be shaped towards, on free ports. */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'

export interface Upstream {
  readonly origin: string
  readonly server: Server
  /** When each request came, in ms of performance.now(), and its path. */
  readonly seen: { readonly at: number; readonly path: string }[]
}

/** Gone with the test. */
export async function serve(t: Test, listener: RequestListener): Promise<Upstream> {
  const seen: { at: number; path: string }[] = []
  const server = createServer((req, res) => {
    seen.push({ at: performance.now(), path: req.url! })
    listener(req, res)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, server, seen }
}

export interface StrictServer {
  readonly origin: string
  seen(): Promise<[at: number, status: number][]>
}

/** An API that rejects requests above its rate. */
export async function serveStrictly(t: Test, rate: number, slack: number): Promise<StrictServer> {
  const child = fork(fileURLToPath(new URL('./strict-server.js', import.meta.url)), [`${rate}`, `${slack}`], {
    execArgv: [],
    env: { PATH: process.env.PATH },
  })
  t.teardown(() => child.kill('SIGKILL'))
  const [{ port }] = (await once(child, 'message')) as [{ port: number }]
  return {
    origin: `http://127.0.0.1:${port}`,
    async seen() {
      child.send('tell')
      const [{ seen }] = (await once(child, 'message')) as [{ seen: [number, number][] }]
      return seen
    },
  }
}

/** How far apart neighbours are. */
export function gaps(times: readonly number[]): number[] {
  return times.slice(1).map((time, place) => time - times[place]!)
}
