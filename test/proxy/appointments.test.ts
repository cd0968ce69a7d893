/** Promises and tickets of rejected clients (contract 13). */
import t from 'tap'
import type { Store } from '../../src/sharing/store.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { type Answer, askOnce, connect, get, httpUpstream, pass, type RigOptions, startRig } from './harness.js'

/** Ten a second, ten at most, for everyone. Clients are told apart by their addresses. */
const TEN = {
  trustProxy: ['127.0.0.1'],
  buckets: { all: { key: 'all', rate: '10/s', capacity: 10 } },
}

function from(address: string, path = '/', ...headers: string[]): string {
  return get(path, `X-Forwarded-For: ${address}`, ...headers)
}

function ticketOf(answer: Answer): string {
  return answer.header('shaper-ticket') ?? ''
}

async function fullRig(t: Parameters<typeof connect>[0], config: object) {
  const tickets: (string | undefined)[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    tickets.push(req.headers['shaper-ticket'] as string | undefined)
    res.end('ok')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...TEN, ...config })
  await askOnce(t, rig, from('192.0.2.1', '/first'))
  for (let number = 1; number < 10; number += 1) {
    const client = await connect(t, rig)
    client.send(from('192.0.2.1', `/${number}`))
    await rig.until(({ queued }) => queued.length === number)
  }
  return { rig, upstream, tickets }
}

t.test('each client is told its own moment, also after many rejections', async t => {
  const { rig } = await fullRig(t, { routes: [{ name: 'all' }] })
  const told = async (last: number): Promise<[number | undefined, string | undefined]> => {
    const answer = await askOnce(t, rig, from(`192.0.2.${last}`))
    t.equal(answer.status, 429)
    t.equal(answer.header('shaper-ticket'), undefined)
    return [answer.json().retryAfterMs, answer.header('retry-after')]
  }
  t.same(await told(10), [100, '1'])
  t.same(await told(11), [200, '1'])
  for (let again = 0; again < 20; again += 1) t.same(await told(10), [100, '1'])
  for (let last = 12; last < 19; last += 1) await told(last)
  t.same(await told(19), [1_000, '1'])
  t.same(await told(20), [1_000, '1'], 'past the capacity: the last value')
})

t.test('a ticket is honoured in its time, once, and does not reach the upstream', async t => {
  const { rig, upstream, tickets } = await fullRig(t, { routes: [{ name: 'all', appointments: true }] })
  const first = await askOnce(t, rig, from('192.0.2.10'))
  t.equal(first.json().retryAfterMs, 100)
  t.match(ticketOf(first), /^\d+\.[\w-]{43}$/)
  t.equal(first.header('cache-control'), 'no-store')
  const ticket = `Shaper-Ticket: ${ticketOf(first)}`
  const early = await askOnce(t, rig, from('192.0.2.10', '/early', ticket))
  t.equal(early.status, 429)
  t.equal(ticketOf(early), ticketOf(first))
  await pass(rig, 100, 50)
  const newcomer = await askOnce(t, rig, from('192.0.2.11', '/newcomer'))
  t.equal(newcomer.status, 429, 'its room is kept')
  t.match(newcomer.json().detail, /^bucket "all" is full: 9(\.\d+)? of 10, and 1 kept for clients with a ticket$/)
  t.equal((await askOnce(t, rig, from('192.0.2.12', '/thief', ticket))).status, 429, 'for nobody else')
  const changed = ticket.replace(/\d+\./, number => `${Number.parseInt(number, 10) + 1}.`)
  t.equal((await askOnce(t, rig, from('192.0.2.10', '/changed', changed))).status, 429)
  const client = await connect(t, rig)
  const before = rig.queued.length
  client.send(from('192.0.2.10', '/booked', ticket))
  await rig.until(({ queued }) => queued.length === before + 1)
  t.equal((await askOnce(t, rig, from('192.0.2.10', '/again', ticket))).status, 429, 'once')
  await pass(rig, 1_200, 50)
  t.equal((await client.answer()).status, 200)
  t.ok(upstream.requests.includes('GET /booked'))
  t.ok(tickets.every(each => each === undefined))
})

t.test('a ticket is for its route and its cost', async t => {
  const { rig } = await fullRig(t, {
    routes: [
      { name: 'one', match: { path: '/one' }, appointments: true },
      { name: 'all', cost: { header: 'x-cost', max: 5 }, appointments: true },
    ],
  })
  const ticket = `Shaper-Ticket: ${ticketOf(await askOnce(t, rig, from('192.0.2.10')))}`
  await pass(rig, 300, 50)
  // Others take what has become free besides.
  for (let more = 0; more < 2; more += 1) {
    const client = await connect(t, rig)
    const before = rig.queued.length
    client.send(from(`192.0.2.${20 + more}`))
    await rig.until(({ queued }) => queued.length === before + 1)
  }
  t.equal((await askOnce(t, rig, from('192.0.2.10', '/one', ticket))).status, 429)
  t.equal((await askOnce(t, rig, from('192.0.2.10', '/', 'X-Cost: 2', ticket))).status, 429)
  const client = await connect(t, rig)
  const before = rig.queued.length
  client.send(from('192.0.2.10', '/', ticket))
  await rig.until(({ queued }) => queued.length === before + 1)
})

