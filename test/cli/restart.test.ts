/** `shaper restart`: the program is started anew from disk, and nobody who waits notices (contract 15.6). */
import { once } from 'node:events'
import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import t from 'tap'
import { Agent, request } from 'undici'
import { eventually } from '../proxy/harness.js'
import { freePort } from '../servers/free-port.js'
import { startPostgres } from '../servers/postgres.js'
import { startRedis } from '../servers/redis.js'
import { type Command, shaper } from './command.js'

type Tap = Pick<typeof t, 'testdir' | 'teardown'>
type Test = Pick<typeof t, 'same' | 'equal' | 'ok'>

/** Requests per second. */
const RATE = 20

interface Scene {
  readonly command: Command
  readonly cwd: string
  readonly url: string
  readonly admin: string
  /** Paths, in the order in which the upstream got them, and when, in ms. */
  readonly paths: string[]
  readonly times: number[]
}

async function scene(
  t: Tap,
  { adapt, env, ...more }: { adapt?: object; env?: Record<string, string>; [key: string]: unknown } = {},
  ...flags: string[]
): Promise<Scene> {
  const paths: string[] = []
  const times: number[] = []
  const upstream = createServer((req, res) => {
    paths.push(req.url!)
    times.push(performance.now())
    res.end('ok')
  })
  await once(upstream.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => upstream.close())
  const config = {
    listen: `127.0.0.1:${await freePort()}`,
    upstream: { url: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`, ...(adapt && { adapt }) },
    buckets: { all: { key: 'all', rate: `${RATE}/s`, capacity: 1_000 } },
    admin: { listen: `127.0.0.1:${await freePort()}` },
    accessLog: false,
    ...more,
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const command = shaper(['start', ...flags], { cwd, ...(env && { env }) })
  t.teardown(async () => {
    command.child.kill('SIGTERM')
    await command.finished
  })
  return { command, cwd, url: await command.url, admin: `http://${config.admin.listen}`, paths, times }
}

const restart = ({ admin }: Scene) => shaper(['restart', '--admin', admin]).finished

t.test('who waits is answered, in order, at the same rate, and so are newcomers', async t => {
  const found = await scene(t)
  const { url, paths, times } = found
  const answers: Promise<number>[] = []
  const ask = (path: string): void => {
    answers.push(
      request(`${url}/${path}`).then(async ({ statusCode, body }) => {
        await body.dump()
        return statusCode
      }),
    )
  }
  for (let at = 0; at < 80; at += 1) ask(`before/${at}`)
  await eventually(() => paths.length > 2)
  const served = paths.length
  const { code, stdout } = await restart(found)
  t.equal(code, 0)
  t.match(stdout, /^process \d+ serves now/)
  for (let at = 0; at < 10; at += 1) ask(`after/${at}`)
  t.ok(served < 80, 'some wait during the restart')
  t.same(new Set(await Promise.all(answers)), new Set([200]), 'nobody is refused')
  t.equal(paths.length, 90)
  const firstAfter = paths.findIndex(path => path.startsWith('/after'))
  t.equal(firstAfter, 80, 'those who came before go first')
  const [first, last] = [times[0]!, times.at(-1)!]
  t.ok(last - first >= (89 / RATE) * 1_000 - 100, `90 requests in ${last - first} ms`)
  t.equal((await restart(found)).code, 0, 'and once more')
  t.equal((await request(`${url}/again`)).statusCode, 200)
})

t.test('a successor that cannot start changes nothing, and the reason is told', async t => {
  const found = await scene(t)
  await writeFile(`${found.cwd}/shaper.config.json`, '{ "buckets": 1 }')
  const { code, stderr } = await restart(found)
  t.equal(code, 1)
  t.match(stderr, /no restart, the process goes on as it was: buckets: 1 is not an object/, 'at once')
  t.equal((await request(found.url)).statusCode, 200)
})

t.test('overrides and adaptive rates stay', async t => {
  const found = await scene(t, {
    buckets: { each: { key: 'header:x-k', rate: '1/s', capacity: 1_000 } },
    adapt: { min: '20/s', max: '1000/s' },
  })
  const { admin, url } = found
  const put = await request(`${admin}/buckets/each/a`, {
    method: 'PUT',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ rate: '500/s', capacity: 2_000, until: '10m' }),
  })
  t.equal(put.statusCode, 200)
  const limits = async (): Promise<unknown> => {
    const { body } = await request(`${admin}/buckets/each/a`)
    const { rate, capacity } = (await body.json()) as { rate: string; capacity: number }
    return { rate, capacity }
  }
  const adaptive = async (): Promise<number> => {
    const { body } = await request(`${admin}/metrics`)
    return Number(/^shaper_limit\{bucket="adaptive[^"]*"\} (\S+)/m.exec(await body.text())?.[1])
  }
  const ask = (): Promise<unknown> => request(`${url}/`, { headers: { 'x-k': 'a' } }).then(({ body }) => body.dump())
  // The rate doubles while requests wait for it.
  while ((await adaptive()) < 80) await Promise.all(Array.from({ length: 20 }, ask))
  const before = { limits: await limits(), rate: await adaptive() }
  t.same((before.limits as { capacity: number }).capacity, 2_000)
  t.equal((await restart(found)).code, 0)
  t.same({ limits: await limits(), rate: await adaptive() }, before)
})

for (const workers of [[], ['--workers', '2']])
  t.test(
    `a successor that fails after the handover gives back what it has got (${workers.join(' ') || 'one process'})`,
    async t => {
      const blocker = createServer()
      await once(blocker.listen(0, '127.0.0.1'), 'listening')
      t.teardown(() => blocker.close())
      const found = await scene(t, { store: { type: 'memory', file: 'state.json' } }, ...workers)
      const { cwd, url, command } = found
      const answers = await askInTurn(found, 0, 60)
      const file = `${cwd}/shaper.config.json`
      const config = JSON.parse(await readFile(file, 'utf8')) as { listen: string }
      const listen = [config.listen, `127.0.0.1:${(blocker.address() as AddressInfo).port}`]
      await writeFile(file, JSON.stringify({ ...config, listen }))
      t.match(await restart(found), { code: 1, stderr: /is in use/ })
      areServed(t, found, await Promise.all(answers))
      t.equal((await request(url)).statusCode, 200)
      command.child.kill('SIGTERM')
      t.equal((await command.finished).code, 0)
      t.ok(existsSync(`${cwd}/state.json`), 'it writes the levels again')
    },
  )

for (const { signal, what } of [
  { signal: 'SIGTERM', what: 'is ended' },
  { signal: 'SIGKILL', what: 'is killed' },
] as const)
  t.test(`a process that ${what} during its restart leaves no successor`, async t => {
    const stops = `--import=${new URL('./stopped-successor.js', import.meta.url).href}`
    const found = await scene(t, {
      env: { NODE_OPTIONS: stops, ...(signal === 'SIGKILL' && { STOP_ONCE_MET: '1' }) },
    })
    const { child, finished } = found.command
    const refused = restart(found)
    const pid = await successorOf(found)
    const sockets = socketsIn(child.pid!).filter(isListening)
    t.equal(sockets.length, 2)
    await eventually(() => /\) T /.test(readFileSync(`/proc/${pid}/stat`, 'latin1')))
    // It has what it needs to serve.
    if (signal === 'SIGKILL') t.ok(sockets.every(socket => socketsIn(pid).includes(socket)))
    child.kill(signal)
    if (signal === 'SIGKILL') process.kill(pid, 'SIGCONT')
    await finished
    t.equal((await refused).code, 1)
    await eventually(() => !existsSync(`/proc/${pid}`))
    await t.rejects(request(found.url), { code: 'ECONNREFUSED' })
  })

