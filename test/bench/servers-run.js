// @ts-check
/**
 * One server of four after the other fails under load: one by SIGKILL, one by SIGTERM, one by SIGSTOP. Each comes back after a
 * while. Who counts what: the clients each answer with the name of its server, the proxy what it sends, its metrics what is in flight.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { startHaproxy, startNginx, startProbedShaper } from './participants.js'
import { freePort, startOwn } from './processes.js'
import { gapErrors, quantile } from './statistics.js'

/**
 * @typedef {import('./processes.js').Program} Program
 * @typedef {import('./fleet.js').FleetServer} FleetServer
 * @typedef {{ signal: NodeJS.Signals, server: number }} Fault
 */

/** Connections that ask. */
const CLIENTS = 100
/** ms from one look at the metrics to the next */
const LOOK = 40
/** ms from a start to the first full second that counts */
const SETTLING = 1_000

/** @type {readonly Fault[]} */
export const FAULTS = [
  { signal: 'SIGKILL', server: 0 },
  { signal: 'SIGTERM', server: 3 },
  { signal: 'SIGSTOP', server: 2 },
]

export const HEALTH = { path: '/healthz', interval: '250ms', timeout: '250ms', rise: 2, fall: 2 }

/** @param {readonly FleetServer[]} fleet @param {number} rate per second */
export async function startShaperFor(fleet, rate) {
  const listen = `127.0.0.1:${await freePort()}`
  const proxy = await startProbedShaper({
    upstream: {
      servers: fleet.map(({ url }) => ({ url, maxInFlight: 16 })),
      health: HEALTH,
      // A server that is back gets its first probe soon.
      breaker: { maxProbe: '1s' },
    },
    buckets: { all: { key: 'all', rate: `${rate}/s`, capacity: 2 * CLIENTS } },
    routes: [{ name: 'all', patience: 'none' }],
    admin: { listen },
  })
  return { proxy, admin: `http://${listen}` }
}

/** Others that balance by the fewest requests. They do not shape. @type {Record<string, (fleet: readonly FleetServer[]) => Promise<Program>>} */
export const PEERS = {
  'nginx least_conn': fleet =>
    startNginx(1, {
      http: `upstream fleet { least_conn; keepalive 64; ${fleet.map(({ url }) => `server ${url.replace('http://', '')};`).join(' ')} }`,
      locations: 'location / { proxy_pass http://fleet; }',
    }),
  'HAProxy leastconn': fleet =>
    startHaproxy([
      'balance leastconn',
      'option redispatch 1',
      'option httpchk GET /healthz',
      'http-request disable-l7-retry if METH_POST',
      'retry-on conn-failure empty-response response-timeout',
      ...fleet.map(
        ({ name, url }) =>
          `server ${name} ${url.replace('http://', '').replace('unix:', 'unix@')} check inter 250ms rise 2 fall 2 maxconn 16 on-marked-down shutdown-sessions`,
      ),
    ]),
}

/**
 * @param {object} setup
 * @param {readonly FleetServer[]} setup.fleet
 * @param {Program} setup.proxy
 * @param {number} setup.rate per second
 * @param {number} setup.span ms for which a server is away, and from its return to the next fault
 * @param {readonly Fault[]} [setup.faults]
 * @param {string} [setup.admin] the URL of its admin side. Undefined: it has none, and is no shaper
 */
export async function runFaults({ fleet, proxy, rate, span, faults = FAULTS, admin }) {
  const load = startOwn('servers-load.js')
  await load.message()
  // A peer is asked for as much as shaper lets through.
  const every = admin === undefined ? (CLIENTS * 1_000) / rate : 0
  if (admin !== undefined) await proxy.ask('record')
  const began = performance.now()
  const watch = admin === undefined ? undefined : watchInFlight(admin)
  await load.ask({ port: proxy.port, connections: CLIENTS, every })
  await sleep(SETTLING + span)
  /** When each was away, in ms since 1970. @type {(Fault & { name: string, from: number, to: number })[]} */
  const away = []
  for (const fault of faults) {
    const server = fleet[fault.server]
    const from = now()
    server.signal(fault.signal)
    await sleep(span)
    if (fault.signal === 'SIGSTOP') server.signal('SIGCONT')
    else {
      await server.ended()
      await server.start()
    }
    away.push({ ...fault, name: server.name, from, to: now() })
    await sleep(span)
  }
  const sent = admin === undefined ? [] : await proxy.ask('stop')
  const lasted = performance.now() - began
  const answers = await load.ask('stop')
  const inFlight = await watch?.()
  await load.stop()
  return { ...told(answers, fleet, away), ...paced(sent, rate), inFlight, lasted }
}

const now = () => performance.timeOrigin + performance.now()

/**
 * @param {{ at: number[], status: number[], post: number[], server: string[] }} answers
 * @param {readonly FleetServer[]} fleet @param {readonly (Fault & { name: string, from: number, to: number })[]} away
 */
function told({ at, status, post, server }, fleet, away) {
  const failed = { idempotent: 0, others: 0 }
  /** @type {Record<string, number>} */
  const failures = {}
  for (const [which, each] of status.entries()) {
    if (each === 200) continue
    failed[post[which] === 1 ? 'others' : 'idempotent'] += 1
    const name = `${post[which] === 1 ? 'POST' : 'GET'} ${each}`
    failures[name] = (failures[name] ?? 0) + 1
  }
  const shares = Object.fromEntries(fleet.map(({ name }) => [name, server.filter(each => each === name[0]).length]))
  const back = away.map(({ signal, name, to }) => {
    const first = at.findIndex((time, which) => time > to && server[which] === name[0])
    return { signal, name, ms: first < 0 ? NaN : at[first] - to }
  })
  return { answered: status.length, failed, failures, shares, back }
}

/** @param {ArrayLike<number>} sent in ms @param {number} rate per second */
function paced(sent, rate) {
  if (sent.length === 0) return { seconds: [], gapError: NaN }
  /** @type {number[]} */
  const seconds = []
  const settled = Array.from(sent).filter(time => time >= sent[0] + SETTLING)
  for (const time of settled) {
    const second = Math.floor((time - settled[0]) / 1_000)
    seconds[second] = (seconds[second] ?? 0) + 1
  }
  // The last is not whole.
  return {
    seconds: Array.from(seconds, count => count ?? 0).slice(0, -1),
    gapError: quantile(gapErrors(settled, 1_000 / rate), 0.99),
  }
}

/** Looks at how many requests are in flight at each server that is up. @param {string} admin */
function watchInFlight(admin) {
  let isOver = false
  const found = { looks: 0, even: 0, most: 0, highest: 0 }
  const watching = (async () => {
    for (; !isOver; await sleep(LOOK)) {
      const text = await (await fetch(`${admin}/metrics`)).text()
      const up = valuesOf(text, 'shaper_upstream_up')
      const all = valuesOf(text, 'shaper_upstream_in_flight')
      const present = [...all].filter(([name]) => up.get(name) === 1).map(([, count]) => count)
      if (present.length < 2) continue
      const apart = Math.max(...present) - Math.min(...present)
      found.looks += 1
      if (apart <= 1) found.even += 1
      found.most = Math.max(found.most, apart)
      found.highest = Math.max(found.highest, ...all.values())
    }
    return found
  })()
  return () => {
    isOver = true
    return watching
  }
}

/** By server. @param {string} text @param {string} metric */
function valuesOf(text, metric) {
  const lines = text.matchAll(new RegExp(`^${metric}\\{.*?server="([^"]*)".*?\\} (\\d+)$`, 'gm'))
  return new Map([...lines].map(([, server, value]) => [server, Number(value)]))
}
