/** Waiting pages in a real browser. */
import type { BrowserContextOptions } from 'playwright-core'
import t from 'tap'
import { frames, openBrowser, openPage, says, text } from '../admin/browser.js'
import { askOnce, connect, get, httpUpstream, startRig, TLS } from './harness.js'

const browser = await openBrowser()
t.teardown(() => browser.close())

const PAGE = '<!doctype html><link rel="icon" href="data:,"><title>There</title><h1 id="there">You are there</h1>'

/** One in two seconds, five at most, for everyone. Real time: a browser has no other, and it may take a second to ask. */
async function start(t: Parameters<typeof startRig>[0], config: object = {}, capacity = 5) {
  const upstream = await httpUpstream(t, (_req, res) => res.setHeader('Content-Type', 'text/html').end(PAGE))
  const rig = await startRig(
    t,
    {
      ...{ upstream: upstream.url, trustProxy: ['127.0.0.1'] },
      buckets: { all: { key: 'all', rate: '30/m', capacity } },
      routes: [{ name: 'all', mode: 'meter' }],
      ...config,
    },
    { realPacer: true },
  )
  return { rig, upstream }
}

/** Others fill the bucket. */
async function fill(t: Parameters<typeof startRig>[0], rig: { port: number }, count = 5): Promise<void> {
  for (let number = 0; number < count; number += 1) await askOnce(t, rig, get('/first', 'X-Forwarded-For: 192.0.2.1'))
}

/** Opens a page that is answered 429 at first. @param full fills the bucket; what takes long has been done by then */
async function open(
  t: Parameters<typeof startRig>[0],
  url: string,
  full: () => Promise<void>,
  options: BrowserContextOptions = {},
) {
  const opened = await openPage(t, browser, url, { ...options, beforeLoad: full })
  // The browser tells of the 429.
  const faults = (): string[] => opened.faults.filter(fault => !/the server responded with a status of 429/.test(fault))
  return { ...opened, faults }
}

t.test('a browser that waits in the page arrives by itself', async t => {
  const { rig } = await start(t)
  const { page, faults } = await open(t, `${rig.proxy.url}/there?a=1`, () => fill(t, rig))
  t.equal(await page.title(), 'Please wait')
  await says(page, '#there', 'You are there')
  t.equal(page.url(), `${rig.proxy.url}/there?a=1`)
  t.same(faults(), [])
  t.same(rig.outcomes.slice(5), ['all rejected 429', 'all forwarded 200'])
})

t.test('who has used up the quota of a month is told the day and the time', async t => {
  const upstream = await httpUpstream(t)
  const begun = Date.now()
  const wallNow = () => Date.parse('2026-11-12T10:00:00Z') + Date.now() - begun
  const buckets = { calls: { key: 'all', quota: { limit: 1, per: 'month' } } }
  const rig = await startRig(t, { upstream: upstream.url, buckets }, { realPacer: true, wallNow })
  const full = async (): Promise<void> => void (await askOnce(t, rig, get('/first')))
  const { page, faults } = await open(t, `${rig.proxy.url}/there`, full, { locale: 'en-GB' })
  // 18.6 days from now, whenever that is.
  await says(page, '[data-shaper="wait"]', /^\d{1,2} [A-Z][a-z]+ at \d\d:\d\d$/)
  t.same(faults(), [])
})

t.test('with appointments its address stands for the ticket: newcomers do not take its room', async t => {
  const { rig } = await start(t, { routes: [{ name: 'all', mode: 'meter', appointments: true }] }, 10)
  const { page, faults } = await open(t, `${rig.proxy.url}/there`, () => fill(t, rig, 10))
  let arrived = false
  const there = says(page, '#there', 'You are there').then(() => (arrived = true))
  // Somebody asks all the time.
  while (!arrived) await askOnce(t, rig, get('/more', 'X-Forwarded-For: 192.0.2.2'))
  await there
  t.same(faults(), [])
  t.equal(rig.outcomes.filter(outcome => outcome === 'all forwarded 200').length >= 11, true)
})

