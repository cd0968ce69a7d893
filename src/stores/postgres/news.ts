/** News as it travels on the channel: its kind, and what that needs, with spaces between. */
import type { Override } from '../../core/board.js'
import { type DatedNews, decodeReset, KIND } from '../news.js'
import { describeUpstream } from '../upstream-state.js'
import { ascii, UPSTREAM } from './wire.js'

/** Bytes. PostgreSQL refuses more. */
const LONGEST = 7_900

/** @param author the instance that has reset it, which does not listen to itself */
export function encodePostgresReset(author: string, bucket: string, key: string): string {
  return bounded(`${KIND.reset} ${ascii([author, bucket, key])}`)
}

/** Without the moment, which comes behind the kind. */
export function encodeOverride({ endsIn, ...override }: Override): { kind: string; rest: string } {
  return { kind: KIND.override, rest: bounded(`${endsIn} ${ascii(override)}`) }
}

/** What is too long is no news: the others find it when they ask. */
function bounded(text: string): string {
  return text.length <= LONGEST ? text : ''
}

/** Undefined: nobody here is concerned, or it is of a version that is not known here. */
export function decodePostgresNews(payload: string, author: string): DatedNews | undefined {
  const [kind = '', ...parts] = payload.split(' ')
  try {
    if (kind === KIND.upstream) return decodeUpstream(parts)
    if (kind === KIND.override) {
      const [at, endsIn, ...rest] = parts
      const override = { ...(JSON.parse(rest.join(' ')) as Override), endsIn: Number(endsIn) }
      return { news: { about: 'override', override }, at: Number(at) }
    }
    if (kind === KIND.reset) return decodeReset(parts.join(' '), author)
  } catch {
    // Something else is told on this channel.
  }
  return undefined
}

function decodeUpstream([at, pausedFor, rate, rateFor, ...rest]: string[]): DatedNews | undefined {
  const key = rest.join(' ').slice(UPSTREAM.length)
  // A long name cannot be told from its hash.
  if (!key.startsWith('"')) return undefined
  const state = describeUpstream(Math.max(0, Number(pausedFor)), Number(rate), Number(rateFor))
  return { news: { about: 'upstream', name: JSON.parse(key) as string, state }, at: Number(at) }
}
