/** The dashboard in a real browser, told by a server of the test's own what to show. */
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import t from 'tap'
import { dashboardPage } from '../../src/admin/page.js'
import type { Snapshot } from '../../src/admin/snapshot.js'
import { openBrowser, openPage } from './browser.js'
import { BUSY, bucket, CAPACITY, createSample, instance, quiet, route } from './dashboard-sample.js'
import { type DashboardServer, event, serveDashboard } from './dashboard-server.js'

const browser = await openBrowser()
t.teardown(() => browser.close())

const text = (page: Page, selector: string): Promise<string> => page.locator(selector).innerText()

/** Resolves once an element says so. */
const says = (page: Page, selector: string, hasText: string | RegExp): Promise<void> =>
  page.locator(selector, { hasText }).first().waitFor()

/** Calls `say` about every 100 ms, with how long it has been doing so in ms, until the test ends. */
function keepSaying(t: { teardown(run: () => unknown): unknown }, say: (at: number, since: number) => void): void {
  const start = Date.now()
  const tick = () => say(Date.now(), Date.now() - start)
  tick()
  const timer = setInterval(tick, 100)
  t.teardown(() => clearInterval(timer))
}

/** What the last minute looked like, then what happens now. */
function live(t: { teardown(run: () => unknown): unknown }, server: DashboardServer): void {
  const start = Date.now() - 65_000
  const sample = createSample(start)
  const past: Snapshot[] = []
  for (let at = start; at < Date.now(); at += 250) past.push(sample.snapshot(at))
  server.greeting = () => past
  keepSaying(t, at => {
    past.push(sample.snapshot(at))
    server.say(past.at(-1)!)
  })
}

/** Pixels of a canvas for which an expression of r, g, b, x, y (0..1) and a (alpha) holds. */
const pixels = (page: Page, id: string, expression: string): Promise<number> =>
  page.evaluate(`(() => {
    const canvas = document.getElementById('${id}')
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
    let found = 0
    for (let i = 0; i < data.length; i += 4) {
      const [r, g, b, a] = data.subarray(i, i + 4)
      const x = ((i / 4) % canvas.width) / canvas.width
      const y = Math.floor(i / 4 / canvas.width) / canvas.height
      if (a > 200 && (${expression})) found++
    }
    return found
  })()`)

const WATER = 'b - r > 70 && y > 0.2 && y < 0.74'
const ORANGE = 'r > 190 && g < 110 && b < 60'

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

