/** Single keys in real processes: two instances on a store, and workers without one. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { KeyState, OverrideState } from '../../src/admin/keys/key-state.js'
import type { Reset } from '../../src/admin/keys/reset.js'
import type { KeySearch } from '../../src/admin/keys/search.js'
import { freePort } from '../servers/free-port.js'
import { startPostgres } from '../servers/postgres.js'
import { startRedis, until } from '../servers/redis.js'
import { watchStalls } from '../stalls.js'
import { machinePauses } from './figures.js'
import { Instance } from './system.js'

const RATE = 5
const PERIOD = 1_000 / RATE
const BUCKETS = { client: { key: 'header:x-user', rate: `${RATE}/s`, capacity: 100 } }
const CONFIG = { upstream: 'echo:', buckets: BUCKETS, routes: [{ name: 'api' }] }

class Seen {
  readonly instance: Instance
  readonly #admin: string

  constructor(instance: Instance, port: number) {
    this.instance = instance
    this.#admin = `http://127.0.0.1:${port}`
  }

  async ask<T>(path: string, init?: RequestInit): Promise<T> {
    const answer = await fetch(this.#admin + path, init)
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`)
    return (await answer.json()) as T
  }

  key(user: string): Promise<KeyState> {
    return this.ask(`/buckets/client/${user}`)
  }

  override(user: string, change: object): Promise<OverrideState> {
    const headers = { 'content-type': 'application/json' }
    return this.ask(`/buckets/client/${user}`, { method: 'PUT', headers, body: JSON.stringify(change) })
  }

  async overrides(): Promise<readonly OverrideState[]> {
    return (await this.ask<{ overrides: OverrideState[] }>('/overrides')).overrides
  }

  /** Sends requests. What each waits for its answer, in ms, or its status if that is not 200. */
  send(user: string, count: number): Promise<number[]> {
    const one = async (): Promise<number> => {
      const at = performance.now()
      const answer = await fetch(this.instance.url, { headers: { 'x-user': user } })
      await answer.text()
      return answer.ok ? performance.now() - at : answer.status
    }
    return Promise.all(Array.from({ length: count }, one))
  }
}

async function start(t: Test, config: object, args: readonly string[] = []): Promise<Seen> {
  const port = await freePort()
  const instance = new Instance({ ...config, admin: { listen: `127.0.0.1:${port}` } }, args)
  t.teardown(() => instance.close())
  await instance.ready()
  return new Seen(instance, port)
}

/** Whether the moments are no closer than the rate allows, but for what timers and pipes add, and by how much this process noticed late. */
function isSpaced(times: readonly number[], late: number): boolean {
  const sorted = times.toSorted((a, b) => a - b)
  return sorted.slice(2).every((time, place) => time - sorted[place]! > PERIOD - late)
}

/** For how long the machine stood still at most, in ms. */
function stoodStill({ instance }: Seen): number {
  const pauses = machinePauses(instance.notes().flatMap(note => note.pauses))
  return Math.max(0, ...pauses.map(({ from, to }) => to - from))
}