for (const workers of [[], ['--workers', '2']])
  t.test(`what clients do is learnt over a restart (${workers.join(' ') || 'one process'})`, async t => {
    const found = await scene(
      t,
      {
        trustProxy: ['loopback'],
        routes: [
          { name: 'slow', match: { path: '/slow' }, buckets: ['slow'] },
          { name: 'quick', mode: 'off' },
        ],
        buckets: { slow: { key: 'all', rate: '1/s', capacity: 1_000 } },
      },
      ...workers,
    )
    const { url, admin } = found
    const learnt = async (): Promise<unknown> => {
      const { body } = await request(`${admin}/buckets`)
      const { routes } = (await body.json()) as { routes: { name: string; patience?: { learntMs?: number } }[] }
      return routes.find(({ name }) => name === 'slow')?.patience?.learntMs
    }
    const dispatcher = new Agent({ pipelining: 0 })
    t.teardown(() => dispatcher.close())
    for (let round = 0; (await learnt()) === undefined; round += 1) {
      const waits = Array.from({ length: 10 }, (_, client) =>
        request(`${url}/slow`, {
          ...{ dispatcher, headers: { 'x-forwarded-for': `10.0.${round}.${client}` } },
          signal: AbortSignal.timeout(200),
        }).then(
          ({ body }) => body.dump(),
          () => undefined,
        ),
      )
      await Promise.all(waits)
    }
    const before = await learnt()
    t.equal((await restart(found)).code, 0)
    t.equal(await learnt(), before)
  })

