/**
 * What providers of APIs say about their limits. Data only, for the proxy (`upstream.profile`) and for programs.
 *
 * A figure is here only if a page of the provider itself states it for every account, and a stored copy of that page has been
 * read. Each figure names the page and a date. Many copies have no date of their own; `dated` says what the date is. Figures that
 * differ by plan, model or method are left out: there the answers alone say what is allowed.
 */

export interface Figure<T> {
  /** As in the configuration file. */
  readonly value: T
  /** Whom or what it is for, in words. */
  readonly of: string
  /** The address of the page. */
  readonly source: string
  /** `YYYY-MM-DD` */
  readonly date: string
  /** `copy`: when it was made. `text`: it is of this day or later, as it says. `read`: when, as it has no date. */
  readonly dated: 'copy' | 'text' | 'read'
}

/** Limits of one bucket. */
export interface ProfileBucket {
  /** As in the configuration file, e.g. `5000/h`. */
  readonly rate: Figure<string>
  /** What may come at once after a while without requests. */
  readonly burst?: Figure<number>
  /** The most requests in flight. */
  readonly maxInFlight?: Figure<number>
}

/** What a provider says of its API. */
export interface Profile {
  /** Its name. */
  readonly provider: string
  /** By name. Empty: no figure holds for every account. */
  readonly buckets: Readonly<Record<string, ProfileBucket>>
  /** Whether the rate follows the headers of answers. */
  readonly learn: boolean
  /** The headers that say how much is left, or when to come again. Names are lower-cased. */
  readonly headers: readonly string[]
  /** Answers that pause, as `pauseOn` in the configuration file. */
  readonly pauseOn: { readonly status: readonly number[]; readonly default: string; readonly max: string }
  /** What the figures leave out, or why there are none. */
  readonly remark: string
}

const GITHUB_REST = {
  source: 'https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api?apiVersion=2026-03-10',
  date: '2026-03-10',
  dated: 'text',
} as const
const SHOPIFY_REST = {
  source: 'https://shopify.dev/docs/api/admin-rest/usage/rate-limits',
  date: '2026-11-25',
  dated: 'read',
} as const
const THE_USUAL_PAUSE = { status: [429], default: '1s', max: '60s' }

const threeOf = (prefix: string, suffix: string): string[] =>
  ['limit', 'remaining', 'reset'].map(part => `${prefix}${part}${suffix}`)

