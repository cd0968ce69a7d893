/** News as it travels on the channel: its kind, a time of the server's clock where it has one, and the rest. */
import type { Override } from '../../core/board.js'
import { type DatedNews, decodeReset, KIND } from '../news.js'
import { describeUpstream } from '../upstream-state.js'
import { BOARD, UPSTREAMS, upstreamOf } from './keys.js'

export interface TaggedNews extends DatedNews {
  /** Its time is by the clock of the server that has this tag. */
  readonly tag: string
}

/** @param author the instance that has reset it, which does not listen to itself */
export function encodeRedisReset(author: string, bucket: string, key: string): string {
  return `${KIND.reset}${JSON.stringify([author, bucket, key])}`
}

/** Undefined: nobody here is concerned, or it is of a version that is not known here. */
export function decodeRedisNews(message: Buffer, prefix: string, author: string): TaggedNews | undefined {
  const kind = message.toString('latin1', 0, 1)
  try {
    if (kind === KIND.upstream) return decodeUpstream(message, prefix)
    if (kind === KIND.override) {
      const override = { ...(JSON.parse(message.toString('utf8', 17)) as Override), endsIn: message.readDoubleLE(9) }
      return { news: { about: 'override', override }, at: message.readDoubleLE(1), tag: BOARD }
    }
    if (kind === KIND.reset) {
      const reset = decodeReset(message.toString('utf8', 1), author)
      return reset && { ...reset, tag: BOARD }
    }
  } catch {
    // Something else is written on this channel.
  }
  return undefined
}

function decodeUpstream(message: Buffer, prefix: string): TaggedNews | undefined {
  const [at, pausedFor, rate, rateFor] = [1, 9, 17, 25].map(place => message.readDoubleLE(place)) as [
    number,
    number,
    number,
    number,
  ]
  const name = upstreamOf(prefix, message.toString('utf8', 33))
  const state = describeUpstream(pausedFor, rate, rateFor)
  return name === undefined ? undefined : { news: { about: 'upstream', name, state }, at, tag: UPSTREAMS }
}
