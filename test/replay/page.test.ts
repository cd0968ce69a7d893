/** The page in a real browser. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t from 'tap'
import { parseTarget } from '../../src/replay/plan/target.js'
import { replay } from '../../src/replay/replay.js'
import { type ReplayReport, replayPage } from '../../src/replay/report/report.js'
import { openBrowser, openPage, text } from '../admin/browser.js'
import { bytes, FIXTURE, planOf } from './logs.js'

const browser = await openBrowser()
t.teardown(() => browser.close())

type Tap = Pick<typeof t, 'testdir' | 'teardown'>

async function show(t: Tap, report: ReplayReport, options = {}) {
  const file = join(t.testdir({}), 'report.html')
  writeFileSync(file, replayPage(report))
  return openPage(t, browser, pathToFileURL(file).href, options)
}

const target = parseTarget('reject<=0.1%,p99<=2s')
const report = await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5' }, { target }))

t.test('a full report, at all screen sizes and in both schemes', async t => {
  for (const colorScheme of ['light', 'dark'] as const) {
    const { page, faults, overhang } = await show(t, report, { colorScheme })
    t.match(await text(page, '#limits'), /1\/s\s+with a capacity of\s+5\s+for each\s+ip/)
    t.match(
      await text(page, '#traffic'),
      /^10,000 requests of 1,753 clients, 2015-05-17 10:05:00 to 2015-05-20 21:05:59 UTC/,
    )
    const tiles = await text(page, '#tiles')
    for (const figure of [report.atOnce, report.delayed, report.rejected])
      t.ok(tiles.includes(figure.toLocaleString('en')))
    t.match(await text(page, '#recommended pre'), report.sweep!.recommended!.config)
    t.equal(await page.locator('#sweep-rejected tbody tr').count(), 8)
    t.equal(await page.locator('#sweep-rejected td').count(), report.sweep!.points.length)
    const [firstPoint] = report.sweep!.points
    const percent = (100 * firstPoint!.rejected) / firstPoint!.requests
    t.match(await text(page, '#sweep-rejected td >> nth=0'), `${Number(percent.toPrecision(3))} %`)
    t.equal(await page.locator('#waits rect').count(), report.waits.length)
    t.equal(await page.locator('#clients tbody tr').count(), 20)
    t.match(await text(page, '#clients tbody tr >> nth=0'), report.clients.hardest[0]!.client)
    t.match(await text(page, '#agents'), /browser[\s\S]*bot/)
    t.match(await text(page, '#rule'), /seed 1/)
    t.equal(await page.locator('#remarks').isVisible(), false)
    for (const width of [1_280, 390]) {
      await page.setViewportSize({ width, height: 900 })
      t.equal(await overhang(), 0, `${width} ${colorScheme}`)
    }
    t.same(faults, [])
  }
})

t.test('the tooltip tells the values below the pointer', async t => {
  const { page, faults } = await show(t, report)
  await page.hover('#sweep-rejected td >> nth=9')
  t.match(await text(page, '#tip'), /^\S+\/s, capacity \d+\n[\d.]+ % rejected, [\d.]+ % delayed\nwait p50/)
  await page.locator('#series svg').scrollIntoViewIfNeeded()
  const box = (await page.locator('#series svg').boundingBox())!
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2)
  t.match(await text(page, '#tip'), /^2015-05-19 \d\d:\d\d:\d\d\n.*came.*\n.*released.*\n.*rejected$/)
  await page.hover('#waits rect >> nth=-1')
  t.match(await text(page, '#tip'), /requests, [\d.]+ % of those delayed/)
  await page.mouse.move(2, 2)
  t.equal(await page.locator('#tip').isVisible(), false)
  t.same(faults, [])
})

t.test('arrivals and releases are drawn to scale', async t => {
  const burst = Array.from({ length: 20 }, () => '{"ts":1431857103.5,"ip":"192.0.2.1","method":"GET","path":"/"}').join(
    '\n',
  )
  const one = await replay(planOf(bytes(burst), { rate: '2/s', capacity: '10' }))
  t.same(one.series.arrivals, [20, 0, 0, 0, 0, 0])
  t.same(one.series.releases, [1, 2, 2, 2, 2, 1])
  t.equal(
    one.series.releases.reduce((sum, count) => sum + count, 0),
    10,
  )
  const { page } = await show(t, one)
  const heights = async (selector: string): Promise<number[]> => {
    const points = (await page.locator(selector).getAttribute('points'))!
    return points
      .split(/[ ,]/)
      .map(Number)
      .filter((_, at) => at % 2 === 1)
  }
  const arrivals = await heights('#series .area-arrivals')
  const base = Math.max(...arrivals)
  const releases = await heights('#series .line-releases')
  const ratio = (base - Math.min(...arrivals)) / (base - Math.min(...releases))
  t.ok(Math.abs(ratio - 20 / Math.max(...one.series.releases)) < 0.01, `ratio ${ratio}`)
})

t.test('no text from clients becomes markup', async t => {
  const evil = '</script><script>document.title="pwned"</script><img/src=x/onerror=alert(1)>'
  const line = (ip: string) => JSON.stringify({ ts: 1_431_857_103, ip, method: 'GET', path: '/', agent: evil })
  const log = [...Array.from({ length: 9 }, () => line(evil)), `${evil}\u001b[2J`].join('\n')
  const hostile = await replay(planOf(bytes(log), { rate: '1/s', capacity: '2' }))
  t.equal(hostile.rejected > 0, true)
  const { page, faults } = await show(t, hostile)
  t.equal(await page.title(), 'shaper replay')
  t.match(await text(page, '#clients tbody tr >> nth=0'), '</script>')
  t.match(await text(page, '#remarks'), /line 10: <\/script>/)
  t.equal(await page.locator('img').count(), 0)
  t.same(faults, [])
})

t.test('an empty report', async t => {
  const { page, faults } = await show(t, await replay(planOf(bytes(''), { rate: '1/s', capacity: '2' })))
  t.match(await text(page, '#tiles'), /^0\s+requests/)
  t.match(await text(page, '#waits'), /No request would have waited/)
  t.same(faults, [])
})

t.test('the page loads nothing and runs nothing else', async t => {
  const html = replayPage(report)
  t.equal(html.match(/<script type="module">/g)?.length, 1)
  t.match(html, /default-src 'none'; script-src 'sha256-/)
  t.notMatch(
    html.replace(/<script type="application\/json"[\s\S]*?<\/script>/, ''),
    /(src|href)=|innerHTML|^import |^export /m,
  )
})
