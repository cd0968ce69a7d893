/** Many clients at once, the keys left in Redis, and access to it. */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import t from 'tap'
import type { Clock } from '../../src/core/clock.js'
import type { Slot } from '../../src/sharing/store.js'
import { freePort } from '../servers/free-port.js'
import { startRedis, until } from '../servers/redis.js'
import { bucket, clock, perSecond } from './conformance.js'
import { admit, claim, createStore, EPOCH, fails, failure, levelOf } from './redis-sample.js'

t.test('two clients at once never admit too much', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const stores = [
    createStore(t, { url: server.url, timeout: 2_000 }),
    createStore(t, { url: server.url, timeout: 2_000 }),
  ]
  const [all, wide] = [bucket(1e-6, 100), bucket(1e-6, 1e6)]
  const answers = await Promise.all(
    Array.from({ length: 1_000 }, (_, at) => admit(stores[at % 2]!, [wide, all], 1, at % 3 === 0)),
  )
  t.equal(answers.filter(({ admitted }) => admitted).length, 100)
  t.ok(Math.abs((await levelOf(stores[0]!, wide)) - 100) < 1e-6, 'what was refused is in none')
})

t.test('two clients at 500/s: slots are spaced, and none is early', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const redis = new Redis({ host: '127.0.0.1', port: server.port, protocol: 2 })
  t.teardown(() => redis.disconnect())
  /** The smallest possible lead of our clock over that of the server, in ms. */
  let ahead = -Infinity
  for (let count = 0; count < 500; count += 1) {
    const sent = clock.now()
    const [seconds, micros] = await redis.time()
    ahead = Math.max(ahead, sent - (Number(seconds) * 1_000 - EPOCH + Number(micros) / 1_000))
  }
  const one = perSecond(500)
  const slots: Slot[] = []
  const began = clock.now()
  const take = async () => {
    const store = createStore(t, { url: server.url, timeout: 2_000 })
    let free = began
    // Enough of them, however long a busy machine takes.
    while (slots.length < 400 && clock.now() < began + 60_000) {
      const answer = await claim(store, [one], 1, Math.max(0, clock.now() - free))
      if (answer.granted) slots.push(answer.slot)
      else {
        free = answer.freeAt[0]!
        await sleep(Math.max(0, free - store.horizon - clock.now()))
      }
    }
  }
  await Promise.all([take(), take()])
  const theirs = slots.map(({ token }) => token as number).sort((a, b) => a - b)
  for (const [at, slot] of theirs.entries())
    if (at > 0 && slot - theirs[at - 1]! < 2 - 1e-4)
      t.fail(`slot ${at} is ${slot - theirs[at - 1]!} ms after the one before`)
  const span = theirs.at(-1)! - theirs[0]!
  t.ok(slots.length >= 400, `${slots.length} slots`)
  t.ok(slots.length - 1 <= span / 2 + 1e-3, `${slots.length} slots in ${span} ms`)
  // The drift of the clocks in this time is negligible.
  const early = slots.filter(({ at, token }) => at < (token as number) + ahead - 0.1)
  t.same(early, [], 'none is early')
  const late = slots.map(({ at, token }) => at - (token as number) - ahead).sort((a, b) => a - b)
  t.ok(late[Math.floor(late.length / 2)]! < 5, `the median is ${late[Math.floor(late.length / 2)]} ms late`)
})

/** The number of calls of the script. */
async function calls(redis: Redis): Promise<number> {
  return Number(/cmdstat_evalsha:calls=(\d+)/.exec(await redis.info('commandstats'))?.[1] ?? 0)
}

/** A clock, and a way to do something in one moment of it, also where a busy machine interrupts that. */
function pausable(): { clock: Clock; inOneMoment<T>(run: () => T): T } {
  let moment: number | undefined
  return {
    clock: { ...clock, now: () => moment ?? clock.now() },
    inOneMoment(run) {
      moment = clock.now()
      try {
        return run()
      } finally {
        moment = undefined
      }
    },
  }
}

