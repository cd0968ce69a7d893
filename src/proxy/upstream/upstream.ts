import { isIP } from 'node:net'
import { checkServerIdentity } from 'node:tls'
import { Pool } from 'undici'
import { readAuthorities } from '../../config/checks/readable-files.js'
import type { UpstreamSettings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import { Gate } from '../../core/queue/lane.js'
import { Deadlines } from '../deadlines.js'
import type { UpstreamQuota } from './upstream-quota.js'
import { type Connector, createConnector } from './warm-connector.js'

/** Where requests go: its connections, its gate and its patience. */
export interface Upstream {
  readonly settings: UpstreamSettings
  /** Where it is connected to. */
  readonly url: string
  /** Host header towards it when it is not the client's. */
  readonly authority: string
  readonly identity: Identity
  /** For requests with a place in the gate: no more connections than it has places. */
  readonly pool: Pool
  /** For those that pass beside the gate (`off`, dry runs): they wait for nobody. */
  readonly besides: Pool
  readonly connector: Connector
  readonly gate: Gate
  /** How many requests wait for their release to it. */
  queued: number
  /** From the end of the upload to the answer's headers. */
  readonly answer: Deadlines
  /** Between two pieces of a body, in either direction. */
  readonly progress: Deadlines
  /** For the rest of an answer that nobody wants. */
  readonly dump: Deadlines
  /** What it says of its limits, where that is listened to. */
  quota: UpstreamQuota | undefined
  /** The file of `tls.ca`, read. */
  readonly ca: Buffer | undefined
  /** Replaces `ca` for new connections. Open ones go on. */
  trust(ca: Buffer): void
  close(): Promise<void>
}

/**
 * Who an upstream has to be over TLS. It comes from the configuration alone: undici and http-proxy would take it from the
 * Host header, and a client must not choose who is believed.
 */
export interface Identity {
  /** The server name to ask for. Undefined: that of the URL, if it has a name. */
  readonly servername?: string
  /** Compares the certificate with `tls.servername`, or with the host of the URL. Both may be addresses. */
  readonly checkServerIdentity: typeof checkServerIdentity
}

/** Below what servers commonly keep idle connections open for (Node: 5 s), so that reuse seldom meets their close. */
const KEEP_ALIVE = 4_000

/** How long the rest of an unwanted answer is read, in ms. Then its connection can be used again. */
const DUMP_TIME = 1_000

/** An idle connection that the upstream says it closes within this many ms is not reused. */
const KEEP_ALIVE_MARGIN = 1_000

/**
 * @param url where to connect to: that of the settings, or of the built-in echo upstream
 * @throws when the file of `tls.ca` cannot be read or is bad
 */
export function createUpstream(settings: UpstreamSettings, url: string, clock: Clock): Upstream {
  const { tls } = settings
  let ca = tls.ca === undefined ? undefined : readAuthorities(tls.ca)
  const identity = identityOf(settings, url)
  const options = { timeout: settings.connectTimeout, autoSelectFamily: true, ...identity }
  const connector = createConnector({ ...options, ...(ca !== undefined && { ca }) }, clock, settings.maxInFlight)
  const pooling: Pool.Options = {
    pipelining: 1,
    keepAliveTimeout: KEEP_ALIVE,
    keepAliveTimeoutThreshold: KEEP_ALIVE_MARGIN,
    headersTimeout: 0,
    bodyTimeout: 0,
    maxHeaderSize: 64 * 1024,
    strictContentLength: true,
    connect: connector.connect,
  }
  const limited = settings.maxInFlight < Infinity
  // A request whose predecessor has just been answered waits for that connection instead of opening another.
  const pool = new Pool(url, { ...pooling, ...(limited && { connections: settings.maxInFlight }) })
  const besides = limited ? new Pool(url, pooling) : pool
  const answer = new Deadlines(clock, settings.responseTimeout)
  const gate = new Gate(settings.maxInFlight)
  const progress = new Deadlines(clock, settings.idleTimeout)
  const dump = new Deadlines(clock, DUMP_TIME)
  return {
    settings,
    url,
    connector,
    authority: new URL(url).host,
    identity,
    pool,
    besides,
    gate,
    queued: 0,
    answer,
    progress,
    dump,
    quota: undefined,
    get ca() {
      return ca
    },
    trust(renewed) {
      ca = renewed
      connector.change({ ...options, ca })
    },
    async close() {
      answer.close()
      progress.close()
      dump.close()
      this.quota?.detach(gate)
      connector.close()
      await Promise.all([pool.destroy(), limited && besides.destroy()])
    },
  }
}

function identityOf({ tls: { servername } }: UpstreamSettings, url: string): Identity {
  const name = servername ?? hostOf(url)
  return {
    // RFC 6066 3: an address is no server name.
    ...(servername !== undefined && isIP(servername) === 0 && { servername }),
    checkServerIdentity: (_asked, certificate) => checkServerIdentity(name, certificate),
  }
}

/** A name or an address (IPv6 without brackets). */
export function hostOf(url: string): string {
  return new URL(url).hostname.replace(/^\[|\]$/g, '')
}

/** The Host header towards an upstream. */
export function hostTowards({ settings, authority }: Upstream, asked: string | undefined): string {
  return settings.hostHeader === 'upstream' ? authority : (asked ?? authority)
}
