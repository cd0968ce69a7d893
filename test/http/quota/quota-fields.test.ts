import fc from 'fast-check'
import t from 'tap'
import { type Fields, followersOf, LONGEST, type Quota } from '../../../src/http/quota/field-values.js'
import { LearnedRate } from '../../../src/http/quota/learned-rate.js'
import { hasStatus, pauseAfter, readRetryAfter } from '../../../src/http/quota/pause-rule.js'
import { readQuotas } from '../../../src/http/quota/quota-fields.js'
import { runs } from '../../runs.js'

/** Sat, 21 Nov 2026 12:00:00 GMT */
const NOW = Date.UTC(2026, 10, 21, 12)
const DATE = 'Sat, 21 Nov 2026 12:00:00 GMT'
const DAY = 86_400_000

function fieldsOf(fields: Record<string, string>): Fields {
  return name => fields[name]
}

function readAll(fields: Record<string, string>, wallNow = NOW): readonly Quota[] {
  return readQuotas(fieldsOf(fields), wallNow)
}

/** The one limit of an answer. */
function read(fields: Record<string, string>, wallNow = NOW): Quota | undefined {
  const [quota, another] = readAll(fields, wallNow)
  if (another !== undefined) throw new Error('more than one limit')
  return quota
}

type Maybe = number | undefined
type Told = [limit?: Maybe, window?: Maybe, remaining?: Maybe, reset?: Maybe, grain?: number]

function quota([limit, window, remaining, reset, grain = 0]: Told): Quota {
  return { limit, window, remaining, reset, grain }
}

