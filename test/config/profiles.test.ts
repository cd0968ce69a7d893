import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import t from 'tap'
import {
  figuresOf,
  formatDate,
  PROFILE_NAMES,
  type Profile,
  profileBuckets,
  profiles,
} from '../../src/config/profiles.js'
import { expandProfiles } from '../../src/config/read/expand-profiles.js'
import { effective } from '../../src/config/report/effective-config.js'
import { warnings } from '../../src/config/warnings/index.js'
import { parseRate } from '../../src/core/units.js'
import { readRetryAfter } from '../../src/http/quota/pause-rule.js'
import { readQuotas } from '../../src/http/quota/quota-fields.js'
import { ROOT, shaperHere } from '../cli/command.js'
import { blocks, runExample } from '../docs-code.js'
import { runs } from '../runs.js'
import { faults, least, parse } from './sample.js'

const github = { url: 'https://api.github.com', hostHeader: 'upstream', profile: 'github' }
const stripe = { url: 'https://api.stripe.com', hostHeader: 'upstream', profile: 'stripe' }
const mine = { key: 'all', rate: '15000/h', maxDelay: '30s' }

/** The limits of the buckets by name, and the buckets of each route. */
function told(file: object) {
  const { buckets, routes } = parse(file)
  return {
    rates: Object.fromEntries(buckets.map(({ name, rate }) => [name, rate])),
    stacks: routes.map(route => route.buckets.map(({ name }) => name)),
  }
}

t.test('every figure has an address and a date that was, and is a limit', async t => {
  for (const name of PROFILE_NAMES) {
    for (const { figure } of figuresOf(name)) {
      t.match(figure.source, /^https:\/\/[\w.-]+\/\S+$/)
      t.match(figure.date, /^\d{4}-\d\d-\d\d$/)
      t.ok(Date.parse(figure.date) <= Date.now(), `${name}: ${figure.date}`)
      t.ok(typeof figure.value === 'number' ? figure.value >= 1 : parseRate(figure.value) > 0)
    }
    t.match((profiles[name] as Profile).remark, /^[A-Z].*\.$/)
  }
})

t.test('whatever a profile names as a header is read', async t => {
  for (const name of PROFILE_NAMES) {
    const { learn, headers }: Profile = profiles[name]
    for (const header of headers) {
      const value = header.includes('call-limit') ? '7/9' : header.endsWith('-status') ? 'rejected' : '7'
      const fields = (asked: string) => (asked === header ? value : undefined)
      const counts = readQuotas(fields, 0).length > 0 || readRetryAfter(fields, 0) !== undefined
      const isReset = header.includes('reset')
      t.ok(counts || (isReset && learn), `${name}: ${header}`)
    }
  }
})

t.test('a profile brings buckets, learn and pauseOn', async t => {
  const { buckets, routes } = parse({ upstream: github })
  const [bucket] = buckets
  t.match(bucket, { name: 'github.requests', key: { parts: [{ kind: 'all' }] }, limits: { maxInFlight: 100 } })
  t.match(bucket, { limits: { burst: 816 }, capacity: 857 }, 'so many at once, and what waits for 30 s')
  t.match(parse({ upstream: { ...github, profile: 'shopify' } }).buckets[0], { limits: { burst: 40 }, capacity: 100 })
  t.equal(bucket!.rate, parseRate('5000/h'))
  t.same(
    routes.map(route => route.buckets.map(({ name }) => name)),
    [['github.requests']],
  )
  t.match(routes[0]!.upstream, {
    profile: 'github',
    learn: true,
    pauseOn: { status: [429], default: 60_000, max: 3_600_000 },
  })
  t.same(warnings(parse({ upstream: github }), Date.parse('2026-11-25')), [])
})

t.test('what the file says itself wins', async t => {
  const pauseOn = { status: [503], default: '2s', max: '5s' }
  const { upstream } = parse({ upstream: { ...github, learn: false, pauseOn } }).routes[0]!
  t.match(upstream, { learn: false, pauseOn: { status: [503], default: 2_000, max: 5_000 } })
  for (const name of ['requests', 'github.requests'])
    t.same(told({ upstream: github, buckets: { [name]: mine } }), {
      rates: { [name]: parseRate('15000/h') },
      stacks: [[name]],
    })
})

t.test(
  "a route passes the file's buckets and those of its own upstream's profile, unless it names its buckets",
  async t => {
    const client = { key: 'ip', rate: '1/s', capacity: 9 }
    const file = {
      upstream: github,
      buckets: { client },
      routes: [
        { match: { path: '/health' }, mode: 'off' },
        { match: { path: '/pay' }, upstream: stripe },
        { match: { path: '/own' }, buckets: ['client'] },
        { match: { path: '/plain' }, upstream: 'http://127.0.0.1:9000' },
        {},
      ],
    }
    const pair = (profile: string) => ['client', `${profile}.requests`]
    t.same(told(file).stacks, [[], pair('stripe'), ['client'], ['client'], pair('github')])
    t.match(faults({ ...file, buckets: {}, routes: file.routes.slice(3) }), [
      /^routes\[0\].buckets: the list is empty; name a bucket/,
    ])
  },
)

t.test('a profile without figures leaves the buckets to the file', async t => {
  const openai = { url: 'https://api.openai.com', profile: 'openai' }
  t.match(faults({ upstream: openai }), [/^buckets: there is no bucket/])
  t.match(parse({ upstream: openai, buckets: { requests: mine } }).routes[0]!.upstream, { learn: true })
})

