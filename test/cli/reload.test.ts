import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { Agent, request } from 'undici'
import type { BucketSnapshot, Snapshot } from '../../src/admin/snapshot/snapshot.js'
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
    admin: { listen: '127.0.0.1:0' },
    upstream: `http://127.0.0.1:${port}`,
    buckets: { all: { key: 'all', rate, capacity: 10_000 } },
    routes: [{ name: 'api', buckets: ['all'], ...more }],
  })
}

/** How many requests have come and how many of them wait, once that is as wished. */
async function counted(command: Command, what: string, wished: (bucket: BucketSnapshot) => boolean): Promise<void> {
  const { url } = await logged(command, 'the admin server listens')
  await until(what, async () => {
    const { buckets } = (await (await request(`${url}/buckets`)).body.json()) as Snapshot
    return wished(buckets[0]!)
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

// They are independent, and mostly wait.
t.jobs = 2

t.test(
  'a changed file is put into effect; a bad one is reported and changes nothing; SIGHUP reads it again',
  { buffered: true },
  async t => {
    const { port } = await startUpstream(t)
    const cwd = t.testdir({ 'shaper.config.json': config(port, '1/m') })
    const file = `${cwd}/shaper.config.json`
    const command = shaper(['start'], { cwd })
    const url = await command.url
    const from = { at: 0 }
    await (await request(url)).body.dump()
    const waiting = request(url)
    await counted(command, 'one waits', bucket => bucket.waiting === 1)
    writeFileSync(file, '{ "upstream": "echo:", "buckets": { "all": { "rate": "5/w" } } }')
    const { url: admin } = await logged(command, 'the admin server listens')
    const metrics = async () => {
      const text = await (await request(`${admin}/metrics`)).body.text()
      return text.match(/^shaper_config_(reloads_total|last_reload_success)\S* .*$/gm)
    }
    const troubles = async () => ((await (await request(`${admin}/buckets`)).body.json()) as Snapshot).troubles
    t.match(await logged(command, 'not reloaded', from), { problems: [/buckets\.all\.rate: "5\/w" is not a rate/] })
    t.match(await troubles(), [
      /^the configuration was not reloaded [01] m?s ago \(buckets\.all\.rate: "5\/w" is not a rate/,
    ])
    t.same(await metrics(), [
      'shaper_config_reloads_total{result="ok"} 0',
      'shaper_config_reloads_total{result="failed"} 1',
      'shaper_config_last_reload_success 0',
    ])
    writeFileSync(file, config(port, '20/s'))
    t.same((await logged(command, '"reloaded"', from)).changes, ['buckets.all.rate: 1/m -> 20/s'])
    const { statusCode, body } = await waiting
    await body.dump()
    t.equal(statusCode, 200, 'a request that would wait for a minute leaves at the new rate')
    t.equal(await troubles(), undefined)
    command.child.kill('SIGHUP')
    await logged(command, 'nothing has changed', from)
    t.same(await metrics(), [
      'shaper_config_reloads_total{result="ok"} 2',
      'shaper_config_reloads_total{result="failed"} 1',
      'shaper_config_last_reload_success 1',
    ])
    writeFileSync(file, config(port, '20/s', { maxWait: '1s' }).replace('127.0.0.1:0', '127.0.0.1:1'))
    await logged(command, 'takes effect at the next start', from)
    // As it runs: nothing takes effect later.
    const again = { at: command.stderr().length }
    const { at } = again
    writeFileSync(file, config(port, '20/s', { maxWait: '1s' }))
    await logged(command, '"reloaded"', again)
    command.child.kill('SIGHUP')
    await logged(command, 'nothing has changed', again)
    t.notMatch(command.stderr().slice(at), /next start/)
    command.child.kill('SIGTERM')
    t.equal((await command.finished).code, 0)
  },
)

t.test('long: a lower rate: requests that now exceed maxWait are answered at once', { buffered: true }, async t => {
  const { port, seen } = await startUpstream(t)
  const cwd = t.testdir({ 'shaper.config.json': config(port, '2/s', { maxWait: '10s' }) })
  const command = shaper(['start'], { cwd })
  const url = await command.url
  const begun = performance.now()
  const answers = Array.from({ length: 12 }, () =>
    request(url).then(({ statusCode, body }) => body.dump().then(() => statusCode)),
  )
  await counted(command, 'all have come', bucket => bucket.offered === 12)
  const before = seen.length
  writeFileSync(`${cwd}/shaper.config.json`, config(port, '1/s', { maxWait: '5s' }))
  t.match(await logged(command, 'now exceed maxWait'), { route: 'api' })
  const [after, waited] = [seen.length, (performance.now() - begun) / 1_000]
  writeFileSync(`${cwd}/shaper.config.json`, config(port, '50/s', { maxWait: '5s' }))
  const statuses = await Promise.all(answers)
  const served = statuses.filter(status => status === 200).length
  // Those that had left by then, and what leaves at the lower rate in the rest of the five seconds.
  const [least, most] = [before + 4 - waited, after + 6]
  t.ok(served >= least && served <= most, `${served} had time, of ${least} to ${most}`)
  t.equal(statuses.filter(status => status === 503).length, 12 - served)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('long: twenty reloads at 500/s: nothing is lost or sent twice', { buffered: true }, async t => {
  const { port, seen } = await startUpstream(t)
  const cwd = t.testdir({ 'shaper.config.json': config(port, '500/s') })
  const command = shaper(['start'], { cwd })
  const url = await command.url
  // Shaper takes 512 connections of one client. On a busy machine more requests wait: those wait in the agent.
  const agent = new Agent({ connections: 400 })
  t.teardown(() => agent.close())
  const statuses: Promise<number>[] = []
  const send = (): void => {
    const headers = { 'x-id': String(statuses.length) }
    statuses.push(
      request(url, { dispatcher: agent, headers }).then(({ statusCode, body }) => body.dump().then(() => statusCode)),
    )
  }
  const burst = setInterval(() => {
    for (let each = 0; each < 10; each += 1) send()
  }, 20)
  t.teardown(() => clearInterval(burst))
  const from = { at: 0 }
  for (let reload = 1; reload <= 20; reload += 1) {
    // Each differs from the one before.
    const rate = 450 + (reload % 3) * 50
    const more = reload % 2 === 0 ? {} : { maxWait: '30s' }
    writeFileSync(`${cwd}/shaper.config.json`, config(port, `${rate}/s`, more))
    await logged(command, '"reloaded"', from)
  }
  clearInterval(burst)
  t.same(new Set(await Promise.all(statuses)), new Set([200]), 'no request was refused')
  t.ok(statuses.length >= 500, `${statuses.length} requests came meanwhile`)
  t.equal(seen.length, statuses.length, 'nothing was lost or sent twice')
  t.same(new Set(seen).size, statuses.length)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test(
  'long: two instances on one Redis: a reset and a reload reach the requests that wait',
  { buffered: true },
  async t => {
    const { port, seen } = await startUpstream(t)
    const redis = await startRedis()
    t.teardown(() => redis.stop())
    const text = (rate: string): string =>
      JSON.stringify({
        ...JSON.parse(config(port, rate)),
        store: { type: 'redis', url: redis.url, timeout: '5s' },
      })
    const directory = () => ({ 'shaper.config.json': text('1/h') })
    const cwd = t.testdir({ one: directory(), another: directory() })
    const instances = ['one', 'another'].map(name => {
      const command = shaper(['start'], { cwd: `${cwd}/${name}` })
      t.teardown(() => command.child.kill('SIGKILL'))
      return { command, file: `${cwd}/${name}/shaper.config.json` }
    })
    const urls = await Promise.all(instances.map(({ command }) => command.url))
    await (await request(urls[0]!)).body.dump()
    const answers = [0, 0, 0, 1].map(async place => {
      const { statusCode, body } = await request(urls[place]!)
      await body.dump()
      return statusCode
    })
    await counted(instances[0]!.command, 'three wait here', bucket => bucket.waiting === 3)
    await counted(instances[1]!.command, 'one waits there', bucket => bucket.waiting === 1)
    await sleep(300)
    t.equal(seen.length, 1)
    const { url: admin } = await logged(instances[0]!.command, 'the admin server listens')
    const { statusCode } = await request(`${admin}/buckets/all/all`, { method: 'DELETE' })
    t.ok(statusCode < 300, `answered ${statusCode}`)
    await until('the first one leaves after the reset', () => seen.length === 2)
    await sleep(300)
    t.equal(seen.length, 2, 'and only that one')
    for (const { file } of instances) writeFileSync(file, text('20/s'))
    t.same(await Promise.all(answers), [200, 200, 200, 200], 'no request waits for an hour')
    t.equal(seen.length, 5)
  },
)
