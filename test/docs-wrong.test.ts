/** Every command of docs/when-something-is-wrong.md is run in the situation that it is for, and shows what the page says. */
import { execFile } from 'node:child_process'
import { chmodSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { ROOT, shaper } from './cli/command.js'
import { blocks } from './docs-code.js'
import { freePort } from './servers/free-port.js'
import { startRedis, until } from './servers/redis.js'

const PAGE = 'docs/when-something-is-wrong.md'
const page = readFileSync(`${ROOT}/${PAGE}`, 'utf8')
const sections = new Map(
  page
    .split(/^## /m)
    .slice(1)
    .map(section => [section.slice(0, section.indexOf('\n')), section]),
)
const done = new Set<string>()

interface Situation {
  readonly cwd: string
  readonly ports: { readonly listen: number; readonly admin: number; readonly upstream: number }
  readonly pid: number
  stderr(): string
}

/** The page's configuration with other ports, and what else a situation needs. */
async function start(t: Test, more: object = {}, files: Readonly<Record<string, string>> = {}): Promise<Situation> {
  const ports = { listen: await freePort(), admin: await freePort(), upstream: await freePort() }
  const config = JSON.parse(withPorts(blocks(PAGE, 'json')[0]!, ports)) as object
  const listen = `127.0.0.1:${ports.listen}`
  const program = `#!/bin/sh\nexec "${process.execPath}" "${ROOT}/bin/shaper.js" "$@"\n`
  const cwd = t.testdir({
    ...files,
    'shaper.config.json': JSON.stringify({ ...config, listen, ...more }),
    bin: { shaper: program },
  })
  chmodSync(`${cwd}/bin/shaper`, 0o755)
  const command = shaper(['start'], { cwd })
  t.teardown(() => void command.child.kill('SIGKILL'))
  await command.url
  return { cwd, ports, pid: command.child.pid!, stderr: command.stderr }
}

function withPorts(text: string, { listen, admin, upstream }: Situation['ports']): string {
  return text.replaceAll(':8080', `:${listen}`).replaceAll(':9090', `:${admin}`).replaceAll(':9000', `:${upstream}`)
}

/** Numbers differ from run to run. */
function comparable(text: string): string {
  return text.replaceAll(/\d+(\.\d+)?/g, '0')
}

async function serve(t: Test, port: number, answer: Parameters<typeof createServer>[1]): Promise<void> {
  const server = createServer(answer).listen(port, '127.0.0.1')
  t.teardown(() => server.closeAllConnections())
  t.teardown(() => server.close())
  await until('the upstream listens', () => server.listening)
}

/** Runs the commands of a section. What they and the log say has each line that the page shows. */
async function check(t: Test, title: string, { cwd, ports, pid, stderr }: Situation): Promise<void> {
  done.add(title)
  const section = sections.get(title)!
  writeFileSync(`${cwd}/shaper.log`, stderr())
  let seen = ''
  for (const [, block] of section.matchAll(/^```sh\n([\s\S]*?)^```$/gm)) {
    const env = { ...process.env, NODE_V8_COVERAGE: '', PATH: `${cwd}/bin:${process.env.PATH}` }
    // Other tests run shaper at the same time.
    const command = withPorts(block!, ports).replace(/\$\(pgrep .*?\)/, `${pid}`)
    const result = await promisify(execFile)('bash', ['-e', '-o', 'pipefail', '-c', command], { cwd, env }).catch(
      (error: { message: string }) => t.fail(`${title}: ${command}\n${error.message}`),
    )
    if (typeof result === 'object') seen += result.stdout + result.stderr
  }
  t.ok(seen.length > 0, title)
  for (const [, block] of section.matchAll(/^```text\n([\s\S]*?)^```$/gm)) {
    for (const line of block!.trim().split('\n')) {
      const isThere = (): boolean => comparable(seen + stderr()).includes(comparable(line))
      // The log may come after what has made it.
      await until(line, isThere).catch(() => undefined)
      t.ok(isThere(), `${title}: ${line}\n${seen}`)
    }
  }
}

const OK: Parameters<typeof createServer>[1] = (_req, res) => res.end('ok')

t.test('an upstream that runs', async t => {
  const here = await start(t)
  await serve(t, here.ports.upstream, OK)
  const url = `http://127.0.0.1:${here.ports.listen}/`
  for (let count = 0; count < 3; count += 1) await (await fetch(url)).text()
  await until('the log has them', () => here.stderr().split('"msg":"request"').length === 1 + 3)
  const titles = [
    ...[
      'Whose answer is it?',
      'It is slow',
      'Requests leave unevenly',
      '429 although nothing is busy',
      'Find a client',
    ],
    ...['All clients have one address', 'The process runs out of files', 'It does not start, or it ends'],
    'Clients see errors when an instance ends',
  ]
  for (const title of titles) {
    // DELETE finds nothing waiting.
    await until('nothing waits', async () => {
      const response = await fetch(`http://127.0.0.1:${here.ports.admin}/buckets`)
      return ((await response.json()) as { queued: number }).queued === 0
    })
    await check(t, title, here)
  }
  const file = `${here.cwd}/shaper.config.json`
  writeFileSync(file, readFileSync(file, 'utf8').replace('"5/s"', '"5/x"'))
  await until('it is read', () => here.stderr().includes('not reloaded'))
  await check(t, 'A change of the file has no effect', here)
})

t.test('an upstream that is dead', async t => {
  const here = await start(t)
  const url = `http://127.0.0.1:${here.ports.listen}/`
  t.same(
    (await Promise.all([fetch(url), fetch(url)])).map(({ status }) => status),
    [503, 503],
  )
  const told = async (): Promise<boolean> => {
    const [expected] = /(?<=503: `).*(?=`)/.exec(sections.get('The upstream is dead')!)!
    return (await (await fetch(url)).text()).includes(`"detail":"${expected}"`)
  }
  await until('an answer says so', told)
  await check(t, 'The upstream is dead', here)
  await serve(t, here.ports.upstream, OK)
  await until('it is back', async () => (await fetch(url)).status === 200, 40_000)
  await until('the log says so', () => here.stderr().includes('the upstream answers again'))
})

t.test('servers that are down, and checks that never pass', async t => {
  const here = await start(t)
  const file = `${here.cwd}/shaper.config.json`
  // Nobody listens there. A free port may be another test's by now.
  const other = 1
  const ports = (text: string): string => withPorts(text, here.ports).replaceAll(':9001', `:${other}`)
  const told = async (seen: string): Promise<boolean> => {
    const response = await fetch(`http://127.0.0.1:${here.ports.admin}/buckets`)
    return (await response.text()).includes(seen)
  }
  const reload = async (more: object, seen: string): Promise<void> => {
    const servers = JSON.parse(ports('["http://127.0.0.1:9000", "http://127.0.0.1:9001"]')) as string[]
    const config = JSON.parse(readFileSync(file, 'utf8')) as object
    writeFileSync(file, JSON.stringify({ ...config, upstream: { servers, ...more } }))
    await until(seen, () => told(seen), 20_000)
  }
  const url = `http://127.0.0.1:${here.ports.listen}/`
  const breaker = { failures: 1, probe: '50s', maxProbe: '60s', hold: '1ms' }
  await reload({ breaker }, '"servers":[')
  await fetch(url)
  await until('both are down', async () => (await fetch(url)).status === 503)
  await check(t, 'All servers are down', here)
  await serve(t, here.ports.upstream, (req, res) => res.writeHead(req.url === '/' ? 200 : 404).end())
  // Other settings make other breakers, which are closed.
  await reload({ breaker: { ...breaker, failures: 2 } }, '"isUp":true')
  await until('one is down', async () => {
    t.equal((await fetch(url)).status, 200)
    return told('1 of 2 servers is down')
  })
  await check(t, 'One server is down', here)
  await reload({ health: { path: '/healthz', interval: '50ms' } }, 'was answered 404')
  await check(t, 'A health check never passes', here)
})

t.test('an upstream that asks for a pause', async t => {
  const pauseOn = { status: [429] }
  const port = await freePort()
  await serve(t, port, (_req, res) => res.writeHead(429, { 'Retry-After': '30' }).end())
  const here = await start(t, { upstream: { url: `http://127.0.0.1:${port}`, pauseOn } })
  t.equal((await fetch(`http://127.0.0.1:${here.ports.listen}/`)).status, 429)
  await until('it is logged', () => here.stderr().includes('asks for a pause'))
  await check(t, 'The upstream asks for a pause', here)
})

t.test('a certificate that has expired', async t => {
  const [cert, key] = ['expired-cert.pem', 'upgrade-key.pem'].map(name =>
    readFileSync(`${ROOT}/test/fixtures/${name}`, 'utf8'),
  )
  const port = await freePort()
  const tls = { cert: 'cert.pem', key: 'key.pem' }
  const listen = { address: `127.0.0.1:${port}`, tls }
  const here = await start(t, { listen }, { 'cert.pem': cert!, 'key.pem': key! })
  await check(t, 'The certificate', { ...here, ports: { ...here.ports, listen: port } })
})

t.test('a store that is away', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const here = await start(t, { store: { type: 'redis', url: redis.url } })
  await redis.stop()
  await until('it is noticed', () => here.stderr().includes('the store does not answer'))
  await check(t, 'The store is away', here)
})

t.test('every entry was tried', async t => {
  t.same([...sections.keys()].sort(), [...done].sort())
})
