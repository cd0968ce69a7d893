/** Workers without a store: requests of one key leave in the order of their arrival at the machine. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { Client } from 'undici'
import type { KeyState } from '../../src/admin/keys/key-state.js'
import { FRAME, SLOT_GRACE } from '../../src/decider/constants.js'
import { random } from '../core/run.js'
import { freePort } from '../servers/free-port.js'
import { machinePauses, type Pause, type Seen, worstWindow } from './figures.js'
import { overtakers } from './spacing.js'
import { Instance, startUpstream } from './system.js'

class Machine {
  readonly instance: Instance
  readonly #admin: string
  /** Connections in the order in which they were opened: they are dealt to the workers in turn. */
  readonly #connections: Client[] = []

  constructor(instance: Instance, admin: string) {
    this.instance = instance
    this.#admin = admin
  }

  /** Opens connections one after the other. */
  async open(count: number): Promise<void> {
    for (let opened = 0; opened < count; opened += 1) {
      const connection = new Client(this.instance.url, { headersTimeout: 60_000 })
      this.#connections.push(connection)
      await (await connection.request({ path: '/open', method: 'GET' })).body.dump()
    }
  }

  byWorker(workers: number): Client[][] {
    return Array.from({ length: workers }, (_, worker) => {
      return this.#connections.filter((_, place) => place % workers === worker)
    })
  }

  async told(): Promise<KeyState> {
    return (await (await fetch(`${this.#admin}/buckets/client/ann`)).json()) as KeyState
  }

  async close(): Promise<void> {
    await Promise.all(this.#connections.map(connection => connection.destroy()))
    await this.instance.close()
  }
}

async function start(t: Test, workers: number, perSecond: number): Promise<Machine> {
  const admin = `127.0.0.1:${await freePort()}`
  const upstream = await startUpstream()
  const instance = new Instance(
    {
      upstream: upstream.url,
      buckets: { client: { key: 'header:x-user', rate: `${perSecond}/s`, capacity: 1_000 } },
      routes: [
        { name: 'open', match: { path: '/open' }, mode: 'off' },
        { name: 'api', patience: 'none' },
      ],
      admin: { listen: admin },
    },
    ['--workers', String(workers)],
  )
  const machine = new Machine(instance, `http://${admin}`)
  t.teardown(async () => {
    await machine.close()
    await upstream.close()
  })
  await instance.ready()
  return machine
}

/** Sends a request. Resolves with the ms until the answer. */
async function send(connection: Client, path: string): Promise<number> {
  const at = performance.now()
  const { statusCode, body } = await connection.request({ path, method: 'GET', headers: { 'x-user': 'ann' } })
  await body.dump()
  if (statusCode !== 200) throw new Error(`status ${statusCode}`)
  return performance.now() - at
}

interface Expected {
  /** Requests per second. */
  readonly rate: number
  readonly count: number
  /** ms */
  readonly overtaking: number
}

/** For how long the machine stood still at most, in ms. */
function stoodStill(instance: Instance): number {
  const pauses = machinePauses(instance.notes().flatMap(note => note.pauses))
  return Math.max(0, ...pauses.map(({ from, to }) => to - from))
}

/** How often a worker was late enough, in ms, that the slot it had next may have gone to another worker. */
function lateReports(instance: Instance, since: number): number {
  const isLate = ({ from, to }: Pause): boolean => to - from > SLOT_GRACE && to > since
  return instance.notes().flatMap(({ pauses }) => pauses.filter(isLate)).length
}

/** Checks the order and the bound by what the workers have noted. */
function check(t: Test, { instance }: Machine, { rate, count, overtaking: most }: Expected): void {
  const notes = instance.notes()
  const ours = ({ path }: Seen): boolean => path !== '/open'
  const left = new Map(notes.flatMap(({ released }) => released.filter(ours).map(({ path, at }) => [path, at])))
  const came = notes.flatMap(({ read }) => read.filter(ours))
  t.equal(left.size, count, 'all have left')
  const stays = came.map(({ path, at }) => ({ arrivedAt: at, at: left.get(path)! }))
  const stood = stoodStill(instance)
  const late = lateReports(instance, Math.min(...came.map(({ at }) => at)))
  const overtaken = overtakers(stays, most + 2 * stood).length
  const told = `${overtaken} overtake; workers were late ${late} times, up to ${stood.toFixed(0)} ms`
  t.comment(told)
  t.ok(overtaken <= late, told)
  const times = stays.map(({ at, arrivedAt }) => ({ at, path: String(arrivedAt) }))
  const { excess } = worstWindow(times, rate / 1_000)
  t.ok(excess <= (stood * rate) / 1_000, `the worst window is ${excess} from the bound`)
}

t.test(
  '13 requests at one worker, then 7 at the other: none overtakes, and a newcomer waits for as long as is told',
  async t => {
    const machine = await start(t, 2, 5)
    await machine.open(28)
    const [many, few] = machine.byWorker(2) as [Client[], Client[]]
    const sent: Promise<number>[] = []
    for (const connection of [...many.slice(0, 13), ...few.slice(0, 7)]) {
      sent.push(send(connection, `/${sent.length}`))
      await sleep(50)
    }
    const { predictedWaitMs } = await machine.told()
    const waited = await send(few[13]!, '/newcomer')
    t.comment(`told ${predictedWaitMs.toFixed(0)} ms, waited ${waited.toFixed(0)} ms`)
    t.ok(predictedWaitMs > 2_000, `${predictedWaitMs} ms`)
    // The slots of 5/s are 200 ms apart.
    const most = 200 + 2 * stoodStill(machine.instance)
    t.ok(Math.abs(waited - predictedWaitMs) < most, `told ${predictedWaitMs} ms, waited ${waited} ms`)
    await Promise.all(sent)
    check(t, machine, { rate: 5, count: 21, overtaking: FRAME })
  },
)

t.test('four workers, of which one gets 70 %: none overtakes by more than two frames', async t => {
  const machine = await start(t, 4, 40)
  await machine.open(4 * 80)
  const byWorker = machine.byWorker(4)
  const chance = random(1)
  const sent: Promise<number>[] = []
  for (let number = 0; number < 100; number += 1) {
    const worker = chance() < 0.7 ? 0 : 1 + Math.floor(3 * chance())
    sent.push(send(byWorker[worker]!.pop()!, `/${number}`))
    await sleep(20 * chance())
  }
  await Promise.all(sent)
  check(t, machine, { rate: 40, count: 100, overtaking: 2 * FRAME })
})