/** All profiles, by name. */
export const profiles = {
  github: {
    provider: 'GitHub',
    buckets: {
      requests: {
        rate: { value: '5000/h', of: 'REST requests of an authenticated user', ...GITHUB_REST },
        burst: {
          value: 816,
          of: 'requests at once: the 900 points a minute of an endpoint, less what the rate brings in a minute',
          ...GITHUB_REST,
        },
        maxInFlight: {
          value: 100,
          of: 'requests at once, REST and GraphQL together',
          source:
            'https://github.com/github/docs/blob/main/data/reusables/rest-api/secondary-rate-limit-rest-graphql.md',
          date: '2026-11-25',
          dated: 'read',
        },
      },
    },
    learn: true,
    headers: [...threeOf('x-ratelimit-', ''), 'retry-after'],
    // Its page asks for a minute where an answer names no time. The window of the primary limit is an hour.
    pauseOn: { status: [429], default: '1m', max: '1h' },
    remark:
      'GitHub Apps of Enterprise Cloud organizations have 15,000/h, requests without a token 60/h. Points per minute (900, five for each write), search and GraphQL have limits of their own.',
  },
  openai: {
    provider: 'OpenAI',
    buckets: {},
    learn: true,
    headers: [
      ...threeOf('x-ratelimit-', '-requests'),
      ...threeOf('x-ratelimit-', '-tokens'),
      'retry-after',
      'retry-after-ms',
    ],
    pauseOn: THE_USUAL_PAUSE,
    remark: 'The limits differ by model and usage tier.',
  },
  anthropic: {
    provider: 'Anthropic',
    buckets: {},
    learn: true,
    headers: [
      ...['requests', 'tokens', 'input-tokens', 'output-tokens'].flatMap(what =>
        threeOf(`anthropic-ratelimit-${what}-`, ''),
      ),
      ...['anthropic-ratelimit-unified-status', 'anthropic-ratelimit-unified-reset'],
      'retry-after',
    ],
    // 529: it is overloaded.
    pauseOn: { ...THE_USUAL_PAUSE, status: [429, 529] },
    remark: 'The limits differ by model and usage tier.',
  },
  shopify: {
    provider: 'Shopify',
    buckets: {
      requests: {
        rate: { value: '2/s', of: 'REST Admin requests of an app to a shop, standard plan', ...SHOPIFY_REST },
        burst: {
          value: 40,
          of: 'requests at once: the bucket in its example of X-Shopify-Shop-Api-Call-Limit, standard plan',
          ...SHOPIFY_REST,
        },
      },
    },
    learn: true,
    headers: ['x-shopify-shop-api-call-limit', 'retry-after'],
    pauseOn: THE_USUAL_PAUSE,
    remark:
      'Advanced Shopify has 4/s and a bucket of 80, Shopify Plus 20/s and 400. GraphQL counts points, which its answers tell in their bodies: they are not read.',
  },
  slack: {
    provider: 'Slack',
    buckets: {},
    learn: true,
    headers: ['retry-after'],
    pauseOn: THE_USUAL_PAUSE,
    remark: 'The limits differ by method, from 1 to more than 100 per minute and workspace.',
  },
  stripe: {
    provider: 'Stripe',
    buckets: {
      requests: {
        rate: {
          value: '100/s',
          of: 'requests of an account in live mode',
          source: 'https://docs.stripe.com/rate-limits',
          date: '2026-11-25',
          dated: 'read',
        },
      },
    },
    learn: true,
    headers: ['retry-after'],
    pauseOn: THE_USUAL_PAUSE,
    remark: 'A sandbox has 25/s, and so has each endpoint by itself unless its page says otherwise.',
  },
  discord: {
    provider: 'Discord',
    buckets: {
      requests: {
        rate: {
          value: '50/s',
          of: 'requests of a bot on all routes',
          source: 'https://docs.discord.com/developers/topics/rate-limits',
          date: '2026-08-06',
          dated: 'copy',
        },
      },
    },
    // The headers are about one route of the API. Followed for all of them they would slow everything to the slowest.
    learn: false,
    headers: ['retry-after'],
    pauseOn: THE_USUAL_PAUSE,
    remark:
      'Each route of the API has limits of its own, told in its X-RateLimit headers. For a few such routes use upstreams with "learn": true.',
  },
} as const satisfies Record<string, Profile>

/** The name of a profile. */
export type ProfileName = keyof typeof profiles
export const PROFILE_NAMES = Object.keys(profiles) as ProfileName[]

/** The buckets of a profile by name, as limits: `{ requests: { rate: '5000/h', burst: 816, maxInFlight: 100 } }`. */
export function profileBuckets(
  name: ProfileName,
): Record<string, { rate: string; burst?: number; maxInFlight?: number }> {
  const { buckets }: Profile = profiles[name]
  const limits = ({ rate, burst, maxInFlight }: ProfileBucket) => ({
    rate: rate.value,
    ...(burst && { burst: burst.value }),
    ...(maxInFlight && { maxInFlight: maxInFlight.value }),
  })
  return Object.fromEntries(Object.entries(buckets).map(([bucket, figures]) => [bucket, limits(figures)]))
}

/** The date of a figure, and what it is: `2026-03-10 or later`. */
export function formatDate({ date, dated }: Figure<string | number>): string {
  if (dated === 'copy') return date
  return dated === 'text' ? `${date} or later` : `read on ${date}`
}

/** The figures of a profile with the bucket, and the part of its limits, that each is for. */
export function figuresOf(
  name: ProfileName,
): { bucket: string; kind: keyof ProfileBucket; figure: Figure<string | number> }[] {
  const { buckets }: Profile = profiles[name]
  return Object.entries(buckets).flatMap(([bucket, limits]) =>
    (['rate', 'burst', 'maxInFlight'] as const).flatMap(kind => {
      const figure = limits[kind]
      return figure === undefined ? [] : [{ bucket, kind, figure }]
    }),
  )
}
