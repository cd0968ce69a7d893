import * as z from 'zod'
import { DEFAULT_MIN_SHARE } from '../../core/priority.js'
import { ownValue } from '../../core/structures/own-value.js'
import { wants, wantsSecret } from '../messages.js'
import { PERIODS, quotaOf } from '../periods.js'
import { NAME } from '../read-values.js'
import { key } from './key.js'
import { bucketRate, timeZone } from './rates.js'
import { postgresUrl } from './store.js'
import {
  count,
  duration,
  flag,
  headers,
  maybe,
  name,
  object,
  oneOf,
  positive,
  priority,
  report,
  someOf,
  span,
  text,
  timeout,
  whole,
  wordOr,
} from './values.js'

const CAPACITY = 'use a number above 0, e.g. 10'
const KEYS = 'use e.g. ["customer-1"]'
const HEADER = 'use e.g. { "x-plan": "gold" }'
const EXAMPLE = 'use e.g. { "key": "ip", "rate": "5/s", "capacity": 10 }'
const NOT_OF_QUOTA = ['rate', 'maxDelay', 'burst', 'grace', 'blockFor', 'timeZone'] as const
const BESIDE_QUOTA =
  'has no effect beside "quota"; remove it, or put it into a bucket of its own that the route names as well'
const TIER_OF_QUOTA = 'has no effect where the bucket is a quota; write e.g. "quota": 1000000, its limit for this tier'
const OF_QUOTA = 'has no effect, as the bucket has no "quota"; remove it, or use "rate" and "capacity"'
const aKey = wantsSecret('a key', 'use e.g. "customer-1"')
const capacity = positive('a capacity', CAPACITY)
const burst = positive('a burst', 'use a number of cost units above 0, e.g. 10')
const maxInFlight = count('a number of requests', 4)
const weight = positive('a weight', 'use a number above 0, e.g. 2')
const limit = positive('a limit', 'use a number of cost units above 0, e.g. 100000')
const minShareError = wants('a share of the rate', 'use a number from 0 to less than 1, e.g. 0.05')

const quota = object(
  {
    limit: limit.describe('How many cost units may pass in a period, e.g. 100000.'),
    per: oneOf(PERIODS, 'a period').describe('The period of the calendar, e.g. "month".'),
    timeZone: timeZone.prefault('UTC').describe('Where the period begins with the clock, e.g. "Europe/Berlin".'),
    spread: flag
      .prefault(false)
      .describe('Whether what is left is released evenly until the period ends, e.g. true; "capacity" may wait.'),
  },
  'use e.g. { "limit": 100000, "per": "month" }',
  'a quota',
)

export const tier = object(
  {
    name: name.describe('The name of the tier, e.g. "gold".'),
    keys: maybe(
      someOf(z.string({ error: aKey }).min(1, { error: aKey }), wantsSecret('a list of keys', KEYS), KEYS),
    ).describe('The key values in this tier, e.g. ["customer-1"].'),
    header: maybe(
      headers('a header to look for', HEADER).refine(values => Object.keys(values).length > 0, {
        error: `the object is empty; ${HEADER}`,
      }),
    ).describe('The header that puts a request in this tier, e.g. { "x-plan": "gold" }.'),
    rate: maybe(bucketRate).describe(
      'The rate of this tier, or a list by the time of day, e.g. "50/s"; inherited when absent.',
    ),
    capacity: maybe(capacity).describe('The capacity of this tier, e.g. 100; inherited when absent.'),
    burst: maybe(burst).describe(
      'What may leave without spacing after idling in this tier, e.g. 20; inherited when absent.',
    ),
    quota: maybe(limit).describe('The limit of this tier, where the bucket is a quota, e.g. 1000000.'),
    maxInFlight: maybe(maxInFlight).describe(
      'The most requests of one key in flight in this tier, e.g. 8; inherited when absent.',
    ),
    weight: maybe(weight).describe('The weight of this tier, e.g. 4; inherited when absent.'),
    priority: maybe(priority).describe(
      'Whether this tier leaves first (0) or last (7), e.g. 1; that of the route when absent.',
    ),
  },
  'use e.g. { "name": "gold", "header": { "x-plan": "gold" }, "rate": "50/s" }',
  'a tier',
  wantsSecret,
)

const LIMITS = 'use e.g. { "file": "customers.csv" }'
const QUERY = 'use e.g. "SELECT key, rate, capacity FROM customers"'
const CHANNEL = 'use the name of a channel, e.g. "customers_changed"'

const limits = object(
  {
    file: maybe(text('a file', 'use e.g. "customers.csv"')).describe(
      'A CSV with a header line, or by .jsonl, .ndjson or .json one JSON object on each line, e.g. "customers.csv".',
    ),
    postgres: maybe(
      object(
        {
          url: postgresUrl.describe('The database, e.g. "postgres://127.0.0.1/shop".'),
          query: text('a query', QUERY).describe(
            'Tells key, rate, capacity, weight, priority, maxInFlight, e.g. "SELECT key, rate FROM customers".',
          ),
        },
        'use e.g. { "url": "postgres://127.0.0.1/shop", "query": "SELECT key, rate FROM customers" }',
        'a query of PostgreSQL',
      ),
    ).describe('Instead of a file: a query, e.g. { "url": "postgres://127.0.0.1/shop", "query": "SELECT ..." }.'),
    refresh: maybe(timeout).describe('How often the query is asked, e.g. "30s", which is the default.'),
    channel: maybe(
      z
        .string({ error: wants('a channel', CHANNEL) })
        .regex(/^[A-Za-z_][A-Za-z0-9_]{0,62}$/, { error: wants('a channel', CHANNEL) }),
    ).describe('A channel of NOTIFY on which the query is asked at once, e.g. "customers_changed".'),
  },
  LIMITS,
  'limits from outside',
).superRefine((value, ctx) => {
  const { file, postgres } = value
  if (file === undefined && postgres === undefined) report(ctx, 'file', `missing; give file or postgres, ${LIMITS}`)
  if (file === undefined) return
  for (const key of ['postgres', 'refresh', 'channel'] as const)
    if (value[key] !== undefined)
      report(ctx, key, 'has no effect beside "file", which is read when it changes; remove it')
})

