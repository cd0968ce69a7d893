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
