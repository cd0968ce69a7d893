/** `shaper import`: nginx and shaper with the imported configuration accept and refuse the same requests. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, request } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { freePort } from '../servers/free-port.js'
import { ROOT, shaper, shaperHere } from './command.js'

interface Step {
  /** ms after the first step. */
  readonly at: number
  /** So many requests at once, all alike. */
  readonly count: number
  /** The client. All of 127.0.0.0/8 is this machine. */
  readonly from?: string
  readonly path?: string
  readonly method?: string
  readonly headers?: Record<string, string>
}

/** A step that begins later than this may find other levels. */
const LATE_MS = 350
/** ms of waiting. The shortest wait of these configurations is 500 ms. */
const HELD_MS = 250
/** All times so many times as long, for a busy machine. Each rate, in requests per minute, is a multiple of these. */
const PACES = [1, 2, 3, 6]
/** The upstream keeps requests for these until all of a step have been decided. */
const KEPT = '/download/'

/** An upstream that keeps what it gets for `KEPT`. */
async function startUpstream(t: Test) {
  let kept: (() => void)[] = []
  const server = createServer((req, res) => {
    if (req.url!.startsWith(KEPT)) kept.push(() => res.end())
    else res.end()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return {
    port: (server.address() as AddressInfo).port,
    kept: () => kept.length,
    answer() {
      for (const each of kept) each()
      kept = []
    },
  }
}

type Upstream = Awaited<ReturnType<typeof startUpstream>>

/** The same limits, so many times slower. */
function atPace(text: string, pace: number): string {
  return text.replace(/\brate=(\d+)r\/([sm])/g, (_, rate: string, unit: string) => {
    return `rate=${(Number(rate) * (unit === 's' ? 60 : 1)) / pace}r/m`
  })
}

interface Run {
  /** The configuration of nginx. */
  readonly text: string
  readonly upstream: Upstream
  /** A folder of its own: `t.testdir` empties the one that it gave before, which a server may still use. */
  readonly folder: string
}

async function startNginx(t: Test, { text, upstream, folder }: Run): Promise<number> {
  const port = await freePort()
  const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  const ofTest = `access_log off; add_header X-Limit $limit_req_status; ${kinds.map(kind => `${kind}_temp_path ${kind};`).join(' ')}`
  const conf = withPorts(text, port, upstream.port).replace('http {', `http { ${ofTest}`)
  mkdirSync(folder)
  writeFileSync(`${folder}/nginx.conf`, conf)
  const options = 'daemon off; master_process off; pid nginx.pid; error_log stderr crit;'
  const child = spawn('nginx', ['-e', 'stderr', '-p', folder, '-c', 'nginx.conf', '-g', options], {
    stdio: 'pipe',
    env: { ...process.env, PATH: `${process.env.PATH}:/usr/sbin` },
  })
  let errors = ''
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk
  })
  const closed = once(child, 'close').then(() => {
    throw new Error(`nginx has ended: ${errors}`)
  })
  closed.catch(() => {})
  t.teardown(async () => {
    child.kill('SIGTERM')
    await closed.catch(() => {})
  })
  await Promise.race([closed, untilListening(port)])
  return port
}

async function startImported(t: Test, { text, upstream, folder }: Run): Promise<number> {
  mkdirSync(folder)
  writeFileSync(`${folder}/nginx.conf`, withPorts(text, 8080, upstream.port))
  const { code, stdout } = await shaperHere(['import', 'nginx.conf'], { cwd: folder })
  t.equal(code, 0)
  writeFileSync(`${folder}/shaper.config.json`, stdout)
  const { child, url, finished } = shaper(['start', '--listen', '127.0.0.1:0'], { cwd: folder })
  t.teardown(async () => {
    child.kill('SIGKILL')
    await finished
  })
  return Number(new URL(await url).port)
}

