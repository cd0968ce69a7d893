/** What stores have in common that send news. */
import type { Kept, News, Override, UpstreamState } from '../sharing/board.js'

/** News, and when it was written, in ms of a server's clock. Infinity: that does not matter. */
export interface DatedNews {
  readonly news: News
  readonly at: number
}

/** What news on a channel begins with. The scripts write `u` of both servers and `o` of Redis. */
export const KIND = { upstream: 'u', override: 'o', reset: 'r', kept: 'k' }

/** News as it travels on a channel: its kind, some numbers, and a text. */
export interface Payload {
  readonly kind: string
  /** @throws there are fewer */
  read(numbers: number): { numbers: readonly number[]; text: string }
  /** Undefined: the name of the upstream cannot be told from its key. */
  upstreamOf(key: string): string | undefined
}

/** Undefined: nobody here is concerned, or it is of a version that is not known here. @param author who does not listen to itself */
export function decodeNews({ kind, read, upstreamOf }: Payload, author: string): DatedNews | undefined {
  try {
    if (kind === KIND.upstream) {
      const { numbers, text } = read(4)
      const [at, pausedFor, rate, rateFor] = numbers as [number, number, number, number]
      const name = upstreamOf(text)
      const state = describeUpstream(Math.max(0, pausedFor), rate, rateFor)
      return name === undefined ? undefined : { news: { about: 'upstream', name, state }, at }
    }
    if (kind === KIND.override) {
      const { numbers, text } = read(2)
      const [at, endsIn] = numbers as [number, number]
      return { news: { about: 'override', override: { ...(JSON.parse(text) as Override), endsIn } }, at }
    }
    if (kind === KIND.reset) {
      const [from, bucket, key] = JSON.parse(read(0).text) as [string, string, string]
      return from === author ? undefined : { news: { about: 'reset', bucket, key }, at: Infinity }
    }
    if (kind === KIND.kept) return { news: decodeKept(read(0).text), at: Infinity }
  } catch {
    // Something else is written on this channel.
  }
  return undefined
}

type KeptNews = News & { readonly about: 'kept' }

/** What travels of it, as JSON. */
export function keptParts({ from, bucket, key, kept }: KeptNews): readonly unknown[] {
  return [from, bucket, key, kept.kept, kept.unreported, kept.waiting, kept.queued]
}

function decodeKept(text: string): KeptNews {
  const [from, bucket, key, ...figures] = JSON.parse(text) as [string, string, string, ...number[]]
  const [kept, unreported, waiting, queued] = figures as [number, number, number, number]
  const told: Kept = { kept, unreported, waiting, queued }
  return { about: 'kept', from, bucket, key, kept: told }
}

/** The same news when it has been on its way for `ms`. Negative: a clock is not known. */
export function shortened(news: News, ms: number): News {
  if (ms <= 0 || news.about === 'reset' || news.about === 'kept') return news
  const left = (duration: number): number => Math.max(0, duration - ms)
  if (news.about === 'override') return { ...news, override: { ...news.override, endsIn: left(news.override.endsIn) } }
  const { pausedFor, rate = 0, rateFor } = news.state
  return { ...news, state: describeUpstream(left(pausedFor), rate, left(rateFor)) }
}

/** ms. Nothing holds for longer. */
const LONGEST = 86_400_000
/** Cost units per ms. */
const RATE = { least: 1e-9, most: 1e9 }

/** Durations are from 0 to a day, and NaN is 0. A rate that is no finite number above 0, or has no life, is ignored. */
export function boundNews(news: UpstreamState | undefined): UpstreamState {
  if (news === undefined) return { pausedFor: 0, rate: undefined, rateFor: 0 }
  const { rate = 0, rateFor } = news
  const pausedFor = boundDuration(news.pausedFor)
  if (!(rate > 0 && rate < Infinity) || Number.isNaN(rateFor)) return { pausedFor, rate: undefined, rateFor: 0 }
  return { pausedFor, rate: Math.min(RATE.most, Math.max(RATE.least, rate)), rateFor: boundDuration(rateFor) }
}

/** Whether other instances should hear of it at once. */
export function isNews(news: UpstreamState | undefined): boolean {
  const { pausedFor, rate } = boundNews(news)
  return pausedFor > 0 || rate !== undefined
}

function boundDuration(ms: number): number {
  return ms > 0 ? Math.min(LONGEST, ms) : 0
}

/** @param rate meaningless if `rateFor` is 0 */
export function describeUpstream(pausedFor: number, rate: number, rateFor: number): UpstreamState {
  return { pausedFor, rate: rateFor > 0 ? rate : undefined, rateFor }
}
