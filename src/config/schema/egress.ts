import * as z from 'zod'
import { formatAuthority, readAuthority } from '../../http/authority.js'
import { quote, quoteUrl, wants } from '../messages.js'
import { EGRESS } from './address.js'
import { egressOptions, optionsOf, settingsOf } from './upstream.js'
import { maybe, object, read, token } from './values.js'

const REMEDY = 'use e.g. "api.example.com:443", "[2001:db8::1]:8080"'

/** @throws RangeError */
function parseAllowed(value: string): string {
  const { host, port } = readAuthority(value) ?? {}
  if (host === undefined) {
    const [, inUrl = '', inPort] = /^https?:\/\/([\w.-]+)(?::(\d+))?\/?$/i.exec(value) ?? []
    if (inUrl === '') throw new RangeError(`${quoteUrl(value)} is not a host and a port; ${REMEDY}`)
    throw new RangeError(`${quote(value)} is a URL; write "${inUrl}:${inPort ?? (/^https/i.test(value) ? 443 : 80)}"`)
  }
  if (port === undefined)
    throw new RangeError(`${quote(value)} has no port; write e.g. "${value.replace(/:$/, '')}:443"`)
  return formatAuthority(host, port)
}

const EXAMPLE = '["api.example.com:443"]'

const egressObject = object(
  {
    allow: z
      .array(read(z.string({ error: wants('a host and a port', REMEDY) }), parseAllowed), {
        error: wants('a list of hosts and ports', `use e.g. ${EXAMPLE}`),
      })
      .prefault([])
      .describe(
        `Where requests may go, e.g. ${EXAMPLE}; nowhere by default. Private addresses count only if they are listed themselves.`,
      ),
    token: maybe(token).describe(
      `What clients send in Proxy-Authorization, e.g. "\${SHAPER_TOKEN}"; needed unless "listen" is loopback.`,
    ),
    upstream: object(egressOptions, 'use e.g. { "learn": true }')
      .prefault({})
      .describe('The options of every allowed origin as an upstream, e.g. { "learn": true, "maxInFlight": 20 }.'),
  },
  `use e.g. { "allow": ${EXAMPLE} }`,
)

/** The part of the file about egress, and the upstream that all of its origins are like. */
export const egress = read(
  egressObject,
  ({ allow, upstream, ...rest }) => ({
    ...rest,
    allow: [...new Set(allow)],
    upstream: settingsOf({ ...upstream, url: EGRESS, hostHeader: 'upstream', http2: false }),
  }),
  ({ upstream, ...rest }) => {
    const { url: _url, hostHeader: _hostHeader, http2: _http2, ...options } = optionsOf(upstream)
    return { ...rest, upstream: options }
  },
)
