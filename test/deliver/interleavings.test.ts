/**
 * Deliveries in all orders: two instances (the real workers, on virtual clocks), three deliveries, and a model of the table.
 *
 * A step is one of: a request is stored, a question to the table takes effect, its answer arrives, a slot comes, the upstream answers,
 * time goes on to the next timer. Faults: an attempt fails, a question or its answer is lost, an instance dies, an instance stands
 * still for longer than its lease.
 *
 * A run takes the oldest step, but for a few others. All runs with up to `DELAYS` others are made, and random ones with more: most
 * errors of concurrency need few (Emmi, Qadeer, Rakamaric: Delay-bounded scheduling, POPL 2011).
 *
 * The model takes each question as one step, as its transaction does. The statements of a beat are one step, too.
 */
import t from 'tap'
import type { DeliverSettings } from '../../src/config/settings.js'
import { createVirtualClock } from '../../src/core/clock.js'
import type { AttemptEnd, AttemptOptions } from '../../src/deliver/attempt.js'
import type { ClaimAsked, ClaimedRow, DeliveryTable, Result } from '../../src/deliver/table.js'
import { Worker } from '../../src/deliver/worker.js'
import type { ProxyContext } from '../../src/proxy/context.js'
import { random } from '../core/run.js'
import { runs } from '../runs.js'

/** Other steps than the oldest in a run, of all runs that there are. */
const DELAYS = process.env.SHAPER_DEEP === '1' ? 2 : 1
const LEASE = 10_000
const MOST_STEPS = 600
/** Steps after which nothing more happens to a random run, so that it ends. */
const CALM = 100
const ROUTE = 'hooks'
/** Two share a lane. */
const LANES = ['aa', 'aa', 'bb']
const FAILURES = 2
/** Instances that die or stand still, and questions that are lost. */
const FAULTS = 2

interface Row {
  readonly id: string
  readonly seq: number
  readonly lane: string
  state: Result['state']
  owner: string | undefined
  sent: boolean
  attempts: number
  due: number
}

/** The table, as its statements have it (table.ts). */
class ModelTable {
  readonly rows: Row[] = []
  get alive() {
    return this.#aliveUntil
  }
  readonly #aliveUntil = new Map<string, number>()

  join(now: number, owner: string): void {
    this.#aliveUntil.set(owner, now + LEASE)
  }

