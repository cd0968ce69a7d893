/** The configurations of docs/migrating.md let pass as many at once as the page says. */
import { request } from 'node:http'
import t, { type Test } from 'tap'
import { shaper } from './cli/command.js'
import { blocks } from './docs-code.js'

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
  const sections = blocks('docs/migrating.md', 'json').slice(-7)
  t.equal(sections.length, 7)
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
