/** What stores have in common that send news. */
import type { News } from '../core/board.js'
import { describeUpstream } from './upstream-state.js'

/** News, and when it was written, in ms of a server's clock. Infinity: that does not matter. */
export interface DatedNews {
  readonly news: News
  readonly at: number
}

/** What news on a channel begins with. The scripts write `u` of both servers and `o` of Redis. */
export const KIND = { upstream: 'u', override: 'o', reset: 'r' }

/** @param text JSON of who has reset a bucket instance, and which. Undefined: it was us. */
export function decodeReset(text: string, author: string): DatedNews | undefined {
  const [from, bucket, key] = JSON.parse(text) as [string, string, string]
  return from === author ? undefined : { news: { about: 'reset', bucket, key }, at: Infinity }
}

/** The same news when it has been on its way for `ms`. Negative: a clock is not known. */
export function shortened(news: News, ms: number): News {
  if (ms <= 0 || news.about === 'reset') return news
  const left = (duration: number): number => Math.max(0, duration - ms)
  if (news.about === 'override') return { ...news, override: { ...news.override, endsIn: left(news.override.endsIn) } }
  const { pausedFor, rate = 0, rateFor } = news.state
  return { ...news, state: describeUpstream(left(pausedFor), rate, left(rateFor)) }
}
