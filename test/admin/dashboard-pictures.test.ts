/** The pictures of the dashboard, judged by their pixels. */
import type { Page } from 'playwright-core'
import t from 'tap'
import { frames, ORANGE, openBrowser, openPage, pixels, says, text } from './browser.js'
import { bucket, CAPACITY, instance, quiet } from './dashboard-sample.js'
import { keepSaying, live, serveDashboard } from './dashboard-server.js'

const browser = await openBrowser()
t.teardown(() => browser.close())

const WATER = 'b - r > 70 && y > 0.2 && y < 0.74'

/** Where drops are below the tap, from the top down: the middles of the coloured runs in the canvas's middle column. */
const drops = (page: Page): Promise<number[]> =>
  page.evaluate(`(() => {
    const canvas = document.getElementById('bucket')
    const from = Math.round(canvas.height * 0.78)
    const { data } = canvas.getContext('2d').getImageData(canvas.width / 2, from, 1, canvas.height - from)
    const middles = []
    let start
    for (let y = 0; y <= data.length / 4; y++) {
      const isDrop = data[y * 4 + 3] > 128
      if (isDrop && start === undefined) start = y
      if (isDrop || start === undefined) continue
      // One that is cut off at either end has no middle to see.
      if (start > 0 && y < data.length / 4) middles.push((start + y - 1) / 2)
      start = undefined
    }
    return middles
  })()`)

t.test('the water stands as high as the level', async t => {
  const server = await serveDashboard(t)
  let level = CAPACITY
  keepSaying(t, at =>
    server.say(quiet(at, { buckets: [bucket({ keys: 1, offered: 10, fullest: [instance('a', level)] })] })),
  )
  const { page, faults } = await openPage(t, browser, server.url)
  const area = async (next: number) => {
    level = next
    await says(page, '#focus-level', new RegExp(`^${next} / ${CAPACITY}$`))
    return pixels(page, 'bucket', WATER)
  }
  const full = await area(CAPACITY)
  t.ok(full > 20_000)
  for (const share of [0.75, 0.5, 0.2]) {
    const part = (await area(CAPACITY * share)) / full
    t.ok(Math.abs(part - share) < 0.05, `${share}: ${part.toFixed(3)} of the water`)
  }
  t.equal(await area(0), 0)
  t.match(
    await page.locator('#bucket').getAttribute('aria-label'),
    /^Leaky bucket client: level [\d.]+ of 10, leaking 5\/s$/,
  )
  t.same(faults, [])
})

t.test('drops leave at the times of the releases, even or not', async t => {
  const server = await serveDashboard(t)
  let gaps = [200]
  keepSaying(t, at => {
    const releases = []
    const period = gaps.reduce((sum, gap) => sum + gap, 0)
    for (let time = Math.floor(at / period) * period - 6_000; time <= at; ) {
      for (const gap of gaps) {
        if (time <= at) releases.push(time)
        time += gap
      }
    }
    const focus = { key: 'a', watchers: 1, arrivals: [], releases, rejections: [] }
    server.say(quiet(at, { buckets: [bucket({ keys: 1, offered: 10, fullest: [instance('a', 5)], focus })] }))
  })
  const { page, faults } = await openPage(t, browser, server.url)
  /** The gaps between drops, in parts of the smallest. */
  const seen = async (isSo: (ratio: number) => boolean) => {
    const middles = await drops(page)
    const found = middles.slice(1).map((middle, index) => middle - middles[index]!)
    const ratio = Math.max(...found) / Math.min(...found)
    return { count: middles.length, isSo: found.length >= 2 && isSo(ratio), ratio }
  }
  await says(page, '#strip-gaps', 'gap p50 200 ms, p99 200 ms')
  for (let i = 0; i < 10; i++) {
    const even = await seen(ratio => ratio < 1.12)
    t.ok(even.isSo && even.count >= 3 && even.count <= 5, `${even.count} drops, gaps of 1 to ${even.ratio.toFixed(2)}`)
  }
  gaps = [100, 300]
  await says(page, '#strip-gaps', 'p99 300 ms')
  let uneven = await seen(ratio => ratio > 2.5)
  const last = Date.now() + 5_000
  while (!uneven.isSo && Date.now() < last) uneven = await seen(ratio => ratio > 2.5)
  t.ok(uneven.isSo, `gaps of 1 to ${uneven.ratio.toFixed(2)}`)
  t.same(faults, [])
})

