import { type InnerList, type Item, isInnerList, type List, type Parameters } from 'structured-headers'
import { type Bare, dictionaryOf, listOf, textOf } from '../structured-fields.js'
import { type Fields, type Limited, LONGEST, type Quota, readDecimal } from './field-values.js'
import { EPOCH_MS, type QuotaReset, readReset } from './reset.js'

export { type Fields, followersOf, LIMITED, type Limited, type Quota } from './field-values.js'

/** A greater count is a mistake, or means that there is no limit. */
const MOST = 1e12

interface Row {
  /** What it limits, if the field names tell. */
  readonly bucket?: Limited
  readonly limit: string
  readonly remaining: string
  /** The first one that is present and readable counts. */
  readonly reset: readonly string[]
  /** ms, if the field names imply it. */
  readonly window?: number
  /** The field that gives the window in ms. */
  readonly windowField?: string
}

type Dialect = (fields: Fields, wallNow: number) => readonly Quota[]

/** Dialects that say more come first. */
const DIALECTS: readonly Dialect[] = [
  anthropicPlan,
  namedItems,
  keyedItems,
  kong,
  rows(prefixed('ratelimit')),
  rows(ofModels('requests')),
  rows({ ...prefixed('anthropic-ratelimit-requests'), bucket: 'requests' }),
  rows({
    limit: 'x-hubspot-ratelimit-max',
    remaining: 'x-hubspot-ratelimit-remaining',
    reset: [],
    windowField: 'x-hubspot-ratelimit-interval-milliseconds',
  }),
  rows(prefixed('x-ratelimit', ['x-ratelimit-reset-after', 'x-ratelimit-reset', 'x-ratelimit-reset-ms'])),
  rows(prefixed('x-rate-limit', ['x-rate-limit-reset', 'x-rate-limit-reset-ms'])),
  shopify,
]

/** Limits on the tokens of language models. */
const TOKEN_DIALECTS: readonly Dialect[] = [
  rows(ofModels('tokens')),
  rows(
    ...['tokens', 'input-tokens', 'output-tokens'].map(
      (what): Row => ({ ...prefixed(`anthropic-ratelimit-${what}`), bucket: 'tokens' }),
    ),
  ),
]

const KONG: readonly Row[] = Object.entries({ second: 1_000, minute: 60_000, hour: 3_600_000, day: 86_400_000 }).map(
  ([unit, window]) => {
    return { limit: `x-ratelimit-limit-${unit}`, remaining: `x-ratelimit-remaining-${unit}`, reset: [], window }
  },
)

/** Which of its limits an answer is about, where an API has several: GitHub's `core`, `search` and others. */
export function resourceOf(fields: Fields): string | undefined {
  return /^[\w.-]{1,64}$/.exec(fields('x-ratelimit-resource') ?? '')?.[0]
}

/**
 * Reads the limits that an answer announces: the most restrictive one on requests, and the most restrictive one on tokens.
 * Each comes from the first dialect that says how much of it is left.
 *
 * @param wallNow ms since 1970; used if the answer has no Date
 * @returns at most one of each; none if the answer says nothing that makes sense
 */
export function readQuotas(fields: Fields, wallNow: number): readonly Quota[] {
  const requests = readIn(DIALECTS, fields, wallNow)
  const tokens = readIn(TOKEN_DIALECTS, fields, wallNow)
  return [requests, tokens].filter(quota => quota !== undefined)
}

function readIn(dialects: readonly Dialect[], fields: Fields, wallNow: number): Quota | undefined {
  let first: Quota | undefined
  for (const dialect of dialects) {
    const quota = tightest(dialect(fields, wallNow))
    if (quota?.remaining !== undefined) return quota
    first ??= quota
  }
  return first
}

function tightest(quotas: readonly Quota[]): Quota | undefined {
  let found: Quota | undefined
  for (const quota of quotas) if (found === undefined || looseness(quota) < looseness(found)) found = quota
  return found
}

