/** How the dashboard listens: with a token, through a connection that breaks, in pieces, and for long. */
import t from 'tap'
import { until } from '../servers/redis.js'
import { openBrowser, openPage, says, text } from './browser.js'
import { bucket, createSample, instance, quiet } from './dashboard-sample.js'
import { event, keepSaying, serveDashboard } from './dashboard-server.js'

const browser = await openBrowser()
t.teardown(() => browser.close())

t.test('without a token a form asks for it; the token stays in the tab', async t => {
  const server = await serveDashboard(t, 's3cret')
  server.greeting = () => [quiet(Date.now())]
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#status', 'Token needed')
  t.equal(await page.locator('#live').isVisible(), false)
  t.equal(await text(page, '#token-error'), '')
  await page.locator('#token').fill('wrong')
  await page.locator('#token').press('Enter')
  await says(page, '#token-error', 'does not know')
  await page.locator('#token').fill('s3cret')
  await page.getByText('Show', { exact: true }).click()
  await says(page, '#status', 'Live')
  t.equal(await page.locator('#token-form').isVisible(), false)
  await page.reload()
  await says(page, '#status', 'Live')
  t.notMatch(server.asked.join(), 's3cret', 'in no address')
  t.equal(await page.evaluate('localStorage.length + document.cookie.length'), 0)
  t.same(
    faults.filter(fault => !fault.includes('status of 401')),
    [],
  )
})

t.test('a lost connection is shown and restored', async t => {
  const server = await serveDashboard(t)
  server.greeting = () => [
    quiet(Date.now(), { buckets: [bucket({ offered: 3, keys: 1, fullest: [instance('a', 2)] })] }),
  ]
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#status', 'Live')
  server.isDown = true
  server.hangUp()
  await says(page, '#status', /^Connection lost since \d\d:\d\d:\d\d; trying again$/)
  t.match(await page.locator('#live').getAttribute('class'), /stale/)
  t.match(await text(page, '#keys'), /2 \/ 10/, 'what was known still stands')
  server.isDown = false
  await says(page, '#status', 'Live')
  t.notMatch(await page.locator('#live').getAttribute('class'), /stale/)
  t.ok(server.asked.filter(line => line === 'GET /events?interval=250').length >= 2)
  t.same(
    faults.filter(fault => !fault.includes('Failed to load resource')),
    [],
  )
})

t.test('events are read at any cut and with any line end', async t => {
  const server = await serveDashboard(t)
  const { page, faults } = await openPage(t, browser, server.url)
  await server.listened
  const snapshot = quiet(Date.now(), { buckets: [bucket({ name: 'crème', offered: 1 })] })
  const bytes = `: comment\r\nevent: other\r\ndata: {}\r\n\r\n${event(snapshot).replaceAll('\n', '\r\n')}`
  const cut = (async () => {
    for (let i = 0; i < bytes.length; i += 11) {
      server.write(bytes.slice(i, i + 11))
      await new Promise(resolve => setImmediate(resolve))
    }
  })()
  await says(page, '#bucket-title', 'crème')
  await cut
  t.same(faults, [])
})

t.test('a page that is open for a long time does not grow', async t => {
  const server = await serveDashboard(t)
  const { page, faults } = await openPage(t, browser, server.url)
  await server.listened
  const start = Date.now() - 1_000_000
  const sample = createSample(start)
  // There are several instances: the page asks for all of them.
  server.say(sample.snapshot(start))
  await until('all instances are shown', () => server.asked.some(each => each.includes('&all')))
  let told = 0
  /** What the page holds, in bytes. */
  const size = async (): Promise<number> => {
    const session = await page.context().newCDPSession(page)
    await session.send('HeapProfiler.collectGarbage')
    const { usedSize } = (await session.send('Runtime.getHeapUsage')) as { usedSize: number }
    await session.detach()
    return usedSize
  }
  /** Sends a number of snapshots, each with new keys. Returns the size of the page. */
  const after = async (snapshots: number) => {
    for (let i = 0; i < snapshots; i++) {
      told += 1
      const snapshot = sample.snapshot(start + told * 250)
      const fullest = Array.from({ length: 20 }, (_, n) => instance(`${told}-${n}`, 10 - n / 3))
      const keyed = bucket({ name: 'keyed', keys: told, offered: told, fullest })
      server.say({ ...snapshot, queued: told, buckets: [...snapshot.buckets, keyed] })
    }
    await says(page, '#queued', new RegExp(`^${told}$`))
    return { elements: await page.evaluate<number>("document.querySelectorAll('*').length"), bytes: await size() }
  }
  const first = await after(300)
  const second = await after(600)
  t.ok(second.elements < 450, `${second.elements} elements`)
  t.ok(Math.abs(second.elements - first.elements) < 60, `${first.elements} elements, then ${second.elements}`)
  // What has just been read is collected a little later.
  await until(
    `${first.bytes} bytes do not become a megabyte more`,
    async () => (await size()) < first.bytes + 1_000_000,
  )
  t.same(faults, [])
})

t.test('several instances are shown together, and the one that was asked by a button', async t => {
  const server = await serveDashboard(t)
  const sample = createSample(Date.now())
  const member = (name: string, isHere: boolean, forwarded: number, age = 100) => ({
    ...{ name, isHere, age, uptime: 9, draining: false, storeReady: true, queued: 2, inFlight: 1 },
    ...{ forwarded, rejected: 0, errors: 0, cpu: 1, waitP99: 5 },
  })
  const start = Date.now()
  const asksForAll = () => server.asked.findLast(each => each.includes('/events'))?.includes('&all') ?? false
  keepSaying(t, at => {
    const isOfAll = asksForAll()
    const forwarded = (at - start) / 100
    const members = [member('web-1:7', true, forwarded), member('web-2:7', false, forwarded / 2, 3_000)]
    server.say({ ...sample.snapshot(at), ...(isOfAll && { members }) })
  })
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#members-count', '2 on the store')
  const rows = page.locator('#members tbody tr')
  t.match(await rows.nth(0).innerText(), /^web-1:7 \(here\)\s+2\s+1\s/)
  await says(page, '#members tbody tr:nth-child(1)', /1\d(\.\d)?\/s/)
  t.match(await rows.nth(1).innerText(), /silent for 3 s/)
  t.equal(await page.locator('#scope').getAttribute('aria-pressed'), 'true')
  await page.click('#scope')
  await page.locator('#members-card').waitFor({ state: 'hidden' })
  await until('it stays with what the user has chosen', () => !asksForAll())
  await page.click('#scope')
  await page.locator('#members-card').waitFor()
  t.same(faults, [])
})

t.test('where the other instances show nothing, the button to see this one alone is there', async t => {
  const server = await serveDashboard(t)
  const sample = createSample(Date.now())
  const here = {
    ...{ name: 'web-1:7', isHere: true, age: 0, uptime: 9, draining: false, storeReady: true, queued: 0, inFlight: 0 },
    ...{ forwarded: 1, rejected: 0, errors: 0, cpu: 1, waitP99: 5 },
  }
  const asksForAll = () => server.asked.findLast(each => each.includes('/events'))?.includes('&all') ?? false
  keepSaying(t, at => server.say({ ...sample.snapshot(at), ...(asksForAll() && { members: [here] }) }))
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#members-count', '1 on the store')
  t.equal(await page.locator('#scope').getAttribute('aria-pressed'), 'true')
  t.ok(await page.locator('#scope').isVisible())
  await page.click('#scope', { timeout: 5_000 })
  await until('it asks for this one', () => !asksForAll())
  t.same(faults, [])
})