export const bucket = object(
  {
    key: key.prefault('ip').describe('What tells clients apart, e.g. "ip", "header:x-api-key", ["ip", "route"].'),
    rate: maybe(bucketRate).describe(
      'Cost units that leave per unit of time, e.g. "5/s", "90/m", "6/30s"; or a list by the time of day. Needed unless there is a maxInFlight.',
    ),
    quota: maybe(quota).describe(
      'A count that starts anew with the calendar, in place of a rate, e.g. { "limit": 100000, "per": "month" }.',
    ),
    timeZone: maybe(timeZone).describe(
      'Where the times of day of rates are those of the clock, e.g. "Europe/Berlin"; UTC when absent.',
    ),
    capacity: maybe(capacity).describe(
      "The most cost units the bucket holds, e.g. 10; one second's worth of rate when absent, or burst if that is more.",
    ),
    maxDelay: maybe(duration).describe('Instead of capacity: the longest wait, e.g. "2s"; capacity = rate x maxDelay.'),
    burst: maybe(burst).describe(
      'The cost units that may leave without spacing after idling, e.g. 10; one request when absent.',
    ),
    grace: maybe(duration).describe(
      'How late a release may be and still count from its slot, e.g. "20ms"; the longer of a period and 5 ms when absent, of four periods if the bucket is not the last of its stack.',
    ),
    maxInFlight: maybe(maxInFlight).describe('The most requests of one key in flight, e.g. 4; any number when absent.'),
    status: whole('a status for rejections', 'use a status from 400 to 599, e.g. 429', 400, 599)
      .prefault(429)
      .describe('The HTTP status of a rejection, e.g. 429.'),
    overflow: oneOf(['reject', 'fill', 'fair'], 'a choice for overflow')
      .prefault('reject')
      .describe('What a rejected request does to the bucket, e.g. "reject" (nothing).'),
    blockFor: maybe(wordOr(['drain'], span, wants('a time to block for', 'use e.g. "30s" or "drain"'))).describe(
      'How long a key that overflows is rejected, e.g. "30s" or "drain".',
    ),
    tiers: maybe(
      z.array(tier, {
        error: wantsSecret('a list of tiers', 'use e.g. [{ "name": "gold", "keys": ["a"], "rate": "50/s" }]'),
      }),
    ).describe('Other limits for some keys, e.g. [{ "name": "gold", "keys": ["a"], "rate": "50/s" }].'),
    limits: maybe(limits).describe(
      'Limits of single keys, from a file or PostgreSQL, before those of tiers, e.g. { "file": "customers.csv" }.',
    ),
    weight: maybe(weight).describe('The share of a lane on a contended bucket, e.g. 2.'),
    minShare: z
      .number({ error: minShareError })
      .min(0, { error: minShareError })
      .lt(1, { error: minShareError })
      .prefault(DEFAULT_MIN_SHARE)
      .describe('The part of the rate for the classes behind the one that leaves, while they wait, e.g. 0.05.'),
  },
  EXAMPLE,
  'a bucket',
).superRefine((value, ctx) => {
  const { quota: ofBucket, overflow, tiers = [] } = value
  const ofTiers = ofBucket === undefined ? (['quota'] as const) : (['rate', 'capacity', 'burst'] as const)
  const idle = [
    ...(ofBucket === undefined ? [] : NOT_OF_QUOTA.filter(key => value[key] !== undefined)),
    ...(ofBucket?.spread === false && value.capacity !== undefined ? ['capacity'] : []),
    ...(ofBucket !== undefined && overflow !== 'reject' ? ['overflow'] : []),
  ]
  for (const key of idle) report(ctx, key, BESIDE_QUOTA)
  for (const [index, tier] of tiers.entries())
    for (const key of ofTiers.filter(key => tier[key] !== undefined))
      ctx.issues.push({ ...NO_INPUT, path: ['tiers', index, key], message: key === 'quota' ? OF_QUOTA : TIER_OF_QUOTA })
})

const NO_INPUT = { code: 'custom', input: undefined } as const

export const buckets = z
  .record(z.string(), bucket, {
    error: wants('an object of buckets', 'use e.g. { "client": { "key": "ip", "rate": "5/s" } }'),
  })
  .superRefine((all, ctx) => {
    for (const name of Object.keys(all)) {
      const quota = quotaOf(name)
      if (quota !== undefined && ownValue(all, quota)?.quota?.spread)
        report(
          ctx,
          name,
          `this is the name of the bucket that paces "${quota}", whose quota is spread; use another one`,
        )
    }
  })
  .meta({ propertyNames: { pattern: NAME.source } })