  beat(now: number, owner: string): string[] | undefined {
    const isAlive = this.#isAlive(now, owner)
    if (isAlive) this.join(now, owner)
    for (const [id, until] of this.#aliveUntil) if (until < now) this.#aliveUntil.delete(id)
    for (const row of this.rows) if (row.owner !== undefined && !this.#aliveUntil.has(row.owner)) free(row)
    return isAlive ? [] : undefined
  }

  #isAlive(now: number, owner: string): boolean {
    return (this.#aliveUntil.get(owner) ?? -Infinity) > now
  }

  claim(
    now: number,
    { owner, isOrdered, most, perLane, held, known }: ClaimAsked,
  ): { rows: ClaimedRow[]; next: string } {
    if (!this.#isAlive(now, owner)) return { rows: [], next: '' }
    if (known !== undefined) for (const row of this.rows) if (row.owner === owner && !known.includes(row.id)) free(row)
    const isReady = (row: Row): boolean => row.owner === undefined && row.due <= now
    const found: Row[] = []
    for (const lane of new Set(LANES)) {
      const room = Math.max(0, perLane - (held.get(lane) ?? 0))
      const waiting = this.rows.filter(row => row.lane === lane && row.state === 'waiting')
      const firsts = isOrdered ? waiting.slice(0, room) : waiting.filter(isReady).slice(0, room)
      const end = firsts.findIndex(row => !isReady(row))
      found.push(...firsts.slice(0, end < 0 ? firsts.length : end))
    }
    const rows = found.slice(0, most)
    for (const row of rows) Object.assign(row, { owner, sent: false })
    const claimed = rows.map(({ id, seq, lane, attempts }) => {
      const head = JSON.stringify({ id })
      return { id, seq: String(seq), lane: Buffer.from(lane, 'hex'), head, body: Buffer.alloc(0), attempts }
    })
    return { rows: claimed, next: '' }
  }

  noteSent(owner: string, ids: readonly string[]): void {
    for (const row of this.rows) if (row.owner === owner && ids.includes(row.id)) row.sent = true
  }

  record(now: number, results: readonly Result[]): void {
    for (const { id, owner, attempts, state, tried, delay } of results) {
      const row = this.rows.find(each => each.id === id)!
      if (row.state !== 'waiting') continue
      if ((row.owner !== owner || row.attempts !== attempts) && state !== 'done') continue
      free(row)
      Object.assign(row, { state, attempts: row.attempts + tried, due: now + delay })
    }
  }
}

function free(row: Row): void {
  row.owner = undefined
  row.sent = false
}

/** Something that can happen next, and what can happen in its place. */
interface Step {
  readonly name: string
  /** Undefined: of the world. */
  readonly by: Instance | undefined
  run(): void
  readonly faults?: readonly { readonly name: string; readonly kind: 'failure' | 'fault'; run(): void }[]
}

/** A request in the queue of an instance's proxy, or sent. */
interface Try {
  readonly id: string
  readonly by: Instance
  state: 'queued' | 'sent' | 'over'
}

class Instance {
  readonly clock = createVirtualClock()
  readonly worker: Worker
  isDead = false
  stalledUntil = -Infinity
  /** Others may send what it has sent. */
  isTakenForDead = false

  constructor(world: World) {
    const ask = <T>(name: string, effect: () => T): Promise<T> => world.ask(this, name, effect)
    const { table } = world
    const asked = {
      join: (owner: string) => ask('join', () => table.join(world.now, owner)),
      beat: (owner: string) => ask('beat', () => table.beat(world.now, owner)),
      claim: (wanted: ClaimAsked) => ask('claim', () => table.claim(world.now, wanted)),
      noteSent: (owner: string, ids: readonly string[]) => ask('note', () => table.noteSent(owner, ids)),
      record: (results: readonly Result[]) => ask('record', () => table.record(world.now, results)),
      prune: () => Promise.resolve(false),
    }
    this.worker = new Worker({
      table: asked as unknown as DeliveryTable,
      context: {} as ProxyContext,
      clock: this.clock,
      wallNow: () => 0,
      random: () => 0.5,
      lease: LEASE,
      attempt: options => world.attempt(this, options),
      onError: () => {},
      recorded: () => {},
    })
  }
}

class World {
  readonly table = new ModelTable()
  now = 0
  readonly sent = new Map<string, number>()
  readonly made = new Set<string>()
  readonly #instances: readonly Instance[]
  readonly #isOrdered: boolean
  readonly #tries: Try[] = []
  #steps: Step[] = []
  #hasBegun = false
  #left = { failure: FAILURES, fault: FAULTS }

  constructor(isOrdered: boolean) {
    this.#isOrdered = isOrdered
    this.#instances = [new Instance(this), new Instance(this)]
    const settings = { ordered: isOrdered, attempts: 3, backoff: 100, maxBackoff: 200, keep: 60_000, maxBody: 1_000 }
    for (const { worker } of this.#instances) {
      void worker.start()
      worker.setRoutes(new Map([[ROUTE, settings as DeliverSettings]]))
    }
    this.#hasBegun = true
    for (const lane of LANES) this.#steps.push({ name: 'store', by: undefined, run: () => this.#store(lane) })
  }

  #store(lane: string): void {
    const { rows } = this.table
    const seq = rows.length + 1
    rows.push({ id: `d${seq}`, seq, lane, state: 'waiting', owner: undefined, sent: false, attempts: 0, due: this.now })
    const here = this.#instances[seq % 2]!
    if (!this.#isStill(here)) here.worker.look(ROUTE)
  }

  ask<T>(by: Instance, name: string, effect: () => T): Promise<T> {
    // An instance that cannot begin is none.
    if (!this.#hasBegun) return Promise.resolve(effect())
    return new Promise((resolve, reject) => {
      const answer = (run: () => void): void => void this.#steps.push({ name: `${name} answered`, by, run })
      const lost = (): void => answer(() => reject(new Error('the connection has ended')))
      const unheard = (): void => {
        effect()
        lost()
      }
      const run = (): void => {
        const found = effect()
        answer(() => resolve(found))
      }
      const faults = [
        { name: `${name} is lost`, kind: 'fault' as const, run: lost },
        { name: `the answer of ${name} is lost`, kind: 'fault' as const, run: unheard },
      ]
      this.#steps.push({ name, by, run, faults })
    })
  }

  attempt(by: Instance, { head, mayLeave, sent, ended }: AttemptOptions) {
    const { id } = head as unknown as { id: string }
    const one: Try = { id, by, state: 'queued' }
    let step: Step | undefined
    const next = (coming: Step): void => {
      step = coming
      this.#steps.push(coming)
    }
    const end = (fate: AttemptEnd['fate'], status?: number): void => {
      if (one.state === 'over') return
      one.state = 'over'
      this.#steps = this.#steps.filter(each => each !== step)
      const answer = status === undefined ? undefined : { status, headers: [], body: Buffer.alloc(0) }
      const outcome = fate === 'tried' ? 'forwarded' : 'cancelled'
      queueMicrotask(() => ended({ outcome, fate, answer, problem: undefined }))
    }
    const leave = (): void => {
      if (!mayLeave()) return end('untried')
      one.state = 'sent'
      this.#check(one)
      const made = (): void => {
        this.made.add(id)
        end('tried', 200)
      }
      const faults = [{ name: `${id} fails`, kind: 'failure' as const, run: () => end('tried', 503) }]
      next({ name: `${id} answered`, by, run: made, faults })
      sent()
    }
    const begin = (): void => {
      this.#tries.push(one)
      next({ name: `slot of ${id}`, by, run: leave })
    }
    return { begin, abort: () => end(one.state === 'sent' ? 'tried' : 'untried') }
  }

  #check(one: Try): void {
    const { rows } = this.table
    const row = rows.find(({ id }) => id === one.id)!
    this.sent.set(one.id, (this.sent.get(one.id) ?? 0) + 1)
    for (const other of this.#tries)
      if (
        other !== one &&
        other.id === one.id &&
        other.state === 'sent' &&
        !other.by.isDead &&
        !other.by.isTakenForDead
      )
        throw new Error(`${one.id} is sent twice at a time`)
    if (this.isCalm && row.state !== 'waiting') throw new Error(`${one.id} is sent although it is ${row.state}`)
    if (!this.#isOrdered) return
    const before = rows.find(({ lane, seq, state }) => lane === row.lane && seq < row.seq && state === 'waiting')
    if (before !== undefined) throw new Error(`${one.id} is sent before ${before.id}`)
  }

  #isStill({ isDead, stalledUntil }: Instance): boolean {
    return isDead || stalledUntil > this.now
  }

  /** What can happen now: the oldest, all others, time, and faults. */
  choices(): { readonly name: string; run(): void }[] {
    const open = this.#steps.filter(({ by }) => by === undefined || !this.#isStill(by))
    const choices = open.map(step => ({ name: step.name, run: () => this.#take(step, step.run) }))
    const wakes = this.#instances.filter(({ isDead }) => !isDead)
    const next = Math.min(...wakes.map(({ clock, stalledUntil }) => Math.max(clock.next(), stalledUntil, this.now)))
    if (next < Infinity) choices.push({ name: `time ${next}`, run: () => this.#goOn(next) })
    for (const step of open)
      for (const { name, kind, run } of step.faults ?? [])
        if (this.#left[kind] > 0) choices.push({ name, run: () => this.#fault(kind, () => this.#take(step, run)) })
    if (this.#left.fault === 0) return choices
    // One of them lives on, as nobody starts another here.
    const mayDie = !this.#instances.some(({ isDead }) => isDead)
    for (const [at, one] of this.#instances.entries()) {
      if (one.isDead) continue
      const die = (): void => {
        one.isDead = true
      }
      const stall = (): void => {
        one.stalledUntil = this.now + 2 * LEASE
        one.isTakenForDead = true
      }
      if (mayDie) choices.push({ name: `${at} dies`, run: () => this.#fault('fault', die) })
      choices.push({ name: `${at} stands still`, run: () => this.#fault('fault', stall) })
    }
    return choices
  }

  #take(step: Step, run: () => void): void {
    this.#steps = this.#steps.filter(each => each !== step)
    run()
  }

  #fault(kind: 'failure' | 'fault', run: () => void): void {
    this.#left = { ...this.#left, [kind]: this.#left[kind] - 1 }
    run()
  }

  #goOn(to: number): void {
    this.now = to
    for (const one of this.#instances) if (!this.#isStill(one)) one.clock.runUntil(to)
  }

  /** No fault has happened, but failures of the upstream. */
  get isCalm(): boolean {
    return this.#left.fault === FAULTS
  }

  get isOver(): boolean {
    const { rows } = this.table
    return rows.length === LANES.length && rows.every(({ state }) => state !== 'waiting')
  }
}

/** At these steps of a run something else than the oldest comes, by its place among the choices. */
type Delays = readonly (readonly [step: number, place: number])[]

/** @param choose the place of what comes next, of these names @returns how many choices each step had */
async function play(isOrdered: boolean, choose: (step: number, names: readonly string[]) => number): Promise<number[]> {
  const world = new World(isOrdered)
  const counts: number[] = []
  const path: string[] = []
  try {
    while (!world.isOver) {
      const choices = world.choices()
      if (path.length >= MOST_STEPS || choices.length === 0)
        throw new Error(`it does not end: ${JSON.stringify(world.table.rows)}`)
      const { name, run } =
        choices[
          choose(
            path.length,
            choices.map(({ name }) => name),
          )
        ]!
      counts.push(choices.length)
      path.push(name)
      run()
      // The workers look again in the next turn.
      await turn()
      await turn()
    }
    for (const { id, state, attempts } of world.table.rows) {
      if (!world.made.has(id)) throw new Error(`${id} is ${state} and was never made`)
      if (world.isCalm && world.sent.get(id) !== attempts)
        throw new Error(`${id} has ${attempts} attempts and was sent ${world.sent.get(id)} times`)
    }
  } catch (error) {
    throw new Error(`${(error as Error).message}, after ${path.length} steps:\n${path.join(', ')}`)
  }
  return counts
}

function turn(): Promise<void> {
  return new Promise(resolve => setImmediate(resolve))
}

for (const isOrdered of [true, false]) {
  const kind = isOrdered ? 'ordered' : 'in any order'
  t.test(`${kind}: all runs with up to ${DELAYS} delays`, { timeout: 3_000_000 }, async t => {
    let count = 0
    const explore = async (delays: Delays): Promise<void> => {
      const at = new Map(delays)
      const counts = await play(isOrdered, step => at.get(step) ?? 0)
      count += 1
      if (delays.length === DELAYS) return
      for (let step = (delays.at(-1)?.[0] ?? -1) + 1; step < counts.length; step += 1)
        for (let place = 1; place < counts[step]!; place += 1) await explore([...delays, [step, place]])
    }
    await explore([])
    t.comment(`${count} runs`)
    t.ok(count > 100)
  })

  t.test(`property: ${kind}: random runs`, async t => {
    const next = random(isOrdered ? 1 : 2)
    for (let run = 0; run < runs(10_000); run += 1) {
      const often = next() * next()
      await play(isOrdered, (step, { length }) => (step < CALM && next() < often ? Math.floor(next() * length) : 0))
    }
    t.pass()
  })

  const cases = {
    'a claim that was committed and not heard of: what it took is sent': ['the answer of claim is lost'],
    'a result that was committed and not heard of counts once': ['d1 fails', 'the answer of record is lost'],
  }
  for (const [what, wanted] of Object.entries(cases))
    t.test(`${kind}: ${what}`, async t => {
      const left = [...wanted]
      await play(isOrdered, (_, names) => {
        const place = names.indexOf(left[0] ?? '')
        if (place >= 0) left.shift()
        return Math.max(0, place)
      })
      t.same(left, [], 'it has happened')
    })
}
