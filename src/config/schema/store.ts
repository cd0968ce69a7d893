import * as z from 'zod'
import { quote, type RefusedValue, wants } from '../messages.js'
import { readPostgresUrl, readRedisNode, readRedisUrl, readTable, type UrlReader } from '../store-url.js'
import { maybe, object, oneOf, read, report, someOf, text, timeout, whole } from './values.js'

const FORMS = 'use "memory", or an object with "type": "memory", "redis" or "postgres"'
const NODES = 'use e.g. ["redis://10.0.0.1:6379"]'

/** A text, so that the schema for editors says so. */
function checked(parse: UrlReader) {
  const error = ({ input }: RefusedValue): string => messageOf(parse, input)
  return read(z.string({ error }), parse)
}

function messageOf(parse: UrlReader, input: unknown): string {
  try {
    return parse(input)
  } catch (error) {
    return (error as Error).message
  }
}

const redisUrl = checked(readRedisUrl)
const redisNode = checked(readRedisNode)
export const postgresUrl = checked(readPostgresUrl)

const shared = {
  timeout: timeout.prefault('250ms').describe('How long an answer of the store may take, e.g. "250ms".'),
  onOutage: oneOf(['local', 'closed', 'open'], 'a choice for an outage')
    .prefault('local')
    .describe(
      'What to do without the store, e.g. "local" (a share of the rates), "closed" (reject), "open" (forward).',
    ),
  instances: maybe(whole('a number of instances', 'use a whole number from 1 to 10000, e.g. 3', 1, 10_000)).describe(
    'How many processes share the store at least, for a start without it, e.g. 3.',
  ),
}

const table = checked(readTable)

const redisObject = object(
  {
    type: z.literal('redis').describe('The kind of store, e.g. "redis".'),
    url: maybe(redisUrl).describe(
      'One server, e.g. "redis://127.0.0.1:6379", or "redis+sentinel://10.0.0.1:26379/mymaster".',
    ),
    cluster: maybe(someOf(redisNode, wants('a list of URLs', NODES), NODES)).describe(
      'Some nodes of a cluster, instead of url, e.g. ["redis://10.0.0.1:6379"].',
    ),
    prefix: text('a prefix', 'use e.g. "shaper:"').prefault('shaper:').describe('Before every key, e.g. "shaper:".'),
    ...shared,
  },
  FORMS,
  'a store',
)

const postgresObject = object(
  {
    type: z.literal('postgres').describe('The kind of store, e.g. "postgres".'),
    url: postgresUrl.describe('The database, e.g. "postgres://127.0.0.1/shaper".'),
    table: table.prefault('shaper_buckets').describe('The table, e.g. "shaper_buckets".'),
    ...shared,
  },
  FORMS,
  'a store',
)

const memoryObject = object(
  {
    type: z.literal('memory').describe('The kind of store, e.g. "memory".'),
    file: maybe(text('a file', 'use e.g. "/var/lib/shaper/levels.json"')).describe(
      'Where levels are kept over restarts, e.g. "/var/lib/shaper/levels.json".',
    ),
  },
  FORMS,
  'a store',
)

const kinds = z.discriminatedUnion('type', [memoryObject, redisObject, postgresObject], {
  error: ({ code, input }) => {
    if (code !== 'invalid_union') return wants('a store', FORMS)({ input })
    const { type } = input as { type?: unknown }
    return `${type === undefined ? 'missing' : `${quote(type)} is not a kind of store`}; use "memory", "redis" or "postgres"`
  },
})

const whereabouts = kinds.superRefine((value, ctx) => {
  if (value.type === 'redis' && (value.url === undefined) === (value.cluster === undefined)) {
    const message = value.url === undefined ? 'missing; give url or cluster' : 'give either url or cluster; remove one'
    report(ctx, 'url', message)
  }
})

export const store = z.union([z.literal('memory'), whereabouts], { error: wants('a store', FORMS) })