t.test('requests of one tick go in one call, up to a bound', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const redis = new Redis({ host: '127.0.0.1', port: server.port, protocol: 2 })
  t.teardown(() => redis.disconnect())
  const { clock, inOneMoment } = pausable()
  const store = createStore(t, { url: server.url, timeout: 2_000, clock })
  await store.beat('one')
  const ask = async (count: number) => {
    const before = await calls(redis)
    const asked = (at: number) => {
      const one = bucket(1, 1, { group: `group ${at % 5}` })
      if (at % 7 === 6) return store.exchange(`upstream ${at}`)
      if (at % 4 === 0) return claim(store, [one])
      if (at % 4 === 1) return store.giveBack({ stack: [one], cost: 1 })
      return at % 4 === 2 ? store.reset(one) : admit(store, [one], 1, true)
    }
    await Promise.all(inOneMoment(() => Array.from({ length: count }, (_, at) => asked(at))))
    return (await calls(redis)) - before
  }
  t.equal(await ask(1), 1)
  t.equal(await ask(64), 1)
  t.equal(await ask(65), 2)
  const many = await ask(1_000)
  // Requests with deadlines that are too far apart do not share a call.
  t.ok(many >= 16 && many <= 24, `${many} calls`)
  const long = Array.from({ length: 280 }, () => bucket(1, 1))
  const before = await calls(redis)
  const answers = await Promise.all(
    inOneMoment(() => [admit(store, long, 1, true), admit(store, long, 1, true), admit(store, [long[279]!])]),
  )
  t.same(
    answers.map(({ admitted }) => admitted),
    [true, false, false],
    'stacks of 280 as well',
  )
  t.equal((await calls(redis)) - before, 1)
  await admit(
    store,
    Array.from({ length: 700 }, () => long[0]!),
    0,
  )
})

t.test('keys expire when their bucket has drained', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const redis = new Redis({ host: '127.0.0.1', port: server.port, protocol: 2 })
  t.teardown(() => redis.disconnect())
  const store = createStore(t, { url: server.url, timeout: 2_000 })
  const ttl = async (key: string) => await redis.pttl(`shaper:{%}client:${key}`)
  let since = clock.now()
  // A slot may lie ahead by the time of a round trip. What has passed since the last one is missing.
  const near = (got: number, wanted: number, what: string) => {
    const passed = clock.now() - since
    since = clock.now()
    t.ok(got <= wanted + 100 && got > wanted - 100 - passed, `${what}: ${got} ms, wanted ${wanted}, ${passed} ms later`)
  }
  const at = (rate: number, key: string, more = {}) => bucket(rate * 3_600, 10, { key, ...more })
  await admit(store, [at(1, 'level')], 5)
  near(await ttl('level'), 6_000, 'a level')
  await claim(store, [at(0.1, 'slot')], 2)
  near(await ttl('slot'), 21_000, 'a slot')
  await admit(store, [at(1, 'block', { blockFor: 60_000 })], 10)
  await admit(store, [at(1, 'block', { blockFor: 60_000 })], 10)
  near(await ttl('block'), 61_000, 'a block')
  await admit(store, [at(1, 'drain', { blockFor: 'drain' })], 8)
  await admit(store, [at(1, 'drain', { blockFor: 'drain' })], 8)
  near(await ttl('drain'), 9_000, 'a block until drained')
  await admit(store, [at(1, 'refused', { capacity: 1 })], 2)
  t.equal(await ttl('refused'), -2, 'a refusal leaves nothing')
  await store.giveBack({ stack: [at(1, 'nothing')], cost: 0 })
  t.equal(await ttl('nothing'), -2, 'nor does giving nothing back')
  await store.reset(at(1, 'level'))
  near(await ttl('level'), 1_000, 'a reset: its schedule begins now')
  await admit(store, [bucket(1e-12, 1e9, { key: 'slow' })], 1e9)
  t.ok((await ttl('slow')) > 1e12, 'longer than a number of 64 bits has room for')
  await store.beat('one')
  near(await redis.pttl('shaper:{%instances}'), 4_000, 'the registry')
  const upstream = 'shaper:{%upstreams}upstream'
  await store.exchange('upstream')
  t.equal(await redis.pttl(upstream), -2, 'asking leaves nothing')
  await store.exchange('upstream', { pausedFor: 60_000, rate: 1, rateFor: 20_000 })
  near(await redis.pttl(upstream), 61_000, 'a pause')
  await store.exchange('upstream', { pausedFor: 0, rate: 1, rateFor: 90_000 })
  near(await redis.pttl(upstream), 91_000, 'a rate')
  await admit(store, [at(1_000, 'soon')], 1)
  t.ok((await ttl('soon')) <= 1_101)
  await until('it is gone', async () => (await ttl('soon')) === -2)
  await redis.set('shaper:{one}client:foreign', 'something else')
  await redis.lpush('shaper:{one}client:list', 'something else')
  for (const key of ['foreign', 'list'])
    t.equal((await admit(store, [at(1, key)])).levels[0], 1, 'what is not ours is replaced')
  await redis.lpush('shaper:{%upstreams}list', 'something else')
  t.equal((await store.exchange('list', { pausedFor: 5_000, rate: undefined, rateFor: 0 })).pausedFor, 5_000)
})

