/** The dashboard in a real browser, with a scripted server. */
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { dashboardPage } from '../../src/admin/dashboard/page.js'
import type { RouteSnapshot } from '../../src/admin/snapshot/snapshot.js'
import { withTroubles } from '../../src/admin/snapshot/troubles.js'
import { topLines } from '../../src/cli/commands/top.js'
import { frames, ORANGE, openBrowser, openPage, pixels, says, text } from './browser.js'
import { BUSY, bucket, instance, quiet, route } from './dashboard-sample.js'
import { live, serveDashboard } from './dashboard-server.js'

const browser = await openBrowser()
t.teardown(() => browser.close())

t.test('the page is self-contained, and its policy lets nothing else run', async t => {
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

t.test('live traffic is shown on every screen size and in both schemes', async t => {
  const server = await serveDashboard(t)
  live(t, server)
  const folder = mkdtempSync(join(tmpdir(), 'shaper-dashboard-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  for (const colorScheme of ['light', 'dark'] as const) {
    const { page, faults, overhang } = await openPage(t, browser, server.url, { colorScheme })
    await says(page, '#status', 'Live')
    await says(page, '#strip-gaps', 'gap p50 200 ms, p99 200 ms, 1/r 200 ms')
    t.equal(await text(page, '#bucket-title'), 'client', 'the busiest is in focus')
    t.match(await text(page, '#rates-now'), /^[\d.]+\/s in, [\d.]+\/s out, 7 keys$/)
    t.match(await text(page, '#about'), /^up 5 h · store redis · 2 processes · 3 instances$/)
    for (const [width, height] of [
      [1_280, 900],
      [768, 1_024],
      [320, 640],
    ] as const) {
      const name = `${width}-${colorScheme}`
      await page.setViewportSize({ width, height })
      await frames(page)
      t.equal(await overhang(), 0, `${name}: nothing sticks out`)
      t.ok((await pixels(page, 'rates', 'b - r > 70')) > 50, `${name}: what left is drawn`)
      t.ok((await pixels(page, 'strip', 'b - r > 70')) > 50, `${name}: and each release`)
      const path = join(folder, `${name}.png`)
      await page.screenshot({ path, fullPage: true })
      t.ok(readFileSync(path).length > 20_000, `${name}: the picture is not blank`)
      t.same(faults, [], name)
    }
    await page.close()
  }
})

t.test('long: rates come from the growth between snapshots; a restarted server begins at zero', async t => {
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

t.test('long: a page that is opened right after a burst shows its rate', async t => {
  const server = await serveDashboard(t)
  const perSecond = { offered: 6, released: 5, rejected: 1 }
  const figures = { keys: 1, offered: 12, released: 10, rejected: 2, fullest: [instance('a', 5)], perSecond }
  server.greeting = () => [quiet(Date.now(), { buckets: [bucket(figures)] })]
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#rates-now', '6/s in, 5/s out')
  t.equal(await text(page, '#focus-in'), '6/s')
  t.equal(await text(page, '#focus-rejected'), '1/s')
  t.same(faults, [])
})

t.test('long: routes tell how many of the forwarded got a shared answer', async t => {
  const server = await serveDashboard(t)
  const told = (coalesced?: number) =>
    quiet(Date.now(), {
      routes: [
        route({ outcomes: { ...route().outcomes, forwarded: 12, rejected: 2 }, ...(coalesced && { coalesced }) }),
      ],
    })
  server.greeting = () => [told(7)]
  const { page, faults, overhang } = await openPage(t, browser, server.url, { viewport: { width: 320, height: 640 } })
  await says(page, '#routes .counts', /^forwarded 12\s*of these shared 7\s*rejected 2$/)
  t.equal(await overhang(), 0)
  server.say(told())
  await says(page, '#routes .counts', /^forwarded 12\s*rejected 2$/)
  t.same(faults, [])
})

t.test('long: routes tell how long clients wait and how many requests were given up for it', async t => {
  const server = await serveDashboard(t)
  const at = Date.now()
  const told = (patience?: RouteSnapshot['patience']) => quiet(at, { routes: [route(patience && { patience })] })
  server.greeting = () => [told({ learntMs: 2_010, serviceMs: 84, givenUp: 412, lastMinute: 31 })]
  const line = '#routes .patience'
  for (const colorScheme of ['light', 'dark'] as const) {
    const { page, faults, overhang } = await openPage(t, browser, server.url, {
      colorScheme,
      viewport: { width: 320, height: 640 },
    })
    await says(page, line, 'clients leave after about 2 s; 31 given up in the last minute')
    t.equal(await overhang(), 0)
    server.say(told({ serviceMs: 84, givenUp: 412, lastMinute: 0 }))
    await says(page, line, /^0 given up in the last minute$/)
    server.say(told({ serviceMs: 84, givenUp: 0, lastMinute: 0 }))
    await page.locator(line).waitFor({ state: 'hidden' })
    server.say(told({ learntMs: 500, givenUp: 0, lastMinute: 0 }))
    await says(page, line, 'clients leave after about 500 ms; 0 given up in the last minute')
    server.say(told())
    await page.locator(line).waitFor({ state: 'hidden' })
    t.same(faults, [])
    await page.close()
  }
})

t.test('keys are shown as text only, and can be reset after a confirmation', async t => {
  const server = await serveDashboard(t)
  const evil = '<img src=x onerror=alert(1)>'
  const keys = [evil, '..', '\ud800', `${'long'.repeat(500)}`, 'a/b?c#d é', 'all']
  const fullest = keys.map((key, index) => instance(key, 9 - index, { waiting: 3, predictedWaitMs: 120 }))
  fullest[5] = { ...fullest[5]!, blockedMs: 12_000, tier: 'gold' }
  const focus = { key: evil, watchers: 1, arrivals: [], releases: [], rejections: [] }
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
  const snapshot = quiet(Date.now(), {
    buckets,
    routes,
    dryRun: { since: Date.now(), keys: [dry, { ...dry, key: '' }], agents },
  })
  server.greeting = () => [snapshot]
  const { page, faults, overhang } = await openPage(t, browser, server.url, { viewport: { width: 320, height: 640 } })
  await says(page, '#status', 'Live')
  const names = await page.locator('#keys tbody td.key').allTextContents()
  t.same(names, [evil, '..', '\ud800', keys[3], keys[4], 'all · gold'])
  t.equal(await text(page, '#bucket-title'), '<b>x</b>')
  t.match(await text(page, '#dry-keys'), evil)
  t.match(await text(page, '#dry-keys'), '(no key)')
  t.match(await text(page, '#agents'), /bot 75 %: 3 rejected, 0 delayed\s+library 25 %/)
  t.equal(await page.locator('main img, main b b').count(), 0)
  t.equal(await overhang(), 0)
  t.match(await text(page, '#keys tbody tr:last-child'), /gold.*4 \/ 10.*3.*120 ms.*12 s/s)
  const buttons = page.locator('#keys tbody td:last-child button')
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
  await says(page, '#toast', 'a/b?c#d é: 194 forgotten, level 206, 205 waiting, the last for 41 s')
  t.same(deletions(), ['DELETE /buckets/%3Cb%3Ex%3C%2Fb%3E/a%2Fb%3Fc%23d%20%C3%A9'])
  t.same(faults, [])
  server.resetStatus = 404
  await page.getByLabel(`Reset ${evil}`).click()
  await page.locator('#reset-yes').click()
  await says(page, '#toast', 'could not be reset: status 404')
})

t.test('long: a key is found, its panel says what a newcomer waits, and its limits are overridden', async t => {
  const server = await serveDashboard(t)
  const key = 'al/ice'
  const path = '/buckets/client/al%2Fice'
  const entry = instance(key, 4, { waiting: 3, queued: 3, predictedWaitMs: 49_500 })
  const recent = [
    { at: Date.now() - 2_000, route: 'api', outcome: 'forwarded', status: 200, waitMs: 1_500, upstreamMs: 20 },
    { at: Date.now(), route: 'api', outcome: 'rejected', status: 429, waitMs: 0, reason: 'overflow', bucket: 'client' },
  ]
  const routes = {
    api: { predictedWaitMs: 49_500, assumed: ['tenant'] },
    jobs: { predictedWaitMs: 0, assumed: [], rejected: { reason: 'overflow', bucket: 'all', retryAfterMs: 200 } },
  }
  const heldBy = ['http://127.0.0.1:9000 is full, with 20 of 20 in flight']
  const state = {
    ...entry,
    heldBy,
    at: Date.now(),
    bucket: 'client',
    hash: '0123456789ab',
    inFlight: 1,
    routes,
    recent,
  }
  server.answers.set(`GET ${path}`, state)
  server.answers.set('GET /buckets?q=al', { at: 0, buckets: [{ name: 'client', fullest: [entry], hasMore: true }] })
  server.answers.set('GET /buckets?q=none', { at: 0, buckets: [] })
  const override = { bucket: 'client', key, rate: 50, until: new Date(Date.now() + 3_600_000).toISOString() }
  server.answers.set('GET /overrides', { overrides: [override] })
  server.greeting = () => [quiet(Date.now(), { buckets: [bucket({ keys: 1, fullest: [entry] })] })]
  for (const viewport of [
    { width: 1_280, height: 900 },
    { width: 320, height: 640 },
  ]) {
    const { page, faults, overhang } = await openPage(t, browser, server.url, { viewport })
    await says(page, '#status', 'Live')
    t.match(await text(page, '#keys tbody tr'), /al\/ice.*4 \/ 10.*3.*49\.5 s/s)
    t.match(await page.locator('#keys thead').textContent(), 'a newcomer waits')
    await says(page, '#overrides tbody', 'al/ice')
    t.match(await text(page, '#overrides tbody'), /client.*50\/s.*–/s)

    await page.fill('#find-text', 'none')
    await page.press('#find-text', 'Enter')
    await says(page, '#found-note', 'No key has this text or this hash.')
    await page.fill('#find-text', 'al')
    await page.getByRole('button', { name: 'Find', exact: true }).click()
    await says(page, '#found-note', 'There are more in client: write more of the key.')
    t.match(await text(page, '#found tbody'), /al\/ice.*client.*4 \/ 10.*3.*49\.5 s/s)
    t.equal(await overhang(), 0)

    await page.locator('#found tbody button').click()
    await says(page, '#key-newcomer', '49.5 s')
    t.equal(await text(page, '#key-title'), key)
    t.match(await text(page, '#key-state'), '0123456789ab in the log')
    t.match(
      await text(page, '#key-routes'),
      /api: a newcomer waits 49\.5 s; tenant taken as idle\s*jobs: a newcomer is rejected \(overflow of all, again in 200 ms\)/,
    )
    t.match(
      await text(page, '#recent tbody'),
      /rejected: overflow, 429.*forwarded, 200.*1\.5 s.*20 ms/s,
      'latest first',
    )
    const panel = (await page.locator('#key-panel').boundingBox())!
    t.ok(panel.x >= 0 && panel.x + panel.width <= viewport.width, 'it fits')
    const wide = await page.locator('#key-panel').evaluate(element => element.scrollWidth - element.clientWidth)
    t.equal(wide, 0)
    t.equal(await text(page, '#key-newcomer'), 'at least 49.5 s')
    const clipped = await page
      .locator('#key-panel dd')
      .evaluateAll(all => all.filter(each => each.scrollWidth > each.clientWidth).map(each => each.textContent))
    t.same(clipped, [])

    await page.fill('#override-rate', '50/s')
    await page.fill('#override-until', '1h')
    await page.getByRole('button', { name: 'Override', exact: true }).click()
    await says(page, '#key-note', '404: there is none')
    server.answers.set(`PUT ${path}`, override)
    server.answers.set(`GET ${path}`, { ...state, override })
    await page.fill('#override-capacity', '7.5')
    await page.getByRole('button', { name: 'Override', exact: true }).click()
    await says(page, '#override-state', 'rate 50/s')
    t.equal(await text(page, '#key-note'), '')
    await page.locator('#override-end').click()
    while (server.bodies.length < 3) await frames(page)
    t.same(server.bodies.splice(0), [
      '{"rate":"50/s","until":"1h"}',
      '{"rate":"50/s","capacity":7.5,"until":"1h"}',
      '{"until":"now"}',
    ])
    await page.locator('#key-reset').click()
    await page.locator('#reset-yes').click()
    await says(page, '#toast', '194 forgotten')
    await page.locator('#key-close').click()
    await page.locator('#keys tbody td.key button').press('Enter')
    await says(page, '#key-title', key)
    await page.keyboard.press('Escape')
    t.equal(await page.locator('#key-panel').isVisible(), false)
    t.same(
      faults.filter(fault => !fault.includes('404')),
      [],
    )
    server.answers.delete(`PUT ${path}`)
    server.answers.set(`GET ${path}`, state)
    await page.close()
  }
})

t.test('long: messages for an empty dashboard', async t => {
  const server = await serveDashboard(t)
  const { page, faults } = await openPage(t, browser, server.url)
  await server.listened
  const say = (more: Parameters<typeof quiet>[1]) => server.say(quiet(Date.now(), more))
  say({})
  await says(page, '#notice', /No traffic yet.*curl .*http:\/\/127\.0\.0\.1:8080\//s)
  await says(page, '#keys-none', 'No key holds anything')
  say({ buckets: [] })
  await says(page, '#notice', 'No buckets')
  t.equal(await page.locator('#stage').isVisible(), false)
  const busy = [
    bucket({ offered: 5, rate: 4, keys: 1, queued: 3, fullest: [instance('a', 5, { waiting: 3, blockedMs: -1 })] }),
  ]
  say({ buckets: busy, draining: true })
  await says(page, '#status', 'Shutting down')
  t.equal(await page.locator('#notice').isVisible(), false)
  say({ buckets: busy, store: { type: 'postgres', ready: false, instances: 2 } })
  await says(page, '#status', 'Something is wrong')
  t.equal(await text(page, '#troubles'), 'the store postgres does not answer; tried again all the time')
  say({ buckets: busy, upstreams: [{ url: 'http://u', inFlight: 1, pausedMs: 0 }] })
  await says(page, '#upstreams', /ready/)
  const up = { url: 'http://a', isUp: true, inFlight: 1, maxInFlight: 4, weight: 2, backup: false }
  const down = { url: 'http://b', isUp: false, inFlight: 0, weight: 1, backup: true, probeMs: 500, failure: 'refused' }
  say({ buckets: busy, upstreams: [{ url: 'http://a http://b', inFlight: 1, pausedMs: 0, servers: [up, down] }] })
  await says(
    page,
    '#upstreams',
    /2 servers.*1 of 2 servers is down.*http:\/\/a\s*1 of 4 in flight · weight 2 · up.*http:\/\/b/s,
  )
  t.match(await text(page, '#upstreams'), /http:\/\/b\s*0 in flight · backup · down: refused; tried again in 500 ms/)
  say({ buckets: busy, upstreams: [{ url: 'http://u', inFlight: 1, pausedMs: 3_200, allows: 4 }] })
  await says(page, '#troubles', 'http://u has asked for a pause; nothing is sent to it for 3.2 s more')
  t.match(await text(page, '#upstreams'), /has asked for a pause; nothing is sent to it for 3\.2 s more; allows 4\/s/)
  t.same(await page.locator('#flags li').allTextContents(), ['learned 4/s of 5/s', 'blocked until empty', '3 waiting'])
  t.ok((await pixels(page, 'bucket', ORANGE)) > 50, 'the lid and the tap')
  say({ buckets: busy, routes: [route({ mode: 'meter', dryRun: true })] })
  await says(page, '#flags', /meter: passed on at once.*dry run: nothing is held/s)
  t.match(await text(page, '#strip-gaps'), /^1\/r 200 ms$/)
  t.same(faults, [])
})

t.test('long: what is wrong is on top in red with its cause and the next try, and colours the figures', async t => {
  const server = await serveDashboard(t)
  const failure = 'the upstream refused the connection (connect ECONNREFUSED 127.0.0.1:9000)'
  const dead = { url: 'http://127.0.0.1:9000', inFlight: 0, pausedMs: 0, probeMs: 1_500, failure }
  const waiting = { waiting: 4_700, oldestMs: 258_000 }
  const fullest = [
    instance('all', 4_700, { ...waiting, rate: 50, capacity: 5_000, heldBy: ['x'], predictedWaitMs: 13_000 }),
  ]
  const held = bucket({ name: 'everyone', keys: 1, capacity: 5_000, offered: 4_700, ...waiting, fullest })
  const snapshot = () => quiet(Date.now(), { buckets: [held], upstreams: [dead], queued: 4_700, oldestMs: 258_000 })
  server.greeting = () => [snapshot()]
  for (const viewport of [
    { width: 1_280, height: 900 },
    { width: 360, height: 640 },
  ]) {
    const { page, faults, overhang } = await openPage(t, browser, server.url, { viewport })
    await says(page, '#troubles', failure)
    t.equal(await text(page, '#troubles'), topLines(withTroubles(snapshot()), undefined)[0], 'as top has it')
    t.match(await text(page, '#troubles'), /; tried again in 1\.5 s$/)
    const { y, height } = (await page.locator('#troubles').boundingBox())!
    t.ok(y + height < viewport.height / 2, `it ends at ${y + height}`)
    const colours = await page.evaluate<string[]>(`(() => {
      const of = (id, what) => getComputedStyle(document.getElementById(id))[what]
      return [of('troubles', 'backgroundColor'), ...['status', 'queued', 'oldest', 'focus-out'].map(id => of(id, 'color'))]
    })()`)
    t.same(new Set(colours), new Set(['rgb(179, 38, 30)']))
    t.equal(await text(page, '#status'), 'Something is wrong')
    t.equal(await text(page, '#oldest'), 'the oldest for 4.3 min')
    t.match(await text(page, '#keys tbody tr'), /4\.7k.*4\.3 min.*at least 13 s/s)
    const clipped = await page
      .locator('#keys td')
      .evaluateAll(all => all.filter(each => each.scrollWidth > each.clientWidth).map(each => each.textContent))
    t.same(clipped, [])
    t.match(await text(page, '#flags'), '4.7k waiting, the oldest for 4.3 min')
    t.match(await text(page, '#upstreams'), /fails: .*; tried again in 1\.5 s/)
    t.equal(await overhang(), 0)
    t.same(faults, [])
  }
  const last = snapshot()
  server.greeting = () => [last]
  const { page } = await openPage(t, browser, server.url)
  await says(page, '#troubles', failure)
  server.say(quiet(last.at + 1_000, { buckets: [held], queued: 1 }))
  await says(page, '#queued', /^1$/)
  t.ok(await page.locator('#troubles').isVisible(), 'it stays for a moment, as it may come again')
  server.say(quiet(last.at + 4_000, { buckets: [held] }))
  await says(page, '#status', 'Live')
  t.notOk(await page.locator('#troubles').isVisible())
})

t.test('long: a bucket that holds any amount, as the adaptive one, says how much it holds', async t => {
  const server = await serveDashboard(t)
  const { page, faults, overhang } = await openPage(t, browser, server.url)
  await server.listened
  const held = instance('all', 1_234.5, { rate: 80, capacity: null, waiting: 1_234 })
  const adaptive = bucket({
    name: 'adaptive',
    key: 'all',
    rate: 80,
    configured: 200,
    capacity: null,
    keys: 1,
    offered: 9,
  })
  server.say(quiet(Date.now(), { buckets: [{ ...adaptive, waiting: 1_234, queued: 1_234, fullest: [held] }] }))
  await says(page, '#chooser', /adaptive\s*1\.2k/)
  await says(page, '#bucket-law', '80/s, holds any amount')
  t.same(await page.locator('#flags li').allTextContents(), ['adapted to 80/s of 200/s', '1.2k waiting'])
  t.match(await text(page, '#keys'), /all\s+1\.2k\s/)
  t.match(await text(page, '#summary'), /; all holds 1\.2k\.$/)
  t.notMatch(await text(page, '#live'), /%|null|NaN|Infinity/)
  t.equal(await overhang(), 0)
  t.same(faults, [])
})

t.test('long: a bucket is chosen with the keyboard, and stays chosen', async t => {
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

t.test('long: text has enough contrast, light and dark (WCAG 2.2, 1.4.3)', async t => {
  const server = await serveDashboard(t)
  for (const colorScheme of ['light', 'dark'] as const) {
    const { page } = await openPage(t, browser, server.url, { colorScheme })
    const colours = await page.evaluate<Record<string, string>>(`(() => {
      const names = ['page', 'card', 'glass', 'ink', 'muted', 'released', 'good', 'warn', 'bad', 'on-main']
      const { style } = document.body
      return Object.fromEntries(names.map(name => {
        style.setProperty('color', 'var(--' + name + ')')
        return [name, getComputedStyle(document.body).color]
      }))
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

/** Of two colours like rgb(28, 99, 196): 1 to 21. */
function contrast(a: string, b: string): number {
  const light = (colour: string): number => {
    const [red, green, blue] = colour.match(/\d+/g)!.map(number => {
      const part = Number(number) / 255
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!
  }
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y)
  return (high! + 0.05) / (low! + 0.05)
}

t.test('deliveries: how many wait, and dead letters are sent again or deleted', async t => {
  const server = await serveDashboard(t)
  const dead = { id: 'A'.repeat(22), route: 'hooks', state: 'dead', attempts: 8 }
  server.answers.set('GET /deliveries?state=dead&counts', {
    counts: [
      { route: 'hooks', state: 'waiting', count: 1_200, age: 90_000 },
      { route: 'hooks', state: 'dead', count: 1, age: 5_000 },
    ],
    deliveries: [{ ...dead, error: { title: 'failed', detail: 'the upstream answered 500' } }],
  })
  server.answers.set(`POST /deliveries/${dead.id}/retry`, { id: dead.id })
  server.greeting = () => [quiet(Date.now(), { routes: [route({ name: 'hooks', delivers: true })] })]
  const { page, faults } = await openPage(t, browser, server.url)
  await says(page, '#deliveries-count', '1.2k waiting, 1 dead')
  t.match(await text(page, '#deliveries tbody'), /hooks.*1\.2k.*1\.5 min.*1/s)
  t.match(await text(page, '#dead tbody'), /A{22}.*hooks.*8.*the upstream answered 500/s)
  await page.getByRole('button', { name: `Retry ${dead.id}` }).click()
  await says(page, '#toast', `${dead.id} is sent again`)
  await page.getByRole('button', { name: `Delete ${dead.id}` }).click()
  t.ok(server.asked.includes(`POST /deliveries/${dead.id}/retry`))
  await says(page, '#toast', `${dead.id} is deleted`)
  t.ok(server.asked.includes(`DELETE /deliveries/${dead.id}`))
  t.same(faults, [])
})

t.test('without such a route there is no card of deliveries, and nobody asks', async t => {
  const server = await serveDashboard(t)
  server.greeting = () => [quiet(Date.now())]
  const { page } = await openPage(t, browser, server.url)
  await says(page, '#status', 'Live')
  t.equal(await page.locator('#deliveries-card').isVisible(), false)
  t.notOk(server.asked.some(line => line.includes('deliveries')))
})
