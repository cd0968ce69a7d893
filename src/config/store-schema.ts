import * as z from 'zod'
import { object, oneOf, read, text, timeout } from './values.js'
import { quote, quoteUrl, wants } from './words.js'

const FORMS = 'use "memory", or an object with "type": "redis" or "postgres"'

function storeUrl(example: string, schemes: RegExp) {
  const fault = (input: unknown) => `${quoteUrl(input)} is not the URL of this store; use e.g. "${example}"`
  return read(
    z.string({ error: ({ input }) => (input === undefined ? `missing; use e.g. "${example}"` : fault(input)) }),
    value => {
      if (!schemes.test(value) || !URL.canParse(value)) throw new RangeError(fault(value))
      return value
    },
  )
}

const shared = {
  timeout: timeout.exactOptional().describe('How long an answer of the store may take, e.g. "100ms".'),
  onOutage: oneOf(['open', 'closed'], 'a choice for an outage')
    .exactOptional()
    .describe('What to do without the store, e.g. "open" (forward) or "closed" (reject).'),
}

const redisUrl = storeUrl('redis://127.0.0.1:6379', /^rediss?:\/\//)

const redisObject = object(
  {
    type: z.literal('redis').describe('The kind of store, e.g. "redis".'),
    url: redisUrl.exactOptional().describe('One server, e.g. "redis://127.0.0.1:6379".'),
    cluster: z
      .array(redisUrl, { error: wants('a list of URLs', 'use e.g. ["redis://10.0.0.1:6379"]') })
      .min(1, { error: 'the list is empty; use e.g. ["redis://10.0.0.1:6379"]' })
      .exactOptional()
      .describe('Some nodes of a cluster, instead of url, e.g. ["redis://10.0.0.1:6379"].'),
    prefix: text('a prefix', 'use e.g. "shaper:"').exactOptional().describe('Before every key, e.g. "shaper:".'),
    ...shared,
  },
  'a store',
  FORMS,
)

const postgresObject = object(
  {
    type: z.literal('postgres').describe('The kind of store, e.g. "postgres".'),
    url: storeUrl('postgres://127.0.0.1/shaper', /^postgres(?:ql)?:\/\//).describe(
      'The database, e.g. "postgres://127.0.0.1/shaper".',
    ),
    table: text('a table', 'use e.g. "shaper_buckets"').exactOptional().describe('The table, e.g. "shaper_buckets".'),
    ...shared,
  },
  'a store',
  FORMS,
)

const kinds = z.discriminatedUnion('type', [redisObject, postgresObject], {
  error: ({ code, input }) => {
    if (code !== 'invalid_union') return wants('a store', FORMS)({ input })
    const { type } = input as { type?: unknown }
    return `${type === undefined ? 'missing' : `${quote(type)} is not a kind of store`}; use "redis" or "postgres"`
  },
})

const whereabouts = kinds.transform((value, ctx) => {
  if (value.type === 'redis' && (value.url === undefined) === (value.cluster === undefined)) {
    const message = value.url === undefined ? 'missing; give url or cluster' : 'give either url or cluster; remove one'
    ctx.issues.push({ code: 'custom', path: ['url'], message, input: undefined })
  }
  return value
})

export const store = z.union([z.literal('memory'), whereabouts], { error: wants('a store', FORMS) })