t.test('the page carries all it needs, and its policy lets nothing else run', async t => {
  const { html, headers } = dashboardPage()
  const inside = (tag: string) => [...html.matchAll(new RegExp(`<${tag}\\b[^>]*>(.*?)</${tag}>`, 'gs'))].map(m => m[1]!)
  const hash = (part: string) => `'sha256-${createHash('sha256').update(part).digest('base64')}'`
  t.equal(inside('script').length, 1)
  t.equal(inside('style').length, 1)
  t.equal(
    headers['Content-Security-Policy'],
    `default-src 'none'; script-src ${hash(inside('script')[0]!)}; style-src ${hash(inside('style')[0]!)}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`,
  )
  t.match(headers, {
    'Content-Type': 'text/html; charset=utf-8',
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
  })
  const [script = ''] = inside('script')
  t.notMatch(script, /^(import|export) /m, 'modules are joined')
  t.notMatch(script, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(/)
  const markup = html.replace(script, '').replace(inside('style')[0]!, '')
  t.notMatch(markup, /\s(style|on\w+)=/, 'no styles and handlers as attributes')
  t.notMatch(markup, /(src|href)="(?!data:|metrics"|buckets")/, 'nothing is loaded')
  t.equal(dashboardPage(), dashboardPage(), 'read once')
})

t.test('live traffic is shown, in every shape of screen and both schemes', async t => {
  const server = await serveDashboard(t)
  live(t, server)
  const folder = mkdtempSync(join(tmpdir(), 'shaper-dashboard-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  for (const colorScheme of ['light', 'dark'] as const) {
    for (const [width, height] of [
      [320, 640],
      [768, 1_024],
      [1_280, 900],
    ] as const) {
      const name = `${width}-${colorScheme}`
      const { page, faults, overhang } = await openPage(t, browser, server.url, {
        viewport: { width, height },
        colorScheme,
      })
      await says(page, '#status', 'Live')
      await says(page, '#strip-gaps', 'gap p50 200 ms, p99 200 ms, 1/r 200 ms')
      t.equal(await text(page, '#bucket-title'), 'client', 'the busiest is in focus')
      t.match(await text(page, '#rates-now'), /^[\d.]+\/s in, [\d.]+\/s out, 7 keys$/)
      t.match(await text(page, '#about'), /^up 5 h · store redis · 2 processes · 3 instances$/)
      t.equal(await overhang(), 0, `${name}: nothing sticks out`)
      t.ok((await pixels(page, 'rates', 'b - r > 70')) > 50, `${name}: what left is drawn`)
      t.ok((await pixels(page, 'strip', 'b - r > 70')) > 50, `${name}: and each release`)
      const path = join(folder, `${name}.png`)
      await page.screenshot({ path, fullPage: true })
      t.ok(readFileSync(path).length > 20_000, `${name}: the picture is not blank`)
      t.same(faults, [], name)
      await page.close()
    }
  }
})

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

t.test('drops leave at the times of the releases: even ones look even, others do not', async t => {
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
    const focus = { key: 'a', arrivals: [], releases, rejections: [] }
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

t.test('a burst pours in, and what is too much spills over the side', async t => {
  const server = await serveDashboard(t)
  let rejected = 0
  keepSaying(t, at => {
    const arrivals: number[] = []
    const rejections: number[] = []
    for (let time = Math.floor(at / 1_000) * 1_000 - 3_000; time <= at; time += 1_000) {
      for (let i = 0; i < 14; i++) arrivals.push(time + i / 100)
      for (let i = 0; i < rejected; i++) rejections.push(time + 0.101 + i / 100)
    }
    const focus = { key: 'a', arrivals, releases: [], rejections }
    server.say(quiet(at, { buckets: [bucket({ keys: 2, offered: 10, fullest: [instance('a', 5)], focus })] }))
  })
  const { page, faults } = await openPage(t, browser, server.url)
  /** The most of many frames. */
  const most = async (expression: string) => {
    let found = 0
    for (let i = 0; i < 25; i++) found = Math.max(found, await pixels(page, 'bucket', expression))
    return found
  }
  const above = 'y > 0.06 && y < 0.23'
  await says(page, '#status', 'Live')
  t.ok((await most(`${above} && Math.abs(r - 132) < 9 && Math.abs(b - 168) < 9`)) > 100, 'arrivals fall')
  t.equal(await most(ORANGE), 0, 'nothing spills while nothing is rejected')
  rejected = 4
  await says(page, '#focus-rejected', /^4\/s$/)
  t.ok((await most(`${ORANGE} && x > 0.82`)) > 20, 'beyond the right side')
  t.equal(await most(`${ORANGE} && x < 0.15`), 0)
  t.match(await text(page, '#focus-in'), /^1[34](\.\d)?\/s$/)
  t.same(faults, [])
})

t.test('rates come from what has grown between snapshots, and a server started anew begins again', async t => {
  const server = await serveDashboard(t)
  const now = Date.now()
  const at = (ms: number, offered: number, released: number, rejected: number) =>
    quiet(now + ms, {
      uptime: 10 + ms / 1_000,
      buckets: [bucket({ keys: 1, offered, released, rejected, fullest: [instance('a', 1)] })],
      routes: [route({ outcomes: { ...route().outcomes, forwarded: released, rejected } })],
      wait: { count: 4, p50: 250, p90: 1_234, p99: 61_000, max: 7_300_000 },
      lateness: { count: 4, p50: 0.04, p90: 0.2, p99: 0.31, max: 3 },
      queued: 1_234,
      inFlight: 7,
    })
  server.greeting = () => [at(-10_000, 1_000, 500, 400), at(-5_000, 2_000, 1_000, 800), at(0, 8_250, 1_025, 860)]
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#rates-now', /^1\.3k\/s in, 5\/s out$/)
  const figures = ['focus-in', 'focus-out', 'focus-rejected', 'rejects', 'queued', 'in-flight', 'lateness']
  t.same(await Promise.all(figures.map(id => text(page, `#${id}`))), [
    '1.3k/s',
    '5/s',
    '12/s',
    '12/s',
    '1.2k',
    '7',
    '0.3 ms',
  ])
  const waits = ['p50', 'p90', 'p99', 'max'].map(each => text(page, `#wait-${each}`))
  t.same(await Promise.all(waits), ['250 ms', '1.2 s', '1 min', '2 h'])
  t.match(await text(page, '#routes'), /forwarded 1k.*rejected 860/s)
  server.say({ ...at(1_000, 0, 0, 0), uptime: 1 })
  await says(page, '#rates-now', '0/s in, 0/s out')
  server.say({ ...at(2_000, 3, 2, 0), uptime: 2 })
  await says(page, '#rates-now', '3/s in, 2/s out')
  t.same(faults, [])
})

t.test('keys are only ever text, and can be emptied after a question', async t => {
  const server = await serveDashboard(t)
  const evil = '<img src=x onerror=alert(1)>'
  const keys = [evil, '..', '\ud800', `${'long'.repeat(500)}`, 'a/b?c#d é', '']
  const fullest = keys.map((key, index) => instance(key, 9 - index, { waiting: 3, nextReleaseMs: 120 }))
  fullest[5] = { ...fullest[5]!, blockedMs: 12_000, tier: 'gold' }
  const focus = { key: evil, arrivals: [], releases: [], rejections: [] }
  const buckets = [bucket({ name: '<b>x</b>', keys: 6, offered: 9, fullest, focus })]
  const routes = [route({ name: evil }), route({ name: '' })]
  const dry = {
    key: evil,
    route: evil,
    bucket: evil,
    agent: 'bot',
    wouldReject: 3,
    wouldDelay: 1,
    longestWait: 900,
  } as const
  const agents = {
    browser: { would_reject: 0, would_delay: 0 },
    bot: { would_reject: 3, would_delay: 0 },
    library: { would_reject: 0, would_delay: 1 },
    empty: { would_reject: 0, would_delay: 0 },
  }
  const snapshot = quiet(Date.now(), { buckets, routes, dryRun: { since: Date.now(), keys: [dry], agents } })
  server.greeting = () => [snapshot]
  const { page, faults, overhang } = await openPage(t, browser, server.url, { viewport: { width: 320, height: 640 } })
  await says(page, '#status', 'Live')
  const names = await page.locator('#keys tbody td.key').allTextContents()
  t.same(names, [evil, '..', '\ud800', keys[3], keys[4], '(all) · gold'])
  t.equal(await text(page, '#bucket-title'), '<b>x</b>')
  t.match(await text(page, '#dry-keys'), evil)
  t.match(await text(page, '#agents'), /bot 75 %: 3 rejected, 0 delayed\s+library 25 %/)
  t.equal(await page.locator('main img, main b b').count(), 0)
  t.equal(await overhang(), 0)
  t.match(await text(page, '#keys tbody tr:last-child'), /gold.*4 \/ 10.*3.*120 ms.*12 s/s)
  const buttons = page.locator('#keys tbody button')
  t.same(
    await Promise.all([0, 1, 2, 3].map(n => buttons.nth(n).isDisabled())),
    [false, true, true, false],
    'no path names them',
  )

  const deletions = () => server.asked.filter(line => line.startsWith('DELETE'))
  await page.getByLabel('Reset a/b?c#d é', { exact: true }).click()
  t.match(await text(page, '#reset'), /a\/b\?c#d é of <b>x<\/b>/)
  await page.locator('#reset-no').click()
  t.same(deletions(), [])
  await page.getByLabel('Reset a/b?c#d é', { exact: true }).press('Enter')
  await page.locator('#reset-yes').click()
  await says(page, '#toast', 'a/b?c#d é starts again at 0')
  t.same(deletions(), ['DELETE /buckets/%3Cb%3Ex%3C%2Fb%3E/a%2Fb%3Fc%23d%20%C3%A9'])
  t.same(faults, [])
  server.resetStatus = 404
  await page.getByLabel(`Reset ${evil}`).click()
  await page.locator('#reset-yes').click()
  await says(page, '#toast', 'could not be emptied: status 404')
})

t.test('without the token a form asks for it; the token stays in the tab', async t => {
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

t.test('a lost connection is told, and found again', async t => {
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

t.test('events are read however they are cut, whatever ends their lines', async t => {
  const server = await serveDashboard(t)
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#status', 'Connecting')
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

t.test('what there is to say where there is little to see', async t => {
  const server = await serveDashboard(t)
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#status', 'Connecting')
  const say = (more: Parameters<typeof quiet>[1]) => server.say(quiet(Date.now(), more))
  say({})
  await says(page, '#notice', /No traffic yet.*curl .*http:\/\/127\.0\.0\.1:8080\//s)
  await says(page, '#keys-none', 'No key holds anything')
  say({ buckets: [] })
  await says(page, '#notice', 'No buckets')
  t.equal(await page.locator('#stage').isVisible(), false)
  const busy = [bucket({ offered: 5, rate: 4, keys: 1, queued: 3, fullest: [instance('a', 5, { blockedMs: -1 })] })]
  say({ buckets: busy, draining: true })
  await says(page, '#status', 'Draining')
  t.equal(await page.locator('#notice').isVisible(), false)
  say({ buckets: busy, store: { type: 'postgres', ready: false, instances: 2 } })
  await says(page, '#status', 'Store postgres unreachable')
  say({ buckets: busy, upstreams: [{ url: 'http://u', inFlight: 1, pausedMs: 3_200, allows: 4 }] })
  await says(page, '#status', 'Upstream paused')
  t.match(await text(page, '#upstreams'), /asked for a pause: 3\.2 s more; allows 4\/s/)
  t.same(await page.locator('#flags li').allTextContents(), [
    'learned 4/s of 5/s',
    'blocked until empty',
    'upstream paused',
    '3 queued',
  ])
  t.ok((await pixels(page, 'bucket', ORANGE)) > 50, 'the lid and the tap')
  say({ buckets: busy, routes: [route({ mode: 'meter', dryRun: true })] })
  await says(page, '#flags', /meter: passed on at once.*dry run: nothing is held/s)
  t.match(await text(page, '#strip-gaps'), /^1\/r 200 ms$/)
  t.same(faults, [])
})

t.test('a bucket is chosen with the keyboard, and stays chosen', async t => {
  const server = await serveDashboard(t)
  live(t, server)
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#bucket-title', 'client')
  const pressed = () => page.locator('#chooser [aria-pressed=true]').innerText()
  t.match(await pressed(), /^client/)
  await page.locator('#pause').focus()
  for (let i = 0; i < 3; i++) await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await says(page, '#bucket-title', 'login')
  t.match(await pressed(), /^login/)
  t.match(await text(page, '#bucket-key'), `by ip + route: ${BUSY}`)
  t.match(await text(page, '#keys'), /until|21/)
  t.same(faults, [])
})

t.test('pictures stand still when asked to, by a button or by the system', async t => {
  const server = await serveDashboard(t)
  live(t, server)
  const strip = (page: Page): Promise<string> => page.evaluate("document.getElementById('strip').toDataURL()")
  const frames = (page: Page): Promise<void> =>
    page.evaluate(
      'new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))',
    )
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

  const still = await openPage(t, browser, server.url, { reducedMotion: 'reduce' })
  await says(still.page, '#strip-gaps', 'gap p50 200 ms')
  t.equal(await still.page.locator('#pause').isVisible(), false)
  const frame =
    'window.frames_ = 0; const ask = requestAnimationFrame; requestAnimationFrame = run => (frames_++, ask(run))'
  await still.page.evaluate(frame)
  for (let i = 0; i < 10; i++) t.same(await drops(still.page), [], 'no drops')
  t.equal(await still.page.evaluate('frames_'), 0, 'no frames are asked for')
  t.ok((await pixels(still.page, 'strip', 'b - r > 70')) > 50, 'what is known is drawn all the same')
})

t.test('a page that is open for long does not grow', async t => {
  const server = await serveDashboard(t)
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#status', 'Connecting')
  const start = Date.now() - 1_000_000
  const sample = createSample(start)
  let told = 0
  /** Tells so many snapshots, of ever new keys, and answers how large the page is then. */
  const after = async (snapshots: number) => {
    for (let i = 0; i < snapshots; i++) {
      told += 1
      const snapshot = sample.snapshot(start + told * 250)
      const fullest = Array.from({ length: 20 }, (_, n) => instance(`${told}-${n}`, 10 - n / 3))
      const keyed = bucket({ name: 'keyed', keys: told, offered: told, fullest })
      server.say({ ...snapshot, queued: told, buckets: [...snapshot.buckets, keyed] })
    }
    await says(page, '#queued', new RegExp(`^${told}$`))
    const session = await page.context().newCDPSession(page)
    await session.send('HeapProfiler.collectGarbage')
    const { usedSize } = (await session.send('Runtime.getHeapUsage')) as { usedSize: number }
    await session.detach()
    return { elements: await page.evaluate<number>("document.querySelectorAll('*').length"), bytes: usedSize }
  }
  const first = await after(300)
  const second = await after(600)
  t.ok(second.elements < 400, `${second.elements} elements`)
  t.ok(Math.abs(second.elements - first.elements) < 60, `${first.elements} elements, then ${second.elements}`)
  t.ok(second.bytes - first.bytes < 1_000_000, `${first.bytes} bytes, then ${second.bytes}`)
  t.same(faults, [])
})

t.test('text stands out enough from what is behind it, light and dark (WCAG 2.2, 1.4.3)', async t => {
  const server = await serveDashboard(t)
  for (const colorScheme of ['light', 'dark'] as const) {
    const { page } = await openPage(t, browser, server.url, { colorScheme })
    const colours = await page.evaluate<Record<string, string>>(`(() => {
      const style = getComputedStyle(document.documentElement)
      const names = ['page', 'card', 'glass', 'ink', 'muted', 'released', 'good', 'warn', 'bad', 'on-main']
      return Object.fromEntries(names.map(name => [name, style.getPropertyValue('--' + name).trim()]))
    })()`)
    const pairs = ['ink', 'muted', 'good', 'warn', 'bad'].flatMap(ink => [
      [ink, 'card'],
      [ink, 'page'],
    ])
    for (const [ink, ground] of [...pairs, ['ink', 'glass'], ['muted', 'glass'], ['on-main', 'released']]) {
      const found = contrast(colours[ink!]!, colours[ground!]!)
      t.ok(found >= 4.5, `${colorScheme}: ${ink} on ${ground} ${found.toFixed(1)}`)
    }
  }
})

/** Of two colours like #1c63c4: 1 to 21. */
function contrast(a: string, b: string): number {
  const light = (colour: string): number => {
    const [red, green, blue] = [1, 3, 5].map(at => {
      const part = Number.parseInt(colour.slice(at, at + 2), 16) / 255
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!
  }
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y)
  return (high! + 0.05) / (low! + 0.05)
}
