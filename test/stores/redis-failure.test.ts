/** The Redis store with failures of the server, the network or a clock. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { StoreError } from '../../src/sharing/store.js'
import { reasonOf } from '../../src/stores/redis/wire.js'
import { ROOT } from '../cli/command.js'
import { startRedis, until } from '../servers/redis.js'
import { bucket, clock, perSecond } from './conformance.js'
import { admit, claim, createStore, fails, failure, levelOf, recovery, TIMEOUT } from './redis-sample.js'
import { askAll } from './samples.js'

t.test('the script is removed from the server', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url })
  const one = bucket(1, 1_000)
  for (let round = 1; round <= 3; round += 1) {
    await server.command('SCRIPT', 'FLUSH')
    // More requests than fit into one call.
    await Promise.all(Array.from({ length: 200 }, () => admit(store, [one])))
    t.ok((await levelOf(store, one)) > round * 200 - 0.1, 'all were done')
    t.ok((await levelOf(store, one)) <= round * 200, 'once')
  }
})

t.test('the server is killed and comes back', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const errors: string[] = []
  const store = createStore(t, { url: server.url, onError: error => errors.push(error.message) })
  const one = bucket(1, 1_000)
  await admit(store, [one])
  const pending = Array.from({ length: 100 }, () => fails(t, () => admit(store, [one]), 'on its way'))
  server.signal('SIGSTOP')
  await new Promise(setImmediate)
  await server.kill()
  await Promise.all(pending)
  await Promise.all(askAll(store).map(([verb, ask]) => fails(t, ask, verb)))
  t.ok(errors.length >= 1 && errors.length < 5, `told: ${errors.join('; ')}`)
  await sleep(2_000)
  await server.start()
  const ms = await recovery(() => admit(store, [one]))
  t.ok(ms < 2_000, `back after ${ms} ms`)
  t.ok((await levelOf(store, one)) <= 1, 'nothing was sent again')
})

t.test('the server starts later', async t => {
  const server = await startRedis()
  await server.kill()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url })
  await fails(t, () => admit(store, [bucket(1, 1)]), 'at once')
  await sleep(600)
  await fails(t, () => admit(store, [bucket(1, 1)]), 'later')
  await server.start()
  const ms = await recovery(() => admit(store, [bucket(1, 1)]))
  t.ok(ms < 2_000, `there after ${ms} ms`)
})

t.test('a stopped server does not execute expired calls later', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url })
  const one = bucket(1, 1_000)
  await admit(store, [one], 7)
  server.signal('SIGSTOP')
  const stopped = clock.now()
  while (clock.now() < stopped + 3_000) {
    await Promise.all([
      fails(t, () => admit(store, [one], 1, true), 'admit'),
      fails(t, () => claim(store, [one]), 'claim'),
      fails(t, () => store.reset(one), 'reset'),
      fails(t, () => store.exchange('one', { pausedFor: 60_000, rate: undefined, rateFor: 0 }), 'exchange'),
      sleep(50),
    ])
  }
  server.signal('SIGCONT')
  const ms = await recovery(() => store.beat('one') as Promise<unknown>)
  t.ok(ms < 2_000, `back after ${ms} ms`)
  await sleep(300)
  const level = await levelOf(store, one)
  t.ok(level > 6.9 && level <= 7, `level ${level}`)
  t.equal((await claim(store, [one])).granted, true, 'no slot was taken')
  t.equal((await store.exchange('one')).pausedFor, 0, 'nothing was told')
})

t.test('an override that has timed out while connecting is not set later', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  server.signal('SIGSTOP')
  const { board } = createStore(t, { url: server.url })
  await fails(t, () => board!.setOverride({ bucket: 'a', key: 'b', rate: 1, endsIn: 3_600_000 }), 'setOverride')
  server.signal('SIGCONT')
  const ms = await recovery(async () => board!.overrides())
  t.ok(ms < 2_000, `back after ${ms} ms`)
  t.same(await board!.overrides(), [])
})

t.test('a pause that is too short for another connection', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url })
  const one = bucket(1, 1_000)
  await admit(store, [one], 7)
  server.signal('SIGSTOP')
  await Promise.all(Array.from({ length: 50 }, () => fails(t, () => admit(store, [one]), 'admit')))
  server.signal('SIGCONT')
  const ms = await recovery(() => store.beat('one') as Promise<unknown>)
  t.ok(ms < 500, `back after ${ms} ms`)
  const level = await levelOf(store, one)
  t.ok(level > 6.9 && level <= 7, `level ${level}`)
})

t.test('a connection that loses all packets is replaced', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const open: { near: Socket; far: Socket }[] = []
  const relay = createServer(near => {
    const far = new (near.constructor as typeof Socket)().connect(server.port, '127.0.0.1')
    for (const socket of [near, far]) socket.on('error', () => {})
    near.pipe(far).pipe(near)
    open.push({ near, far })
  })
  await new Promise<void>(resolve => relay.listen(0, '127.0.0.1', resolve))
  const { port } = relay.address() as { port: number }
  t.teardown(() => {
    for (const { near, far } of open) for (const socket of [near, far]) socket.destroy()
    relay.close()
  })
  const store = createStore(t, { url: `redis://127.0.0.1:${port}` })
  const one = bucket(1, 1_000)
  await admit(store, [one], 3)
  for (const { near, far } of open) {
    near.unpipe(far)
    far.unpipe(near)
  }
  await fails(t, () => admit(store, [one]), 'admit')
  const ms = await recovery(() => admit(store, [one], 0))
  t.ok(ms < 2_000, `back after ${ms} ms`)
  t.ok((await levelOf(store, one)) <= 3)
})

t.test('a pause of this process is not taken for an outage', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url })
  const one = bucket(1, 1_000)
  await admit(store, [one])
  const answer = admit(store, [one])
  await new Promise(setImmediate)
  const end = clock.now() + TIMEOUT + 100
  while (clock.now() < end);
  t.equal((await answer).admitted, true)
})

/** The time of the server, and the offset that a key adds. */
const SETTABLE =
  "(function() local time = redis.call('TIME') return time[1] * 1000 + time[2] / 1000 + (redis.call('GET', 'ahead') or 0) end)()"