t.test('what a client has sent ahead of answers is answered over a restart, and the last answer says so', async t => {
  const found = await scene(t)
  const socket = connect(Number(new URL(found.url).port), '127.0.0.1')
  t.teardown(() => socket.destroy())
  let text = ''
  let asked = 0
  let isOver = false
  const ask = (count: number): void => {
    for (let more = 0; more < count; more += 1) socket.write(`GET /${asked++} HTTP/1.1\r\nHost: a\r\n\r\n`)
  }
  // It is ahead by twenty all the time.
  socket.on('data', (part: Buffer) => {
    text += part
    if (!isOver) ask(part.toString().split('HTTP/1.1 ').length - 1)
  })
  ask(20)
  await eventually(() => found.paths.length > 1)
  t.equal((await restart(found)).code, 0)
  await eventually(() => found.command.stderr().includes('shutting down'))
  const before = found.paths.length
  await eventually(() => found.paths.length > before + 2)
  isOver = true
  await eventually(() => socket.readableEnded)
  const heads = text.match(/HTTP\/1.1 [\s\S]*?\r\n\r\n/g)!
  t.equal(heads.length, asked)
  t.same(new Set(heads.map(head => head.slice(9, 12))), new Set(['200']))
  t.match(heads.at(-1), /Connection: close/)
  t.notOk(heads.slice(0, -1).some(head => head.includes('Connection: close')))
  t.same(found.paths, [...Array.from({ length: asked }, (_, at) => `/${at}`)])
})

t.test('SIGTERM to the first process ends the one that serves', async t => {
  const found = await scene(t)
  for (let at = 0; at < 2; at += 1) t.equal((await restart(found)).code, 0)
  found.command.child.kill('SIGTERM')
  const { code } = await found.command.finished
  t.equal(code, 0)
  await t.rejects(request(found.url), { code: 'ECONNREFUSED' })
})

/** So many clients, each of which asks again when it is answered, until they are stopped. Paths are numbered. */
function clientsOf({ url }: Scene, count: number): { stop(): Promise<number[]> } {
  const statuses: number[] = []
  let asked = 0
  let isOver = false
  const ask = async (): Promise<void> => {
    while (!isOver) {
      asked += 1
      const { statusCode, body } = await request(`${url}/${asked}`, { headersTimeout: 60_000 })
      await body.dump()
      statuses.push(statusCode)
    }
  }
  const all = Promise.all(Array.from({ length: count }, ask))
  return {
    async stop() {
      isOver = true
      await all
      return statuses
    },
  }
}

/** The process that has been started to succeed the first one. */
function successorOf({ command: { child } }: Scene): Promise<number> {
  return childOf(child.pid!, /SHAPER_PREDECESSOR=/)
}