function withPorts(text: string, listen: number, upstream: number): string {
  return text.replace(/\b8080\b/g, String(listen)).replace(/127\.0\.0\.1:9000/g, `127.0.0.1:${upstream}`)
}

async function untilListening(port: number): Promise<void> {
  for (;;) {
    const socket = connect(port, '127.0.0.1')
    const isThere = await once(socket, 'connect').then(
      () => true,
      () => false,
    )
    socket.destroy()
    if (isThere) return
    await delay(20)
  }
}

/** `now`, `held`, or the status of a refusal. Both programs tell it themselves: on a busy machine an answer may only look held. */
async function outcome(port: number, step: Step, pace: number): Promise<string> {
  const { from = '127.0.0.2', path = '/', method = 'GET', headers = { host: 'localhost' } } = step
  const req = request({ host: '127.0.0.1', port, localAddress: from, path, method, headers, agent: false })
  req.end()
  const [res] = await once(req, 'response')
  res.resume()
  await once(res, 'end')
  if (res.statusCode !== 200) return String(res.statusCode)
  const { 'x-limit': ofNginx, 'server-timing': ofShaper = '' } = res.headers
  const wait = Number(/^shaper;dur=([\d.]+)/.exec(String(ofShaper))?.[1] ?? 0)
  return ofNginx === 'DELAYED' || wait > HELD_MS * pace ? 'held' : 'now'
}

/** The outcomes of each step, and how late the latest one was, in ms. */
async function run(port: number, upstream: Upstream, steps: readonly Step[], pace: number) {
  const begun = performance.now()
  const outcomes: string[] = []
  let late = 0
  for (const step of steps) {
    const at = begun + step.at * pace
    const early = at - performance.now()
    if (early > 0) await delay(early)
    let settled = 0
    const all = Array.from({ length: step.count }, () =>
      outcome(port, step, pace).finally(() => {
        settled += 1
      }),
    )
    const isKept = (step.path ?? '').startsWith(KEPT)
    // Neither program tells when it has decided, but by a refusal or at the upstream.
    while (isKept && settled + upstream.kept() < step.count) await delay(5)
    late = Math.max(late, performance.now() - at)
    upstream.answer()
    outcomes.push((await Promise.all(all)).sort().join(' '))
  }
  return { outcomes, late }
}

/** Both programs side by side. If this machine was too busy to be on time, once more at a pace that it can keep. */
async function compare(t: Test, file: string, steps: readonly Step[]): Promise<string[]> {
  const text = readFileSync(`${ROOT}/test/fixtures/nginx/${file}`, 'utf8')
  const folder = t.testdir({})
  for (let pace = 1; ; ) {
    const slowed = atPace(text, pace)
    const upstreams = [await startUpstream(t), await startUpstream(t)] as const
    const ports = [
      await startNginx(t, { text: slowed, upstream: upstreams[0], folder: `${folder}/nginx-${pace}` }),
      await startImported(t, { text: slowed, upstream: upstreams[1], folder: `${folder}/shaper-${pace}` }),
    ] as const
    // Reading its first request takes a program some ms more.
    const [ofNginx, ofShaper] = await Promise.all([
      run(ports[0], upstreams[0], steps, pace),
      run(ports[1], upstreams[1], steps, pace),
    ])
    const late = Math.max(ofNginx.late, ofShaper.late)
    const slower = PACES.filter(each => each > pace)
    if (late > LATE_MS * pace && slower.length > 0) {
      pace = slower.find(each => LATE_MS * each > 1.5 * late) ?? slower.at(-1)!
      t.comment(`${file}: ${Math.round(late)} ms late, once more, ${pace} times as slow`)
      continue
    }
    t.ok(late <= LATE_MS * pace, `${Math.round(late)} ms late`)
    t.same(ofShaper.outcomes, ofNginx.outcomes, file)
    return ofNginx.outcomes
  }
}

