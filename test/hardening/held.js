#!/usr/bin/env node
// @ts-check
/**
 * Many requests held in the queues of one proxy at the same moment, each on its own connection, then released:
 * every one is answered exactly once.
 *
 *     node test/hardening/held.js [CONNECTIONS]
 *
 * Prints what it took as JSON; ends with 1 and the reason where anything was not as it should be.
 */
import { execFileSync, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

const SELF = fileURLToPath(import.meta.url)
const SHAPER = fileURLToPath(new URL('../../bin/shaper.js', import.meta.url))

/** Requests per second once they may go. */
const RATE = 5_000

/** How many connections are being opened at a time: less than what the kernel keeps for a server that is busy. */
const OPENING = 200

/** How long any step may take, in ms. */
const PATIENCE = 60_000

/** Descriptors that a process needs besides. */
const SPARE = 500

const [role = '10000', port = ''] = process.argv.slice(2)
if (role === 'upstream') runUpstream()
else if (role === 'client') runClient(Number(port))
else await main(Number(role))

/** @param {number} count */
async function main(count) {
  const most = Number(execFileSync('bash', ['-c', 'ulimit -Hn'], { encoding: 'utf8' }))
  if (most < count + SPARE) {
    return fail(
      `${count} connections need ${count + SPARE} descriptors, and this machine gives a process ${most} (ulimit -Hn)`,
    )
  }
  const directory = mkdtempSync(join(tmpdir(), 'shaper-held-'))
  const file = join(directory, 'shaper.config.json')
  /** @type {import('node:child_process').ChildProcess[]} */
  const children = []
  // The end of the proxy's output, for failures.
  let log = ''
  try {
    const upstream = fork(SELF, ['upstream'])
    children.push(upstream)
    const [upstreamPort] = await heard(upstream)
    /** @param {string} rate */
    const write = rate =>
      writeFileSync(
        file,
        JSON.stringify({
          listen: '127.0.0.1:0',
          upstream: { url: `http://127.0.0.1:${upstreamPort}`, maxInFlight: 64 },
          buckets: { all: { key: 'all', rate, capacity: count + 1 } },
          routes: [{ name: 'held', buckets: ['all'] }],
          limits: { maxQueued: count, connectionsPerClient: count, headersTimeout: '5m' },
        }),
      )
    write('1/h')
    const proxy = spawn(process.execPath, [SHAPER, 'start', '-c', file], { stdio: ['ignore', 'pipe', 'pipe'] })
    children.push(proxy)
    proxy.stderr.on('data', chunk => {
      log = (log + chunk).slice(-2_000)
    })
    const proxyPort = /127\.0\.0\.1:(\d+) ->/.exec(String(await first(proxy.stdout, 'data')))?.[1]
    const client = fork(SELF, ['client', String(proxyPort)])
    children.push(client)
    await heard(client)

    const nothing = memory(proxy)
    client.send({ open: count })
    await heard(client)
    await sleep(1_000)
    const open = memory(proxy)
    client.send('ask')
    await heard(client)
    await quiet(proxy)
    const held = memory(proxy)
    client.send('count')
    const [early] = await heard(client)
    if (early > 1) fail(`${early} were answered while all had to wait`)

    const start = performance.now()
    write(`${RATE}/s`)
    client.send('await')
    const [counted] = await heard(client)
    const seconds = (performance.now() - start) / 1_000
    // Would anyone get a second answer?
    await sleep(500)
    client.send('count')
    const [, answers, others] = await heard(client)
    upstream.send('count')
    const [requests, distinct] = await heard(upstream)
    const told = { counted, answers, others, requests, distinct }
    if (
      JSON.stringify(told) !==
      JSON.stringify({ counted: count, answers: count, others: 0, requests: count, distinct: count })
    ) {
      fail(`not each of ${count} was answered exactly once with 200: ${JSON.stringify(told)}`)
    }
    /** @param {number} bytes */
    const kilobytes = bytes => Number((bytes / 1_024).toFixed(1))
    const report = {
      connections: count,
      megabytesBefore: Math.round(nothing / 1e6),
      kilobytesPerOpenConnection: kilobytes((open - nothing) / count),
      megabytesHeld: Math.round(held / 1e6),
      kilobytesPerHeldRequest: kilobytes((held - nothing) / count),
      megabytesAfter: Math.round(memory(proxy) / 1e6),
      secondsToAnswerAll: Number(seconds.toFixed(2)),
    }
    process.stdout.write(`${JSON.stringify(report)}\n`)
    const ended = once(proxy, 'exit')
    proxy.kill('SIGTERM')
    const [code] = await ended
    if (code !== 0) fail(`the proxy ended with ${code}`)
  } catch (error) {
    fail(`${/** @type {Error} */ (error).message}\n${log}`)
  } finally {
    for (const child of children) child.kill('SIGKILL')
    rmSync(directory, { recursive: true })
  }
}

/** @param {string} why */
function fail(why) {
  process.stderr.write(`${why}\n`)
  process.exitCode = 1
}

/** The next message of a child. @param {import('node:child_process').ChildProcess} child @returns {Promise<number[]>} */
async function heard(child) {
  return await first(child, 'message')
}

/** @param {any} emitter @param {string} event @returns {Promise<any>} */
async function first(emitter, event) {
  const [value] = await once(emitter, event, { signal: AbortSignal.timeout(PATIENCE) })
  return value
}

/** Resident memory in bytes. @param {import('node:child_process').ChildProcess} child */
function memory({ pid }) {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1_024
}

/** Waits until a process has nothing to do. @param {import('node:child_process').ChildProcess} child */
async function quiet({ pid }) {
  const ticks = () => readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ').slice(11, 13).join()
  for (let last = '', still = 0; still < 5; ) {
    await sleep(200)
    still = ticks() === last ? still + 1 : 0
    last = ticks()
  }
}

function runUpstream() {
  let requests = 0
  const seen = new Set()
  const server = createServer((req, res) => {
    requests += 1
    seen.add(req.url)
    res.end('ok')
  })
  server.listen(0, '127.0.0.1', () => {
    const address = /** @type {import('node:net').AddressInfo} */ (server.address())
    process.send?.([address.port])
  })
  process.on('message', () => process.send?.([requests, seen.size]))
}

/** @param {number} proxyPort */
function runClient(proxyPort) {
  /** @type {import('node:net').Socket[]} */
  const sockets = []
  let answered = 0
  let answers = 0
  let others = 0
  let target = Infinity
  const check = () => {
    if (answered < target) return
    process.send?.([answered])
    target = Infinity
  }
  const open = () =>
    new Promise((resolve, reject) => {
      const socket = connect(proxyPort, '127.0.0.1', () => resolve(undefined))
      sockets.push(socket)
      let text = ''
      socket.on('data', chunk => {
        if (text === '') answered += 1
        const before = statusesOf(text)
        text += chunk.toString('latin1')
        const now = statusesOf(text)
        answers += now.length - before.length
        others += now.slice(before.length).filter(status => status !== '200').length
        check()
      })
      socket.on('error', reject)
      socket.on('close', () => {
        others += 1
      })
    })
  process.on('message', async message => {
    if (message === 'ask') {
      for (const [index, socket] of sockets.entries()) socket.write(`GET /${index} HTTP/1.1\r\nHost: held.test\r\n\r\n`)
      process.send?.([sockets.length])
    } else if (message === 'count') process.send?.([answered, answers, others])
    else if (message === 'await') {
      target = sockets.length
      check()
    } else {
      const { open: count } = /** @type {{ open: number }} */ (message)
      while (sockets.length < count) {
        await Promise.all(Array.from({ length: Math.min(OPENING, count - sockets.length) }, open))
      }
      process.send?.([sockets.length])
    }
  })
  process.send?.([])
}

/** @param {string} text @returns {string[]} */
function statusesOf(text) {
  return [...text.matchAll(/HTTP\/1\.1 (\d{3})/g)].map(match => match[1])
}
