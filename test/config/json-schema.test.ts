import t from 'tap'
import { jsonSchema } from '../../src/config/schema/schema.js'
import { exampleConfig, least } from './sample.js'

interface Schema {
  $schema?: string
  title?: string
  description?: string
  default?: unknown
  type?: string | string[]
  const?: unknown
  enum?: unknown[]
  anyOf?: Schema[]
  oneOf?: Schema[]
  properties?: Record<string, Schema>
  required?: string[]
  additionalProperties?: boolean | Schema
  propertyNames?: { pattern?: string }
  items?: Schema
  minItems?: number
  minLength?: number
  minimum?: number
  maximum?: number
  exclusiveMinimum?: number
}

const schema = jsonSchema() as Schema

/** The part of JSON Schema that the generated schema uses. An unknown keyword fails the test. */
function accepts(schema: Schema, value: unknown): boolean {
  const { anyOf, oneOf, type } = schema
  if (anyOf && !anyOf.some(each => accepts(each, value))) return false
  if (oneOf && oneOf.filter(each => accepts(each, value)).length !== 1) return false
  if (type !== undefined && ![type].flat().some(each => isOf(each, value))) return false
  if ('const' in schema && schema.const !== value) return false
  if (schema.enum && !schema.enum.includes(value)) return false
  if (typeof value === 'string') return value.length >= (schema.minLength ?? 0)
  if (typeof value === 'number') return isWithin(schema, value)
  return typeof value !== 'object' || value === null || acceptsMembers(schema, value)
}

function isWithin(schema: Schema, value: number): boolean {
  const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum = -Infinity } = schema
  return value >= minimum && value <= maximum && value > exclusiveMinimum
}

function acceptsMembers(schema: Schema, value: object): boolean {
  if (!Array.isArray(value)) return acceptsProperties(schema, value)
  return value.length >= (schema.minItems ?? 0) && value.every(each => accepts(schema.items ?? {}, each))
}

function acceptsProperties(
  { properties = {}, required = [], additionalProperties = true, propertyNames }: Schema,
  value: object,
) {
  return (
    required.every(key => key in value) &&
    Object.entries(value).every(([key, inner]) => {
      if (propertyNames?.pattern !== undefined && !new RegExp(propertyNames.pattern).test(key)) return false
      const rest = typeof additionalProperties === 'boolean' ? additionalProperties && {} : additionalProperties
      const inside = properties[key] ?? rest
      return inside !== false && accepts(inside, inner)
    })
  )
}

function isOf(type: string, value: unknown): boolean {
  if (type === 'array') return Array.isArray(value)
  if (type === 'integer') return Number.isInteger(value)
  if (type === 'object') return typeof value === 'object' && value !== null && !Array.isArray(value)
  return typeof value === type
}

function* keysOf(schema: Schema, path: string): Generator<[path: string, schema: Schema]> {
  for (const [key, inner] of Object.entries(schema.properties ?? {})) {
    yield [`${path}${key}`, inner]
    yield* keysOf(inner, `${path}${key}.`)
  }
  for (const inner of [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), schema.items, schema.additionalProperties]) {
    if (typeof inner === 'object') yield* keysOf(inner, path)
  }
}

t.test('the schema has a title and a version', async t => {
  t.equal(schema.$schema, 'https://json-schema.org/draft/2020-12/schema')
  t.equal(schema.title, 'shaper.config.json')
  t.match(schema.description, /traffic shaper/)
  t.equal(JSON.stringify(JSON.parse(JSON.stringify(schema))), JSON.stringify(schema))
})

