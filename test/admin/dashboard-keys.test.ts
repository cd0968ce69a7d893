/** The picture of the dashboard follows the key that the user has chosen. */
import t from 'tap'
import type { Snapshot, WatchedSnapshot } from '../../src/admin/snapshot/snapshot.js'
import { until } from '../servers/redis.js'
import { openBrowser, openPage, pixels, says, text } from './browser.js'
import { bucket, instance, quiet } from './dashboard-sample.js'
import { serveDashboard } from './dashboard-server.js'
import { startAdminRig } from './rig.js'

const browser = await openBrowser()
t.teardown(() => browser.close())

t.test('a key that is clicked is in the picture with its own counts, until "All keys"', async t => {
  const server = await serveDashboard(t)
  const now = Date.now()
  const [a, b] = [instance('a', 10), instance('b', 4, { rate: 2, tier: 'slow', waiting: 3 })]
  // All keys together: 100/s come and 9/s leave.
  const all = (ms: number, watched?: WatchedSnapshot): Snapshot => {
    const grown = { offered: ms / 10, released: (9 * ms) / 1_000, rejected: (91 * ms) / 1_000 }
    const focus = { key: 'a', watchers: 1, arrivals: [now + ms], releases: [now + ms], rejections: [] }
    const client = bucket({ ...grown, keys: 7, fullest: [a, b], focus })
    return quiet(now + ms, {
      uptime: 60 + ms / 1_000,
      buckets: [client, bucket({ name: 'login' })],
      ...(watched && { watched }),
    })
  }
  // Of b 4/s come, 2/s leave.
  const ofB = (ms: number): WatchedSnapshot => ({
    ...{ bucket: 'client', instance: b, offered: ms / 250, released: ms / 500, rejected: ms / 1_000 },
    focus: { key: 'b', watchers: 1, arrivals: [now + ms], releases: [now + ms], rejections: [] },
  })
  const isAsked = (): boolean =>
    server.asked.findLast(line => line.startsWith('GET /events'))!.endsWith('&bucket=client&key=b')
  server.greeting = () => [0, 5_000].map(ms => all(ms, isAsked() ? ofB(ms) : undefined))
  server.answers.set('GET /buckets/client/b', {
    ...b,
    bucket: 'client',
    hash: '0',
    inFlight: 0,
    routes: {},
    recent: [],
  })
  const figures = (page: Parameters<typeof text>[0]) =>
    Promise.all(['in', 'out', 'rejected'].map(each => text(page, `#focus-${each}`)))
  for (const width of [1_280, 320]) {
    const { page, faults, overhang } = await openPage(t, browser, server.url, { viewport: { width, height: 900 } })
    await says(page, '#bucket-key', 'by ip: a · one of the fullest of 7')
    t.equal(await text(page, '#rates-title'), 'In against out, all keys')
    t.equal(await text(page, '#rates-now'), '100/s in, 9/s out, 7 keys')
    t.equal(await page.locator('#all-keys').isVisible(), false)

    await page.getByRole('button', { name: 'b', exact: true }).click()
    await says(page, '#bucket-key', 'by ip: b')
    await says(page, '#key-title', 'b')
    await page.getByRole('button', { name: 'See the picture' }).click()
    t.equal(await page.locator('#key-panel').isVisible(), false)
    t.same(await figures(page), ['4/s', '2/s', '1/s'])
    t.equal(await text(page, '#rates-title'), 'In against out of b')
    t.equal(await text(page, '#rates-now'), '4/s in, 2/s out')
    t.equal(await text(page, '#strip-title'), 'Every request of b')
    t.equal(await text(page, '#bucket-law'), '2/s, holds 10')
    t.same(await page.locator('#flags li').allTextContents(), ['tier slow', '3 waiting'])
    t.match(await text(page, '#summary'), 'client, b: 4/s in, 2/s out, 1/s turned away; b is 40 % full.')
    t.match(
      await page.locator('#bucket').getAttribute('aria-label'),
      'Leaky bucket client, b: level 4 of 10, leaking 2/s',
    )
    t.equal(await text(page, '#hour-bucket-title'), 'The last hour of client, all keys')
    t.match(await text(page, '#keys-count'), '7 known to client', 'the list stays')
    t.equal(await page.locator('#keys [aria-pressed=true]').innerText(), 'b')
    t.equal(await overhang(), 0)

    await page.locator('#all-keys').click()
    await says(page, '#rates-title', 'In against out, all keys')
    await until('the stream is of all keys', async () => !isAsked())
    await says(page, '#bucket-key', 'by ip: a · one of the fullest of 7')
    t.equal(await page.locator('#all-keys').isVisible(), false)

    // Another bucket ends it, too.
    await page.getByRole('button', { name: 'b', exact: true }).click()
    await says(page, '#bucket-key', 'by ip: b')
    await page.locator('#key-close').click()
    await page.locator('#chooser button', { hasText: 'login' }).click()
    await says(page, '#bucket-title', 'login')
    t.equal(await page.locator('#all-keys').isVisible(), false)
    t.same(faults, [])
    await page.close()
  }
})

t.test('a key that is looked up is in the picture of a real proxy, not the fullest one', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: { user: { key: 'header:x-user', rate: '1/s', capacity: 20 } },
    routes: [{ name: 'api', mode: 'meter', buckets: ['user'] }],
  })
  const ask = (user: string, count: number): Promise<unknown> =>
    Promise.all(Array.from({ length: count }, () => fetch(rig.proxy.url, { headers: { 'x-user': user } })))
  await ask('flood', 30)
  await ask('ada', 3)
  const { page, faults } = await openPage(t, browser, `${rig.admin.url}/`)
  await says(page, '#bucket-key', 'by header:x-user: flood · one of the fullest of 2')
  await page.fill('#find-text', 'ada')
  await page.press('#find-text', 'Enter')
  await page.locator('#found tbody button').click()
  await says(page, '#bucket-key', 'by header:x-user: ada')
  await page.locator('#key-picture').click()
  t.same(await Promise.all(['in', 'out', 'rejected'].map(each => text(page, `#focus-${each}`))), ['0/s', '0/s', '0/s'])
  await says(page, '#focus-level', '3 / 20')
  await ask('flood', 30)
  await ask('ada', 5)
  await says(page, '#focus-level', '8 / 20')
  await says(page, '#rates-now', /^[1-9.][\d.]*\/s in, [1-9.][\d.]*\/s out$/)
  t.equal(await text(page, '#focus-rejected'), '0/s', 'those of the other are not in it')
  await page.locator('#all-keys').click()
  await says(page, '#bucket-key', 'by header:x-user: flood · one of the fullest of 2')
  t.ok((await pixels(page, 'bucket', 'b - r > 70')) > 50, 'it is drawn')
  t.same(faults, [])
})
