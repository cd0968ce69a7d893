/** The dashboard, top, metrics and the state agree with each other and with the upstream. */
import t, { type Test } from 'tap'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { topLines } from '../../src/cli/commands/top.js'
import { httpUpstream, turns } from '../proxy/harness.js'
import { openBrowser, openPage, text } from './browser.js'
import { type AdminRig, startAdminRig } from './rig.js'

/** Counts the outcomes of all routes, and checks that the metrics have the same counts. */
async function countOutcomes(t: Test, rig: AdminRig, snapshot: Snapshot) {
  const counted = { forwarded: 0, rejected: 0, cancelled: 0, expired: 0, failed: 0, refused: 0 }
  for (const { name, outcomes } of snapshot.routes) {
    for (const outcome of Object.keys(counted) as (keyof typeof counted)[]) {
      counted[outcome] += outcomes[outcome]
      const metric = await rig.metric(`shaper_requests_total{route="${name || '(none)'}",outcome="${outcome}"}`)
      t.equal(metric, outcomes[outcome], `${name} ${outcome}`)
    }
  }
  return counted
}

function checkRoutes(t: Test, shown: string, { routes }: Snapshot): void {
  for (const { name, outcomes } of routes) {
    if (name !== '') t.match(shown, new RegExp(`\\b${name}\\b`))
    for (const count of Object.values(outcomes)) if (count > 0) t.match(shown, new RegExp(`\\b${count}\\b`))
  }
}

t.test('after mixed traffic all views agree', async t => {
  let broken = 0
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.url === '/broken') {
      broken += 1
      req.socket.destroy()
    } else res.end('ok')
  })
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: {
      user: { key: 'header:x-user', rate: '10/s', capacity: 5 },
      all: { key: 'all', rate: '100/s', capacity: 50 },
    },
    routes: [
      { name: 'off', match: { path: '/off' }, mode: 'off' },
      { name: 'meter', match: { path: '/meter' }, mode: 'meter', buckets: ['user'] },
      { name: 'api' },
    ],
  })
  const { proxy, pacer } = rig
  const statuses: Record<string, number> = {}
  const ask = async (path: string, user: string, init: RequestInit = {}): Promise<void> => {
    const status = await fetch(proxy.url + path, { ...init, headers: { 'x-user': user } }).then(
      res => String(res.status),
      () => 'gone',
    )
    statuses[status] = (statuses[status] ?? 0) + 1
  }
  const abort = new AbortController()
  const asked = [
    ...Array.from({ length: 30 }, (_, id) => ask('/api', `u${id % 4}`)),
    ...Array.from({ length: 8 }, () => ask('/meter', 'm')),
    ...Array.from({ length: 3 }, () => ask('/off', 'x')),
    ask('/broken', 'b'),
    ask('/nowhere/../*', 'n'),
  ]
  while ((await rig.snapshot()).buckets[0]!.offered < 40) await turns()
  const before = (await rig.snapshot()).queued
  const leaving = [ask('/api', 'l', { signal: abort.signal }), ask('/api', 'l', { signal: abort.signal })]
  while ((await rig.snapshot()).queued < before + 2) await turns()
  abort.abort()
  await Promise.all(leaving)
  let isOver = false
  const all = Promise.all(asked).then(() => {
    isOver = true
  })
  for (let time = 0; !isOver; time += 50) {
    pacer.runUntil(time)
    await turns(4)
  }
  await all
  while ((await rig.snapshot()).inFlight > 0) await turns()

  const snapshot = await rig.snapshot()
  const counted = await countOutcomes(t, rig, snapshot)
  t.equal(
    Object.values(counted).reduce((sum, count) => sum + count),
    45,
    'each request has one outcome',
  )
  t.equal(counted.forwarded, statuses[200])
  t.equal(counted.rejected, statuses[429])
  t.equal(counted.failed, statuses[502])
  t.ok(counted.rejected >= 13 && counted.cancelled === 2, JSON.stringify(counted))
  // A GET whose connection broke before an answer was tried once more.
  t.ok(
    upstream.requests.length - counted.forwarded - broken <= counted.cancelled,
    'the upstream saw what was forwarded',
  )
  t.same([snapshot.queued, snapshot.inFlight], [0, 0])
  t.equal(await rig.metric(`shaper_upstream_in_flight{upstream="${upstream.url}",server="${upstream.url}"}`), 0)

  const table = topLines(snapshot, undefined)
  t.match(table[0], /^0 queued; 0 in flight/)
  for (const { name, keys } of snapshot.buckets) {
    t.equal(await rig.metric(`shaper_keys{bucket="${name}"}`), keys)
    t.ok(table.some(line => new RegExp(`^${name} +\\S+/s +${keys} `).test(line)))
  }

  const browser = await openBrowser()
  t.teardown(() => browser.close())
  const { page, faults } = await openPage(t, browser, rig.admin.url)
  await page.waitForSelector('#routes li')
  checkRoutes(t, await text(page, '#routes'), snapshot)
  t.equal(await text(page, '#queued'), '0')
  t.equal(await text(page, '#in-flight'), '0')
  t.same(faults, [])
})