t.test('over TLS the page and its stream share a connection of HTTP/2', async t => {
  const { rig } = await start(t, TLS)
  const others = await connect(t, rig, { tls: true })
  const full = async (): Promise<void> => {
    for (let number = 0; number < 5; number += 1) await others.ask(get('/first'))
  }
  const { page, faults } = await open(t, `${rig.proxy.url}/there`, full, { ignoreHTTPSErrors: true })
  t.equal(await page.title(), 'Please wait')
  await says(page, '#there', 'You are there')
  const protocol = await page.evaluate(`performance.getEntriesByType('navigation')[0].nextHopProtocol`)
  t.equal(protocol, 'h2')
  t.same(faults(), [])
})

t.test('without scripts the browser asks again by itself', async t => {
  const { rig } = await start(t)
  const { page } = await open(t, `${rig.proxy.url}/there`, () => fill(t, rig), { javaScriptEnabled: false })
  t.match(await text(page, 'main'), /^You are in line\s+\d s\s+Your place: 1\s/)
  t.notOk(await page.locator('progress').isVisible())
  await says(page, '#there', 'You are there')
})

t.test('without its stream the page counts down by itself', async t => {
  const { rig } = await start(t)
  const context = await browser.newContext()
  t.teardown(() => context.close())
  const page = await context.newPage()
  await page.route('**/.well-known/shaper/*', route => route.abort())
  await fill(t, rig)
  await page.goto(`${rig.proxy.url}/there`)
  await says(page, '#there', 'You are there')
  t.same(rig.outcomes.slice(5), ['all rejected 429', 'all forwarded 200'])
})

t.test('the page is told of changes while it waits', async t => {
  const { rig } = await start(t, { buckets: { all: { key: 'ip', rate: '1/m', capacity: 20 } } })
  const full = async (): Promise<void> => {
    for (let number = 0; number < 20; number += 1) await askOnce(t, rig, get('/first'))
  }
  const { page, faults } = await open(t, `${rig.proxy.url}/there#part`, full)
  await says(page, '[data-shaper="wait"]', /^(60|5\d) s$/)
  t.equal(await text(page, '[data-shaper="position"]'), '1')
  t.equal(rig.proxy.context.pageStreams.size, 1)
  const { bucketTable, shaper } = rig.proxy.context
  shaper.engine.reset(bucketTable.peek('all', '127.0.0.1')!)
  await says(page, '#there', 'You are there')
  t.equal(page.url(), `${rig.proxy.url}/there#part`)
  t.same(faults(), [])
})

t.test('a template of the site: its styles and scripts run, others do not', async t => {
  const folder = t.testdir({
    'wait.html': `<!doctype html><html lang="de"><head><title>Bitte warten</title><link rel="icon" href="data:,">
<style>h1 { color: rgb(1, 2, 3) }</style>{{script}}</head>
<body><h1 style="margin: 7px">Gleich, in {{ wait }}</h1><p>Platz {{position}}</p><p data-shaper="status" data-turn="Jetzt!"></p>
<script>document.body.dataset.ran = 'yes'</script><b onclick="document.body.dataset.ran = 'no'">x</b></body></html>`,
  })
  const { rig } = await start(t, { waitingPage: { template: `${folder}/wait.html` } })
  const { page, faults } = await open(t, `${rig.proxy.url}/there`, () => fill(t, rig))
  t.match(await text(page, 'h1'), /^Gleich, in [12] s$/)
  t.equal(await page.evaluate(`getComputedStyle(document.querySelector('h1')).color`), 'rgb(1, 2, 3)')
  t.equal(await page.evaluate(`getComputedStyle(document.querySelector('h1')).marginTop`), '7px')
  t.equal(await page.evaluate(`document.body.dataset.ran`), 'yes')
  t.same(
    faults().filter(fault => !/script-src-attr|inline event handler/.test(fault)),
    [],
  )
  await says(page, '#there', 'You are there')
})

t.test('the page on screens of each size, in both schemes', async t => {
  const { rig } = await start(t, { buckets: { all: { key: 'all', rate: '1/m', capacity: 20 } } })
  await fill(t, rig, 20)
  for (const colorScheme of ['light', 'dark'] as const) {
    for (const [width, height] of [
      [1_280, 800],
      [320, 640],
    ] as const) {
      const viewport = { width, height }
      const { page, faults, overhang } = await open(t, `${rig.proxy.url}/there`, async () => {}, {
        colorScheme,
        viewport,
      })
      await frames(page)
      t.equal(await overhang(), 0)
      t.ok(await page.locator('progress').isVisible())
      t.same(faults(), [])
    }
  }
})
