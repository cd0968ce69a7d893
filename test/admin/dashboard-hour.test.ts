/** The dashboard of a fleet: the last hour, and one instance of several. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import t, { type Test } from 'tap'
import type { Hour } from '../../src/admin/fleet/hour.js'
import type { MemberSnapshot } from '../../src/admin/snapshot/snapshot.js'
import { until } from '../servers/redis.js'
import { openBrowser, openPage, pixels, says, text } from './browser.js'
import { createSample } from './dashboard-sample.js'
import { type DashboardServer, keepSaying, serveDashboard } from './dashboard-server.js'

/** A folder where the pictures are kept. */
const PICTURES = process.env.SHAPER_PICTURES

const browser = await openBrowser()
t.teardown(() => browser.close())

const STEP = 10_000
const STEPS = 360

/** An hour with a rush in its middle, in which nothing is known of two minutes. */
function hourOf(share: number, end: number): Hour {
  const rush = (at: number): number => Math.exp(-(((at - 200) / 40) ** 2))
  const steps = (of: (at: number) => number): (number | null)[] =>
    Array.from({ length: STEPS }, (_, at) => (at >= 60 && at < 72 ? null : Math.round(share * of(at))))
  const forwarded = steps(at => 400 + 40 * Math.sin(at / 7) + 600 * rush(at))
  const rejected = steps(at => 900 * rush(at - 10))
  return {
    from: Math.floor(end / STEP) * STEP - STEPS * STEP,
    step: STEP,
    instances: [{ name: 'web-1:7', since: end - 3_600_000 }],
    figures: {
      forwarded,
      rejected,
      errors: steps(at => 5 + 90 * rush(at - 20)),
      waiting: steps(at => 10_000 * rush(at - 5)),
      cpu: forwarded.map(value => value && (value / 300) * 1.2),
    },
    buckets: {
      client: {
        offered: forwarded.map((value, at) => value && value + rejected[at]!),
        released: forwarded,
        rejected,
        waiting: steps(at => 9_000 * rush(at - 5)),
      },
    },
  }
}

/** A server whose instances are those of the store, whatever is asked for. */
async function serveFleet(t: Test): Promise<DashboardServer> {
  const server = await serveDashboard(t)
  const start = Date.now()
  const sample = createSample(start - 60_000)
  const member = (place: number, passed: number): MemberSnapshot => ({
    ...{
      name: `web-${place}:7`,
      isHere: place === 1,
      age: 300,
      uptime: 7_200,
      draining: place === 4,
      storeReady: true,
    },
    ...{ queued: 2_500, inFlight: place, forwarded: passed * 25, rejected: passed * 3, errors: passed * 2 },
    ...{ cpu: passed * 0.31, waitP99: 61_000 },
  })
  server.hour = instance => hourOf(instance === null ? 4 : 1, Date.now())
  keepSaying(t, (at, since) => {
    const query = server.asked.findLast(each => each.includes('/events')) ?? ''
    const shown = /instance=([^&]+)/.exec(query)?.[1]
    const members = [1, 2, 3, 4].map(place => member(place, since / 1_000))
    server.say({
      ...sample.snapshot(at),
      store: { type: 'redis', ready: true, instances: 4 },
      processes: shown === undefined && query.includes('&all') ? 4 : 1,
      ...((shown !== undefined || query.includes('&all')) && { members }),
      ...(shown !== undefined && { shown: decodeURIComponent(shown) }),
    })
  })
  return server
}

async function keep(page: Page, name: string): Promise<void> {
  if (PICTURES === undefined) return
  writeFileSync(join(PICTURES, `${name}.png`), await page.screenshot({ fullPage: true }))
}

/** How much of the orange and blue of a picture is in a part of its width. */
const inPart = (page: Page, id: string, from: number, to: number): Promise<number> =>
  pixels(page, id, `(b - r > 70 || r - b > 100) && y < 0.6 && x > ${from} && x < ${to}`)