t.test('the clock of the server is set', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url, timeSource: SETTABLE })
  const HOUR = 3_600_000
  const rate = perSecond(1, 1_000)
  const blocked = bucket(1, 10, { blockFor: 5_000 })
  await admit(store, [rate], 500)
  await admit(store, [blocked], 8)
  await admit(store, [blocked], 8)
  for (const ahead of [-HOUR, -2 * HOUR]) {
    // The next slot is a second from now.
    const asked = clock.now()
    t.equal((await claim(store, [rate])).granted, true)
    await server.command('SET', 'ahead', ahead)
    const before = clock.now()
    const refused = await claim(store, [rate])
    if (refused.granted) throw new Error('the schedule is lost')
    const [wait, passed, took] = [refused.freeAt[0]! - before, before - asked, clock.now() - before]
    // The first answer after the step alone tells the clock.
    t.ok(wait > 990 - passed && wait < 1_050 + took, `free in ${wait} ms, asked ${passed} ms later, for ${took} ms`)
    const level = await levelOf(store, rate)
    t.ok(level > 490 && level <= 500, `level ${level}: no time has passed`)
    const answer = await admit(store, [blocked])
    t.ok(!answer.admitted && answer.reason === 'blocked' && answer.retryAfterMs! <= 5_000, 'the block stays, too')
    await store.reset(rate)
    await admit(store, [rate], 500)
  }
  // Forward: the time counts as passed.
  await server.command('SET', 'ahead', HOUR)
  t.equal(await levelOf(store, rate), 0)
  const before = clock.now()
  const granted = await claim(store, [rate])
  const at = granted.granted ? granted.slot.at : Number.NaN
  t.ok(at > before - 50 && at < clock.now() + 50, 'in terms of our clock nothing has moved')
  t.equal((await admit(store, [blocked])).admitted, true)
  await server.command('SET', 'ahead', 0)
  t.equal((await store.beat('one')).count, 1, 'from the future does not count')
})

t.test('a call that is late because the clock was set back is not executed either', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url, timeSource: SETTABLE })
  const one = bucket(1, 1_000)
  await admit(store, [one], 5)
  // Calls wait while it runs. Afterwards every deadline is an hour away.
  const setter = server.command(
    'EVAL',
    "redis.call('SET', 'ahead', -3600000) local sum = 0 for count = 1, 3e8 do sum = sum + count end",
    0,
  )
  await until('it runs', async () => {
    const answer = server.command('PING').catch(() => {})
    return (await Promise.race([answer, sleep(100, 'none')])) === 'none'
  })
  await Promise.all(Array.from({ length: 5 }, () => fails(t, () => admit(store, [one]), 'admit')))
  await setter
  await recovery(() => store.beat('one') as Promise<unknown>)
  const level = await levelOf(store, one)
  t.ok(level > 4.9 && level <= 5, `level ${level}`)
})

t.test('closing', async t => {
  const server = await startRedis()
  t.teardown(() => server.stop())
  const store = createStore(t, { url: server.url })
  await admit(store, [bucket(1, 1)])
  server.signal('SIGSTOP')
  const pending = fails(t, () => admit(store, [bucket(1, 1)]), 'on its way')
  await new Promise(setImmediate)
  await store.close()
  await pending
  await fails(t, () => admit(store, [bucket(1, 1)]), 'afterwards')
  await store.close()
})

t.test('closing without a server: nothing keeps the process', async t => {
  const program = `
    const { createRedisStore } = await import('${ROOT}/build/src/stores/redis/store.js')
    const at = (due, run) => {
      const timer = setTimeout(run, due - performance.now())
      return () => clearTimeout(timer)
    }
    const clock = { now: () => performance.now(), at }
    const store = createRedisStore({ prefix: '', url: 'redis://127.0.0.1:1', timeout: 100, clock, onError: () => {} })
    await store.beat('one').catch(() => {})
    // Its connection is gone, and the next one has not begun.
    await new Promise(resolve => at(performance.now() + 20, resolve))
    await store.close()
    const closed = performance.now()
    process.once('exit', () => console.log(performance.now() - closed))`
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [ms] = await once(child.stdout, 'data')
  t.ok(Number(ms) < 1_000, `it ended ${ms} ms later`)
})

t.test('the reason of a server does not name the script', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const store = createStore(t, { url: redis.url })
  await store.beat('one')
  await redis.command('CONFIG', 'SET', 'maxmemory', 1)
  const { error } = await failure(() => store.beat('one'))
  t.equal((error as Error).message, "Redis: OOM command not allowed when used memory > 'maxmemory'.")
})

t.test('why a call failed is told in our words', async t => {
  const reply = Object.assign(
    new Error('ERR no script: 0123456789012345678901234567890123456789, on @user_script:1.'),
    {
      name: 'ReplyError',
    },
  )
  t.equal(reasonOf(reply), 'no')
  const closed = new Error("Stream isn't writeable and enableOfflineQueue options is false")
  t.equal(reasonOf(closed), 'the connection was closed')
  t.equal(reasonOf(new StoreError('64 calls are on their way')), '64 calls are on their way')
})
