import { METHODS } from 'node:http'
import * as z from 'zod'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { formatJsonPath, type JsonPath, parseJsonPath } from '../../http/figures/json-path.js'
import { parseRange } from '../../http/matching/address-ranges.js'
import { expressionFault, expressionOf, partsOf } from '../../http/matching/path-pattern.js'
import { hint, nearest, quote, type RefusedValue, wants } from '../messages.js'
import { headerName } from '../read-values.js'
import { postgresUrl } from './store.js'
import { upstream } from './upstream.js'
import {
  alone,
  bytes,
  flag,
  headers,
  type Issues,
  JSON_PATHS,
  maybe,
  methodName,
  NOT_THIS_FORM,
  name,
  object,
  oneOf,
  oneOrMany,
  priority,
  read,
  readJsonPath,
  renameKeys,
  renameOrReport,
  report,
  span,
  text,
  timeout,
  timerDuration,
  whole,
  wordOr,
} from './values.js'

const COST = 'use a number above 0, e.g. 5'
const COST_FORMS =
  'use e.g. 5, { "POST": 5, "default": 1 }, { "header": "x-cost", "max": 100 } or { "buckets": { "tokens": { "estimate": "body/4" } } }'
const PRIORITIES = wants('a priority', 'use a whole number from 0 (first) to 7 (last), or { "header": true }')
const TEMPLATE = 'use e.g. "wait.html"'
const PAGES = 'use false for none, or e.g. { "template": "wait.html" }'
const HEADER_COST_KEYS = ['header', 'min', 'max', 'default']
const COST_KEYS = [...HEADER_COST_KEYS, 'buckets']
const method = read(z.string({ error: wants('an HTTP method', 'use e.g. "POST"') }), methodName)
const PATHS = 'use e.g. "/login", "/api/*" or "~ ^/v[0-9]+/"'
const path = read(text('a path', PATHS), value => {
  for (const [place, part] of partsOf(value).entries()) {
    const expression = expressionOf(part)
    const fault = expression === undefined ? faultOfPattern(part) : faultOfExpression(part, expression)
    if (fault !== undefined) throw new RangeError(`${quote(place === 0 ? value : part)} ${fault}`)
  }
  return value
})

