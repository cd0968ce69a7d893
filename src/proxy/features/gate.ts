/**
 * The request that a proxy asks for. It is described by `X-Original-Method` and `X-Original-URI`, or by
 * `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`.
 */
import { matchingPath } from '../../http/matching/matching-path.js'
import { NameSet } from '../http/fields.js'
import { HOST, Refusal, type RequestFacts } from '../http/request.js'

const TOLD = new NameSet([
  ...['x-original-method', 'x-original-uri', 'x-forwarded-method', 'x-forwarded-uri', 'x-forwarded-host'],
])
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/

interface Told {
  method: string | undefined
  target: string | undefined
  host: string | undefined
}

/**
 * @param facts of the request of a trusted proxy
 * @returns those of the request that it asks for. Facts that it does not state are those of its own request. A refusal if it states
 *   two different things: one of them is from its client
 */
export function askedRequest(facts: RequestFacts): RequestFacts | Refusal {
  const told = readTold(facts.rawHeaders)
  if (told instanceof Refusal) return told
  const { method = facts.method, target = facts.target, host = facts.host } = told
  if (!TOKEN.test(method)) return new Refusal(400, 'the proxy tells a method that is none')
  if (!target.startsWith('/')) return new Refusal(400, 'the proxy tells a URI that is no path')
  if (host !== undefined && !HOST.test(host)) return new Refusal(400, 'the proxy tells a host that is none')
  return { ...facts, method, target, path: matchingPath(target), host }
}

function readTold(rawHeaders: readonly string[]): Told | Refusal {
  const told: Told = { method: undefined, target: undefined, host: undefined }
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = TOLD.find(rawHeaders[at]!)
    if (name === undefined) continue
    const value = rawHeaders[at + 1]!
    // Each hop adds its own, as with X-Forwarded-For.
    if (name === 'x-forwarded-host') told.host = value.slice(value.lastIndexOf(',') + 1).trim() || undefined
    else {
      const what = name.endsWith('-method') ? 'method' : 'target'
      told[what] ??= value
      if (told[what] !== value) return new Refusal(400, `${name} differs from another header that tells it`)
    }
  }
  return told
}
