/** `deliver` of a route: its defaults, what it does not go with, and no password is shown. */
import t from 'tap'
import { effective } from '../../src/config/report/effective-config.js'
import { faults, parse } from './sample.js'

const URL = 'postgres://me:hidden@127.0.0.1/shaper'
const file = (deliver: unknown, route: object = {}, more: object = {}) => ({
  upstream: 'echo:',
  buckets: { client: { rate: '5/s' } },
  routes: [{ name: 'hooks', deliver, ...route }],
  ...more,
})

t.test('its defaults', async t => {
  t.same(parse(file({ url: URL })).routes[0]!.deliver, {
    url: URL,
    attempts: 8,
    backoff: 1_000,
    maxBackoff: 3_600_000,
    maxWaiting: 1_000_000,
    keep: 7 * 86_400_000,
    maxBody: 1_048_576,
    when: 'always',
    ordered: false,
  })
  t.equal(parse(file(undefined)).routes[0]!.deliver, undefined)
})

t.test('the effective configuration has no password', async t => {
  const text = JSON.stringify(effective(parse(file({ url: URL, keep: '30d' }))))
  t.match(text, 'postgres://me:***@127.0.0.1/shaper')
  t.match(text, '"keep":"30d"')
  t.notMatch(text, 'hidden')
})

t.test('each fault has its path and a remedy', async t => {
  const one = (deliver: unknown, expected: RegExp, route: object = {}) =>
    t.match(faults(file(deliver, route)), [expected], String(expected))
  one({}, /^routes\[0\]\.deliver\.url: missing; use e\.g\. "postgres:/)
  one({ url: 'http://x' }, /^routes\[0\]\.deliver\.url: .*use e\.g\. "postgres:/)
  one('postgres://x/y', /^routes\[0\]\.deliver: .*use e\.g\. \{ "url"/)
  one({ url: URL, attempts: 0 }, /^routes\[0\]\.deliver\.attempts: 0 .*from 1 to 1000/)
  one({ url: URL, backoff: '0s' }, /^routes\[0\]\.deliver\.backoff: /)
  one({ url: URL, maxBody: -1 }, /^routes\[0\]\.deliver\.maxBody: -1 .*use e\.g\. 1048576/)
  one({ url: URL, maxWaiting: 0 }, /^routes\[0\]\.deliver\.maxWaiting: 0 .*use a whole number from 1/)
  one({ url: URL, when: 'never' }, /^routes\[0\]\.deliver\.when: .*"always" or "asked"/)
  one({ url: URL, ordered: 'yes' }, /^routes\[0\]\.deliver\.ordered: .*true or false/)
  one({ url: URL, retries: 3 }, /^routes\[0\]\.deliver\.retries: unknown key/)
})

t.test('it needs requests that can wait, and an upstream', async t => {
  const deliver = { url: URL }
  t.match(faults(file(deliver, { match: { method: ['GET', 'HEAD'] } })), [
    /^routes\[0\]\.deliver: GET, HEAD: answered at once, so never stored.*match e\.g\. "method": "POST"/,
  ])
  t.match(faults(file(deliver, { match: { method: ['GET', 'POST'] } })), [/deliver: GET: answered at once/])
  t.same(faults(file(deliver, { match: { method: ['PUT', 'POST'] } })), [])
  t.match(faults(file(deliver, { dryRun: true })), [/^routes\[0\]\.deliver: a dry run/])
  t.match(faults(file(deliver, { mode: 'off', refuse: true })), [/^routes\[0\]\.deliver: the route has "refuse"/])
  t.match(faults(file(deliver, { upstream: 'gate:' }, { trustProxy: ['loopback'] })), [
    /^routes\[0\]\.deliver: the upstream "gate:" forwards nothing/,
  ])
})
