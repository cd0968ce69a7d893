import * as z from 'zod'
import { DEFAULT_MIN_SHARE } from '../../core/priority.js'
import { wants, wantsSecret } from '../messages.js'
import { NAME } from '../read-values.js'
import { headers } from './case-insensitive.js'
import { key } from './key.js'
import { bucketRate, timeZone } from './rates.js'
import { duration, name, object, oneOf, positive, priority, span, whole, wordOr } from './values.js'

const CAPACITY = 'use a number above 0, e.g. 10'
const KEYS = 'use e.g. ["customer-1"]'
const HEADER = 'use e.g. { "x-plan": "gold" }'
const EXAMPLE = 'use e.g. { "key": "ip", "rate": "5/s", "capacity": 10 }'

const aKey = wantsSecret('a key', 'use e.g. "customer-1"')
const capacity = positive('a capacity', CAPACITY)
const burst = positive('a burst', 'use a number of cost units above 0, e.g. 10')
const maxInFlight = whole('a number of requests', 'use a whole number above 0, e.g. 4', 1)
const weight = positive('a weight', 'use a number above 0, e.g. 2')
const minShareError = wants('a share of the rate', 'use a number from 0 to less than 1, e.g. 0.05')

export const tier = object(
  {
    name: name.describe('The name of the tier, e.g. "gold".'),
    keys: z
      .array(z.string({ error: aKey }).min(1, { error: aKey }), { error: wantsSecret('a list of keys', KEYS) })
      .min(1, { error: `the list is empty; ${KEYS}` })
      .exactOptional()
      .describe('The key values in this tier, e.g. ["customer-1"].'),
    header: headers('a header to look for', HEADER)
      .refine(values => Object.keys(values).length > 0, { error: `the object is empty; ${HEADER}` })
      .exactOptional()
      .describe('The header that puts a request in this tier, e.g. { "x-plan": "gold" }.'),
    rate: bucketRate
      .exactOptional()
      .describe('The rate of this tier, or a list by the time of day, e.g. "50/s"; inherited when absent.'),
    capacity: capacity.exactOptional().describe('The capacity of this tier, e.g. 100; inherited when absent.'),
    burst: burst
      .exactOptional()
      .describe('What may leave without spacing after idling in this tier, e.g. 20; inherited when absent.'),
    maxInFlight: maxInFlight
      .exactOptional()
      .describe('The most requests of one key in flight in this tier, e.g. 8; inherited when absent.'),
    weight: weight.exactOptional().describe('The weight of this tier, e.g. 4; inherited when absent.'),
    priority: priority
      .exactOptional()
      .describe('Whether this tier leaves first (0) or last (7), e.g. 1; that of the route when absent.'),
  },
  'a tier',
  'use e.g. { "name": "gold", "header": { "x-plan": "gold" }, "rate": "50/s" }',
  wantsSecret,
)

export const bucket = object(
  {
    key: key.prefault('ip').describe('What tells clients apart, e.g. "ip", "header:x-api-key", ["ip", "route"].'),
    rate: bucketRate
      .exactOptional()
      .describe(
        'Cost units that leave per unit of time, e.g. "5/s", "90/m", "6/30s"; or a list by the time of day. Needed unless there is a maxInFlight.',
      ),
    timeZone: timeZone
      .exactOptional()
      .describe('Where the times of day of rates are those of the clock, e.g. "Europe/Berlin"; UTC when absent.'),
    capacity: capacity
      .exactOptional()
      .describe(
        "The most cost units the bucket holds, e.g. 10; one second's worth of rate when absent, or burst if that is more.",
      ),
    maxDelay: duration
      .exactOptional()
      .describe('Instead of capacity: the longest wait, e.g. "2s"; capacity = rate x maxDelay.'),
    burst: burst
      .exactOptional()
      .describe('The cost units that may leave without spacing after idling, e.g. 10; one request when absent.'),
    grace: duration
      .exactOptional()
      .describe(
        'How late a release may be and still count from its slot, e.g. "20ms"; the longer of a period and 5 ms when absent, of four periods if the bucket is not the last of its stack.',
      ),
    maxInFlight: maxInFlight
      .exactOptional()
      .describe('The most requests of one key in flight, e.g. 4; any number when absent.'),
    status: whole('a status for rejections', 'use a status from 400 to 599, e.g. 429', 400, 599)
      .prefault(429)
      .describe('The HTTP status of a rejection, e.g. 429.'),
    overflow: oneOf(['reject', 'fill', 'fair'], 'a choice for overflow')
      .prefault('reject')
      .describe('What a rejected request does to the bucket, e.g. "reject" (nothing).'),
    blockFor: wordOr(['drain'], span, wants('a time to block for', 'use e.g. "30s" or "drain"'))
      .exactOptional()
      .describe('How long a key that overflows is rejected, e.g. "30s" or "drain".'),
    tiers: z
      .array(tier, {
        error: wantsSecret('a list of tiers', 'use e.g. [{ "name": "gold", "keys": ["a"], "rate": "50/s" }]'),
      })
      .exactOptional()
      .describe('Other limits for some keys, e.g. [{ "name": "gold", "keys": ["a"], "rate": "50/s" }].'),
    weight: weight.exactOptional().describe('The share of a lane on a contended bucket, e.g. 2.'),
    minShare: z
      .number({ error: minShareError })
      .min(0, { error: minShareError })
      .lt(1, { error: minShareError })
      .prefault(DEFAULT_MIN_SHARE)
      .describe('The part of the rate for the classes behind the one that leaves, while they wait, e.g. 0.05.'),
  },
  'a bucket',
  EXAMPLE,
)

export const buckets = z
  .record(z.string(), bucket, {
    error: wants('an object of buckets', 'use e.g. { "client": { "key": "ip", "rate": "5/s" } }'),
  })
  .meta({ propertyNames: { pattern: NAME.source } })
