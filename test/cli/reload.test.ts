import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { Agent, request } from 'undici'
import { startRedis, until } from '../servers/redis.js'
import { type Command, shaper } from './command.js'

/** The next log record with this message. */
async function logged(command: Command, message: string, from = { at: 0 }): Promise<Record<string, unknown>> {
  for (;;) {
    const lines = command.stderr().slice(from.at).split('\n')
    const line = lines.slice(0, -1).find(text => text.includes(message))
    if (line !== undefined) {
      from.at = command.stderr().indexOf(line, from.at) + line.length
      return JSON.parse(line) as Record<string, unknown>
    }
    await once(command.child.stderr, 'data')
  }
}

function config(port: number, rate: string, more: object = {}): string {
  return JSON.stringify({
    listen: '127.0.0.1:0',
    upstream: `http://127.0.0.1:${port}`,
    buckets: { all: { key: 'all', rate, capacity: 10_000 } },
    routes: [{ name: 'api', buckets: ['all'], ...more }],
  })
}

async function startUpstream(t: { teardown(end: () => void): void }): Promise<{ port: number; seen: number[] }> {
  const seen: number[] = []
  const server = createServer((req, res) => {
    seen.push(Number(req.headers['x-id']))
    res.end('ok')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return { port: (server.address() as AddressInfo).port, seen }
}

t.test('a changed file is put into effect; a bad one is told and changes nothing; SIGHUP reads it again', async t => {
  const { port } = await startUpstream(t)
  const cwd = t.testdir({ 'shaper.config.json': config(port, '1/m') })
  const file = `${cwd}/shaper.config.json`
  const command = shaper(['start'], { cwd })
  const url = await command.url
  const from = { at: 0 }
  await (await request(url)).body.dump()
  const waiting = request(url)
  await sleep(50)
  writeFileSync(file, '{ "upstream": "echo:", "buckets": { "all": { "rate": "5/w" } } }')
  t.match(await logged(command, 'not reloaded', from), { problems: [/buckets\.all\.rate: "5\/w" is not a rate/] })
  writeFileSync(file, config(port, '20/s'))
  t.same((await logged(command, '"reloaded"', from)).changes, ['buckets.all.rate: 1/m -> 20/s'])
  const { statusCode, body } = await waiting
  await body.dump()
  t.equal(statusCode, 200, 'who waited for a minute leaves at the new rate')
  command.child.kill('SIGHUP')
  await logged(command, 'nothing has changed', from)
  writeFileSync(file, config(port, '20/s', { maxWait: '1s' }).replace('127.0.0.1:0', '127.0.0.1:1'))
  await logged(command, 'takes effect at the next start', from)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('a lower rate: those who now exceed maxWait are told at once', async t => {
  const { port } = await startUpstream(t)
  const cwd = t.testdir({ 'shaper.config.json': config(port, '2/s', { maxWait: '10s' }) })
  const command = shaper(['start'], { cwd })
  const url = await command.url
  const answers = Array.from({ length: 12 }, () =>
    request(url).then(({ statusCode, body }) => body.dump().then(() => statusCode)),
  )
  await answers[0]
  await sleep(100)
  writeFileSync(`${cwd}/shaper.config.json`, config(port, '1/s', { maxWait: '5s' }))
  t.match(await logged(command, 'now exceed maxWait'), { route: 'api' })
  writeFileSync(`${cwd}/shaper.config.json`, config(port, '50/s', { maxWait: '5s' }))
  const statuses = await Promise.all(answers)
  const served = statuses.filter(status => status === 200).length
  t.ok(served >= 5 && served <= 8, `${served} had time`)
  t.equal(statuses.filter(status => status === 503).length, 12 - served)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('twenty reloads in ten seconds at 500/s: nothing is lost or sent twice', async t => {
  const { port, seen } = await startUpstream(t)
  const cwd = t.testdir({ 'shaper.config.json': config(port, '500/s') })
  const command = shaper(['start'], { cwd })
  const url = await command.url
  const agent = new Agent({ connections: 1_000 })
  t.teardown(() => agent.close())
  const statuses: Promise<number>[] = []
  const start = performance.now()
  for (let reload = 0; reload < 20; reload += 1) {
    const rate = 450 + (reload % 3) * 50
    const more = reload % 2 === 0 ? {} : { maxWait: '30s' }
    writeFileSync(`${cwd}/shaper.config.json`, config(port, `${rate}/s`, more))
    for (let tick = 0; tick < 10; tick += 1) {
      for (let each = 0; each < 25; each += 1) {
        const headers = { 'x-id': String(statuses.length) }
        statuses.push(
          request(url, { dispatcher: agent, headers }).then(({ statusCode, body }) =>
            body.dump().then(() => statusCode),
          ),
        )
      }
      await sleep(Math.max(0, start + (reload * 10 + tick + 1) * 50 - performance.now()))
    }
  }
  t.same(new Set(await Promise.all(statuses)), new Set([200]), 'nobody was refused')
  t.equal(seen.length, statuses.length, 'nothing was lost or sent twice')
  t.same(new Set(seen).size, statuses.length)
  const reloads = command.stderr().match(/"msg":"reloaded"/g)?.length ?? 0
  t.ok(reloads >= 15, `${reloads} reloads were seen`)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('two instances on one Redis: a reset and a reload reach the requests that wait', async t => {
  const { port, seen } = await startUpstream(t)
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const text = (rate: string): string =>
    JSON.stringify({
      ...JSON.parse(config(port, rate)),
      store: { type: 'redis', url: redis.url, timeout: '5s' },
      admin: { listen: '127.0.0.1:0' },
    })
  const directory = () => ({ 'shaper.config.json': text('1/h') })
  const cwd = t.testdir({ one: directory(), another: directory() })
  const instances = ['one', 'another'].map(name => {
    const command = shaper(['start'], { cwd: `${cwd}/${name}` })
    t.teardown(() => command.child.kill('SIGKILL'))
    return { command, file: `${cwd}/${name}/shaper.config.json` }
  })
  const urls = await Promise.all(instances.map(({ command }) => command.url))
  const admins = await Promise.all(
    instances.map(async ({ command }) => String((await logged(command, 'the admin server listens')).url)),
  )
  const waiting = async (admin: string): Promise<number> => {
    const { buckets } = (await (await request(`${admin}/buckets`)).body.json()) as { buckets: { waiting: number }[] }
    return buckets[0]!.waiting
  }
  await (await request(urls[0]!)).body.dump()
  const answers = [0, 0, 0, 1].map(async place => {
    const { statusCode, body } = await request(urls[place]!)
    await body.dump()
    return statusCode
  })
  await until('three wait here', async () => (await waiting(admins[0]!)) === 3)
  await until('one waits there', async () => (await waiting(admins[1]!)) === 1)
  await sleep(300)
  t.equal(seen.length, 1)
  const { statusCode } = await request(`${admins[0]}/buckets/all/all`, { method: 'DELETE' })
  t.ok(statusCode < 300, `answered ${statusCode}`)
  await until('the first one leaves after the reset', () => seen.length === 2)
  await sleep(300)
  t.equal(seen.length, 2, 'and only that one')
  for (const { file } of instances) writeFileSync(file, text('20/s'))
  t.same(await Promise.all(answers), [200, 200, 200, 200], 'nobody waits for an hour')
  t.equal(seen.length, 5)
})