t.test('every key of the file has a description with an example', async t => {
  const keys = [...keysOf(schema, '')]
  const upstream = [
    '',
    ...['url', 'hostHeader', 'maxInFlight', 'connections', 'keepAlive', 'requestBuffer', 'responseBuffer'].map(
      key => `.${key}`,
    ),
    ...['connectTimeout', 'responseTimeout', 'idleTimeout', 'warmUp', 'maxConnectionAge'].map(key => `.${key}`),
    ...['', '.failures', '.status', '.probe', '.maxProbe', '.hold'].map(key => `.breaker${key}`),
    ...['', '.min', '.max', '.start', '.errors', '.latency'].map(key => `.adapt${key}`),
    ...['.p50', '.p90', '.p95', '.p99'].map(key => `.adapt.latency${key}`),
    ...[
      'tls',
      'tls.ca',
      'tls.servername',
      'tls.cert',
      'tls.key',
      'pauseOn',
      'pauseOn.status',
      'pauseOn.default',
      'pauseOn.max',
    ].map(key => `.${key}`),
    ...['servers', 'servers.url', 'servers.weight', 'servers.maxInFlight', 'servers.connections'].map(key => `.${key}`),
    ...['servers.backup', 'servers.dns', 'servers.resolver', 'dns', 'resolver', 'pick'].map(key => `.${key}`),
    ...['', '.from', '.missing', '.duplicates', '.ipv6'].map(key => `.pick.hash${key}`),
    ...['', '.path', '.interval', '.timeout', '.status', '.rise', '.fall'].map(key => `.health${key}`),
    ...['retry', 'retry.status', 'retry.max', 'via', 'http2', 'learn', 'profile', 'resource'].map(key => `.${key}`),
  ]
  const bucket = [
    'key',
    'key.from',
    'key.missing',
    'key.duplicates',
    'key.ipv6',
    'rate',
    'rate.from',
    'rate.to',
    'rate.rate',
    'quota',
    'quota.limit',
    'quota.per',
    'quota.timeZone',
    'quota.spread',
    'timeZone',
    'capacity',
    'maxDelay',
    'burst',
    'grace',
    'status',
    'overflow',
    'blockFor',
    'tiers',
    'limits',
    ...['file', 'postgres', 'postgres.url', 'postgres.query', 'refresh', 'channel'].map(key => `limits.${key}`),
    'weight',
    'maxInFlight',
    'minShare',
  ]
  const tier = [
    'name',
    'keys',
    'header',
    'rate',
    'rate.from',
    'rate.to',
    'rate.rate',
    'capacity',
    'burst',
    'quota',
    'maxInFlight',
    'weight',
    'priority',
  ]
  const route = [
    'name',
    'match',
    'mode',
    'buckets',
    'cost',
    'maxWait',
    'patience',
    'dryRun',
    'refuse',
    'explain',
    'deliver',
    ...['url', 'attempts', 'backoff', 'maxBackoff', 'keep', 'maxBody', 'maxWaiting', 'when', 'ordered'].map(
      key => `deliver.${key}`,
    ),
    'coalesce',
    'appointments',
    'waitingPage',
    'waitingPage.template',
    'gate',
    'gate.rejectStatus',
    'gate.passStatus',
    'priority',
    'priority.header',
  ]
  t.strictSame(
    new Set(keys.map(([path]) => path)),
    new Set([
      ...['$schema', 'trustProxy', 'accessLog', 'dryRun', 'headers', 'pacing', 'waitingPage', 'waitingPage.template'],
      ...['listen', 'listen.address', 'listen.mode', 'listen.tls', 'listen.tls.cert', 'listen.tls.key'],
      ...['listen.tls.clientCa', 'listen.proxyProtocol'],
      ...upstream.map(key => `upstream${key}`),
      ...[
        'store',
        ...['type', 'file', 'url', 'cluster', 'prefix', 'timeout', 'onOutage', 'instances', 'table'].map(
          key => `store.${key}`,
        ),
      ],
      ...['buckets', ...bucket.map(key => `buckets.${key}`), ...tier.map(key => `buckets.tiers.${key}`)],
      ...['routes', ...route.map(key => `routes.${key}`), ...upstream.map(key => `routes.upstream${key}`)],
      ...['path', 'normalise', 'method', 'host', 'header', 'ip'].map(key => `routes.match.${key}`),
      ...['header', 'min', 'max', 'default', 'buckets'].map(key => `routes.cost.${key}`),
      ...['estimate', 'max', 'after'].map(key => `routes.cost.buckets.${key}`),
      ...[
        'limits',
        'limits.maxKeys',
        'limits.maxQueued',
        'limits.maxConnections',
        'limits.connectionsPerClient',
        'limits.headersTimeout',
        'limits.keepAliveTimeout',
        'limits.tunnelIdleTimeout',
        'limits.bodyTimeout',
        'limits.minBodyRate',
        'limits.bufferMemory',
      ],
      ...['limits.maxHeaderSize', 'limits.maxHeaders', 'limits.drainDelay', 'limits.shutdownTimeout'],
      ...['admin', 'admin.listen', 'admin.listen.address', 'admin.listen.mode', 'admin.token'],
      'ticketKeys',
      ...['identity', 'identity.jwt'],
      ...['jwksUrl', 'publicKey', 'secret', 'issuer', 'audience', 'algorithms', 'clockTolerance'].map(
        key => `identity.jwt.${key}`,
      ),
      ...['egress', 'egress.allow', 'egress.token'],
      ...upstream
        .filter(
          key =>
            !/url|profile|resource|hostHeader|http2|servername|tls\.(cert|key)|resolver|^\.(servers|dns|pick|health)/i.test(
              key,
            ),
        )
        .map(key => `egress.upstream${key}`),
    ]),
  )
  for (const [path, { description }] of keys) t.match(description, /e\.g\. /, path)
})

t.test('defaults are written as a user would write them', async t => {
  t.equal(schema.properties?.listen?.default, '127.0.0.1:8080')
  t.equal(schema.properties?.limits?.properties?.shutdownTimeout?.default, '30s')
})

t.test('the schema accepts valid files and refuses invalid ones', async t => {
  t.ok(accepts(schema, exampleConfig()))
  t.ok(accepts(schema, exampleConfig()))
  t.ok(accepts(schema, least()))
  t.notOk(accepts(schema, { ...least(), upstraem: 'x' }))
  t.notOk(accepts(schema, { ...least(), listen: 80 }))
  t.notOk(accepts(schema, { ...least(), buckets: { 'a b': { rate: 1 } } }))
  t.notOk(accepts(schema, { ...least(), buckets: { a: { rate: 1, maxInFlight: 0 } } }))
  t.notOk(accepts(schema, { ...least(), buckets: { a: { rate: 1, status: 200 } } }))
  t.notOk(accepts(schema, { ...least(), routes: [] }))
  t.notOk(accepts(schema, { ...least(), routes: [{ cost: 0 }] }))
  t.notOk(accepts(schema, { ...least(), routes: [{ mode: 'on' }] }))
  t.notOk(accepts(schema, { ...least(), store: { type: 'etcd' } }))
})