/** The lines on stderr. */
async function warningsOf(file: string): Promise<string[]> {
  const { stderr } = await shaperHere(['import', file], { cwd: `${ROOT}/test/fixtures/nginx` })
  return stderr.split('\n').filter(Boolean)
}

/** What is said of the first limited path in which characters may be escaped. */
const escapesOf = (place: string, path: string): string =>
  `warning: ${place}: nginx compares decoded paths, here only letters, digits and "-._~" are decoded: "${path}" and its like do not match a path with "%2F" for "/", so such requests get past the limit. If the upstream decodes it, match "~ ^/api(?:/|%2F)" and not "/api/*"`

const times = (count: number, what: string): string[] => Array<string>(count).fill(what)
const outcomes = (now: number, held: number, refused: number, status: number): string =>
  [...times(refused, String(status)), ...times(held, 'held'), ...times(now, 'now')].join(' ')

t.jobs = 5

t.test('each address, without delay', async t => {
  const found = await compare(t, 'per-address.conf', [
    { at: 0, count: 9 },
    { at: 0, count: 2, from: '127.0.0.3' },
    { at: 0, count: 4, path: '/healthz' },
    { at: 2_500, count: 5 },
    { at: 2_500, count: 6, from: '127.0.0.3' },
  ])
  t.same(found, [
    outcomes(6, 0, 3, 429),
    outcomes(2, 0, 0, 429),
    outcomes(4, 0, 0, 429),
    outcomes(2, 0, 3, 429),
    outcomes(6, 0, 0, 429),
  ])
  t.same(await warningsOf('per-address.conf'), [
    'warning: per-address.conf:10: "keepalive" is not imported: shaper keeps idle connections for "keepAlive", 4s, and no more than it has needed',
  ])
})

t.test('two stages: some at once, some delayed, the rest refused', async t => {
  const found = await compare(t, 'two-stages.conf', [
    { at: 0, count: 9 },
    { at: 4_500, count: 6 },
  ])
  t.same(found, [outcomes(4, 3, 2, 503), outcomes(1, 3, 2, 503)])
  t.same(await warningsOf('two-stages.conf'), [])
})

t.test('whitelists by geo and map, and empty keys', async t => {
  const api = { path: '/api/x' }
  const ofKey = (key: string) => ({ ...api, headers: { host: 'a', 'x-api-key': key } })
  const found = await compare(t, 'whitelist.conf', [
    { at: 0, count: 6 },
    { at: 0, count: 6, from: '127.0.0.10' },
    { at: 0, count: 6, from: '127.0.0.20', method: 'POST' },
    { at: 0, count: 6, from: '127.0.0.18' },
    { at: 0, count: 4, from: '127.0.0.4', method: 'POST' },
    { at: 0, count: 4, from: '127.0.0.4', method: 'GET' },
    { at: 0, count: 5, ...api },
    { at: 0, count: 4, ...ofKey('a') },
    { at: 0, count: 2, ...ofKey('b') },
    { at: 1_500, count: 3 },
    { at: 1_500, count: 3, ...ofKey('a') },
  ])
  t.same(found, [
    ...[outcomes(4, 0, 2, 429), outcomes(6, 0, 0, 429), outcomes(6, 0, 0, 429), outcomes(4, 0, 2, 429)],
    ...[outcomes(2, 0, 2, 429), outcomes(2, 0, 2, 429), outcomes(5, 0, 0, 429), outcomes(2, 0, 2, 429)],
    ...[outcomes(2, 0, 0, 429), outcomes(1, 0, 2, 429), outcomes(1, 0, 2, 429)],
  ])
  t.same(await warningsOf('whitelist.conf'), [escapesOf('whitelist.conf:35', '/api/*')])
})

