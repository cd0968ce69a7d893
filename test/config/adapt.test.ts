/** `upstream.adapt`: its values, its defaults, and what does not go together with it. */
import t from 'tap'
import { effective } from '../../src/config/report/effective-config.js'
import { faults, parse } from './sample.js'

const URL = 'http://127.0.0.1:9000'
const file = (adapt: unknown, more: object = {}) => ({ upstream: { url: URL, adapt }, ...more })

t.test('defaults are filled in, and no bucket is needed', async t => {
  const { adapt } = parse(file({ min: '5/s', max: '200/s', latency: { p90: '800ms' } })).routes[0]!.upstream
  t.same(adapt, { min: 0.005, max: 0.2, start: 0.005, latency: { part: 0.9, ms: 800 }, errors: 0.02 })
})

t.test('the effective configuration is in the words of the file', async t => {
  const adapt = { min: '5/s', max: '200/s', start: '10/s', latency: { p99: '2s' }, errors: 0.1 }
  const shown = effective(parse(file(adapt))) as { upstream: { adapt: unknown } }
  t.same(shown.upstream.adapt, adapt)
})

t.test('values that make no sense', async t => {
  const most = { min: '5/s', max: '200/s' }
  t.match(faults(file({ min: '5/s', max: '1/s' })), [/upstream\.adapt\.max: it is below "min"/])
  t.match(faults(file({ ...most, start: '1/s' })), [/upstream\.adapt\.start: it is not between/])
  t.match(faults(file({ ...most, errors: 1 })), [/upstream\.adapt\.errors: .*below 1/])
  t.match(faults(file({ ...most, latency: {} })), [/upstream\.adapt\.latency: it names no percentile/])
  t.match(faults(file({ ...most, latency: { p50: '1s', p90: '2s' } })), [/only one percentile counts/])
})

t.test('what does not go together', async t => {
  const adapt = { min: '5/s', max: '200/s' }
  t.match(faults({ upstream: 'echo:', buckets: { adaptive: { rate: 1 } } }), [/buckets\.adaptive: .*use another name/])
  const store = { type: 'redis', url: 'redis://127.0.0.1' }
  t.same(faults(file(adapt, { store })), [], 'instances share the rate')
  const other = { upstream: { url: URL, adapt: { ...adapt, min: '6/s' } } }
  t.match(faults(file(adapt, { routes: [other] })), [
    /routes\[0\]\.upstream\.adapt: .*other targets at upstream\.adapt/,
  ])
})