/** Requests per ms. Negative for limits that are used up: the longest wait is the least. */
function looseness({ limit, window, remaining, reset }: Quota): number {
  if (remaining !== undefined && remaining < 1) return -(reset ?? window ?? 0)
  const base = limit === undefined || window === undefined ? Infinity : limit / window
  return Math.min(base, remaining === undefined || reset === undefined ? Infinity : remaining / reset)
}

/** draft-ietf-httpapi-ratelimit-headers-08 and later: `RateLimit-Policy: "a";q=9;w=60` and `RateLimit: "a";r=0;t=5`. */
function namedItems(fields: Fields): Quota[] {
  const policies = named(fields('ratelimit-policy'))
  const states = named(fields('ratelimit'))
  const quotas: Quota[] = []
  for (const name of new Set([...states, ...policies].map(([name]) => name))) {
    const policy = policies.find(each => each[0] === name)?.[1]
    // Quotas in bytes or concurrent requests do not limit the rate of requests.
    if (policy?.has('qu') && textOf(policy.get('qu')) !== 'requests') continue
    const items = states.filter(each => each[0] === name)
    for (const params of items.length > 0 ? items.map(([, params]) => params) : [undefined]) {
      const reset = seconds(params?.get('t'))
      const end = reset === undefined ? undefined : { reset, grain: 1_000 }
      const window = seconds(policy?.get('w'))
      add(quotas, { limit: policy?.get('q'), window, remaining: params?.get('r'), end })
    }
  }
  return quotas
}

function named(field: string | undefined): readonly [name: string, params: Parameters][] {
  return listOf(field).flatMap(([value, params]) => {
    const name = textOf(value)
    return name === undefined ? [] : [[name, params]]
  })
}

/** Anthropic's plans tell a share that is used. Only when nothing is left does it say how many requests that is. */
function anthropicPlan(fields: Fields, wallNow: number): Quota[] {
  const told = (what: string) => fields(`anthropic-ratelimit-unified-${what}`)
  const isUsedUp = told('status') === 'rejected' && told('overage-status') !== 'allowed'
  const quotas: Quota[] = []
  if (isUsedUp)
    add(quotas, { limit: undefined, window: undefined, remaining: 0, end: readReset(told('reset'), fields, wallNow) })
  return quotas
}

/** ms in which Shopify's bucket drains: 40 at 2/s, 80 at 4/s, 400 at 20/s. */
const SHOPIFY_WINDOW = 20_000

/** Shopify's leaky bucket: `39/40` are in it. When it is full one more fits as soon as one has drained. */
function shopify(fields: Fields): Quota[] {
  const [, used, size] = /^\s*(\d{1,9})\/(\d{1,9})\b/.exec(fields('x-shopify-shop-api-call-limit') ?? '') ?? []
  const [limit, window] = [Number(size), SHOPIFY_WINDOW]
  const remaining = Math.max(0, limit - Number(used))
  const quotas: Quota[] = []
  const end = remaining < 1 ? { reset: window / limit, grain: 0 } : undefined
  if (limit >= 1) add(quotas, { limit, window, remaining, end })
  return quotas
}

/** Draft 07: `RateLimit: limit=100, remaining=50, reset=5`. */
function keyedItems(fields: Fields, wallNow: number): Quota[] {
  const members = dictionaryOf(fields('ratelimit'))
  const value = (name: string): Bare => itemOf(members.get(name))
  const quotas: Quota[] = []
  const limit = value('limit')
  const reset = value('reset')
  const end = typeof reset === 'number' ? readReset(String(reset), fields, wallNow) : undefined
  add(quotas, { limit, window: policyWindow(limit, fields), remaining: value('remaining'), end })
  return quotas
}

