import fc from 'fast-check'
import t from 'tap'
import { type Fields, LONGEST, type Quota } from '../../../src/http/quota/field-values.js'
import { LearnedRate } from '../../../src/http/quota/learned-rate.js'
import { pauseAfter } from '../../../src/http/quota/pause-rule.js'
import { readQuota } from '../../../src/http/quota/quota-fields.js'
import { readRetryAfter } from '../../../src/http/quota/retry-after.js'

/** Sat, 21 Nov 2026 12:00:00 GMT */
const NOW = Date.UTC(2026, 10, 21, 12)
const DATE = 'Sat, 21 Nov 2026 12:00:00 GMT'
const DAY = 86_400_000

function fieldsOf(fields: Record<string, string>): Fields {
  return name => fields[name]
}

function read(fields: Record<string, string>, wallNow = NOW): Quota | undefined {
  return readQuota(fieldsOf(fields), wallNow)
}

type Maybe = number | undefined
type Told = [limit?: Maybe, window?: Maybe, remaining?: Maybe, reset?: Maybe, grain?: number]

function quota([limit, window, remaining, reset, grain = 0]: Told): Quota {
  return { limit, window, remaining, reset, grain }
}

const ANSWERS: [name: string, fields: Record<string, string>, Told][] = [
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
    'OpenAI',
    {
      'x-ratelimit-limit-requests': '60',
      'x-ratelimit-limit-tokens': '150000',
      'x-ratelimit-remaining-requests': '59',
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-reset-requests': '6m1s',
      'x-ratelimit-reset-tokens': '6m0s',
    },
    [60, undefined, 59, 361_000, 1_000],
  ],
  [
    'OpenAI, in ms',
    { 'x-ratelimit-remaining-requests': '59', 'x-ratelimit-reset-requests': '120ms' },
    [undefined, undefined, 59, 120, 1],
  ],
  [
    'Anthropic',
    {
      'anthropic-ratelimit-requests-limit': '50',
      'anthropic-ratelimit-requests-remaining': '49',
      'anthropic-ratelimit-requests-reset': '2026-11-21T12:00:02Z',
      'anthropic-ratelimit-tokens-remaining': '0',
    },
    [50, undefined, 49, 2_000, 1_000],
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
  ...new Set(ANSWERS.flatMap(([, fields]) => Object.keys(fields))),
  'date',
  'retry-after',
  'retry-after-ms',
]
const KNOWN = [
  ...new Set(ANSWERS.flatMap(([, fields]) => Object.values(fields))),
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

t.test('no hostile answer makes it throw or return nonsense', async t => {
  const answers = fc.uniqueArray(fc.tuple(fc.constantFrom(...NAMES), value), { selector: ([name]) => name })
  const isIn = (number: number | undefined, least: number, most: number): boolean =>
    number === undefined || (number >= least && number <= most)
  const property = fc.property(fc.array(answers, { maxLength: 4 }), fc.nat(4_000_000_000_000), (all, wallNow) => {
    const learned = new LearnedRate()
    for (const [index, entries] of all.entries()) {
      const fields = fieldsOf(Object.fromEntries(entries))
      const pause = pauseAfter({ status: [429], default: 1_000, max: 60_000 }, 429, fields, wallNow)
      const found = readQuota(fields, wallNow)
      if (found !== undefined) learned.learn(found, index * 1_000)
      const allowed = learned.allowed(index * 1_000)
      const isSound =
        isIn(readRetryAfter(fields, wallNow), 0, LONGEST) &&
        isIn(pause, 0, 60_000) &&
        isIn(found?.limit, 1, 1e12) &&
        isIn(found?.window, 1e-9, LONGEST) &&
        isIn(found?.remaining, 0, 1e12) &&
        isIn(found?.reset, 0, LONGEST) &&
        isIn(found?.grain, 0, 2_000) &&
        allowed > 0 &&
        learned.expiresAt > index * 1_000 &&
        learned.pausedUntil <= index * 1_000 + LONGEST
      if (!isSound) return false
    }
    return true
  })
  t.doesNotThrow(() => fc.assert(property, { numRuns: 3_000 }))
})