/** A child that has this in its environment. */
async function childOf(parent: number, variable: RegExp): Promise<number> {
  let found: string | undefined
  await eventually(() => {
    const children = readFileSync(`/proc/${parent}/task/${parent}/children`, 'latin1').match(/\d+/g)
    found = children?.find(pid => variable.test(readFileSync(`/proc/${pid}/environ`, 'latin1')))
    return found !== undefined
  })
  return Number(found)
}

/** The numbers of the sockets that a process has. */
function socketsIn(pid: number): string[] {
  const folder = `/proc/${pid}/fd`
  return readdirSync(folder).flatMap(fd => {
    try {
      return /^socket:\[(\d+)\]$/.exec(readlinkSync(`${folder}/${fd}`))?.[1] ?? []
    } catch {
      return []
    }
  })
}

function isListening(inode: string): boolean {
  return readFileSync('/proc/net/tcp', 'latin1')
    .split('\n')
    .some(line => line.includes(` 0A `) && line.includes(` ${inode} `))
}

/** All were answered, sent once, and not faster than the rate. */
function areServed(t: Test, { paths, times }: Scene, statuses: readonly number[]): void {
  t.same(new Set(statuses), new Set([200]), 'nobody is refused')
  t.equal(paths.length, statuses.length)
  t.equal(new Set(paths).size, paths.length, 'none was sent twice')
  const took = times.at(-1)! - times[0]!
  t.ok(took >= ((paths.length - 1) / RATE) * 1_000 - 100, `${paths.length} requests in ${took} ms`)
}

t.test('workers: three restarts in turn, and nobody who waits notices', { timeout: 180_000 }, async t => {
  const found = await scene(t, {}, '--workers', '2')
  const { command, paths } = found
  const clients = clientsOf(found, 40)
  for (const restarts of [1, 2, 3]) {
    const before = paths.length
    await eventually(() => paths.length > before + 2)
    if (restarts < 3) t.equal((await restart(found)).code, 0)
    else command.child.kill('SIGUSR2')
    await eventually(() => command.stderr().split('the successor serves').length > restarts)
  }
  areServed(t, found, await clients.stop())
  // The first ones came all at once.
  const overtaken = Math.max(...paths.map((path, place) => place + 1 - Number(path.slice(1))).slice(40))
  t.ok(overtaken <= 10, `a request left up to ${overtaken} places later than it came`)
  t.notMatch(command.stderr(), /"level":50/)
})

t.test('workers: a successor that does not come up changes nothing', { timeout: 180_000 }, async t => {
  const found = await scene(t, {}, '--workers', '2')
  const { cwd, paths } = found
  const clients = clientsOf(found, 40)
  await eventually(() => paths.length > 2)
  const file = `${cwd}/shaper.config.json`
  const config = await readFile(file)
  await writeFile(file, '{ "buckets": 1 }')
  t.match(await restart(found), { code: 1, stderr: /no restart, the process goes on as it was/ })
  await writeFile(file, config)
  const refused = restart(found)
  process.kill(await successorOf(found), 'SIGKILL')
  t.match(await refused, { code: 1, stderr: /it was ended by SIGKILL/ }, 'before it is ready')
  areServed(t, found, await clients.stop())
})

for (const { what, pidOf } of [
  { what: 'the successor', pidOf: (successor: number) => successor },
  { what: 'a new worker', pidOf: (successor: number) => childOf(successor, /SHAPER_WORKER=/) },
])
  t.test(`workers: who waits in the old ones is answered, though ${what} is killed`, { timeout: 180_000 }, async t => {
    const found = await scene(t, {}, '--workers', '2')
    const waiting = clientsOf(found, 300).stop()
    const { code, stdout } = await restart(found)
    t.equal(code, 0)
    t.ok(found.paths.length < 300, 'some wait when it is killed')
    process.kill(await pidOf(Number(/process (\d+)/.exec(stdout)![1])), 'SIGKILL')
    areServed(t, found, await waiting)
  })

