import Negotiator from 'negotiator'
import { headerValue, type RequestFacts } from '../http/request.js'

/** The first one is taken where a client has no preference. */
const OFFERED = ['application/problem+json', 'application/json', 'text/html']
const HTML = 'text/html'

/** Characters of an Accept header. Browsers send less than 200. */
const LONGEST = 1_024

/**
 * Whether a request is that of a browser for a page: a GET that prefers HTML. A script's is not, where the browser tells (over HTTPS,
 * and on the same machine).
 */
export function asksForPage({ method, rawHeaders }: Pick<RequestFacts, 'method' | 'rawHeaders'>): boolean {
  if (method !== 'GET') return false
  const accept = headerValue(rawHeaders, 'accept')
  if (accept === undefined || accept.length > LONGEST || !accept.toLowerCase().includes(HTML)) return false
  const fetchMode = headerValue(rawHeaders, 'sec-fetch-mode')
  if (fetchMode !== undefined && fetchMode !== 'navigate') return false
  return new Negotiator({ headers: { accept } }).mediaType(OFFERED) === HTML
}
