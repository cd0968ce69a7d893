/** Random requests, hang-ups and answers on a route with `coalesce`. */

import type { ServerResponse } from 'node:http'
import fc from 'fast-check'
import t from 'tap'
import { often, runs } from '../runs.js'
import {
  type Client,
  connect,
  eventually,
  get,
  type HttpUpstream,
  httpUpstream,
  type Rig,
  startRig,
  turns,
} from './harness.js'

type Test = Parameters<typeof startRig>[0]

const HOWS = ['shared', 'long', 'private', 'error', 'cut'] as const
type How = (typeof HOWS)[number]

/** What happens, in turn. */
type Step =
  | { readonly kind: 'comes'; readonly page: number; readonly key: number }
  | { readonly kind: 'leaves'; readonly which: number }
  | { readonly kind: 'waits'; readonly ms: number }
  | { readonly kind: 'answers'; readonly which: number; readonly how: How }

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('comes'), page: fc.nat(1), key: fc.nat(1) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('leaves'), which: fc.nat() }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('waits'), ms: fc.integer({ min: 1, max: 700 }) }) },
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constant('answers'), which: fc.nat(), how: fc.constantFrom('shared', ...HOWS) }),
  },
)

const CONFIG = {
  buckets: {
    client: { key: 'header:x-real-ip', rate: '1/s', capacity: 20 },
    all: { key: 'all', rate: '2/s', capacity: 50 },
  },
  routes: [{ name: 'all', coalesce: true, patience: 'none' }],
}

/** ms between two requests at the upstream. */
const GAP = 500

interface Asked {
  readonly page: string
  /** How many clients had asked before. */
  readonly came: number
  readonly res: ServerResponse
  how: How | undefined
}

class Run {
  readonly asked: Asked[] = []
  readonly clients: { readonly client: Client; readonly page: string; gone: boolean }[] = []
  /** When requests were sent, in ms. */
  readonly #sent: number[] = []
  readonly #t: Test
  upstream!: HttpUpstream
  rig!: Rig

  constructor(t: Test) {
    this.#t = t
  }

  async start(): Promise<void> {
    this.upstream = await httpUpstream(this.#t, ({ url }, res) => {
      this.asked.push({ page: url!, came: this.clients.length, res, how: undefined })
    })
    this.rig = await startRig(this.#t, { upstream: this.upstream.url, ...CONFIG })
    const { observer } = this.rig.proxy.context
    observer.sent = () => void this.#sent.push(this.rig.pacer.now())
  }

  async happen(step: Step): Promise<void> {
    if (step.kind === 'comes') await this.#come(`/${step.page}`, step.key)
    else if (step.kind === 'leaves') this.#leave(step.which)
    else if (step.kind === 'waits') this.rig.pacer.runUntil(this.rig.pacer.now() + step.ms)
    else this.#answer(step.which, step.how)
    await turns(10)
  }

  async #come(page: string, key: number): Promise<void> {
    const client = await connect(this.#t, this.rig)
    const { began } = this.rig
    // It counts before it is sent: it may pass at once.
    this.clients.push({ client, page, gone: false })
    client.send(get(page, `X-Real-IP: ${key}`))
    await eventually(() => this.rig.began > began)
  }

  #leave(which: number): void {
    const one = this.clients[which % this.clients.length]
    if (one === undefined) return
    one.gone = true
    one.client.hangUp()
  }

  /** Answers one of the requests that are at the upstream. The body says which it is. */
  #answer(which: number, how: How): void {
    const open = this.asked.filter(one => one.how === undefined)
    const one = open[which % open.length]
    if (one === undefined) return
    one.how = how
    const body = `${one.page} ${this.asked.indexOf(one)}`
    const { res } = one
    if (how === 'private') res.setHeader('Cache-Control', 'private')
    if (how === 'error') res.statusCode = 500
    if (how !== 'cut') return void res.end(how === 'long' ? body.padEnd(40_000) : body)
    res.setHeader('Content-Length', 100)
    res.write(body)
    res.destroy()
  }

  get #isOpen(): boolean {
    return this.rig.outcomes.length < this.clients.length || this.rig.proxy.context.inProgress > 0
  }

  /** Answers all that are sent, until nothing waits. */
  async finish(): Promise<void> {
    for (let round = 0; this.#isOpen; round += 1) {
      if (round > 200) throw new Error(`${this.rig.outcomes.length} of ${this.clients.length} are over`)
      this.rig.pacer.runUntil(this.rig.pacer.now() + GAP)
      await turns(10)
      while (this.asked.some(({ how }) => how === undefined)) this.#answer(0, 'shared')
      await turns(10)
    }
  }

  async check(): Promise<void> {
    const got = this.asked.map(() => 0)
    for (const number of this.clients.keys()) await this.#checkAnswer(number, got)
    for (const [serial, times] of got.entries()) {
      const { how } = this.asked[serial]!
      if (times > 1 && how !== 'shared' && how !== 'long') throw new Error(`${serial} was shared, and is ${how}`)
    }
    const gaps = this.#sent.slice(1).map((at, index) => at - this.#sent[index]!)
    if (gaps.some(gap => gap < GAP - 1e-6)) throw new Error(`${Math.min(...gaps)} ms between two requests`)
    const { bodyBytes, coalescing, routes } = this.rig.proxy.context
    if (bodyBytes.used !== 0) throw new Error(`${bodyBytes.used} bytes are still held`)
    if (coalescing.hasWaiting(routes[0]!.lane)) throw new Error('a group is left')
  }

  async #checkAnswer(number: number, got: number[]): Promise<void> {
    const { client, page, gone } = this.clients[number]!
    if (gone) return
    const { status, text, whole } = await client.answer()
    // It broke off before any of it was sent.
    if (status === 502) return
    const [from, serial] = text.trim().split(' ')
    const asked = this.asked[Number(serial)]!
    if (from !== page) throw new Error(`${from} instead of ${page}`)
    if (asked.came <= number) throw new Error(`${number} got an answer that was asked for before it came`)
    if (client.rest !== '') throw new Error(`more than one answer: ${client.rest}`)
    if (whole !== (asked.how !== 'cut')) throw new Error(`${number} got a part of an answer`)
    got[Number(serial)]! += 1
  }

  async end(): Promise<void> {
    for (const { client } of this.clients) client.hangUp()
    await this.rig.proxy.drain(0)
    await this.upstream.close()
  }
}

t.test('property: every request is answered once, with what was asked for after it came, at r at most', async t => {
  let coalesced = 0
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 60, size: 'max' }), async steps => {
      const run = new Run(t)
      await run.start()
      try {
        for (const each of steps) await run.happen(each)
        await run.finish()
        await run.check()
        coalesced += run.rig.coalesced
      } finally {
        await run.end()
      }
    }),
    { numRuns: runs(40) },
  )
  t.ok(coalesced >= often(90), `${coalesced} were answered by others`)
})