t.test('an unknown profile is an error, and so are buckets that are none', async t => {
  t.match(faults({ ...least(), upstream: { ...github, profile: 'gitbub' } }), [
    /^upstream.profile: .*"gitbub".*"github"/,
  ])
  t.match(faults({ ...least(), upstream: { ...github, profile: 'constructor' } }), [/^upstream.profile: /])
  t.match(faults({ upstream: github, buckets: [] }).join(), /buckets: /)
})

t.test('the effective configuration means the same', async t => {
  const settings = parse({ upstream: github, routes: [{ match: { path: '/pay' }, upstream: stripe }, {}] })
  t.strictSame(parse(effective(settings)), settings)
})

t.test(
  'property: nothing that a file may hold makes the expansion throw, or changes a file without a profile',
  async t => {
    const upstream = fc.oneof(
      fc.jsonValue(),
      fc.record({ profile: fc.oneof(fc.jsonValue(), fc.constantFrom(...PROFILE_NAMES)) }),
    )
    const route = fc.oneof(fc.jsonValue(), fc.record({ upstream, mode: fc.jsonValue() }, { requiredKeys: [] }))
    const file = fc.record(
      { upstream, buckets: fc.jsonValue(), routes: fc.oneof(fc.jsonValue(), fc.array(route)) },
      { requiredKeys: [] },
    )
    const property = fc.property(fc.oneof(file, fc.jsonValue()), raw => {
      const before = JSON.stringify(raw)
      const expanded = JSON.stringify(expandProfiles(raw))
      return JSON.stringify(raw) === before && (before.includes('"profile"') || expanded === before)
    })
    t.doesNotThrow(() => fc.assert(property, { numRuns: runs(1_000) }))
  },
)

t.test('a figure of more than a year ago is a warning, as long as it is in use', async t => {
  const lines = (file: object, day: string) =>
    warnings(parse(file), Date.parse(day)).map(({ path, message }) => `${path}: ${message}`)
  t.same(lines({ upstream: github }, '2027-03-10'), [])
  const [first, second, ...more] = lines({ upstream: github }, '2027-03-12')
  t.same(
    [first, ...more],
    [
      'upstream.profile: the figure 5000/h (REST requests of an authenticated user) is of 2026-03-10, more than a year ago; look at https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api?apiVersion=2026-03-10, and write what it says now as the bucket "github.requests"',
    ],
  )
  t.match(second, /^upstream.profile: the figure 816 \(/)
  t.equal(lines({ upstream: github }, '2030-01-01').length, 3)
  t.same(lines({ upstream: github, buckets: { requests: mine } }, '2030-01-01'), [])
  t.same(lines({ upstream: github, buckets: { 'github.requests': mine } }, '2030-01-01'), [])
  const routes = [
    { match: { path: '/pay' }, upstream: stripe },
    { upstream: 'echo:', buckets: ['all'] },
  ]
  t.match(
    lines({ upstream: 'echo:', buckets: { all: mine }, routes: [{ match: { path: '/' } }, ...routes] }, '2030-01-01'),
    [/^routes\[1\].upstream.profile: the figure 100\/s/],
  )
})

t.test('shaper check says what a profile brings, and what not', async t => {
  const check = async (config: object) => {
    const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
    const { code, stderr } = await shaperHere(['check'], { cwd })
    t.equal(code, 0)
    return stderr
  }
  t.match(
    await check({ upstream: github }),
    /^profile "github": 5000\/h REST requests .*\(https:\/\/docs.github.com\/.*\)/m,
  )
  t.match(
    await check({ upstream: github, buckets: { requests: mine } }),
    /^profile "github": no figures in use; the file has its own$/m,
  )
  const openai = { url: 'https://api.openai.com', profile: 'openai' }
  t.match(
    await check({ upstream: openai, buckets: { requests: mine } }),
    /^profile "openai": no figures; the answers alone say what is allowed\n {2}The limits differ by model/m,
  )
})

t.test('docs/profiles.md has the table of all figures', async t => {
  const page = readFileSync(`${ROOT}/docs/profiles.md`, 'utf8')
  const expected = PROFILE_NAMES.flatMap(name =>
    figuresOf(name).map(({ bucket, kind, figure }) => {
      const { value, of, source } = figure
      return `| \`${name}\` | \`${name}.${bucket}\` | ${kind} ${value} | ${of} | <${source}> | ${formatDate(figure)} |`
    }),
  )
  t.same(page.match(/^\| `\w+` \| `\w+\.\w+` \|.*$/gm), expected)
  for (const name of PROFILE_NAMES) {
    const { provider, learn, headers, remark }: Profile = profiles[name]
    const line = `| \`${name}\` | ${provider} | ${learn ? 'yes' : 'no'} | ${headers.map(each => `\`${each}\``).join(', ')} | ${remark} |`
    t.ok(page.includes(`${line}\n`), line)
  }
})

t.test('docs/profiles.md: the program runs and prints what its comments say', async t => {
  const [block] = blocks('docs/profiles.md', 'ts')
  const { code, output } = await runExample(block!)
  t.equal(code, 0, output)
  t.equal(output, [...block!.matchAll(/console\.log.* \/\/ (.*)$/gm)].map(([, text]) => `${text}\n`).join(''))
})

t.test('buckets of a profile, for programs', async t => {
  t.same(profileBuckets('github'), { requests: { rate: '5000/h', burst: 816, maxInFlight: 100 } })
  t.same(profileBuckets('slack'), {})
})