function faultOfPattern(pattern: string): string | undefined {
  if (!/^[/*]/.test(pattern)) return `does not start with "/"; ${PATHS}`
  if (/[?#\s]/.test(pattern)) return `has a query, a fragment or a space, which no path has; ${PATHS}`
  const odd = /[^\x21-\x7e]/u.exec(pattern)?.[0]
  if (odd !== undefined)
    return `has ${quote(odd)}, and the characters of a path are visible ASCII; write ${quote(percentEncoded(odd))}`
  if (/\*.*\/(?:\.|%2e){1,2}(?:\/|$)/i.test(pattern))
    return 'has a "." or ".." after a "*", and no path has one when it is compared; write the path without it'
  return undefined
}

/** UTF-8, as clients send it. */
export function percentEncoded(character: string): string {
  return Buffer.from(character).toString('hex').toUpperCase().replace(/../g, '%$&')
}

function faultOfExpression(pattern: string, expression: string): string | undefined {
  if (!/^~\s/.test(pattern)) return `has no space after "~"; write ${quote(`~ ${expression || '^/api/'}`)}`
  if (expression === '') return `has no expression after "~"; ${PATHS}`
  const fault = expressionFault(expression)
  if (fault === undefined) return undefined
  const limits = /Perl syntax|escape sequence/.test(fault)
    ? 'there is no lookaround and no backreference, as these take more than linear time; write it without them'
    : 'write a regular expression of RE2, e.g. "~ ^/v[0-9]+/"'
  return `is not a regular expression: ${fault}; ${limits}`
}

const HOST_PATTERN = /^(?:[A-Za-z0-9_.*-]+|\[[0-9a-fA-F:.*]+\])(?::[\d*]+)?$/
const host = read(text('a host', 'use e.g. "api.example.com" or "*.example.com"'), value => {
  if (HOST_PATTERN.test(value)) return value.toLowerCase()
  throw new RangeError(`${quote(value)} is not a host; use e.g. "api.example.com" or "*.example.com"`)
})

const RANGES = 'use e.g. "192.0.2.1", "10.0.0.0/8" or "2001:db8::/32"'
const range = read(text('an address or CIDR', RANGES), value => {
  const parsed = parseRange(value)
  if (parsed === undefined) throw new RangeError(`${quote(value)} is not an address or CIDR; ${RANGES}`)
  if (!parsed.hasHostBits) return value
  throw new RangeError(
    `${quote(value)} has bits set after its prefix; write ${quote(parsed.text)}, or the address alone`,
  )
})

const normalisation = oneOf(['case', 'slash', 'params'], 'what to ignore in a path')

const match = object(
  {
    path: maybe(path).describe(
      'The path, "*" for any text, e.g. "/api/*"; or "~ " and a regular expression, e.g. "~ ^/v[0-9]+/".',
    ),
    normalise: maybe(
      read(z.array(normalisation, { error: wants('a list', 'use e.g. ["case", "slash"]') }), list => {
        const twice = list.find((each, index) => list.indexOf(each) < index)
        if (twice !== undefined) throw new RangeError(`${quote(twice)} is listed twice; remove one`)
        return list
      }),
    ).describe('What to ignore in the path: upper and lower case, a slash at the end, ";a=b", e.g. ["case", "slash"].'),
    method: maybe(
      oneOrMany(
        method,
        'the list is empty; use e.g. ["GET", "HEAD"]',
        wants('an HTTP method', 'use e.g. "POST" or ["GET", "HEAD"]'),
      ),
    ).describe('The method or methods, e.g. "POST" or ["GET", "HEAD"].'),
    host: maybe(host).describe(
      'The host asked for, in any case, "*" for any text, e.g. "api.example.com" or "*.example.com".',
    ),
    header: maybe(headers('headers to match', 'use e.g. { "x-plan": "gold" }')).describe(
      'Headers and their values, "*" for any text, e.g. { "x-plan": "gold", "user-agent": "*bot*" }.',
    ),
    ip: maybe(
      oneOrMany(range, 'the list is empty; use e.g. ["10.0.0.0/8"]', wants('an address or CIDR', RANGES)),
    ).describe('The address of the client, or CIDRs, e.g. "10.0.0.0/8" or ["192.0.2.1", "2001:db8::/32"].'),
  },
  'use e.g. { "path": "/api/*", "method": "POST" }',
).superRefine(({ path: pattern, normalise = [] }, ctx) => {
  if (normalise.length > 0 && pattern === undefined)
    report(ctx, 'normalise', 'there is no path to compare; add e.g. "path": "/api/*", or remove it')
  if (normalise.includes('params') && pattern !== undefined && /^[^~].*;/.test(pattern)) {
    report(
      ctx,
      'path',
      `${quote(pattern)} has a ";", and "params" leaves out all of them; write the path without ";..."`,
    )
  }
})

const costError = ({ input }: RefusedValue) =>
  input === 0 ? '0 is not a cost; costs are above 0 (to forward untouched, use "mode": "off")' : costWants({ input })
const costWants = wants('a cost', COST)
const amount = z.number({ error: costError }).gt(0, { error: costError })

/** A method with a cost. @throws RangeError: a key that resembles another key of a cost is a misspelling of that one */
function costMethod(key: string): string {
  const meant = METHODS.includes(key.toUpperCase()) ? undefined : nearest(key, [...METHODS, ...COST_KEYS])
  if (meant === undefined || !COST_KEYS.includes(meant)) return methodName(key)
  throw new RangeError(`unknown key; ${hint(key, COST_KEYS, 'known keys')}`)
}

interface RefusedCost extends RefusedValue {
  readonly path?: readonly PropertyKey[] | undefined
}

const methodCostError = ({ input, path = [] }: RefusedCost): string => {
  try {
    costMethod(String(path.at(-1)))
    return costError({ input })
  } catch (error) {
    return (error as RangeError).message
  }
}
const methodCost = z.number({ error: methodCostError }).gt(0, { error: methodCostError })

const BUCKET_COSTS =
  '{ "requests": 1, "tokens": { "estimate": "body/4", "max": "max_tokens", "after": "usage.total_tokens" } }'
const ESTIMATES = 'use e.g. "body/4" (bytes of the body for each unit), "n" (a number in the JSON body) or 10'

const jsonPath = read(text('a path in JSON', JSON_PATHS), readJsonPath, formatJsonPath)

/** A part of the body's bytes, or what the body says. */
type BodyEstimate = { bytesPerUnit: number } | { path: JsonPath }

const estimate = z.union(
  [
    amount,
    read(
      text('an estimate', ESTIMATES),
      (value): BodyEstimate => {
        const divisor = /^body\/(.*)$/s.exec(value)?.[1]
        if (divisor !== undefined) {
          const bytesPerUnit = /^\d+(?:\.\d+)?$/.test(divisor) ? Number(divisor) : 0
          if (bytesPerUnit > 0) return { bytesPerUnit }
          throw new RangeError(`${quote(value)} does not divide by a number above 0; use e.g. "body/4"`)
        }
        const path = parseJsonPath(value)
        if (path === undefined) throw new RangeError(`${quote(value)} is not an estimate; ${ESTIMATES}`)
        return { path }
      },
      given => ('path' in given ? formatJsonPath(given.path) : `body/${given.bytesPerUnit}`),
    ),
  ],
  { error: wants('an estimate', ESTIMATES) },
)

const answerPaths = z.union(
  [alone(jsonPath), z.array(jsonPath).min(1, { error: 'the list is empty; use e.g. ["usage.total_tokens"]' })],
  { error: wants('a path in JSON', JSON_PATHS) },
)

type BucketCostSettings = {
  estimate: number | BodyEstimate
  /** Where the body says what the answer may cost. That is reserved as well. */
  max?: JsonPath
  /** Where the answer says what the request has cost. The first path that leads to a number counts. */
  after?: readonly JsonPath[]
}

type CostSettings =
  | { kind: 'fixed'; cost: number }
  | { kind: 'method'; costs: Readonly<Record<string, number>>; default: number }
  | { kind: 'header'; name: string; min: number; max: number; default: number }
  | { kind: 'buckets'; costs: Readonly<Record<string, BucketCostSettings>> }

const bucketCost = z.union(
  [
    read(
      amount,
      (cost): BucketCostSettings => ({ estimate: cost }),
      ({ estimate, ...more }) => {
        if (typeof estimate !== 'number' || Object.keys(more).length > 0) throw NOT_THIS_FORM
        return estimate
      },
    ),
    object(
      {
        estimate: estimate
          .prefault(1)
          .describe(
            'What is reserved: "body/4" (bytes of the body), a path in the JSON body, or a number, e.g. "body/4".',
          ),
        max: maybe(jsonPath).describe('Where the JSON body bounds the answer, e.g. "max_tokens"; reserved besides.'),
        after: maybe(answerPaths).describe(
          'Where the JSON answer, or an event of it, tells the cost, e.g. "usage.total_tokens". Of a list the first that is there counts.',
        ),
      },
      'use e.g. 5 or { "estimate": "body/4", "max": "max_tokens", "after": "usage.total_tokens" }',
      'a cost',
    ),
  ],
  { error: wants('a cost', 'use e.g. 5 or { "estimate": "body/4", "after": "usage.total_tokens" }') },
)

const costKeys = z
  .object(
    {
      header: maybe(z.string({ error: wants('a header name', 'use e.g. "x-cost"') })).describe(
        'The request header that tells the cost, e.g. "x-cost".',
      ),
      min: maybe(amount).describe(
        'The least a header may say, e.g. 0.5; as "default" when absent. Less counts as this.',
      ),
      max: maybe(amount).describe('The most a header may say, e.g. 100; required with "header".'),
      default: maybe(amount).describe('The cost when nothing else says so, e.g. 1.').meta({ default: 1 }),
      buckets: maybe(
        z.record(z.string(), bucketCost, { error: wants('an object', `use e.g. ${BUCKET_COSTS}`) }),
      ).describe(`The cost in each bucket, e.g. ${BUCKET_COSTS}; 1 in the others.`),
    },
    { error: wants('a cost', COST_FORMS) },
  )
  .catchall(methodCost)

const costObject = read(
  costKeys,
  ({ header, buckets, ...given }, ctx): CostSettings => {
    if (buckets !== undefined) {
      for (const key of Object.keys({ ...(header !== undefined && { header }), ...given }))
        report(ctx, key, 'does not go with "buckets", which says the cost in each; remove one')
      return { kind: 'buckets', costs: buckets as Record<string, BucketCostSettings> }
    }
    const cost: HeaderCost = { ...given, default: given.default ?? 1 }
    if (header !== undefined) {
      checkHeaderCost(cost, ctx)
      const { min = cost.default, max = 0 } = cost
      const name = renameOrReport(header, headerName, 'header', ctx)
      return { kind: 'header', name, min, max, default: cost.default }
    }
    const { min, max, default: otherwise, ...methods } = { ...given, default: cost.default }
    for (const [key, value] of Object.entries({ min, max })) {
      if (value !== undefined) report(ctx, key, 'only goes with "header"; add e.g. "header": "x-cost" or remove it')
    }
    return { kind: 'method', costs: renameKeys(methods, costMethod, ctx), default: otherwise }
  },
  cost => {
    if (cost.kind === 'fixed') throw NOT_THIS_FORM
    if (cost.kind === 'method') return { ...cost.costs, default: cost.default }
    // The type of a key is that of a method's cost, too.
    if (cost.kind === 'buckets') return { buckets: cost.costs } as never
    const { kind: _kind, name: header, ...bounds } = cost
    return { header, ...bounds } as never
  },
)

interface HeaderCost {
  readonly min?: number
  readonly max?: number
  readonly default: number
  readonly [unknown: string]: number | undefined
}

function checkHeaderCost(cost: HeaderCost, ctx: Issues): void {
  const { min, max, default: otherwise, ...rest } = cost
  for (const key of Object.keys(rest)) report(ctx, key, `unknown key; ${hint(key, HEADER_COST_KEYS, 'known keys')}`)
  if (max === undefined) return report(ctx, 'max', 'missing; say the most a header may cost, e.g. 100')
  for (const [key, value] of Object.entries({ default: otherwise, min })) {
    if (value !== undefined && value > max) report(ctx, key, `${value} is above max (${max}); lower it or raise max`)
  }
}

/** What browsers get that a bucket rejects. For a route, or for all that do not say otherwise. */
export const waitingPage = z.union(
  [
    flag,
    object(
      {
        template: text('the path of an HTML file', TEMPLATE).describe(
          'An HTML file with {{script}}, e.g. "wait.html".',
        ),
      },
      PAGES,
      'true, false or an object',
    ),
  ],
  { error: wants('true, false or an object', PAGES) },
)

const fixedCost = read(
  amount,
  (cost): CostSettings => ({ kind: 'fixed', cost }),
  cost => {
    if (cost.kind !== 'fixed') throw NOT_THIS_FORM
    return cost.cost
  },
)

const priorityHeader = z.strictObject(
  {
    header: z
      .literal(true, { error: PRIORITIES })
      .describe('Whether `Priority` of trusted hops is believed (RFC 9218), e.g. true.'),
  },
  { error: PRIORITIES },
)

const deliver = object(
  {
    url: postgresUrl.describe('The database that keeps the requests, e.g. "postgres://127.0.0.1/shaper".'),
    attempts: whole('a number of attempts', 'use a whole number from 1 to 1000, e.g. 8', 1, 1_000)
      .prefault(8)
      .describe('How often a request is sent before it is a dead letter, e.g. 8.'),
    backoff: timeout
      .prefault('1s')
      .describe('The longest pause after the first failure, e.g. "1s"; it doubles each time, and is drawn at random.'),
    maxBackoff: timeout.prefault('1h').describe('The longest pause between two attempts, e.g. "1h".'),
    keep: span.prefault('7d').describe('How long answers and dead letters are kept, e.g. "7d".'),
    maxBody: bytes('a number of bytes', 'use e.g. 1048576')
      .prefault(1_048_576)
      .describe('The longest body in bytes, e.g. 1048576; a longer one is answered 413.'),
    maxWaiting: whole('a number of requests', 'use a whole number from 1 to 1000000000, e.g. 1000000', 1, 1_000_000_000)
      .prefault(1_000_000)
      .describe('The most requests of the route that wait in the database, e.g. 1000000; more are answered 503.'),
    when: oneOf(['always', 'asked'], 'when to store')
      .prefault('always')
      .describe('Which requests: "always", or those with `Prefer: respond-async` ("asked"), e.g. "always".'),
    ordered: flag
      .prefault(false)
      .describe('Whether a request waits until those before it with the same key are delivered, e.g. true.'),
  },
  'use e.g. { "url": "postgres://127.0.0.1/shaper" }',
)

export const route = object(
  {
    name: maybe(name).describe('The name in logs and metrics, e.g. "api"; made from match when absent.'),
    match: match.prefault({}).describe('Which requests, e.g. { "path": "/api/*" }; all when absent.'),
    mode: oneOf(['shape', 'meter', 'off'], 'a mode')
      .prefault('shape')
      .describe('"shape" queues, "meter" only counts, "off" forwards untouched, e.g. "shape".'),
    buckets: maybe(
      z.array(text('the name of a bucket', 'use e.g. "client"'), {
        error: wants('a list of bucket names', 'use e.g. ["client"]'),
      }),
    ).describe('The buckets to pass through, e.g. ["client", "everyone"]; all when absent.'),
    cost: z
      .union([fixedCost, costObject], { error: wants('a cost', COST_FORMS) })
      .prefault(1)
      .describe(
        'What a request adds, e.g. 5, { "POST": 5, "default": 1 }, { "header": "x-cost", "max": 100 } or { "buckets": { "tokens": { "estimate": "body/4" } } }.',
      ),
    maxWait: maybe(timerDuration).describe('The longest a request may wait, e.g. "10s"; no bound when absent.'),
    patience: wordOr(['auto', 'none'], timeout, wants('a patience', 'use e.g. "2s", "auto" or "none"'))
      .prefault('auto')
      .describe('How long clients wait for an answer, e.g. "2s"; "auto" learns it, "none" never gives up a request.'),
    priority: z
      .union(
        [
          priority,
          z.codec(priorityHeader, z.literal('header'), {
            decode: () => 'header' as const,
            encode: () => ({ header: true as const }),
          }),
        ],
        { error: PRIORITIES },
      )
      .prefault(DEFAULT_PRIORITY)
      .describe(
        'Whether its requests leave first (0) or last (7), or { "header": true }: as trusted hops say, e.g. 3.',
      ),
    dryRun: flag.prefault(false).describe('Decide and report but hold and reject nothing, e.g. true.'),
    upstream: maybe(upstream).describe(
      'This route\'s own upstream, e.g. "http://127.0.0.1:9001"; "gate:" forwards nothing, and answers 204 to a proxy that asks.',
    ),
    gate: maybe(
      object(
        {
          rejectStatus: maybe(whole('a status', 'use a status from 400 to 599, e.g. 403', 400, 599)).describe(
            'The status of rejections, e.g. 403, as auth_request of nginx understands only 401 and 403.',
          ),
          passStatus: maybe(z.literal([204, 200], { error: wants('a status', 'use 200 or 204') })).describe(
            'The status that lets a request pass, e.g. 200, as Envoy takes no other; 204 when absent.',
          ),
        },
        'use e.g. { "rejectStatus": 403 }',
      ),
    ).describe('How the upstream "gate:" answers, e.g. { "rejectStatus": 403 }.'),
    deliver: maybe(deliver).describe(
      'Store requests, answer 202 and send them in their turn, e.g. { "url": "postgres://127.0.0.1/shaper" }.',
    ),
    refuse: flag.prefault(false).describe('With "mode": "off": answer 404 and forward nothing, e.g. true.'),
    explain: flag.prefault(false).describe('Tell in each answer how it was decided, e.g. true.'),
    coalesce: flag
      .prefault(false)
      .describe('Answer identical GETs that wait at the same time with the answer to one of them, e.g. true.'),
    appointments: flag
      .prefault(false)
      .describe('Keep room for rejected clients that come back in time with the ticket of their 429, e.g. true.'),
    waitingPage: maybe(waitingPage).describe(
      'What rejected browsers get: true, false or e.g. { "template": "wait.html" }; as at the top when absent.',
    ),
  },
  'use e.g. { "match": { "path": "/api/*" }, "buckets": ["client"] }',
  'a route',
)
