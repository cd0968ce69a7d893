import t from 'tap'
import { withEgressRoutes } from '../../src/config/derived/egress-routes.js'
import { effective } from '../../src/config/report/effective-config.js'
import { warnings } from '../../src/config/warnings/index.js'
import { faults, least, parse } from './sample.js'

const EGRESS = { flags: { egress: true } }
const { upstream: _upstream, ...limits } = least()
const file = (egress: unknown, more: object = {}) => ({ ...limits, ...more, egress })

t.test('what is allowed: hosts with a port, in one spelling', async t => {
  const allow = ['API.example.com:443', 'api.example.com.:443', '[::FFFF:127.0.0.1]:80', '[2001:db8:0::1]:8080']
  t.same(parse(file({ allow }), EGRESS).egress, {
    allow: ['api.example.com:443', '127.0.0.1:80', '[2001:db8::1]:8080'],
  })
  t.same(parse(file({}), EGRESS).egress, { allow: [] }, 'nothing by default')
})

t.test('what cannot be allowed says why', async t => {
  const cases: [entry: unknown, message: RegExp][] = [
    ['api.example.com', /"api.example.com" has no port; write e.g. "api.example.com:443"/],
    ['https://api.example.com', /is a URL; write "api.example.com:443"/],
    ['http://api.example.com:81/', /is a URL; write "api.example.com:81"/],
    ['https://api.example.com/v1', /is not a host and a port/],
    ['https://user:secret@api.example.com', /"https:\/\/\*\*\*@api/],
    ['*.example.com:443', /is not a host and a port/],
    ['127.1:80', /is not a host and a port/],
    ['api.example.com:0', /is not a host and a port/],
    [443, /is not a host and a port/],
  ]
  for (const [entry, message] of cases) {
    const found = faults(file({ allow: [entry] }), EGRESS)
    t.equal(found.length, 1, String(entry))
    t.match(found[0], /^egress\.allow\[0\]: /)
    t.match(found[0], message)
  }
})

t.test('a token is needed where other machines can reach it, and is never shown', async t => {
  const open = { listen: '0.0.0.0:8080' }
  const [fault, ...others] = faults(file({ allow: [] }, open), EGRESS)
  t.match(fault, /^egress\.token: other machines can reach "0\.0\.0\.0:8080", so a token is needed/)
  t.same(others, [])
  const settings = parse(file({ token: 's3cret-of-16-and-more' }, open), EGRESS)
  t.equal(settings.egress?.token, 's3cret-of-16-and-more')
  t.notMatch(JSON.stringify(effective(settings)), /s3cret/)
  t.match(faults(file({ token: 'two words' }), EGRESS)[0], /^egress\.token: not a token/)
  t.notMatch(faults(file({ token: 'two words' }), EGRESS).join(), /two/)
})

t.test('the flag and the file belong together', async t => {
  t.match(faults(limits, EGRESS), [/^--egress: the file does not say where requests may go/])
  t.match(faults(file({})), [/^upstream: missing; give --egress/])
  t.match(faults(file({}), { flags: { egress: true, upstream: 'http://127.0.0.1:1' } }), [/^--upstream: no effect/])
  t.equal(parse({ ...least(), egress: { allow: ['a:1'] } }).egress, undefined)
  t.equal(parse({ ...least(), egress: { allow: ['a:1'] } }, EGRESS).routes[0]?.upstream.url, 'egress:')
})

t.test('the options of an upstream hold for all origins; its names are their own', async t => {
  const upstream = { learn: true, maxInFlight: 7, pauseOn: { status: [429] } }
  const settings = parse(file({ allow: ['a.test:443'], upstream }), EGRESS)
  t.match(settings.routes[0]?.upstream, { url: 'egress:', hostHeader: 'upstream', learn: true, maxInFlight: 7 })
  for (const key of ['url', 'hostHeader']) {
    t.match(
      faults(file({ upstream: { [key]: 'upstream' } }), EGRESS)[0],
      new RegExp(`^egress\\.upstream\\.${key}: unknown key`),
    )
  }
  t.match(
    faults(file({ upstream: { tls: { servername: 'x' } } }), EGRESS)[0],
    /^egress\.upstream\.tls\.servername: unknown key/,
  )
  const again = parse(effective(settings), EGRESS)
  t.same(again, settings, 'what check prints parses to the same')
})

t.test('a route leads to the origins that its host matches, and none that an earlier route takes whole', async t => {
  const routes = [
    { name: 'post', match: { method: 'POST' } },
    { name: 'a', match: { host: 'a.test' } },
    { name: 'b', match: { host: 'b.test:81', path: '/x' } },
    { name: 'rest' },
    { name: 'late' },
  ]
  const allow = ['a.test:443', 'a.test:80', 'b.test:81', 'c.test:443']
  const made = withEgressRoutes(parse(file({ allow }, { routes }), EGRESS)).routes
  const all = ['https://a.test', 'http://a.test', 'http://b.test:81', 'https://b.test:81', 'https://c.test']
  const of = (name: string) => made.filter(route => route.name === name).map(({ origin }) => origin)
  t.same(of('post'), all)
  t.same(of('a'), all.slice(0, 2))
  t.same(of('b'), all.slice(2, 4))
  t.same(of('rest'), all.slice(2))
  t.same(of('late'), [])
  t.ok(made.every(({ origin, upstream }) => upstream.url === origin))
  const plain = parse(least())
  t.equal(withEgressRoutes(plain), plain)
})

t.test('profiles: those of upstreams that are not used bring nothing, and egress has none of its own', async t => {
  const github = { upstream: { url: 'https://api.github.com', profile: 'github' } }
  const names = (flags: object) => parse(file({}, github), flags).buckets.map(({ name }) => name)
  t.same(names(EGRESS), Object.keys(limits.buckets))
  t.same(names({}), [...Object.keys(limits.buckets), 'github.requests'])
  t.match(faults(file({ upstream: { profile: 'github' } }), EGRESS), [/^egress\.upstream\.profile: unknown key/])
})

t.test('warnings name the upstream of egress, and know which routes lead to the same origin', async t => {
  const buckets = { a: { key: 'all', rate: '5/s' }, b: { key: 'host', rate: '5/s' } }
  const toldBy = (routes: object[], upstream: object) =>
    warnings(parse({ buckets, routes, egress: { allow: ['a.test:443', 'b.test:443'], upstream } }, EGRESS)).map(
      ({ path, message }) => `${path}: ${message}`,
    )
  const learn = { learn: true }
  const apart = [
    { name: 'a', match: { host: 'a.test' }, buckets: ['a'] },
    { name: 'b', buckets: ['b'] },
  ]
  t.same(toldBy(apart, learn), [])
  const mixed = [{ name: 'a', match: { method: 'POST' }, buckets: ['a'] }, apart[1]!]
  const told = toldBy(mixed, learn)
  t.equal(told.length, 2)
  for (const line of told) t.match(line, /^egress\.upstream\.learn: the routes to this upstream together/)
  t.match(toldBy(apart, { maxInFlight: 5, connections: 2 })[0], /^egress\.upstream\.maxInFlight: has no effect/)
})