t.test('the last hour of all instances and of the bucket in focus, on every screen', async t => {
  const server = await serveFleet(t)
  for (const [colorScheme, width] of [
    ['light', 1_280],
    ['dark', 1_280],
    ['light', 320],
  ] as const) {
    const { page, faults, overhang } = await openPage(t, browser, server.url, {
      colorScheme,
      viewport: { width, height: 900 },
    })
    await says(page, '#members-count', '4 on the store')
    await says(page, '#hour-all-now', /^at most 40k waiting, at \d\d:\d\d:\d\d$/)
    await says(page, '#hour-bucket-now', /^at most 36k waiting/)
    t.equal(await text(page, '#hour-bucket-title'), 'The last hour of client')
    for (const id of ['hour-all', 'hour-bucket']) {
      const name = `${colorScheme} ${width} ${id}`
      const [quiet, rush] = [await inPart(page, id, 0.3, 0.36), await inPart(page, id, 0.58, 0.64)]
      t.ok(rush > 2 * quiet, `${name}: the rush stands out, ${rush} to ${quiet}`)
    }
    t.match(
      await page.locator('#hour-all').getAttribute('aria-label'),
      /^The last hour of all requests: at most 40k waiting, at \d\d:\d\d:\d0; \d\d:\d\d:\d0: .* forwarded/,
    )
    t.equal(await overhang(), 0)
    await keep(page, `hour-${width}-${colorScheme}`)
    t.same(faults, [])
    await page.close()
  }
})

t.test('the pointer tells what a step holds', async t => {
  const server = await serveFleet(t)
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#hour-all-now', /^at most 40k/)
  const canvas = page.locator('#hour-all')
  const { width, height } = (await canvas.boundingBox())!
  await canvas.hover({ position: { x: width - 8, y: height / 2 } })
  await says(
    page,
    '#hour-all-now',
    /^\d\d:\d\d:\d0: [\d.]+\/s forwarded, [\d.]+\/s rejected, [\d.]+\/s errors, \d+ waiting, CPU \d+ %$/,
  )
  await canvas.hover({ position: { x: 38 + ((width - 44) * 65) / 360, y: height / 2 } })
  await says(page, '#hour-all-now', /^at most 40k/)
  await canvas.hover({ position: { x: 5, y: height / 2 } })
  await says(page, '#hour-all-now', /^at most 40k/)
  t.same(faults, [])
})

t.test('one instance is chosen by its name, with its hour, and left again', async t => {
  const server = await serveFleet(t)
  const { page, faults, overhang } = await openPage(t, browser, server.url)
  const asks = (what: string) => () => server.asked.findLast(each => each.includes('/events'))!.includes(what)
  await says(
    page,
    '#members tbody tr:nth-child(3)',
    /web-3:72\.5k32\d(\.\d)?\/s[23](\.\d)?\/s[12](\.\d)?\/s1 min[23]\d %serves/,
  )
  await says(page, '#members tbody tr:nth-child(4)', 'shutting down')
  await page.getByRole('button', { name: 'web-3:7' }).press('Enter')
  await says(page, '#about', /^web-3:7 alone · /)
  t.ok(asks('interval=1000&instance=web-3%3A7')())
  await says(page, '#hour-all-now', /^at most 10k waiting/)
  t.ok(server.asked.includes('GET /history?instance=web-3%3A7'))
  t.equal(await page.getByRole('button', { name: 'web-3:7' }).getAttribute('aria-pressed'), 'true')
  t.equal(await page.locator('#scope').getAttribute('aria-pressed'), 'false')
  t.equal(await page.locator('#members tbody tr').count(), 4, 'the others are still there')
  t.equal(await overhang(), 0)
  await keep(page, 'one-instance')
  await page.getByRole('button', { name: 'web-1:7' }).click()
  await until('its own is asked for as often as can be', asks('interval=250&instance=web-1%3A7'))
  await page.getByRole('button', { name: 'web-1:7' }).click()
  await until('all are asked for', asks('interval=1000&all'))
  await says(page, '#hour-all-now', /^at most 40k waiting/)
  t.equal(await page.locator('#scope').getAttribute('aria-pressed'), 'true')
  t.same(faults, [])
})

t.test('while nothing is known of the hour, the page says so', async t => {
  const server = await serveFleet(t)
  server.hour = () => ({
    ...hourOf(1, Date.now()),
    figures: { forwarded: [], rejected: [], errors: [], waiting: [], cpu: [] },
    buckets: {},
  })
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#hour-all-now', 'nothing known yet')
  await says(page, '#hour-bucket-now', 'nothing known yet')
  t.same(faults, [])
})