t.test('user and password', async t => {
  const server = await startRedis(['--requirepass', 'hunter2/?', '--user', 'shaper', 'on', '>s3cret', '~*', '+@all'])
  t.teardown(() => server.stop())
  const { port } = server
  const errors: Error[] = []
  const onError = (error: Error) => errors.push(error)
  for (const user of [':hunter2%2F%3F', 'shaper:s3cret']) {
    const store = createStore(t, { url: `redis://${user}@127.0.0.1:${port}/3`, onError })
    t.equal((await admit(store, [bucket(1, 1)])).admitted, true)
  }
  t.same(errors, [])
  const store = createStore(t, { url: `redis://shaper:wrong-pass@127.0.0.1:${port}`, onError })
  const { error } = await failure(() => admit(store, [bucket(1, 1)]))
  await until('it is told', () => errors.length > 0)
  await fails(t, () => admit(store, [bucket(1, 1)]), 'later, too')
  for (const shown of [error as Error, ...errors]) {
    t.notMatch(`${shown.stack} ${JSON.stringify(shown)} ${shown.cause}`, /wrong-pass/)
    t.match(shown.message, /WRONGPASS|in time/)
  }
  t.throws(() => createStore(t, { url: 'http://a:wrong-pass@b' }), { message: /^(?!.*wrong-pass).*not a Redis URL/s })
})

t.test('TLS is verified', async t => {
  const fixture = (name: string) => new URL(`../fixtures/${name}`, import.meta.url).pathname
  const tls = [
    '--tls-cert-file',
    fixture('upgrade-cert.pem'),
    '--tls-key-file',
    fixture('upgrade-key.pem'),
    '--tls-auth-clients',
    'no',
  ]
  const server = await startRedis([...tls, '--tls-ca-cert-file', fixture('upgrade-cert.pem')])
  t.teardown(() => server.stop())
  const port = await freePort()
  await server.command('CONFIG', 'SET', 'tls-port', port)
  const errors: string[] = []
  const store = createStore(t, { url: `rediss://127.0.0.1:${port}`, onError: error => errors.push(error.message) })
  await fails(t, () => admit(store, [bucket(1, 1)]), 'an untrusted certificate is refused')
  await until('it is told', () => errors.some(message => /self-signed/.test(message)))
  const child = fork(
    new URL('../../build/test/stores/redis-tls-client.js', import.meta.url),
    [`rediss://127.0.0.1:${port}`],
    {
      env: { ...process.env, NODE_EXTRA_CA_CERTS: fixture('upgrade-cert.pem') },
    },
  )
  let told: object = {}
  // The options of tap come first.
  while (!('admitted' in told)) [told] = await once(child, 'message')
  t.same(told, { admitted: true, levels: [1] }, 'a trusted certificate is accepted')
})

t.test('on one server an instance keeps its level when a reload moves it to another group', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url, timeout: 2_000 })
  const before = bucket(1, 10, { key: 'moved' })
  await admit(store, [before], 8)
  const after = await admit(store, [{ ...before, group: 'everyone' }], 5)
  t.match(after, { admitted: false, reason: 'overflow' })
})
