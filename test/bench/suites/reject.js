// @ts-check
/** Rejections per second, compared with a server that only answers the same bytes. */
import { connect } from 'node:net'
import { startAll, startHaproxy, startNginx, startPeer, startShaper, startSink } from '../participants.js'
import { entry, median, spread } from '../statistics.js'
import { fixed, percent, ratio } from '../tables.js'
import { BROWSER_HEADERS, hasWrk, wrk } from '../wrk.js'

const BARE = 'bare Node server, the same bytes'
const TARGET = 1.2

/** The bytes of one answer. @param {number} port @returns {Promise<string>} */
function fetchRaw(port) {
  return new Promise((resolve, reject) => {
    let text = ''
    const socket = connect(port, '127.0.0.1', () => socket.write('GET / HTTP/1.1\r\nHost: bench\r\n\r\n'))
    socket.setTimeout(5_000, () => reject(new Error('no answer')))
    socket.on('data', chunk => {
      text += chunk.toString('latin1')
      const head = text.indexOf('\r\n\r\n')
      const length = Number(/content-length: *(\d+)/i.exec(text)?.[1] ?? 0)
      if (head < 0 || text.length < head + 4 + length) return
      socket.destroy()
      resolve(text)
    })
    socket.on('error', reject)
  })
}

/** An answer for a bare server, without the headers that Node adds by itself. @param {string} answer */
function parse(answer) {
  const [head, body] = answer.split('\r\n\r\n')
  const [statusLine, ...lines] = head.split('\r\n')
  const headers = lines
    .map(line => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()])
    .filter(([name]) => !/^(date|connection|keep-alive)$/i.test(name))
    .flat()
  return { status: Number(statusLine.split(' ')[1]), headers, body }
}

/** @param {import('../main.js').Context} context */
export async function reject({ quick, rounds: wanted, missing, progress }) {
  if (!hasWrk()) {
    missing.add('wrk')
    return { checks: [], tables: [], raw: {} }
  }
  const sink = await startSink()
  const shaper = await startShaper({
    upstream: `http://127.0.0.1:${sink.port}`,
    buckets: { client: { key: 'ip', rate: '1/h', capacity: 1 } },
    routes: [{ name: 'api', mode: 'meter', buckets: ['client'] }],
  })
  // The first request is admitted.
  await fetchRaw(shaper.port)
  const answer = await fetchRaw(shaper.port)
  const bare = await startPeer('bare', sink.port, parse(answer))
  const same = (await fetchRaw(bare.port)).length - answer.length
  if (same !== 0) throw new Error(`the bare server's answer is ${same} bytes longer than ours`)
  const others = await startAll(
    [
      {
        name: 'rate-limiter-flexible in Node http',
        packages: ['rate-limiter-flexible'],
        start: () => startPeer('rate-limiter-flexible', sink.port),
      },
      {
        name: 'nginx limit_req nodelay',
        program: 'nginx',
        start: () =>
          startNginx(sink.port, {
            http: 'limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m; limit_req_status 429;',
            locations: 'location / { limit_req zone=one nodelay; proxy_pass http://sink; }',
          }),
      },
      {
        name: 'haproxy deny_status 429',
        program: 'haproxy',
        start: () =>
          startHaproxy(
            sink.port,
            `stick-table type ip size 100k expire 1h store http_req_rate(1h)
  http-request track-sc0 src
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1 }`,
          ),
      },
    ],
    missing,
  )
  const started = new Map([['shaper', shaper], [BARE, bare], ...others])
  const seconds = quick ? 2 : 5
  const rounds = wanted ?? (quick ? 1 : 5)
  for (const { port } of started.values()) await wrk(port, '/', quick ? 1 : 3)

  /** @param {string} title @param {string[]} headers */
  async function race(title, headers) {
    /** @type {Record<string, { rate: number[], cpu: number[] }>} */
    const raw = {}
    for (let round = 0; round < rounds; round += 1) {
      for (const [name, program] of started) {
        progress(`reject: ${name}, ${title}, round ${round + 1} of ${rounds}`)
        const cpu = program.cpu()
        const { rate, requests, bad } = await wrk(program.port, '/', seconds, { headers })
        // wrk counts 4xx as bad. nginx admits one request a minute.
        if (requests - bad > 1) throw new Error(`${name}: ${requests - bad} were not turned away`)
        const figures = entry(raw, name, () => ({ rate: [], cpu: [] }))
        figures.rate.push(rate)
        figures.cpu.push(((program.cpu() - cpu) / requests) * 1e6)
      }
    }
    return raw
  }

  const races = {
    'bare request': await race('bare request', []),
    'ten headers': await race('ten headers', BROWSER_HEADERS),
  }
  await Promise.all([sink, ...started.values()].map(program => program.stop()))
  return {
    checks: Object.entries(races).map(([title, raw]) => {
      const value = median(raw.shaper.rate) / median(raw[BARE].rate)
      return {
        figure: `429/s against a ${BARE}, ${title}`,
        value: ratio(value),
        target: `>= ${TARGET}x`,
        met: value >= TARGET,
      }
    }),
    tables: Object.entries(races).map(([title, raw]) => ({
      title: `Requests turned away per second (wrk, 64 connections), ${title}`,
      columns: ['peer', '429/s', 'spread', 'CPU us each', 'shaper against it'],
      rows: Object.entries(raw).map(([name, { rate, cpu }]) => [
        name,
        fixed(median(rate), 0),
        percent(spread(rate)),
        fixed(median(cpu), 1),
        ratio(median(raw.shaper.rate) / median(rate)),
      ]),
    })),
    raw: races,
  }
}