t.test('several limits in one place, and connections', async t => {
  const found = await compare(t, 'shop.conf', [
    { at: 0, count: 7 },
    { at: 0, count: 5, from: '127.0.0.3' },
    { at: 0, count: 3, from: '127.0.0.4' },
    { at: 0, count: 4, from: '127.0.0.5', path: `${KEPT}a` },
    { at: 2_250, count: 6, from: '127.0.0.4' },
    { at: 2_250, count: 1, from: '127.0.0.5', path: `${KEPT}a` },
  ])
  t.same(found, [
    ...[outcomes(5, 0, 2, 503), outcomes(5, 0, 0, 503), outcomes(0, 0, 3, 503), outcomes(2, 0, 2, 429)],
    ...[outcomes(4, 0, 2, 503), outcomes(1, 0, 0, 503)],
  ])
  t.same(await warningsOf('shop.conf'), [
    escapesOf('shop.conf:19', '/download/*'),
    'warning: shop.conf:21: in nginx a request that limit_conn rejects counts in the zones of limit_req, here it does not',
    'warning: shop.conf:23: "limit_rate" is not imported: shaper has nothing like it. Keep nginx behind shaper for it (--upstream)',
  ])
})

/** Three servers, which count. */
async function startServers(t: Test) {
  const counts = [0, 0, 0]
  const servers = counts.map((_, place) =>
    createServer((_req, res) => {
      counts[place]! += 1
      res.end()
    }).listen(0, '127.0.0.1'),
  )
  await Promise.all(servers.map(server => once(server, 'listening')))
  const stop = (place: number): void => {
    servers[place]!.close()
    servers[place]!.closeAllConnections()
  }
  t.teardown(() => {
    for (const place of servers.keys()) stop(place)
  })
  return { counts, stop, ports: servers.map(server => (server.address() as AddressInfo).port) }
}

t.test('servers: their weights, one that dies, and the backup', async t => {
  const shares: Record<string, string[]> = {}
  const folder = t.testdir({})
  for (const [program, start] of [
    ['nginx', startNginx],
    ['shaper', startImported],
  ] as const) {
    const { counts, stop, ports } = await startServers(t)
    const own = (place: number, more: string): string =>
      `server 127.0.0.1:${ports[place]} ${more} max_fails=1 fail_timeout=60s;`
    const text = `events {} http { limit_req_zone $binary_remote_addr zone=a:1m rate=100r/s;
upstream app { ${own(0, 'weight=2')} ${own(1, '')} ${own(2, 'backup')} }
server { listen 8080; location / { limit_req zone=a burst=99 nodelay; proxy_pass http://app; } } }`
    const port = await start(t, { text, upstream: await startUpstream(t), folder: `${folder}/${program}` })
    const told: string[] = []
    const ask = async (count: number): Promise<void> => {
      const before = [...counts]
      const answers = []
      for (let at = 0; at < count; at += 1) answers.push(await outcome(port, { at: 0, count: 1 }, 1))
      told.push(`${[...new Set(answers)].join(' ')}: ${counts.map((each, place) => each - before[place]!).join(' ')}`)
    }
    await ask(12)
    stop(0)
    await ask(6)
    stop(1)
    await ask(6)
    shares[program] = told
  }
  t.same(shares.shaper, shares.nginx)
  t.same(shares.nginx, ['now: 8 4 0', 'now: 0 6 0', 'now: 0 0 6'])
})