t.test('tickets in meter', async t => {
  const upstream = await httpUpstream(t)
  const routes = [{ name: 'all', mode: 'meter', appointments: true }]
  const rig = await startRig(t, { upstream: upstream.url, ...TEN, routes })
  for (let number = 0; number < 10; number += 1) await askOnce(t, rig, from('192.0.2.1'))
  const rejected = await askOnce(t, rig, from('192.0.2.10'))
  t.equal(rejected.status, 429)
  await pass(rig, 100, 50)
  t.equal((await askOnce(t, rig, from('192.0.2.11'))).status, 429)
  t.equal((await askOnce(t, rig, from('192.0.2.10', '/', `Shaper-Ticket: ${ticketOf(rejected)}`))).status, 200)
})

t.test('200 clients that are rejected at once all come in with their tickets, among newcomers', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    ...{ upstream: upstream.url, trustProxy: ['127.0.0.1'] },
    buckets: { all: { key: 'all', rate: '100/s', capacity: 200 } },
    routes: [{ name: 'all', mode: 'meter', appointments: true }],
  })
  const hop = await connect(t, rig)
  for (let number = 0; number < 200; number += 1) t.equal((await hop.ask(from('192.0.2.1'))).status, 200)
  const due: { address: string; at: number; ticket: string }[] = []
  for (let number = 0; number < 200; number += 1) {
    const address = `198.51.100.${number}`
    const answer = await hop.ask(from(address))
    t.equal(answer.status, 429)
    due.push({ address, at: rig.pacer.now() + answer.json().retryAfterMs!, ticket: ticketOf(answer) })
  }
  let admitted = 0
  for (const { address, at, ticket } of due) {
    rig.pacer.runUntil(at + 5)
    await hop.ask(from('192.0.2.2', '/newcomer'))
    if ((await hop.ask(from(address, '/', `Shaper-Ticket: ${ticket}`))).status === 200) admitted += 1
  }
  t.equal(admitted, 200)
})

t.test('RateLimit leaves out the room that is kept, also for the requests that pass', async t => {
  const upstream = await httpUpstream(t)
  const routes = [{ name: 'all', mode: 'meter', appointments: true }]
  const rig = await startRig(t, { upstream: upstream.url, ...TEN, routes })
  for (let number = 0; number < 10; number += 1) await askOnce(t, rig, from('192.0.2.1'))
  for (const last of [10, 11]) t.equal((await askOnce(t, rig, from(`192.0.2.${last}`))).status, 429)
  await pass(rig, 200, 50)
  const newcomer = await askOnce(t, rig, from('192.0.2.12'))
  t.equal(newcomer.status, 429, 'the bucket holds 8, and 2 are kept')
  t.equal(newcomer.header('ratelimit'), '"all";r=0;t=1')
  await pass(rig, 450, 50)
  const admitted = await askOnce(t, rig, from('192.0.2.12'))
  t.equal(admitted.status, 200, 'it holds 5.5, and 3 are kept')
  t.equal(admitted.header('ratelimit'), '"all";r=0;t=1', '6.5 and 3')
})

t.test('with a store: one sequence of moments, and a ticket of one instance is honoured by another', async t => {
  const upstream = await httpUpstream(t)
  let store: Store | undefined
  const shared: RigOptions['shared'] = clock => {
    store ??= createMemoryStore({ clock })
    return { store, onOutage: 'local' }
  }
  const config = {
    ...{ upstream: upstream.url, trustProxy: ['127.0.0.1'] },
    buckets: { all: { key: 'all', rate: '100/s', capacity: 200 } },
    routes: [{ name: 'all', mode: 'meter', appointments: true }],
  }
  const [one, other] = [await startRig(t, config, { shared }), await startRig(t, config, { shared })]
  const rigs = [one, other]
  const pass = (ms: number): void => {
    for (const { pacer } of rigs) pacer.runUntil(pacer.now() + ms)
  }
  const hops = await Promise.all(rigs.map(rig => connect(t, rig)))
  for (let number = 0; number < 210; number += 1) await hops[0]!.ask(from('192.0.2.1'))
  const tickets: string[] = []
  let last = 0
  for (let number = 0; number < 20; number += 1) {
    const answer = await hops[number % 2]!.ask(from(`198.51.100.${number}`))
    t.equal(answer.status, 429)
    const { retryAfterMs } = answer.json()
    t.ok(retryAfterMs! >= last + 10, `${retryAfterMs} after ${last}`)
    last = retryAfterMs!
    tickets.push(`Shaper-Ticket: ${ticketOf(answer)}`)
    t.match(tickets[number], /\d\.[\w-]{43}$/)
  }
  pass(last)
  // Newcomers take all the room that is not kept.
  for (let number = 0; number < 200; number += 1) await hops[number % 2]!.ask(from('192.0.2.2'))
  for (const hop of hops) {
    const newcomer = await hop.ask(from('192.0.2.2'))
    t.equal(newcomer.status, 429, 'a newcomer')
    t.match(newcomer.header('ratelimit'), /^"all";r=0;t=1$/)
    t.equal((await hop.ask(from('192.0.2.3', '/', tickets[1]!))).status, 429, 'a thief')
  }
  for (const [number, ticket] of tickets.entries()) {
    const answer = await hops[1 - (number % 2)]!.ask(from(`198.51.100.${number}`, '/', ticket))
    t.equal(answer.status, 200, `client ${number}`)
  }
  t.equal((await hops[0]!.ask(from('198.51.100.3', '/', tickets[3]!))).status, 429, 'once')
})