const ANSWERS: [name: string, fields: Record<string, string>, Told][] = [
  ['Shopify', { 'x-shopify-shop-api-call-limit': '39/40' }, [40, 20_000, 1]],
  [
    'Shopify, full: one more fits when one has drained',
    { 'x-shopify-shop-api-call-limit': '80/80' },
    [80, 20_000, 0, 250],
  ],
  [
    'a plan of Anthropic that is used up',
    {
      date: DATE,
      'anthropic-ratelimit-unified-status': 'rejected',
      'anthropic-ratelimit-unified-reset': `${NOW / 1_000 + 300}`,
      'anthropic-ratelimit-requests-remaining': '5',
    },
    [undefined, undefined, 0, 300_000, 2_000],
  ],
  [
    'two lines of a reset',
    { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '5, 7' },
    [10, undefined, 0, 7_000, 1_000],
  ],
  [
    'a reset in ISO 8601 without a zone',
    { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '2026-11-21T12:00:07' },
    [10, undefined, 0, 7_000, 1_000],
  ],
  ...[`250`, `${NOW + 250}`].map((reset): [string, Record<string, string>, Told] => [
    `a reset in ms, ${reset}`,
    { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset-ms': reset },
    [10, undefined, 0, 250, 1],
  ]),
  [
    'of a cache: so much is over',
    { 'x-ratelimit-limit': '10', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '20', age: '5' },
    [10, undefined, 0, 15_000, 1_000],
  ],
  [
    'named items',
    { 'ratelimit-policy': '"default";q=100;w=60', ratelimit: '"default";r=0;t=5' },
    [100, 60_000, 0, 5_000, 1_000],
  ],
  [
    'several named items: used up before slow, the longer first',
    {
      'ratelimit-policy': '"burst";q=10;w=1, "day";q=1000;w=86400, "hour";q=500;w=3600',
      ratelimit: '"burst";r=0;t=1, "day";r=0;t=9000, "hour";r=1;t=3600',
    },
    [1_000, DAY, 0, 9_000_000, 1_000],
  ],
  [
    'several named items: the least rate',
    {
      'ratelimit-policy': '"burst";q=10;w=1, "day";q=1000;w=86400',
      ratelimit: '"burst";r=9;t=1, "day";r=500;t=80000',
    },
    [1_000, DAY, 500, 80_000_000, 1_000],
  ],
  [
    'names with escapes, commas and semicolons, and parameters of no use here',
    {
      'ratelimit-policy': '"a\\"b, \\\\;c" ; q=7; w=2;pk=:cHsdsRa894==:;x;y=?0;z="t, u"',
      ratelimit: '"a\\"b, \\\\;c"; pk=:cHsdsRa894==: ;r=3;t=1',
    },
    [7, 2_000, 3, 1_000, 1_000],
  ],
  [
    'quotas that are not of requests are passed over',
    {
      'ratelimit-policy': '"bytes";q=1000;qu="content-bytes";w=10, "requests";q=5;w=10',
      ratelimit: '"bytes";r=0;t=9, "requests";r=4;t=9',
    },
    [5, 10_000, 4, 9_000, 1_000],
  ],
  ['a policy alone', { 'ratelimit-policy': '"default";q=100;w=60' }, [100, 60_000]],
  ['a state alone', { ratelimit: '"default";r=3' }, [undefined, undefined, 3]],
  [
    'draft 07',
    { ratelimit: 'limit=100, remaining=50, reset=5', 'ratelimit-policy': '10;w=1, 100;w=60' },
    [100, 60_000, 50, 5_000, 1_000],
  ],
  [
    'the early drafts',
    {
      'ratelimit-limit': '100, 10;w=1, 100;w=60;comment="a, b"',
      'ratelimit-remaining': '50',
      'ratelimit-reset': '5',
    },
    [100, 60_000, 50, 5_000, 1_000],
  ],
  ['Docker Hub', { 'ratelimit-limit': '100;w=21600', 'ratelimit-remaining': '76;w=21600' }, [100, 21_600_000, 76]],
  [
    'GitHub',
    {
      'x-ratelimit-limit': '5000',
      'x-ratelimit-remaining': '4999',
      'x-ratelimit-reset': String(NOW / 1_000 + 3_500),
      'x-ratelimit-used': '1',
      'x-ratelimit-resource': 'core',
    },
    [5_000, undefined, 4_999, 3_500_000, 1_000],
  ],
  [
    'GitLab',
    {
      'ratelimit-limit': '60',
      'ratelimit-observed': '67',
      'ratelimit-remaining': '0',
      'ratelimit-reset': String(NOW / 1_000 + 30),
    },
    [60, undefined, 0, 30_000, 1_000],
  ],
  [
    'Reddit',
    { 'x-ratelimit-remaining': '594.5', 'x-ratelimit-used': '6', 'x-ratelimit-reset': '250' },
    [undefined, undefined, 594.5, 250_000, 1_000],
  ],
  [
    'ms since 1970',
    { 'x-ratelimit-limit': '9', 'x-ratelimit-remaining': '8', 'x-ratelimit-reset': String(NOW + 1_234) },
    [9, undefined, 8, 1_234, 1],
  ],
  [
    'X',
    { 'x-rate-limit-limit': '75', 'x-rate-limit-remaining': '74', 'x-rate-limit-reset': String(NOW / 1_000 + 900) },
    [75, undefined, 74, 900_000, 1_000],
  ],
  [
    'Discord',
    {
      'x-ratelimit-limit': '5',
      'x-ratelimit-remaining': '1',
      'x-ratelimit-reset': String(NOW / 1_000 + 2),
      'x-ratelimit-reset-after': '1.250',
    },
    [5, undefined, 1, 1_250, 1],
  ],
  [
    'Kong',
    {
      'x-ratelimit-limit-second': '100',
      'x-ratelimit-remaining-second': '99',
      'x-ratelimit-limit-minute': '60',
      'x-ratelimit-remaining-minute': '12',
      'ratelimit-limit': '60',
      'ratelimit-remaining': '12',
      'ratelimit-reset': '24',
    },
    [60, 60_000, 12, 24_000, 1_000],
  ],
  [
    'HubSpot',
    {
      'x-hubspot-ratelimit-interval-milliseconds': '10000',
      'x-hubspot-ratelimit-max': '100',
      'x-hubspot-ratelimit-remaining': '99',
    },
    [100, 10_000, 99],
  ],
  [
    'one dialect with the limit, another with what is left',
    { 'ratelimit-policy': '"a";q=5;w=1', 'x-ratelimit-remaining': '3', 'x-ratelimit-reset': '0' },
    [undefined, undefined, 3, 0, 1_000],
  ],
]

for (const [name, fields, told] of ANSWERS) {
  t.test(`reads ${name}`, async t => t.same(read(fields), quota(told)))
}

const SECOND = Date.parse('2026-11-21T12:00:00Z')
const at = (seconds: number): string => new Date(SECOND + seconds * 1_000).toISOString().replace('.000', '')

const MODELS: [name: string, fields: Record<string, string>, requests?: Told | undefined, tokens?: Told][] = [
  [
    'OpenAI',
    {
      'x-ratelimit-limit-requests': '60',
      'x-ratelimit-limit-tokens': '150000',
      'x-ratelimit-remaining-requests': '59',
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-reset-requests': '1s',
      'x-ratelimit-reset-tokens': '6m0s',
    },
    [60, undefined, 59, 1_000, 1_000],
    [150_000, undefined, 0, 360_000, 1_000],
  ],
  [
    'OpenAI, in ms and in parts of a second',
    {
      'x-ratelimit-remaining-requests': '59',
      'x-ratelimit-reset-requests': '120ms',
      'x-ratelimit-remaining-tokens': '7',
      'x-ratelimit-reset-tokens': '1m2.5s',
    },
    [undefined, undefined, 59, 120, 1],
    [undefined, undefined, 7, 62_500, 100],
  ],
  [
    'OpenAI, of tokens alone',
    { 'x-ratelimit-remaining-tokens': '20', 'x-ratelimit-reset-tokens': '20ms' },
    undefined,
    [undefined, undefined, 20, 20, 1],
  ],
  [
    'Azure, where nothing makes sense',
    {
      'x-ratelimit-limit-tokens': '-1',
      'x-ratelimit-remaining-tokens': '-1',
      'x-ratelimit-reset-tokens': '0',
    },
  ],
  [
    'Anthropic: of the limits on tokens the one with the least left',
    {
      'anthropic-ratelimit-requests-limit': '50',
      'anthropic-ratelimit-requests-remaining': '49',
      'anthropic-ratelimit-requests-reset': at(2),
      'anthropic-ratelimit-tokens-limit': '48000',
      'anthropic-ratelimit-tokens-remaining': '40000',
      'anthropic-ratelimit-tokens-reset': at(10),
      'anthropic-ratelimit-input-tokens-limit': '40000',
      'anthropic-ratelimit-input-tokens-remaining': '36000',
      'anthropic-ratelimit-input-tokens-reset': at(6),
      'anthropic-ratelimit-output-tokens-limit': '8000',
      'anthropic-ratelimit-output-tokens-remaining': '4000',
      'anthropic-ratelimit-output-tokens-reset': at(30),
    },
    [50, undefined, 49, 2_000, 1_000],
    [8_000, undefined, 4_000, 30_000, 1_000],
  ],
  [
    'Anthropic: of the limits that are used up the longest',
    {
      'anthropic-ratelimit-input-tokens-remaining': '0',
      'anthropic-ratelimit-input-tokens-reset': at(9),
      'anthropic-ratelimit-output-tokens-remaining': '0',
      'anthropic-ratelimit-output-tokens-reset': at(30),
    },
    undefined,
    [undefined, undefined, 0, 30_000, 1_000],
  ],
  [
    'both, where the requests are those of another dialect',
    { 'x-ratelimit-remaining': '3', 'x-ratelimit-remaining-tokens': '9', 'x-ratelimit-reset-tokens': '1s' },
    [undefined, undefined, 3],
    [undefined, undefined, 9, 1_000, 1_000],
  ],
  [
    'both, where a gateway in front says more of the requests',
    { 'ratelimit-policy': '"p";q=5;w=1', ratelimit: '"p";r=3;t=1', 'x-ratelimit-remaining-tokens': '9' },
    [5, 1_000, 3, 1_000, 1_000],
    [undefined, undefined, 9],
  ],
]

for (const [name, fields, requests, tokens] of MODELS) {
  t.test(`reads limits on requests and tokens of ${name}`, async t => {
    const isNamed = Object.keys(fields).some(field => /request/.test(field))
    t.same(readAll(fields), [
      ...(requests === undefined ? [] : [{ ...quota(requests), ...(isNamed && { bucket: 'requests' }) }]),
      ...(tokens === undefined ? [] : [{ ...quota(tokens), bucket: 'tokens' }]),
    ])
  })
}

t.test('a pause lasts until the limits that are used up come back, whichever these are', async t => {
  const rule = { status: [429], default: 1_000, max: 600_000 }
  const pause = (fields: Record<string, string>): number => pauseAfter(rule, 429, fieldsOf(fields), NOW)
  const tokens = { 'x-ratelimit-remaining-tokens': '0', 'x-ratelimit-reset-tokens': '6m0s' }
  const requests = { 'x-ratelimit-remaining-requests': '0', 'x-ratelimit-reset-requests': '1s' }
  t.equal(pause(tokens), 360_000)
  t.equal(pause({ ...tokens, ...requests }), 360_000)
  t.equal(pause({ ...tokens, ...requests, 'x-ratelimit-remaining-tokens': '5' }), 1_000)
  t.equal(pause({ ...tokens, 'x-ratelimit-reset-tokens': '0s' }), 1_000, 'the default')
})

t.test("GitHub's 403 of a limit counts as 429, another 403 does not", async t => {
  const rule = { status: [429], default: 0, max: 3_600_000 }
  const reset = { 'x-ratelimit-reset': String(NOW / 1_000 + 120) }
  const pause = (fields: Record<string, string>, status = 403, statuses = [429]): number =>
    pauseAfter({ ...rule, status: statuses }, status, fieldsOf(fields), NOW)
  t.equal(pause({ 'x-ratelimit-remaining': '0', ...reset }), 120_000, 'the primary limit')
  t.equal(pause({ 'retry-after': '60', 'x-ratelimit-remaining': '4000', ...reset }), 60_000, 'a secondary limit')
  t.equal(pause({ 'x-ratelimit-remaining': '4000', ...reset }), 0, 'not allowed')
  t.equal(pause({}), 0)
  t.equal(pause({ 'retry-after': 'soon' }), 0)
  t.equal(pause({ 'retry-after': '60' }, 403, [503]), 0, 'only where 429 pauses')
  t.equal(pause({ 'retry-after': '60' }, 401), 0)
  t.ok(hasStatus([403], 403, fieldsOf({})), 'where 403 is listed, each one counts')
})

t.test('limits are followed by the buckets that are called so', async t => {
  t.same(followersOf('tokens', ['client', 'tokens', 'openai.tokens', 'subtokens']), ['tokens', 'openai.tokens'])
  t.same(followersOf('requests', ['client', 'requests', 'tokens']), ['requests'])
  t.same(followersOf('requests', ['client', 'all', 'tokens']), ['client', 'all'])
  t.same(followersOf('tokens', ['client']), [])
})

t.test('absolute times are compared with the Date of the answer, not with our clock', async t => {
  const fields = { date: DATE, 'x-ratelimit-remaining': '1', 'x-ratelimit-reset': String(NOW / 1_000 + 30) }
  t.same(read(fields, NOW - DAY), quota([undefined, undefined, 1, 30_000, 2_000]))
  t.equal(read({ ...fields, 'x-ratelimit-reset': String(NOW / 1_000 - 5) })?.reset, 0)
})

t.test('nonsense values are ignored', async t => {
  const nonsense = ['', '-1', 'NaN', 'Infinity', '1e9', '0x10', 'unlimited', '9'.repeat(400), '1 0', '١٢']
  for (const text of nonsense) {
    t.equal(
      read({ 'x-ratelimit-limit': text, 'x-ratelimit-remaining': text, 'x-ratelimit-reset': text }),
      undefined,
      text,
    )
    t.equal(read({ 'x-ratelimit-remaining': '5', 'x-ratelimit-reset': text })?.reset, undefined, text)
  }
  for (const text of ['"a"', '"a;r=1', '"a";r="1"', '"a";r=-1', '"a";r=1,', '("a");r=1', '"a";r=1 x', '"\\a";r=1'])
    t.equal(read({ ratelimit: text }), undefined, text)
  t.equal(read({}), undefined)
  t.equal(read({ 'x-ratelimit-limit': '0' }), undefined)
})

const NAMES = [
  ...new Set([...ANSWERS, ...MODELS].flatMap(([, fields]) => Object.keys(fields))),
  'date',
  'retry-after',
  'retry-after-ms',
]
const KNOWN = [
  ...new Set([...ANSWERS, ...MODELS].flatMap(([, fields]) => Object.values(fields))),
  DATE,
  '-1',
  '0',
  '1e308',
  '0.0000001',
]
const value = fc.oneof(
  fc.constantFrom(...KNOWN),
  fc.double().map(String),
  fc.bigInt().map(String),
  fc.string(),
  fc.tuple(fc.constantFrom(...KNOWN), fc.string()).map(parts => parts.join('')),
  fc.constantFrom('1', '"', '"\\"', ' ', ';a', 'a=1,', '(', '\t,').map(text => text.repeat(100_000 / text.length)),
)

/** 62_500 -> `1m2.5s` */
function asDuration(ms: number): string {
  const [minutes, seconds] = [Math.floor(ms / 60_000), (ms % 60_000) / 1_000]
  return ms < 1_000 ? `${ms}ms` : `${minutes > 0 ? `${minutes}m` : ''}${seconds}s`
}

t.test('property: what a model API says is read as it was meant, for any limits', async t => {
  const count = fc.nat(1e9)
  const told = fc.record({ limit: fc.integer({ min: 1, max: 1e9 }), remaining: count, reset: fc.nat(86_400_000) })
  const property = fc.property(told, told, (requests, tokens) => {
    const all = Object.entries({ requests, tokens })
    const openai = Object.fromEntries(
      all.flatMap(([what, { limit, remaining, reset }]) => [
        [`x-ratelimit-limit-${what}`, String(limit)],
        [`x-ratelimit-remaining-${what}`, String(remaining)],
        [`x-ratelimit-reset-${what}`, asDuration(reset)],
      ]),
    )
    const anthropic = Object.fromEntries(
      all.flatMap(([what, { limit, remaining, reset }]) => [
        [`anthropic-ratelimit-${what}-limit`, String(limit)],
        [`anthropic-ratelimit-${what}-remaining`, String(remaining)],
        [`anthropic-ratelimit-${what}-reset`, new Date(NOW + reset).toISOString()],
      ]),
    )
    const expected = all.map(([bucket, { limit, remaining, reset }]) => ({ bucket, limit, remaining, reset }))
    for (const fields of [openai, anthropic]) {
      const found = readAll(fields).map(({ bucket, limit, remaining, reset }) => ({ bucket, limit, remaining, reset }))
      t.same(found, expected)
    }
  })
  fc.assert(property, { numRuns: runs(300) })
})

t.test('property: no hostile answer makes it throw or return nonsense', async t => {
  const answers = fc.uniqueArray(fc.tuple(fc.constantFrom(...NAMES), value), { selector: ([name]) => name })
  const isIn = (number: number | undefined, least: number, most: number): boolean =>
    number === undefined || (number >= least && number <= most)
  const property = fc.property(fc.array(answers, { maxLength: 4 }), fc.nat(4_000_000_000_000), (all, wallNow) => {
    const learned = { requests: new LearnedRate(), tokens: new LearnedRate() }
    for (const [index, entries] of all.entries()) {
      const now = index * 1_000
      const fields = fieldsOf(Object.fromEntries(entries))
      const pauses = [403, 429].map(status =>
        pauseAfter({ status: [429], default: 1_000, max: 60_000 }, status, fields, wallNow),
      )
      const quotas = readQuotas(fields, wallNow)
      for (const quota of quotas) learned[quota.bucket ?? 'requests'].learn(quota, now)
      const isSound =
        isIn(readRetryAfter(fields, wallNow), 0, LONGEST) &&
        pauses.every(pause => isIn(pause, 0, 60_000)) &&
        new Set(quotas.map(({ bucket = 'requests' }) => bucket)).size === quotas.length &&
        quotas.every(
          ({ limit, window, remaining, reset, grain }) =>
            isIn(limit, 1, 1e12) &&
            isIn(window, 1e-9, LONGEST) &&
            isIn(remaining, 0, 1e12) &&
            isIn(reset, 0, LONGEST) &&
            isIn(grain, 0, 2_000),
        ) &&
        Object.values(learned).every(
          each => each.allowed(now) > 0 && each.expiresAt > now && each.pausedUntil <= now + LONGEST,
        )
      if (!isSound) return false
    }
    return true
  })
  t.doesNotThrow(() => fc.assert(property, { numRuns: runs(3_000) }))
})
