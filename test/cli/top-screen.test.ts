/** `shaper top` in a real terminal. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { bucket, instance, LOGIN, quiet, route } from '../admin/dashboard-sample.js'
import { until } from '../servers/redis.js'
import { openTerminal, type Terminal } from '../servers/tmux.js'
import { ROOT } from './command.js'

const WAITING = 10_600

/** A fleet of four, with ten thousand waiting and three buckets. A second passes with each snapshot. */
function fleet(second: number): Snapshot {
  const at = 1_800_000_000_000 + second * 1_000
  const member = (place: number) => ({
    ...{ name: `web-${place}:4711`, isHere: place === 1, age: 300, uptime: 7_200 * place, draining: place === 4 },
    ...{ storeReady: true, queued: WAITING / 4, inFlight: place, forwarded: second * 25, rejected: second * place },
    ...{ errors: second * 2, cpu: second * 0.31, waitP99: 61_000 },
  })
  const keys = Array.from({ length: 20 }, (_, place) =>
    instance(`192.0.2.${place + 1}`, 60 - place, {
      ...{ capacity: 60, waiting: 60 - 2 * place, oldestMs: 61_000, predictedWaitMs: 12_000 - 100 * place },
    }),
  )
  const blocked = instance('203.0.113.9?login', 6, { rate: 0.2, capacity: 6, blockedMs: 21_000 })
  return quiet(at, {
    ...{ store: { type: 'redis', ready: true, instances: 4 }, processes: 4, queued: WAITING, inFlight: 10 },
    oldestMs: 61_000,
    members: [1, 2, 3, 4].map(member),
    buckets: [
      bucket({
        ...{ name: 'client', keys: 2_000, capacity: 60, waiting: WAITING, oldestMs: 61_000, fullest: keys },
        ...{ offered: second * 120, released: second * 100, rejected: second * 10 },
      }),
      bucket({
        ...{ name: 'everyone', key: 'all', rate: 100, configured: 100, capacity: 12_000, keys: 1, waiting: WAITING },
        oldestMs: 61_000,
        ...{ fullest: [instance('all', WAITING, { rate: 100, capacity: 12_000, waiting: WAITING })] },
        ...{ offered: second * 110, released: second * 100, rejected: 0 },
      }),
      bucket({ ...LOGIN, keys: 3, fullest: [blocked] }),
    ],
    routes: [
      route({
        queued: WAITING,
        outcomes: { ...route().outcomes, forwarded: second * 100, rejected: second * 10, failed: second },
        upstreamResponses: { '2xx': second * 93, '3xx': 0, '4xx': 0, '5xx': second * 7 },
        rejections: { overflow: second * 8, crowded: second * 2 },
      }),
      route({ name: 'login', mode: 'meter' }),
    ],
    wait: { count: 900, p50: 30_000, p90: 55_000, p99: 61_000, max: 62_500 },
  })
}