for (const { workers, restarts } of [
  { workers: [], restarts: 1 },
  { workers: [], restarts: 2 },
  { workers: ['--workers', '2'], restarts: 2 },
])
  t.test(
    `Unix sockets stay where they are over ${restarts} restarts and go with the last process (${workers.join(' ') || 'one process'})`,
    async t => {
      const folder = mkdtempSync('/tmp/shaper-')
      t.teardown(() => rmSync(folder, { recursive: true }))
      const admin = `unix:${folder}/admin`
      const { command } = await scene(t, { listen: `unix:${folder}/http`, admin: { listen: admin } }, ...workers)
      const dispatcher = new Agent({ connect: { socketPath: `${folder}/http` } })
      t.teardown(() => dispatcher.close())
      for (let at = 0; at <= restarts; at += 1) {
        if (at > 0) t.equal((await shaper(['restart', '--admin', admin]).finished).code, 0)
        t.equal((await request('http://a/', { dispatcher, reset: true })).statusCode, 200)
      }
      t.same(readdirSync(folder).sort(), ['admin', 'http'], 'and nothing beside them')
      command.child.kill('SIGTERM')
      t.equal((await command.finished).code, 0)
      t.same(readdirSync(folder), [])
    },
  )

for (const workers of [[], ['--workers', '2']])
  t.test(
    `long: ports that the system has chosen stay over two restarts (${workers.join(' ') || 'one process'})`,
    async t => {
      const any = '127.0.0.1:0'
      const { command } = await scene(t, { listen: [any, any], admin: { listen: any } }, ...workers)
      const [, ...urls] = /listening on (\S+), (\S+) ->/.exec(await command.ready)!
      const admin = /"url":"([^"]+)","msg":"the admin server listens"/.exec(command.stderr())![1]!
      for (let at = 0; at < 3; at += 1) {
        if (at > 0) t.equal((await shaper(['restart', '--admin', admin]).finished).code, 0)
        for (const url of urls) t.equal((await request(url, { reset: true })).statusCode, 200)
        t.equal((await request(`${admin}/readyz`, { reset: true })).statusCode, 200)
      }
    },
  )

/** Requests of one key after the other, each on a connection of its own. Paths are numbered from here. */
async function askInTurn({ url }: Scene, from: number, count: number): Promise<Promise<number>[]> {
  const answers: Promise<number>[] = []
  for (let at = from; at < from + count; at += 1) {
    const answer = request(`${url}/${at}`, { headers: { 'x-k': 'a' }, reset: true, headersTimeout: 60_000 })
    answers.push(answer.then(({ statusCode, body }) => body.dump().then(() => statusCode)))
    await new Promise(resolve => setTimeout(resolve, 2))
  }
  return answers
}

for (const { type, open, restarts, first } of [
  { type: 'memory', open: undefined, restarts: 2, first: 200 },
  { type: 'redis', open: startRedis, restarts: 2, first: 240 },
  { type: 'postgres', open: startPostgres, restarts: 1, first: 160 },
])
  t.test(
    `${type}: who waits for a key leaves in the order of arrival over ${restarts} restarts at once`,
    { timeout: 180_000 },
    async t => {
      const server = await open?.()
      t.teardown(() => server && ('stop' in server ? server.stop() : server.close()))
      const found = await scene(t, {
        store: { type, ...(server && { url: server.url }) },
        buckets: { each: { key: 'header:x-k', rate: `${RATE}/s`, capacity: 1_000 } },
      })
      const answers = await askInTurn(found, 0, first)
      for (let done = 0; done < restarts; done += 1) t.equal((await restart(found)).code, 0)
      t.ok(answers.length - found.paths.length > 20, 'many wait')
      answers.push(...(await askInTurn(found, answers.length, 40)))
      areServed(t, found, await Promise.all(answers))
      const order = found.paths.map(path => Number(path.slice(1)))
      t.same(order, [...order.keys()])
    },
  )

t.test('workers with a store: two instances until the old ones have ended', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const found = await scene(t, { store: { type: 'redis', url: redis.url } }, '--workers', '2')
  const clients = clientsOf(found, 20)
  await eventually(() => found.paths.length > 2)
  t.equal((await restart(found)).code, 0)
  areServed(t, found, await clients.stop())
})