/** What an instance does for a key reaches the other one. */
async function check(t: Test, one: Seen, other: Seen): Promise<void> {
  await t.test('an override holds in both, is listed by both, logged by both, and ends in both', async t => {
    const set = await one.override('ann', { rate: '1/m', capacity: 3, until: '1h' })
    t.match(set, { bucket: 'client', key: 'ann', capacity: 3 })
    await until('the other has it', async () => (await other.key('ann')).capacity === 3)
    t.match(await other.overrides(), [{ bucket: 'client', key: 'ann', capacity: 3, until: String }])
    t.ok(Math.abs(Date.parse((await other.overrides())[0]!.until) - Date.parse(set.until)) < 5_000)
    const statuses = other.send('ann', 5)
    await until('two are rejected', async () => {
      return (await other.key('ann')).recent.filter(({ status }) => status === 429).length === 2
    })
    await until('one has left and two wait', async () => (await other.key('ann')).waiting === 2)
    const [mine, its] = [await one.key('ann'), await other.key('ann')]
    t.ok(mine.level > 2.9 && its.level > 2.9, `levels ${mine.level}, ${its.level}`)
    t.equal(its.routes.api!.rejected?.reason, 'overflow', 'a newcomer does not fit')
    await t.rejects(one.override('ann', { rate: '1/s' }), /"until\\" is missing/)

    await other.override('ann', { until: 'now' })
    await until('it has ended', async () => (await one.key('ann')).capacity === 100)
    t.same([await one.overrides(), await other.overrides()], [[], []])
    t.same((await statuses).filter(each => each === 429).length, 2, 'those that waited have left at the usual rate')
    for (const { instance } of [one, other]) {
      await until('the end is logged', () => instance.stderr.includes('an override of limits has ended'))
      t.match(instance.stderr, /"forMs":\d+,"msg":"limits of a key are overridden"/)
      t.notMatch(instance.stderr, /"ann"/)
    }
  })

  await t.test('what newcomers are told is what they wait, within a period, and both find the key', async t => {
    // Enough of them, however long a busy machine takes to send them.
    const flood = other.send('flood', 40)
    await until('they wait', async () => (await other.key('flood')).waiting >= 20)
    await until('one finds it', async () => {
      const { buckets } = await one.ask<KeySearch>('/buckets?q=flo')
      return buckets[0]?.fullest[0]?.key === 'flood'
    })
    await until('and how many wait elsewhere', async () => (await one.key('flood')).waiting > 0)
    const offs: number[] = []
    for (let sent = 0; sent < 8; sent += 1) {
      for (const each of sent % 4 === 0 ? [one, other] : [one]) {
        const { predictedWaitMs, waiting, level } = await each.key('flood')
        t.ok(level >= waiting - 1, `a level of ${level}, ${waiting} waiting`)
        const [waited] = await each.send('flood', 1)
        offs.push(Math.abs(waited! - predictedWaitMs))
        await sleep(Math.random() * PERIOD)
      }
    }
    await flood
    offs.sort((a, b) => a - b)
    t.comment(`off by ${offs.map(Math.round)} ms`)
    // What comes to one instance while a request waits at the other is before it or behind it.
    t.ok(
      offs[Math.floor(offs.length / 2)]! < 1.5 * PERIOD,
      'half of them by less than a period and what this machine adds',
    )
  })

  await t.test('a DELETE forgets what has passed; those who wait leave at the rate, wherever they wait', async t => {
    const left: number[] = []
    const from = performance.now()
    // Enough of them still wait when the other instance knows, however long that takes on a busy machine.
    const count = 24
    const waiting = Array.from({ length: count }, () => other.send('reset', 1).then(() => left.push(performance.now())))
    await until('they wait', async () => (await other.key('reset')).waiting >= 8)
    await until('one knows', async () => (await one.key('reset')).waiting >= 8)
    const {
      waiting: rest,
      level,
      forgotten,
      lastWaitMs,
    } = await one.ask<Reset>('/buckets/client/reset', {
      method: 'DELETE',
    })
    // One that has just left is in the level, as in one process.
    const isLevel = level >= rest - 1e-6 && level <= rest + 1
    t.ok(rest >= 5 && rest <= count && isLevel, `${rest} waiting, a level of ${level}`)
    t.ok(forgotten <= 2.5, `${forgotten} is forgotten: what waits is not`)
    t.ok(lastWaitMs! >= (rest - 2) * PERIOD && lastWaitMs! <= rest * PERIOD, `the last waits ${lastWaitMs!} ms`)
    const stalls = watchStalls(t)
    await Promise.all(waiting)
    const took = left.at(-1)! - from
    const late = stalls.longest() + stoodStill(other)
    t.ok(isSpaced(left.slice(-4), late), `the last ones leave at the rate: ${left.slice(-4)}, noticed ${late} ms late`)
    t.ok(took > (count - 4) * PERIOD, `they take ${took} ms`)
  })
}

t.test('Redis: two instances', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const config = { ...CONFIG, store: { type: 'redis', url: redis.url, timeout: '2s' } }
  await check(t, await start(t, config), await start(t, config))
})

t.test('PostgreSQL: two instances', async t => {
  const postgres = await startPostgres()
  t.teardown(() => postgres.close())
  const config = { ...CONFIG, store: { type: 'postgres', url: postgres.url, timeout: '2s' } }
  await check(t, await start(t, config), await start(t, config))
})

t.test('workers without a store are one', async t => {
  const all = await start(t, CONFIG, ['--workers', '2'])
  await all.override('ann', { rate: '1/m', capacity: 3, until: '1h' })
  const answers = all.send('ann', 8)
  await until('what does not fit is rejected', async () => {
    return (await all.key('ann')).recent.filter(({ status }) => status === 429).length === 5
  })
  await until('one has left and two wait', async () => (await all.key('ann')).waiting === 2)
  const state = await all.key('ann')
  t.match(state, { capacity: 3, waiting: 2, override: { capacity: 3, until: String } })
  t.ok(state.level > 2.9 && state.level < 3.1, `a level of ${state.level}`)
  t.match(await all.overrides(), [{ key: 'ann', capacity: 3 }])
  const { buckets } = await all.ask<KeySearch>('/buckets?q=an')
  t.match(buckets, [{ name: 'client', fullest: [{ key: 'ann', waiting: 2 }] }])
  const { waiting, level, forgotten } = await all.ask<Reset>('/buckets/client/ann', { method: 'DELETE' })
  t.ok(waiting <= 2 && waiting >= 1 && Math.abs(level - waiting) <= 1, `${waiting} waiting, a level of ${level}`)
  t.ok(forgotten > 0.9 && forgotten < 1.1, `${forgotten} is forgotten`)
  await all.override('ann', { until: 'now' })
  t.same(await all.overrides(), [])
  t.equal((await answers).filter(status => status === 429).length, 5)

  // One after the other, so that each worker gets its half.
  await all.override('flood', { rate: '1/m', until: '1h' })
  const flood: Promise<number[]>[] = []
  for (let sent = 1; sent <= 20; sent += 1) {
    flood.push(all.send('flood', 1))
    await until('it waits', async () => (await all.key('flood')).waiting === sent - 1)
  }
  await all.override('flood', { until: 'now' })
  const stalls = watchStalls(t)
  const { predictedWaitMs } = await all.key('flood')
  // One at each worker. The second one leaves a period later.
  const [first, second] = (await all.send('flood', 2)).toSorted((one, other) => one - other)
  const late = stalls.longest() + stoodStill(all)
  t.ok(
    Math.abs(first! - predictedWaitMs) < PERIOD + late,
    `told ${predictedWaitMs} ms, waited ${first} ms, noticed ${late} ms late`,
  )
  t.ok(Math.abs(second! - first! - PERIOD) < PERIOD / 2 + late, `the second waited ${second} ms`)
  await Promise.all(flood)
})