/** An admin server that answers `snapshot` with the number of the request. */
async function serve(t: Test, snapshot: (request: number) => Snapshot | undefined): Promise<string> {
  let asked = 0
  const server = createServer((_req, res) => {
    asked += 1
    const answer = snapshot(asked)
    if (answer === undefined) res.destroy()
    else res.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(answer))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

function top(t: Test, url: string, size: { columns: number; rows: number }): Promise<Terminal> {
  const command = [process.execPath, `${ROOT}/bin/shaper.js`, 'top', '--admin', url, '--interval', '100ms']
  return openTerminal(t, command, size)
}

const CASES: [columns: number, rows: number, instances: number][] = [
  [80, 24, 4],
  [120, 40, 4],
  [40, 15, 3],
]

for (const [columns, rows, instances] of CASES) {
  t.test(
    `${columns === 80 ? '' : 'long: '}${columns}x${rows}: three buckets are all to be seen, with 10,600 waiting and four instances`,
    async t => {
      const terminal = await top(t, await serve(t, fleet), { columns, rows })
      // The second snapshot has brought rates.
      await terminal.shows(/^client .* 10600 .*100\b/m)
      const lines = await terminal.rows()
      t.equal(lines.length, rows)
      for (const line of lines) t.ok(line.length <= columns, line)
      for (const name of ['client', 'everyone', 'login']) {
        const found = lines.find(line => line.startsWith(`${name} `))
        t.match(found, name === 'login' ? / 0\b/ : / 10600\b/, name)
      }
      t.equal(lines.filter(line => line.startsWith('web-')).length, instances)
      t.match(
        lines.find(line => line.startsWith('web-1:')),
        /^web-1:4711 +2650 +/,
        'each by its name',
      )
      t.match(lines[0], /^10600 queued/)
      t.ok(lines.filter(line => /^192\.0\.2\.\d+ /.test(line)).length >= 3, 'the fullest keys')
      t.match(
        lines.find(line => line.startsWith('192.0.2.1 ')),
        / 60 +(61 s +)?12 s( |$)/,
        'what a newcomer would wait',
      )
      t.match(lines.at(-1), /^q quit {2}\/ filter/)
      if (columns < 80) return
      t.match(
        lines.find(line => line.startsWith('web-4')),
        / 31 %( +8 h)? +shutting down$/,
      )
      t.match(
        lines.find(line => line.startsWith('api ')),
        /^api +10600 +100 +7 +1 +10 +overflow 8, crowded 2$/,
        'upstream 5xx, and why requests are rejected',
      )
    },
  )
}

t.test('long: the example in docs/operating.md has the columns and the help of the real screen', async t => {
  const page = readFileSync(`${ROOT}/docs/operating.md`, 'utf8')
  const example = /^```\n(\d+ queued, [\s\S]*?)^```$/m.exec(page)![1]!.split('\n')
  const terminal = await top(t, await serve(t, fleet), { columns: 80, rows: 24 })
  await terminal.shows(/^client .* 10600 .*100\b/m)
  const real = await terminal.rows()
  const titles = (lines: string[], name: string) =>
    lines
      .find(line => line.startsWith(`${name} `))!
      .replace(/\d+-\d+\/\d+/, '')
      .split(/ +/)
  for (const name of ['instance', 'bucket', 'key']) t.same(titles(example, name), titles(real, name))
  t.equal(example.at(-2), real.at(-1))
})

t.test('keys sort, filter, scroll and quit', async t => {
  const terminal = await top(t, await serve(t, fleet), { columns: 80, rows: 24 })
  await terminal.shows(/^key 1-\d+\/22 /m)
  const keysShown = async (): Promise<string[]> => {
    const lines = await terminal.rows()
    const from = lines.findIndex(line => line.startsWith('key'))
    return lines.slice(from + 1, -1).map(line => line.split(' ')[0]!)
  }
  const first = await keysShown()
  t.equal(first[0], '192.0.2.1')

  await terminal.press('Down')
  await terminal.shows(/^key 2-/m)
  t.equal((await keysShown())[0], first[1])
  await terminal.press('PageDown')
  await terminal.shows(new RegExp(`^key ${first.length + 1}-`, 'm'))
  await terminal.press('End')
  await terminal.shows(/^key \d+-22\/22/m)
  t.ok((await keysShown()).includes('203.0.113.9?login'))
  await terminal.press('PageUp')
  await terminal.press('Home')
  await terminal.shows(/^key 1-/m)

  await terminal.press('Right')
  await terminal.shows(/^key\^ 1-/m)
  t.same((await keysShown()).slice(0, 3), ['192.0.2.1', '192.0.2.10', '192.0.2.11'], 'by name')
  await terminal.press('r')
  await terminal.shows(/^keyv 1-/m)
  t.equal((await keysShown())[0], 'all')
  await terminal.press('Left', 'Left')
  await terminal.shows(/newcomerv/)

  await terminal.press('/')
  await terminal.shows(/^filter: _$/m)
  await terminal.press('1', '1', '3', '.', '9', '9', 'BSpace')
  await terminal.shows(/^filter: 113\.9_$/m)
  t.same((await keysShown()).filter(Boolean), ['203.0.113.9?login'])
  t.notMatch((await terminal.rows()).join('\n'), /^web-/m, 'only what has the text is left')
  await terminal.press('q')
  await terminal.shows(/^filter: 113\.9q_$/m)
  await terminal.press('BSpace', 'Enter')
  await terminal.shows(/^filter: 113\.9 \(Esc clears it\)/m)
  await terminal.press('Escape')
  await terminal.shows(/^key 1-\d+\/22 /m)

  const focused = async (): Promise<string> => (await terminal.styled()).join('').split('\x1b[7m')[1]!.split(' ', 1)[0]!
  t.equal(await focused(), 'key')
  await terminal.press('Tab', 'Tab')
  await terminal.press('Right', 'Right', 'Right')
  await terminal.shows(/keysv/)
  t.equal(await focused(), 'bucket')
  await terminal.press('BTab')
  await until('the list before has the focus', async () => (await focused()) === 'instance')

  await terminal.resize(120, 40)
  await terminal.shows(/^q quit.*scroll$/m)
  t.equal((await terminal.rows()).length, 40)
  await terminal.press('q')
  await terminal.shows(/\[status 0\]/)
  t.notMatch((await terminal.rows()).join('\n'), /web-1/, 'the screen is as it was before')
})

t.test('while the admin server is away the last figures stay, and the screen says so', async t => {
  let isAway = false
  const url = await serve(t, request => (isAway ? undefined : fleet(request)))
  const terminal = await top(t, url, { columns: 100, rows: 24 })
  await terminal.shows(/^10600 queued/m)
  isAway = true
  await terminal.shows(/does not answer/)
  t.match((await terminal.rows()).join('\n'), /^web-1:4711 .*asked$/m)
  isAway = false
  await terminal.shows(/^10600 queued/m)
  await terminal.press('C-c')
  await terminal.shows(/\[status 0\]/)
})

t.test('what clients send cannot control the terminal, and wide characters keep the columns', async t => {
  const keys = ['\x1b[31mred\x07', '漢字かな', 'é\u0301', '😀😀'].map((key, place) =>
    instance(key, 9 - place, { waiting: 5 }),
  )
  const url = await serve(t, request => quiet(request * 1_000, { buckets: [bucket({ keys: 4, fullest: keys })] }))
  const terminal = await top(t, url, { columns: 80, rows: 24 })
  await terminal.shows(/\?\[31mred\?/)
  const lines = await terminal.rows()
  t.ok(lines.some(line => line.startsWith('漢字かな ')))
  t.ok(lines.some(line => line.startsWith('😀😀 ')))
  const levels = lines
    .filter(line => /#/.test(line))
    .map(line => [...line.replace(/[漢字かな😀]/gu, '__')].join('').indexOf('#'))
  t.equal(new Set(levels).size, 1, lines.join('\n'))
})
