/** A proxy and its admin server in this process. */
import type { Meter } from '@opentelemetry/api'
import { type AdminServer, type AdminSource, startAdmin } from '../../src/admin/server.js'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { createInstrumentation } from '../../src/cli/serving/instrumentation.js'
import { parseConfig } from '../../src/config/load.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import { createTimerClock } from '../../src/pacing/timer.js'
import { combineObservers } from '../../src/proxy/observe/observer.js'
import { type RunningProxy, startProxy } from '../../src/proxy/server/server.js'

export interface AdminRig {
  readonly proxy: RunningProxy
  readonly admin: AdminServer
  readonly source: AdminSource
  /** Releases; timeouts run on the real clock. */
  readonly pacer: VirtualClock
  get(path: string, headers?: Record<string, string>): Promise<Response>
  snapshot(): Promise<Snapshot>
  /** The value of a metric with these labels, written as in the text; undefined: it is not there. */
  metric(line: string): Promise<number | undefined>
}

export async function startAdminRig(
  t: { teardown(run: () => unknown): void },
  config: object,
  admin: object = {},
  meter?: Meter,
): Promise<AdminRig> {
  const settings = parseConfig(
    JSON.stringify({ listen: '127.0.0.1:0', admin: { listen: '127.0.0.1:0', ...admin }, ...config }),
  )
  const pacer = createVirtualClock()
  const watch = createInstrumentation(settings, pacer, meter)
  const proxy = await startProxy({
    settings,
    pacer,
    clock: createTimerClock(),
    observer: combineObservers(watch.observers),
  })
  const source = watch.join(proxy.context)!
  const server = await startAdmin(settings.admin!, source)
  t.teardown(async () => {
    await server.close()
    await proxy.drain(0)
  })
  const get = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
    fetch(server.url + path, { headers })
  return {
    proxy,
    admin: server,
    source,
    pacer,
    get,
    // What the server answers may be some 200 ms old.
    snapshot: () => source.snapshot(),
    async metric(line) {
      const text = await (await get('/metrics')).text()
      const found = text.split('\n').find(each => each.startsWith(`${line} `))
      return found === undefined ? undefined : Number(found.slice(line.length + 1))
    },
  }
}
