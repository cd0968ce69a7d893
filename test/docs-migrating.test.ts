/** The configurations of docs/migrating.md let pass as many at once as the page says. */
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { shaper } from './cli/command.js'
import { blocks } from './docs-code.js'
import { until } from './servers/redis.js'

/** How many of so many requests at once pass, with these headers. */
async function passed(t: Test, text: string, headers: Record<string, string>) {
  const config = JSON.parse(text) as { routes: object[]; store?: unknown; upstream: unknown }
  // All that these pages say of waiting is in docs/semantics.md. Here it would only take time.
  const routes = config.routes.map(route => ({ ...route, mode: 'meter' }))
  const { store: _store, ...rest } = config
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify({ ...rest, upstream: 'echo:', routes }) })
  const { child, url, finished } = shaper(['start', '--listen', '127.0.0.1:0'], { cwd })
  const target = await url
  const begun = performance.now()
  const statuses = await Promise.all(
    Array.from(
      { length: 330 },
      () =>
        new Promise<number>((resolve, reject) => {
          request(target, { headers, agent: false }, res => {
            res.resume()
            resolve(res.statusCode!)
          })
            .on('error', reject)
            .end()
        }),
    ),
  )
  const seconds = (performance.now() - begun) / 1_000
  child.kill('SIGKILL')
  await finished
  return {
    seconds,
    passed: statuses.filter(status => status === 200).length,
    refused: statuses.filter(status => status === 429).length,
  }
}

t.test('as many at once as the limits of the others', async t => {
  const sections = blocks('docs/migrating.md', 'json').slice(-9)
  t.equal(sections.length, 9)
  // Meanwhile the levels leak: by 10 a second at most, however long a busy machine takes.
  const least = [
    ['"limit": {', 10],
    ['"rates": {', 20],
    ['"second": {', 5],
    ['"rate": "10/s", "capacity": 100', 100],
    ['"rate": "60/m"', 60],
    ['"rate": "300/m"', 300],
    ['"throttle": {', 20],
  ] as const
  for (const [mark, count] of least) {
    const text = sections.find(block => block.includes(mark))!
    const found = await passed(t, text, { 'x-api-key': 'a' })
    t.ok(found.passed >= count && found.passed <= count + 10 * found.seconds, `${mark}: ${found.passed}`)
    t.equal(found.passed + found.refused, 330, mark)
  }
})

interface WithServers {
  readonly listen: unknown
  readonly upstream: { readonly servers: readonly unknown[]; readonly health: { readonly path: string } }
}

/** Servers of ours in place of those of a configuration, each with the requests that it got. Checks are not among them. */
async function withServers(t: Test, text: string) {
  const { upstream, ...config } = JSON.parse(text) as WithServers
  const got: string[][] = []
  const held = new Set<() => void>()
  const all = upstream.servers.map(async (written, place) => {
    const own: string[] = []
    got[place] = own
    const server = createServer((req, res) => {
      const answer = (): void => void res.end()
      if (req.url === upstream.health.path) return answer()
      own.push(String(req.headers.cookie))
      if (req.url === '/held') held.add(answer)
      else answer()
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => server.close())
    t.teardown(() => server.closeAllConnections())
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    return typeof written === 'string' ? url : { ...(written as object), url }
  })
  const servers = await Promise.all(all)
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify({ ...config, upstream: { ...upstream, servers } }) })
  const { child, url, finished } = shaper(['start', '--listen', '127.0.0.1:0'], { cwd })
  t.teardown(async () => {
    child.kill('SIGKILL')
    await finished
  })
  return { got, held, url: await url }
}

const section = (mark: string): string => blocks('docs/migrating.md', 'json').find(block => block.includes(mark))!

t.test("Traefik's servers: a cookie keeps its server, and each server has some", async t => {
  const { got, url } = await withServers(t, section('"hash": "cookie:session"'))
  for (let client = 0; client < 12; client += 1)
    for (let time = 0; time < 2; time += 1)
      t.equal((await fetch(url, { headers: { cookie: `session=${client}` } })).status, 200)
  const [first, second] = got.map(cookies => new Set(cookies))
  t.equal(first!.size + second!.size, 12, 'no cookie is at both')
  t.ok(first!.size > 0 && second!.size > 0)
})

t.test("HAProxy's servers: as many at once as their maxconn, by weight, and none at the backup", async t => {
  const { got, held, url } = await withServers(t, section('"unix:/run/spare.sock"'))
  const answers = Array.from({ length: 20 }, () => fetch(`${url}/held`))
  await until('all places are taken', () => held.size === 12)
  t.same(
    got.map(({ length }) => length),
    [8, 4, 0],
  )
  for (let answered = 0; answered < 20; answered += 1) {
    await until('another one is there', () => held.size > 0)
    const [answer] = held
    held.delete(answer!)
    answer!()
  }
  for (const answer of answers) t.equal((await answer).status, 200)
  t.equal(got[2]!.length, 0)
})
