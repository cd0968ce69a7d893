/**
 * What an operator sees while 10,000 requests wait on four instances: the dashboard in Chromium, and `shaper top` in a terminal
 * of 80x24. With SHAPER_PICTURES=FOLDER the pictures are kept there.
 */
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import t from 'tap'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { openBrowser, openPage, says, text } from '../admin/browser.js'
import { ROOT } from '../cli/command.js'
import { freePort } from '../servers/free-port.js'
import { startRedis, until } from '../servers/redis.js'
import { openTerminal } from '../servers/tmux.js'
import { Crowd, type Waiter } from './crowd.js'
import { Instance } from './system.js'

const PICTURES = process.env.SHAPER_PICTURES
const INSTANCES = 4

const redis = await startRedis()
t.teardown(() => redis.stop())

/** An upstream of which one request in ten fails. */
let asked = 0
const upstream = createServer((_req, res) => {
  asked += 1
  res.writeHead(asked % 10 === 0 ? 500 : 200).end('ok')
})
upstream.listen(0, '127.0.0.1')
await once(upstream, 'listening')
t.teardown(() => {
  upstream.close()
  upstream.closeAllConnections()
})

const config = {
  upstream: { url: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`, breaker: false },
  trustProxy: ['loopback'],
  store: { type: 'redis', url: redis.url, timeout: '5s' },
  buckets: {
    client: { key: 'ip', rate: '2/s', capacity: 60 },
    everyone: { key: 'all', rate: '20/s', capacity: 12_000 },
    login: { key: 'ip', rate: '6/30s', capacity: 6, blockFor: '30s' },
  },
  routes: [
    { name: 'login', match: { path: '/login' }, mode: 'meter', buckets: ['login'] },
    { name: 'api', buckets: ['client', 'everyone'], patience: 'none' },
  ],
}
const instances: { instance: Instance; admin: string }[] = []
for (let place = 0; place < INSTANCES; place += 1) {
  const port = await freePort()
  const instance = new Instance({ ...config, admin: { listen: `127.0.0.1:${port}` } }, [])
  t.teardown(() => instance.close())
  await instance.ready()
  instances.push({ instance, admin: `http://127.0.0.1:${port}` })
}
const urls = instances.map(({ instance }) => instance.url)
const names = instances.map(({ instance }) => new RegExp(`:${instance.child.pid}$`))

const address = (at: number): string => `198.18.${at >> 8}.${at & 255}`
const many = (count: number, waiter: (at: number) => Waiter): Waiter[] =>
  Array.from({ length: count }, (_, at) => waiter(at))
const crowd = new Crowd()
t.teardown(() => crowd.leave())
await crowd.send(urls, [
  ...many(9_600, at => ({ client: address(at % 1_920), path: '/' })),
  ...many(800, at => ({ client: `203.0.113.${at % 20}`, path: '/' })),
  ...many(30, () => ({ client: '192.0.2.66', path: '/login' })),
])
const textOf = async (url: string): Promise<string> => (await fetch(url)).text()
const snapshotOf = async (admin: string): Promise<Snapshot> => JSON.parse(await textOf(`${admin}/buckets?all`))
const bucketOf = (buckets: Snapshot['buckets'], name: string) => buckets.find(bucket => bucket.name === name)!

const browser = await openBrowser()
t.teardown(() => browser.close())

async function keep(page: Page, name: string): Promise<void> {
  if (PICTURES !== undefined) await page.screenshot({ path: join(PICTURES, `${name}.png`), fullPage: true })
}

/** One client that is rejected and goes on all the same. */
let isOver = false
const hammering = (async () => {
  while (!isOver) {
    const answer = await fetch(`${urls[0]}/login`, { headers: { 'x-forwarded-for': '192.0.2.66' } })
    await answer.arrayBuffer()
    await sleep(250)
  }
})().catch(() => undefined)
t.teardown(async () => {
  isOver = true
  await hammering
})

t.test('each instance shows all four and everybody who waits, and what it shows does not grow with keys', async t => {
  for (const { admin } of instances) {
    await until('all are seen', async () => {
      const { members = [], queued, buckets } = await snapshotOf(admin)
      if (members.length < INSTANCES || members.some(member => member.queued < 2_000)) return false
      return queued > 9_000 && bucketOf(buckets, 'everyone').waiting > 9_000
    })
    const { members = [], buckets } = await snapshotOf(admin)
    for (const name of names) t.equal(members.filter(member => name.test(member.name)).length, 1, `${name}`)
    const { fullest } = bucketOf(buckets, 'client')
    t.ok(fullest.length <= 20)
    for (const { level, waiting } of fullest) t.ok(level >= waiting, `${waiting} wait, so the level is not ${level}`)
    const texts = await Promise.all(['/buckets?all', '/history'].map(path => textOf(admin + path)))
    for (const each of texts) t.ok(each.length < 40_000, `${each.length} bytes`)
  }
})

t.test('the dashboard of one of them', async t => {
  if (PICTURES !== undefined) await sleep(40_000)
  const { page, faults, overhang } = await openPage(t, browser, instances[2]!.admin)
  await says(page, '#members-count', '4 on the store')
  await until('it shows them all', async () => (await page.locator('#members tbody tr').count()) === INSTANCES)
  const shown = await page.locator('#members tbody td.key').allTextContents()
  for (const name of names) t.ok(shown.some(each => name.test(each.replace(' (here)', ''))))
  const queued = async (): Promise<number> =>
    Number((await text(page, '#queued')).replace(/^([\d.]+)k$/, (_, thousands) => `${thousands * 1_000}`))
  t.ok((await queued()) > 5_000)
  await says(page, '#bucket-title', /^(client|everyone)$/)
  await says(page, '#hour-all-now', /^at most [\d.]+k waiting, at /)
  await says(page, '#members', /[1-9][\d.]*\/s/)
  t.equal(await overhang(), 0)
  if (PICTURES !== undefined) await sleep(12_000)
  await keep(page, 'all')

  await page.getByRole('button', { name: names[0]! }).click()
  await says(page, '#about', /^\S+ alone · /)
  const own = await queued()
  t.ok(own > 100 && own < 4_000, `${own} wait on one of them`)
  await says(page, '#members-count', '4 on the store')
  t.same(faults, [])
})

t.test('shaper top at 80x24', async t => {
  const command = [process.execPath, `${ROOT}/bin/shaper.js`, 'top', '--admin', instances[1]!.admin]
  const terminal = await openTerminal(t, command, { columns: 80, rows: 24 })
  // The second snapshot brings the rates.
  await terminal.shows(/^everyone +20\/s +1 +\d+ % +\d{4,5} +[\d.]+ (?:s|min)( +[\d.]+){3}$/m)
  const lines = await terminal.rows()
  if (PICTURES !== undefined) writeFileSync(join(PICTURES, 'top.txt'), lines.join('\n'))
  t.equal(lines.length, 24)
  for (const name of ['client', 'everyone', 'login'])
    t.ok(
      lines.some(line => line.startsWith(`${name} `)),
      name,
    )
  for (const { instance } of instances)
    t.equal(lines.filter(line => line.split(' ', 1)[0]!.endsWith(`:${instance.child.pid}`)).length, 1)
  t.ok(
    lines.some(line => /^203\.0\.113\.\d+ +client .* [\d.]+ min( |$)/.test(line)),
    'the bucket of the key is free, but a newcomer waits for the shared one',
  )

  await terminal.press('/')
  await terminal.press(...'192.0.2.66')
  await terminal.shows(/^192\.0\.2\.66 +login /m)
  t.notMatch((await terminal.rows()).join('\n'), /^203\.0\.113/m)
  await terminal.press('Escape')
  await terminal.shows(/^203\.0\.113/m)
  await terminal.press('q')
  await terminal.shows(/\[status 0\]/)
})