t.test('a burst pours in, and the excess spills over the side', async t => {
  const server = await serveDashboard(t)
  let rejected = 0
  keepSaying(t, at => {
    const arrivals: number[] = []
    const rejections: number[] = []
    for (let time = Math.floor(at / 1_000) * 1_000 - 3_000; time <= at; time += 1_000) {
      for (let i = 0; i < 14; i++) arrivals.push(time + i / 100)
      for (let i = 0; i < rejected; i++) rejections.push(time + 0.101 + i / 100)
    }
    const focus = { key: 'a', watchers: 1, arrivals, releases: [], rejections }
    server.say(quiet(at, { buckets: [bucket({ keys: 2, offered: 10, fullest: [instance('a', 5)], focus })] }))
  })
  const { page, faults } = await openPage(t, browser, server.url)
  /** The most of many frames, of more than one burst. A busy machine draws few: more of them until there is enough. */
  const most = async (expression: string, enough = 0) => {
    let found = 0
    const begun = performance.now()
    const passed = () => performance.now() - begun
    while (passed() < 1_300 || (found <= enough && enough > 0 && passed() < 10_000))
      found = Math.max(found, await pixels(page, 'bucket', expression))
    return found
  }
  const above = 'y > 0.06 && y < 0.23'
  await says(page, '#status', 'Live')
  t.ok((await most(`${above} && Math.abs(r - 132) < 9 && Math.abs(b - 168) < 9`, 100)) > 100, 'arrivals fall')
  t.equal(await most(ORANGE), 0, 'nothing spills while nothing is rejected')
  rejected = 4
  await says(page, '#focus-rejected', /^4\/s$/)
  t.ok((await most(`${ORANGE} && x > 0.82`, 20)) > 20, 'beyond the right side')
  t.equal(await most(`${ORANGE} && x < 0.15`), 0)
  t.match(await text(page, '#focus-in'), /^1[34](\.\d)?\/s$/)
  t.same(faults, [])
})

t.test('pictures stand still after the button or with a setting of the system', async t => {
  const server = await serveDashboard(t)
  live(t, server)
  const strip = (page: Page): Promise<string> => page.evaluate("document.getElementById('strip').toDataURL()")
  const { page } = await openPage(t, browser, server.url)
  await says(page, '#strip-gaps', 'gap p50 200 ms')
  const moving = await strip(page)
  await frames(page)
  t.not(await strip(page), moving)
  await page.locator('#pause').click()
  await frames(page)
  const paused = await strip(page)
  await frames(page)
  t.equal(await strip(page), paused)
  t.equal(await page.locator('#pause').getAttribute('aria-pressed'), 'true')
  const level = await text(page, '#focus-level')
  const { width, height } = page.viewportSize()!
  await page.setViewportSize({ width: width - 60, height })
  await frames(page)
  t.not(await strip(page), paused, 'another size, another picture')
  await page.setViewportSize({ width, height })
  await frames(page)
  t.equal(await strip(page), paused, 'drawn again for its size, but not at another time')
  t.equal(await text(page, '#focus-level'), level)

  const still = await openPage(t, browser, server.url, { reducedMotion: 'reduce' })
  await says(still.page, '#strip-gaps', 'gap p50 200 ms')
  t.equal(await still.page.locator('#pause').isVisible(), false)
  const frame =
    'window.frames_ = 0; const ask = requestAnimationFrame; requestAnimationFrame = run => (frames_++, ask(run))'
  await still.page.evaluate(frame)
  for (let i = 0; i < 10; i++) t.same(await drops(still.page), [], 'no drops')
  t.equal(await still.page.evaluate('frames_'), 0, 'no frames are requested')
  t.ok((await pixels(still.page, 'strip', 'b - r > 70')) > 50, 'what is known is drawn all the same')
})

t.test('a paused dashboard that is drawn again, in another size and back, shows what it did', async t => {
  const server = await serveDashboard(t)
  live(t, server)
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#strip-gaps', 'gap p50 200 ms')
  await page.locator('#pause').click()
  const pictures = async (): Promise<Record<string, string>> => {
    await frames(page)
    return page.evaluate(`Object.fromEntries(['bucket', 'rates', 'strip'].map(id =>
      [id, document.getElementById(id).toDataURL()]))`)
  }
  const paused = await pictures()
  const level = await text(page, '#focus-level')
  const { width, height } = page.viewportSize()!
  // Levels are remembered for five seconds.
  await page.waitForTimeout(7_000)
  await page.setViewportSize({ width: width - 60, height })
  await pictures()
  await page.setViewportSize({ width, height })
  const again = await pictures()
  // The canvas may have another height by then, so compare the level.
  for (const id of ['rates', 'strip']) t.ok(again[id] === paused[id], `${id} is the same picture`)
  t.equal(await text(page, '#focus-level'), level)
  await page.locator('#pause').click()
  const resumed = await pictures()
  for (const id of ['bucket', 'strip']) t.ok(resumed[id] !== paused[id], `${id} goes on`)
  t.same(faults, [])
})
