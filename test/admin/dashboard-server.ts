/** The admin server of a dashboard, scripted by a test. */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { dashboardPage } from '../../src/admin/dashboard/page.js'
import { fleetHour, type Hour } from '../../src/admin/fleet/hour.js'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { withTroubles } from '../../src/admin/snapshot/troubles.js'
import { createSample } from './dashboard-sample.js'

export interface DashboardServer {
  readonly url: string
  /** Of the requests so far: method and target, one line each. */
  readonly asked: string[]
  /** Resolves once a page listens. What is said before reaches nobody. */
  readonly listened: Promise<void>
  /** Sent to each new stream. */
  greeting: () => readonly Snapshot[]
  /** Sends a snapshot to all streams. */
  say(snapshot: Snapshot): void
  /** The bytes of a stream as they are. */
  write(text: string): void
  /** Breaks off all streams. */
  hangUp(): void
  /** The answer to `/history`. */
  hour: (instance: string | null) => Hour
  /** Answers nothing but 503 while it is set. */
  isDown: boolean
  /** The answer to DELETE. */
  resetStatus: number
  /** Answers as JSON, by method and target. */
  readonly answers: Map<string, unknown>
  /** Bodies of requests so far. */
  readonly bodies: string[]
}

export const event = (snapshot: Snapshot): string =>
  `event: snapshot\ndata: ${JSON.stringify(withTroubles(snapshot))}\n\n`

/** On a free port, until the test ends. A token is required if given. */
export async function serveDashboard(
  t: { teardown(run: () => unknown): unknown },
  token?: string,
): Promise<DashboardServer> {
  const streams = new Set<ServerResponse>()
  let listens = (): void => undefined
  const listened = new Promise<void>(resolve => {
    listens = resolve
  })
  const { html, headers } = dashboardPage()
  const http = createServer((req, res) => {
    const path = req.url!.split('?', 1)[0]!
    server.asked.push(`${req.method} ${req.url}`)
    const isKnown = token === undefined || req.headers.authorization === `Bearer ${token}`
    if (path === '/') res.writeHead(isKnown ? 200 : 401, headers).end(html)
    else if (!isKnown) res.writeHead(401, { 'WWW-Authenticate': 'Bearer realm="shaper"' }).end()
    else if (server.isDown) res.writeHead(503).end()
    else data(path, req, res)
  })
  const data = (path: string, req: IncomingMessage, res: ServerResponse): void => {
    if (path === '/events') stream(res)
    else if (path === '/history') history(req, res)
    else if (req.method !== 'DELETE') answer(req, res)
    else res.writeHead(server.resetStatus).end('{"forgotten":194,"waiting":205,"level":206,"lastWaitMs":41000}')
  }
  const stream = (res: ServerResponse): void => {
    res.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' }).write(': hello\n\n')
    for (const snapshot of server.greeting()) res.write(event(snapshot))
    streams.add(res)
    listens()
    res.on('close', () => streams.delete(res))
  }
  const history = (req: IncomingMessage, res: ServerResponse): void => {
    const { searchParams } = new URL(req.url!, server.url)
    res.writeHead(200, { 'Content-Type': 'application/json' })
    res.end(JSON.stringify(server.hour(searchParams.get('instance'))))
  }
  const answer = (req: IncomingMessage, res: ServerResponse): void => {
    req.setEncoding('utf8').on('data', (body: string) => server.bodies.push(body))
    const known = server.answers.get(`${req.method} ${req.url}`)
    res.writeHead(known === undefined ? 404 : 200).end(JSON.stringify(known ?? { detail: 'there is none' }))
  }
  http.listen(0, '127.0.0.1')
  await once(http, 'listening')
  t.teardown(() => {
    http.close()
    http.closeAllConnections()
  })
  const server: DashboardServer = {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/`,
    asked: [],
    listened,
    greeting: () => [],
    say: snapshot => server.write(event(snapshot)),
    write(text) {
      for (const stream of streams) stream.write(text)
    },
    hangUp() {
      for (const stream of streams) stream.destroy()
    },
    hour: () => fleetHour([], Date.now()),
    isDown: false,
    resetStatus: 200,
    answers: new Map<string, unknown>([['GET /overrides', { overrides: [] }]]),
    bodies: [],
  }
  return server
}

/** Calls `say` about every 100 ms until the test ends. `since`: ms since the first call. */
export function keepSaying(
  t: { teardown(run: () => unknown): unknown },
  say: (at: number, since: number) => void,
): void {
  const start = Date.now()
  const tick = () => say(Date.now(), Date.now() - start)
  tick()
  const timer = setInterval(tick, 100)
  t.teardown(() => clearInterval(timer))
}

/** Sends the last minute, then live snapshots. */
export function live(t: { teardown(run: () => unknown): unknown }, server: DashboardServer): void {
  const start = Date.now() - 65_000
  const sample = createSample(start)
  const past: Snapshot[] = []
  for (let at = start; at < Date.now(); at += 250) past.push(sample.snapshot(at))
  server.greeting = () => past
  keepSaying(t, at => {
    past.push(sample.snapshot(at))
    server.say(past.at(-1)!)
  })
}
