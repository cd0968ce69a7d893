import t from 'tap'
import { longestWaitOf, longestWaits } from '../../src/config/report/longest-waits.js'
import { exampleConfig, parse } from './sample.js'

t.test('the longest wait of each bucket', async t => {
  t.strictSame(longestWaits(parse(exampleConfig())), [
    { name: 'client', rate: '5/s', capacity: 10, longestWaitMs: 1_800, tiers: [] },
    { name: 'everyone', rate: '100/s', capacity: 200, longestWaitMs: 1_990, tiers: [] },
    { name: 'login', rate: '12/m', capacity: 6, longestWaitMs: 0, tiers: [] },
  ])
  const waits = (routes: object[]) =>
    longestWaits(parse({ upstream: 'echo:', buckets: { a: { rate: '1/s', capacity: 10 } }, routes })).map(
      each => each.longestWaitMs,
    )
  t.strictSame(waits([{ cost: 4 }, { cost: 2 }]), [8_000], 'the smallest cost waits longest')
  t.strictSame(waits([{ cost: { GET: 0.5, default: 3 } }]), [9_500])
  t.strictSame(waits([{ cost: { header: 'x', max: 9, default: 6 } }]), [4_000])
  t.strictSame(waits([{ cost: 10 }]), [0])
  t.strictSame(waits([{ cost: 2 }, { mode: 'meter', cost: 1 }]), [8_000], 'only mode shape holds requests')
  t.strictSame(waits([{ mode: 'off' }]), [0])
})

t.test('a burst shortens the longest wait', async t => {
  const buckets = {
    a: { rate: '1/s', capacity: 10, burst: 4, tiers: [{ name: 'big', keys: ['a'], burst: 9 }] },
    b: { rate: '2/s', burst: 40 },
  }
  const found = longestWaits(parse({ upstream: 'echo:', buckets, routes: [{ cost: 1 }, { cost: 6 }] }))
  const of = { rate: '1/s', capacity: 10 }
  t.strictSame(found, [
    {
      ...{ name: 'a', ...of, burst: 4, longestWaitMs: 6_000 },
      tiers: [{ name: 'big', ...of, burst: 9, longestWaitMs: 1_000 }],
    },
    { name: 'b', rate: '2/s', capacity: 40, burst: 40, longestWaitMs: 0, tiers: [] },
  ])
  const costly = longestWaits(parse({ upstream: 'echo:', buckets, routes: [{ cost: 6 }] }))
  t.equal(costly[0]!.longestWaitMs, 4_000, 'a cost above the burst')
})

t.test('the longest wait of each tier and route', async t => {
  const tiers = [{ name: 'slow', keys: ['a'], rate: '1/s' }]
  const settings = parse({
    upstream: 'echo:',
    buckets: { a: { rate: '5/s', capacity: 10, tiers }, b: { rate: '1/s', capacity: 3 } },
    routes: [{ buckets: ['a', 'b'] }, { buckets: ['b'] }, { buckets: ['a'], mode: 'meter' }, { mode: 'off' }],
  })
  t.strictSame(longestWaits(settings)[0]?.tiers, [{ name: 'slow', rate: '1/s', capacity: 10, longestWaitMs: 9_000 }])
  t.strictSame(
    settings.routes.map(route => longestWaitOf(route)),
    [9_000, 2_000, 0, 0],
  )
})