/** Kong announces several windows. The fields of the early drafts say when one of them ends. */
function kong(fields: Fields, wallNow: number): readonly Quota[] {
  const quotas = rows(...KONG)(fields, wallNow)
  if (quotas.length === 0) return quotas
  const [ending] = rows(prefixed('ratelimit'))(fields, wallNow)
  return quotas.map(quota => {
    const isSame = ending?.limit === quota.limit && ending?.remaining === quota.remaining
    const fits = isSame && ending?.reset !== undefined && ending.reset <= quota.window! + ending.grain
    return fits ? { ...quota, reset: ending.reset, grain: ending.grain } : quota
  })
}

function prefixed(prefix: string, reset: readonly string[] = [`${prefix}-reset`]): Row {
  return { limit: `${prefix}-limit`, remaining: `${prefix}-remaining`, reset }
}

/** As OpenAI, Azure and others name them. */
function ofModels(bucket: Limited): Row {
  return {
    bucket,
    limit: `x-ratelimit-limit-${bucket}`,
    remaining: `x-ratelimit-remaining-${bucket}`,
    reset: [`x-ratelimit-reset-${bucket}`],
  }
}

function rows(...all: readonly Row[]): Dialect {
  return (fields, wallNow) => {
    const quotas: Quota[] = []
    for (const row of all) {
      const limits = listOf(fields(row.limit))
      const limit = itemOf(limits[0])
      const declared = readDecimal(row.windowField && fields(row.windowField)) ?? row.window
      const window = declared ?? windowOf(limit, limits) ?? policyWindow(limit, fields)
      const left = fields(row.remaining)
      // Fields that are older than RFC 9651 have as many decimal places as they like.
      const remaining = readDecimal(left) ?? itemOf(listOf(left)[0])
      add(quotas, { bucket: row.bucket, limit, window, remaining, end: endOf(row, fields, wallNow) })
    }
    return quotas
  }
}

function endOf({ reset }: Row, fields: Fields, wallNow: number): QuotaReset | undefined {
  for (const name of reset) {
    const text = fields(name)
    // It may also be ms since 1970, which are known by their size.
    const isMs = name.endsWith('-ms') && Number(text) < EPOCH_MS
    const found = readReset(isMs ? `${text!.trim()}ms` : text, fields, wallNow)
    if (found !== undefined) return found
  }
  return undefined
}

/** Early drafts: `RateLimit-Limit: 100, 100;w=60, 5000;w=3600`. The limit in force comes first. */
function windowOf(limit: Bare, members: List): number | undefined {
  return seconds(members.find(([value, params]) => value === limit && params.has('w'))?.[1].get('w'))
}

function itemOf(member: Item | InnerList | undefined): Bare {
  return member === undefined || isInnerList(member) ? undefined : member[0]
}

/** Drafts up to 07 have the windows in their own field: `RateLimit-Policy: 100;w=60`. */
function policyWindow(limit: Bare, fields: Fields): number | undefined {
  return limit === undefined ? undefined : windowOf(limit, listOf(fields('ratelimit-policy')))
}

/** ms */
function seconds(value: Bare): number | undefined {
  const ms = typeof value === 'number' ? value * 1_000 : Number.NaN
  return ms >= 0 && ms <= LONGEST ? ms : undefined
}

interface Announced {
  readonly bucket?: Limited | undefined
  readonly limit: Bare
  /** ms */
  readonly window: number | undefined
  readonly remaining: Bare
  readonly end: QuotaReset | undefined
}

/** Adds a quota if any part of it makes sense. */
function add(quotas: Quota[], { bucket, limit, window, remaining, end }: Announced): void {
  const quota: Quota = {
    ...(bucket !== undefined && { bucket }),
    limit: isCount(limit) && limit >= 1 ? limit : undefined,
    window: window !== undefined && window > 0 && window <= LONGEST ? window : undefined,
    remaining: isCount(remaining) ? remaining : undefined,
    reset: end?.reset,
    grain: end?.grain ?? 0,
  }
  if (quota.limit !== undefined || quota.remaining !== undefined) quotas.push(quota)
}

function isCount(value: Bare): value is number {
  return typeof value === 'number' && value >= 0 && value <= MOST
}
