// @ts-check
/** The proxy in its own process, seen from outside: its log, its metrics and its sockets. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readlinkSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { KEY_MARK } from './plan.js'

const SHAPER = process.env.SOAK_SHAPER ?? fileURLToPath(new URL('../../bin/shaper.js', import.meta.url))

/** Messages that the log may have besides a line for each request, and details of failed ones. */
const EXPECTED = [
  /^configuration: /,
  /^the admin server listens$/,
  /^limits: /,
  /^longest wait: /,
  /^reloaded(: nothing has changed)?$/,
  /^shutting down$/,
  /^shut down$/,
  /^dry run$/,
  /^route \w+: \d+ waiters now exceed maxWait and are answered 503$/,
  /^the upstream (refused the connection|closed the connection before it answered|did not answer in time|stopped reading)$/,
  /^the upstream could not be used or its answer not be understood$/,
  /^the connection to the upstream was not established in time$/,
  /^the request body stopped coming$/,
  /^the answer broke off: .*$/,
  /^the client of the answer stopped reading$/,
  /^the upstream fails: /,
  /^the upstream answers again$/,
]

/** How many unexpected lines to keep. */
const KEPT = 20

export class ProxyProcess {
  /** Access lines by outcome. @type {Record<string, number>} */
  lines = {}
  reloads = 0
  /** @type {string[]} */
  unexpected = []
  #directory = mkdtempSync(join(tmpdir(), 'shaper-soak-'))
  #file = join(this.#directory, 'shaper.config.json')
  /** @type {import('node:child_process').ChildProcess | undefined} */
  child
  port = 0
  adminPort = 0

  /** @param {object} settings */
  async start(settings) {
    this.configure(settings)
    const child = spawn(process.execPath, [SHAPER, 'start', '-c', this.#file], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, NODE_V8_COVERAGE: '' },
    })
    this.child = child
    const log = createInterface({ input: child.stderr })
    log.on('line', line => this.#read(line))
    this.logged = once(log, 'close')
    this.ended = once(child, 'exit')
    const ready = await Promise.race([once(child.stdout, 'data'), this.ended.then(() => [''])])
    this.port = Number(/127\.0\.0\.1:(\d+) ->/.exec(String(ready[0]))?.[1])
    if (Number.isNaN(this.port)) throw new Error(`the proxy did not start: ${this.unexpected.join(' ')}`)
  }

  /** @param {object} settings */
  configure(settings) {
    // In one step, because half a file is invalid.
    writeFileSync(`${this.#file}.new`, JSON.stringify(settings))
    renameSync(`${this.#file}.new`, this.#file)
  }

  /** @param {string} line */
  #read(line) {
    if (line.includes(KEY_MARK)) this.#complain(`a key in clear: ${line}`)
    if (line.endsWith('"msg":"request"}')) {
      const outcome = /"outcome":"(\w+)"/.exec(line)?.[1] ?? '?'
      this.lines[outcome] = (this.lines[outcome] ?? 0) + 1
      const detail = outcome === 'failed' && line.includes('"detail":') ? JSON.parse(line).detail : undefined
      if (detail !== undefined && !EXPECTED.some(pattern => pattern.test(detail))) this.#complain(line)
      return
    }
    let record
    try {
      record = JSON.parse(line)
    } catch {
      return this.#complain(line)
    }
    const { msg, level, url } = record
    if (msg === 'the admin server listens') this.adminPort = Number(new URL(url).port)
    if (msg === 'reloaded') this.reloads += 1
    if (level >= 50 || !EXPECTED.some(pattern => pattern.test(msg))) this.#complain(line)
  }

  /** @param {string} line */
  #complain(line) {
    if (this.unexpected.length < KEPT) this.unexpected.push(line)
  }

  /** All metrics, by name with labels. @returns {Promise<Map<string, number>>} */
  async metrics() {
    const [response] = await once(
      get({ port: this.adminPort, host: '127.0.0.1', path: '/metrics', agent: false }),
      'response',
    )
    let text = ''
    for await (const piece of response) text += piece
    const lines = text.split('\n').filter(line => line !== '' && !line.startsWith('#'))
    return new Map(
      lines.map(line => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ') + 1))]),
    )
  }

  /** The number of its open sockets; undefined: unknown on this system. */
  sockets() {
    if (process.platform !== 'linux') return undefined
    const directory = `/proc/${this.child?.pid}/fd`
    return readdirSync(directory).filter(name => {
      try {
        return readlinkSync(`${directory}/${name}`).startsWith('socket:')
      } catch {
        return false
      }
    }).length
  }

  /** @param {NodeJS.Signals} signal */
  signal(signal) {
    this.child?.kill(signal)
  }

  /** Kills it. */
  discard() {
    this.child?.kill('SIGKILL')
    rmSync(this.#directory, { recursive: true, force: true })
  }
}

/** @param {Map<string, number>} metrics @param {string} name @returns {number} the sum over all labels */
export function sumOf(metrics, name) {
  let sum = 0
  for (const [line, value] of metrics) if (line === name || line.startsWith(`${name}{`)) sum += value
  return sum
}
