import { readFileSync } from 'node:fs'
import { Pool } from 'undici'
import type { UpstreamSettings } from '../config/settings.js'
import type { Clock } from '../core/clock.js'
import { Gate } from '../core/lane.js'
import { type Connector, createConnector } from './connector.js'
import { Deadlines } from './deadline.js'
import type { UpstreamQuota } from './upstream-quota.js'

/** Where requests go: its connections, its gate and its patience. */
export interface Upstream {
  readonly settings: UpstreamSettings
  /** Where it is connected to. */
  readonly url: string
  /** Host header towards it when it is not the client's. */
  readonly authority: string
  readonly pool: Pool
  readonly connector: Connector
  readonly gate: Gate
  /** From the end of the upload to the answer's headers. */
  readonly answer: Deadlines
  /** Between two pieces of a body, in either direction. */
  readonly progress: Deadlines
  /** For the rest of an answer that nobody wants. */
  readonly dump: Deadlines
  /** What it says of its limits, where that is listened to. */
  quota: UpstreamQuota | undefined
  /** The certificate authority's file, read. */
  readonly ca: Buffer | undefined
  close(): Promise<void>
}

/** Below what servers commonly keep idle connections open for (Node: 5 s), so that reuse seldom meets their close. */
const KEEP_ALIVE = 4_000

/** What may be left of an answer that nobody wants is read for so many ms, so that its connection can be used again. */
const DUMP_TIME = 1_000

/** An idle connection that the upstream says it closes within this many ms is not reused. */
const KEEP_ALIVE_MARGIN = 1_000

/**
 * @param url where to connect to: that of the settings, or of the built-in echo upstream
 * @throws when the file of `tls.ca` cannot be read
 */
export function createUpstream(settings: UpstreamSettings, url: string, clock: Clock): Upstream {
  const { tls } = settings
  const ca = tls.ca === undefined ? undefined : readFileSync(tls.ca)
  const connector = createConnector(
    {
      timeout: settings.connectTimeout,
      autoSelectFamily: true,
      ...(ca !== undefined && { ca }),
      ...(tls.servername !== undefined && { servername: tls.servername }),
    },
    () => clock.now(),
  )
  const pool = new Pool(url, {
    pipelining: 1,
    keepAliveTimeout: KEEP_ALIVE,
    keepAliveTimeoutThreshold: KEEP_ALIVE_MARGIN,
    headersTimeout: 0,
    bodyTimeout: 0,
    maxHeaderSize: 64 * 1024,
    strictContentLength: true,
    connect: connector.connect,
  })
  const answer = new Deadlines(clock, settings.responseTimeout)
  const gate = new Gate(settings.maxInFlight)
  const progress = new Deadlines(clock, settings.idleTimeout)
  const dump = new Deadlines(clock, DUMP_TIME)
  return {
    settings,
    url,
    connector,
    authority: new URL(url).host,
    pool,
    gate,
    answer,
    progress,
    dump,
    quota: undefined,
    ca,
    async close() {
      answer.close()
      progress.close()
      dump.close()
      this.quota?.detach(gate)
      connector.close()
      await pool.destroy()
    },
  }
}

/** The Host header towards an upstream. */
export function hostTowards({ settings, authority }: Upstream, asked: string | undefined): string {
  return settings.hostHeader === 'upstream' ? authority : (asked ?? authority)
}
