import * as z from 'zod'
import { hint, quote, type RefusedValue, wants } from '../messages.js'
import type { CostSettings } from '../settings.js'
import { headers, renameKeys, renameOrReport } from './case-insensitive.js'
import { upstream } from './upstream.js'
import { flag, headerName, methodName, name, object, oneOf, read, text, timerDuration } from './values.js'

const COST = 'use a number above 0, e.g. 5'
const COST_FORMS = 'use e.g. 5, { "POST": 5, "default": 1 } or { "header": "x-cost", "max": 100 }'
const HEADER_COST_KEYS = ['header', 'min', 'max', 'default']

const method = read(z.string({ error: wants('an HTTP method', 'use e.g. "POST"') }), methodName)

const path = read(text('a path', 'use e.g. "/login", "/api/*"'), value => {
  const fault = (reason: string) => new RangeError(`${quote(value)} ${reason}; use e.g. "/login", "/api/*"`)
  if (!value.startsWith('/') && value !== '*') throw fault('does not start with "/"')
  if (value.slice(0, -1).includes('*')) throw fault('has a "*" that is not at its end')
  if (/[?#\s]/.test(value)) throw fault('has a query, a fragment or a space, which no path has')
  return value
})

const host = read(text('a host', 'use e.g. "api.example.com"'), value => {
  if (/^(?:[A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?$/.test(value)) return value.toLowerCase()
  throw new RangeError(`${quote(value)} is not a host; use e.g. "api.example.com"`)
})

const match = object(
  {
    path: path.exactOptional().describe('The exact path, or a prefix that ends in "*", e.g. "/api/*".'),
    method: z
      .union(
        [
          method.transform(one => [one]),
          z.array(method).min(1, { error: 'the list is empty; use e.g. ["GET", "HEAD"]' }),
        ],
        { error: wants('an HTTP method', 'use e.g. "POST" or ["GET", "HEAD"]') },
      )
      .exactOptional()
      .describe('The method or methods, e.g. "POST" or ["GET", "HEAD"].'),
    host: host.exactOptional().describe('The host asked for, in any case, e.g. "api.example.com".'),
    header: headers('headers to match', 'use e.g. { "x-plan": "gold" }')
      .exactOptional()
      .describe('Headers and their exact values, e.g. { "x-plan": "gold" }.'),
  },
  'an object',
  'use e.g. { "path": "/api/*", "method": "POST" }',
)

const costError = ({ input }: RefusedValue) =>
  input === 0 ? '0 is not a cost; costs are above 0 (to forward untouched, use "mode": "off")' : costWants({ input })
const costWants = wants('a cost', COST)
const amount = z.number({ error: costError }).gt(0, { error: costError })

const costObject = z
  .object(
    {
      header: z
        .string({ error: wants('a header name', 'use e.g. "x-cost"') })
        .exactOptional()
        .describe('The request header that tells the cost, e.g. "x-cost".'),
      min: amount
        .exactOptional()
        .describe('The least a header may say, e.g. 0.5; as "default" when absent. Less counts as this.'),
      max: amount.exactOptional().describe('The most a header may say, e.g. 100; required with "header".'),
      default: amount.prefault(1).describe('The cost when nothing else says so, e.g. 1.'),
    },
    { error: wants('a cost', COST_FORMS) },
  )
  .catchall(amount)
  .transform(({ header, ...cost }, ctx): CostSettings => {
    const report = (key: string, message: string) => {
      ctx.issues.push({ code: 'custom', path: [key], message, input: undefined })
    }
    if (header !== undefined) {
      checkHeaderCost(cost, report)
      const { min = cost.default, max = 0 } = cost
      const name = renameOrReport(header, headerName, 'header', ctx)
      return { kind: 'header', name, min, max, default: cost.default }
    }
    const { min, max, default: otherwise, ...methods } = cost
    for (const [key, value] of Object.entries({ min, max })) {
      if (value !== undefined) report(key, 'only goes with "header"; add e.g. "header": "x-cost" or remove it')
    }
    return { kind: 'method', costs: renameKeys(methods, methodName, ctx), default: otherwise }
  })

interface HeaderCost {
  readonly min?: number
  readonly max?: number
  readonly default: number
  readonly [unknown: string]: number | undefined
}

function checkHeaderCost(cost: HeaderCost, report: (key: string, message: string) => void): void {
  const { min, max, default: otherwise, ...rest } = cost
  for (const key of Object.keys(rest)) report(key, `unknown key; ${hint(key, HEADER_COST_KEYS, 'known keys')}`)
  if (max === undefined) return report('max', 'missing; say the most a header may cost, e.g. 100')
  for (const [key, value] of Object.entries({ default: otherwise, min })) {
    if (value !== undefined && value > max) report(key, `${value} is above max (${max}); lower it or raise max`)
  }
}

export const route = object(
  {
    name: name.exactOptional().describe('The name in logs and metrics, e.g. "api"; made from match when absent.'),
    match: match.prefault({}).describe('Which requests, e.g. { "path": "/api/*" }; all when absent.'),
    mode: oneOf(['shape', 'meter', 'off'], 'a mode')
      .prefault('shape')
      .describe('"shape" queues, "meter" only counts, "off" forwards untouched, e.g. "shape".'),
    buckets: z
      .array(text('the name of a bucket', 'use e.g. "client"'), {
        error: wants('a list of bucket names', 'use e.g. ["client"]'),
      })
      .exactOptional()
      .describe('The buckets to pass through, e.g. ["client", "everyone"]; all when absent.'),
    cost: z
      .union([amount.transform((cost): CostSettings => ({ kind: 'fixed', cost })), costObject], {
        error: wants('a cost', COST_FORMS),
      })
      .prefault(1)
      .describe('What a request adds, e.g. 5, { "POST": 5, "default": 1 } or { "header": "x-cost", "max": 100 }.'),
    maxWait: timerDuration
      .exactOptional()
      .describe('The longest a request may wait, e.g. "10s"; no bound when absent.'),
    dryRun: flag.prefault(false).describe('Decide and report but hold and reject nothing, e.g. true.'),
    upstream: upstream.exactOptional().describe('This route\'s own upstream, e.g. "http://127.0.0.1:9001".'),
    explain: flag.prefault(false).describe('Tell in each answer how it was decided, e.g. true.'),
  },
  'a route',
  'use e.g. { "match": { "path": "/api/*" }, "buckets": ["client"] }',
)
