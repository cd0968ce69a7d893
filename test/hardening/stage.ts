/** A proxy in front of an upstream that believes nothing, and what of it must be back to nothing after each request. */
import { once } from 'node:events'
import { OK, type Rig, rawUpstream, startRig, turns } from '../proxy/harness.js'
import { readStrictly, type StrictRequest } from './strict.js'

type Teardown = Parameters<typeof startRig>[0]

/** What is not at rest after this long stays so, in ms. */
const PATIENCE = 10_000

/** How the bytes of a request are cut into writes. */
export const CUTS = {
  'in one piece': (bytes: string): string[] => [bytes],
  'line by line': (bytes: string): string[] => bytes.split(/(?<=\r\n)|(?<=\r)(?=\n)/),
  'byte by byte': (bytes: string): string[] => [...bytes],
} as const

export interface Stage {
  readonly rig: Rig
  /** All requests that the upstream has got. */
  readonly seen: StrictRequest[]
  /** What it got that no upstream should get. */
  readonly faults: string[]
  /** Waits until nothing is going on any more; returns what still is, for comparison with nothing. */
  rest(): Promise<object>
}

/** What `rest` returns when all is well. */
export const NOTHING = { inProgress: 0, inFlight: 0, queued: 0 }

export async function startStage(t: Teardown, config: object = {}): Promise<Stage> {
  const seen: StrictRequest[] = []
  const faults: string[] = []
  const taken = new WeakMap<object, number>()
  const upstream = await rawUpstream(t, incoming => {
    try {
      const { requests } = readStrictly(incoming.text)
      for (const request of requests.slice(taken.get(incoming) ?? 0)) {
        seen.push(request)
        incoming.socket.write(request.method === 'HEAD' ? OK.slice(0, -2) : OK)
      }
      taken.set(incoming, requests.length)
    } catch (error) {
      faults.push((error as Error).message)
      incoming.socket.destroy()
    }
  })
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '1000000/s', capacity: 1_000_000 } },
    routes: [{ name: 'all', mode: 'meter', buckets: ['all'] }],
    limits: { maxHeaders: 2_000 },
    ...config,
  })
  const { context } = rig.proxy
  const now = () => ({
    inProgress: context.inProgress,
    inFlight: context.routes[0]!.upstream.gate.inFlight,
    queued: context.shaper.queued,
  })
  return {
    rig,
    seen,
    faults,
    async rest() {
      const isAtRest = (): boolean => Object.values(now()).every(count => count === 0)
      // The caller tells what is left if it stays.
      for (const end = performance.now() + PATIENCE; !isAtRest() && performance.now() < end; ) await turns(5)
      return now()
    },
  }
}

/** Sends bytes in these pieces, each in a write and a turn of the event loop of its own. */
export async function sendPieces(
  client: { readonly socket: import('node:net').Socket; readonly ended: boolean },
  pieces: readonly string[],
): Promise<void> {
  for (const piece of pieces) {
    if (client.ended || client.socket.destroyed) return
    if (!client.socket.write(Buffer.from(piece, 'latin1')))
      await Promise.race([once(client.socket, 'drain'), turns(20)])
    if (pieces.length > 1) await turns(1)
  }
}
