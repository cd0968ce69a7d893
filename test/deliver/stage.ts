/** Programs that deliver from one database, and what their upstream got: for tests, and for runs of an hour (soak.ts). */
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** What the upstream got of a delivery. Its body is `LANE NUMBER`. */
export interface Got {
  readonly lane: string
  readonly number: number
  readonly key: string
  /** ms */
  readonly at: number
  /** What was done with it, as the run names it. */
  end: string
}

export async function ledger(answer: (got: Got, res: ServerResponse) => void) {
  const got: Got[] = []
  const server = createServer((req, res) => {
    const at = performance.now()
    let body = ''
    req.setEncoding('utf8').on('data', text => {
      body += text
    })
    req.on('end', () => {
      const [lane, number] = body.split(' ') as [string, string]
      const one = { lane, number: Number(number), key: String(req.headers['idempotency-key']), at, end: '' }
      got.push(one)
      answer(one, res)
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const close = (): void => {
    server.close()
    server.closeAllConnections()
  }
  return { got, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close }
}

export function keyOf(lane: string, number: number): string {
  return `"key ${lane} ${number}"`
}

/** Sends one, and again until it is accepted by one of them. @returns its id */
export async function deliver(urls: readonly string[], lane: string, number: number): Promise<string> {
  const headers = { 'x-client': lane, 'idempotency-key': keyOf(lane, number) }
  for (let at = number; ; at += 1) {
    const url = `${urls[at % urls.length]}/${lane[0]}`
    const answer = await fetch(url, { method: 'POST', body: `${lane} ${number}`, headers }).catch(() => undefined)
    await answer?.arrayBuffer().catch(() => {})
    if (answer?.status === 202) return answer.headers.get('location')!.split('/').at(-1)!
    await new Promise(resolve => setTimeout(resolve, 50))
  }
}

/** By how many requests a stream exceeds `perMs` in the worst of all its windows. */
export function worstExcess(times: readonly number[], perMs: number): number {
  let lowest = Infinity
  let worst = -Infinity
  for (const [at, time] of times.entries()) {
    const behind = at - time * perMs
    lowest = Math.min(lowest, behind)
    worst = Math.max(worst, behind - lowest + 1)
  }
  return worst
}