t.test('regular expressions and names of servers', async t => {
  const to = (host: string, path: string, from = '127.0.0.2') => ({ at: 0, from, path, headers: { host } })
  const found = await compare(t, 'two-sites.conf', [
    { ...to('www.example.com', '/'), count: 5 },
    { ...to('WWW.example.com:8080', '/a/B.PNG', '127.0.0.7'), count: 22 },
    { ...to('other.example', '/v2/login'), count: 4 },
    { ...to('other.example', '/v2/token', '127.0.0.3'), count: 1 },
    { ...to('www.example.com', '/v2/logins', '127.0.0.4'), count: 4 },
    { ...to('www.example.com', '/files/a.png', '127.0.0.5'), count: 4 },
    { ...to('api.example.com', '/v2/login'), count: 6 },
    { ...to('x.example.com', '/users/7/name'), count: 6 },
    { ...to('x.example.com', '/users/77/avatar', '127.0.0.6'), count: 1 },
  ])
  t.same(found, [
    ...[outcomes(3, 0, 2, 429), outcomes(21, 0, 1, 429), outcomes(2, 0, 2, 429), outcomes(1, 0, 0, 429)],
    ...[outcomes(3, 0, 1, 429), outcomes(3, 0, 1, 429), outcomes(6, 0, 0, 429), outcomes(6, 0, 0, 429)],
    outcomes(1, 0, 0, 429),
  ])
  const shared = (at: string) =>
    `is used with other numbers at two-sites.conf:${at}. In nginx both share one level for each key, here each has its own`
  t.same(await warningsOf('two-sites.conf'), [
    `warning: two-sites.conf:19: zone "pages" ${shared('13')}`,
    escapesOf('two-sites.conf:26', '/files/*'),
    `warning: two-sites.conf:37: zone "logins" ${shared('23')}`,
  ])
})

t.test('escaped paths, case, and addresses of IPv6 behind a proxy', async t => {
  const of = (client: string, path: string) => ({
    at: 0,
    count: 2,
    path,
    headers: { host: 'a', 'x-forwarded-for': client },
  })
  const found = await compare(t, 'spellings.conf', [
    of('192.0.2.1', '/my%20files/x'),
    of('192.0.2.2', '/caf%C3%A9/'),
    of('192.0.2.3', '/LOGIN'),
    of('192.0.2.3', '/other'),
    of('2001:db8::1', '/cafe/'),
    of('2001:db8::2', '/cafe/'),
  ])
  const one = outcomes(1, 0, 1, 429)
  t.same(found, [one, one, one, outcomes(2, 0, 0, 429), one, one])
  const { stderr, stdout } = await shaperHere(['import', 'x.conf'], {
    cwd: t.testdir({
      'x.conf': 'http { server { listen 80; location "/\u001b[31m\u009d\nwarning: no" { limit_req zone=a; } } }',
    }),
  })
  t.match(stderr, /"location \/\\u001b\[31m\\u009d\\u000awarning: no"/)
  t.match(stderr, /^(?:warning: x\.conf:\d: .*\n)+$/)
  t.notMatch(stderr + stdout, /[^\n\P{Cc}]/u)
  const deep = await shaperHere(['import', 'x.conf'], { cwd: t.testdir({ 'x.conf': 'a {'.repeat(3_000) }) })
  t.same([deep.code, deep.stderr.split('\n').length], [2, 2])
})

t.test('what goes wrong', async t => {
  const cwd = t.testdir({
    'open.conf': 'http {\n  server {\n',
    'loop.conf': 'http { server { listen 8080; location / { proxy_pass http://127.0.0.1:8080; } } }',
  })
  const none = await shaperHere(['import', 'none.conf'], { cwd })
  t.equal(none.code, 2)
  t.match(none.stderr, /^shaper: "none.conf" cannot be read \(ENOENT\)/)
  const open = await shaperHere(['import', 'open.conf'], { cwd })
  t.equal(open.code, 2)
  t.equal(open.stderr, 'shaper: open.conf:2: the block of "server" has no "}" at its end; "nginx -t" tells more\n')
  const loop = await shaperHere(['import', 'loop.conf'], { cwd })
  t.match(loop.stderr, /warning: upstream.url: "http:\/\/127.0.0.1:8080" is where shaper itself listens/)
  const behind = await shaperHere(['import', 'loop.conf', '--upstream', 'http://127.0.0.1:8081'], { cwd })
  t.match(behind.stdout, /"upstream": "http:\/\/127.0.0.1:8081"/)
  t.notMatch(behind.stderr, /listens/)
  t.equal((await shaperHere(['import', 'loop.conf', '--upstream', 'nowhere'], { cwd })).code, 2)
})
