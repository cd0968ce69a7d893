/** The form of the corpus: requests, and the expected result of each. */

export interface Case {
  readonly name: string
  /** As latin1. */
  readonly bytes: string
  /** Of each answer, in order. As many requests reach the upstream as there are 200s and 101s. */
  readonly statuses: readonly number[]
  /** Whether the connection takes another request afterwards. */
  readonly after: 'open' | 'closed'
  /** What the upstream gets: the target, or the body, of the last one. */
  readonly target?: string
  readonly body?: string
  /** Of the first request, for the reader of its answer. */
  readonly method: string
}

export interface Section {
  readonly title: string
  readonly cases: readonly Case[]
}

interface Seen {
  readonly target?: string
  readonly body?: string
}

type Made = (section: Case[]) => void

/** A request that is forwarded once. Its connection stays open. */
export function good(name: string, bytes: string, seen: Seen = {}): Made {
  return made(name, bytes, { statuses: [200], after: 'open', ...seen })
}

/** A request that is forwarded. Its connection ends with the answer. */
export function last(name: string, bytes: string, seen: Seen = {}): Made {
  return made(name, bytes, { statuses: [200], after: 'closed', ...seen })
}

/** A request that is refused. The upstream does not see it, and nothing after it is read. */
export function bad(name: string, bytes: string, status = 400): Made {
  return made(name, bytes, { statuses: [status], after: 'closed' })
}

export function several(name: string, bytes: string, statuses: number[], after: Case['after']): Made {
  return made(name, bytes, { statuses, after })
}

export function made(name: string, bytes: string, expected: Omit<Case, 'name' | 'bytes' | 'method'>): Made {
  const method = /^\s*([A-Z-]+) /.exec(bytes)?.[1] ?? 'GET'
  return cases => cases.push({ name, bytes, method, ...expected })
}

export function section(title: string, ...made: Made[]): Section {
  const cases: Case[] = []
  for (const add of made) add(cases)
  return { title, cases }
}

/** A head of these lines. */
export function head(...lines: string[]): string {
  return `${lines.join('\r\n')}\r\n\r\n`
}

export const get = (...fields: string[]): string => head('GET / HTTP/1.1', 'Host: h', ...fields)
export const post = (fields: string[], body: string): string => head('POST / HTTP/1.1', 'Host: h', ...fields) + body
export const chunked = (body: string): string => post(['Transfer-Encoding: chunked'], body)
export const host = (value: string): string => head('GET / HTTP/1.1', `Host: ${value}`)
export const target = (value: string): string => head(`GET ${value} HTTP/1.1`, 'Host: h')
export const SMUGGLED = 'GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n'
