/** Real instances of shaper in front of a real upstream, each in its own process, and their records. */
import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Pause, Seen } from './figures.js'

/** The build under test. */
const BIN = process.env.SHAPER_BIN ?? fileURLToPath(new URL('../../bin/shaper.js', import.meta.url))
const WITNESS = new URL('./witness.js', import.meta.url).href

/** Child processes end with this process in any case. */
const running = new Set<ChildProcess>()
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})

function watch(child: ChildProcess): void {
  running.add(child)
  child.once('exit', () => running.delete(child))
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = once(child, 'exit')
  child.kill('SIGKILL')
  await gone
}

export interface Upstream {
  readonly url: string
  /** All requests that have arrived, in order. */
  seen(): Promise<Seen[]>
  notes(): Notes
  close(): Promise<void>
}

export async function startUpstream(): Promise<Upstream> {
  const directory = mkdtempSync(join(tmpdir(), 'shaper-upstream-'))
  const child = fork(fileURLToPath(new URL('./upstream.js', import.meta.url)), [], {
    execArgv: [`--import=${WITNESS}`],
    env: { PATH: process.env.PATH, WITNESS_DIR: directory },
  })
  watch(child)
  const [{ port }] = (await once(child, 'message')) as [{ port: number }]
  return {
    url: `http://127.0.0.1:${port}`,
    async seen() {
      const told = once(child, 'message')
      child.send('tell')
      const [{ seen }] = (await told) as [{ seen: [at: number, path: string][] }]
      return seen.map(([at, path]) => ({ at, path }))
    },
    notes: () => readNotes(directory)[0]!,
    async close() {
      await end(child)
      rmSync(directory, { recursive: true, force: true, maxRetries: 5 })
    },
  }
}

/** The records of a process. */
export interface Notes {
  readonly pid: number
  /** Requests in the order in which they were read, released, and sent. */
  readonly read: Seen[]
  readonly released: Seen[]
  readonly sent: Seen[]
  readonly pauses: Pause[]
}

export class Instance {
  readonly child: ChildProcess
  readonly #directory: string
  #stderr = ''
  url = ''

  /** @param args more of `shaper start` */
  constructor(config: object, args: readonly string[]) {
    this.#directory = mkdtempSync(join(tmpdir(), 'shaper-instance-'))
    const file = join(this.#directory, 'shaper.config.json')
    writeFileSync(file, JSON.stringify({ listen: '127.0.0.1:0', ...config }))
    this.child = spawn(process.execPath, [BIN, 'start', '-c', file, ...args], {
      cwd: this.#directory,
      env: { PATH: process.env.PATH, WITNESS_DIR: this.#directory, NODE_OPTIONS: `--import=${WITNESS}` },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    watch(this.child)
    this.child.stderr!.on('data', chunk => {
      this.#stderr += chunk
    })
  }

  /** Its log so far. */
  get stderr(): string {
    return this.#stderr
  }

  /** @throws when the process ends instead */
  async ready(): Promise<void> {
    let line = ''
    this.child.stdout!.on('data', chunk => {
      line += chunk
    })
    while (!line.includes('\n')) {
      await Promise.race([once(this.child.stdout!, 'data'), once(this.child, 'exit')])
      if (this.child.exitCode !== null) throw new Error(`shaper has ended:\n${this.#stderr}`)
    }
    this.url = /(http\S+) ->/.exec(line)![1]!
  }

  notes(): Notes[] {
    return readNotes(this.#directory)
  }

  kill(): Promise<void> {
    return end(this.child)
  }

  async close(): Promise<void> {
    await this.kill()
    rmSync(this.#directory, { recursive: true, force: true, maxRetries: 5 })
  }
}

function readNotes(directory: string): Notes[] {
  const files = readdirSync(directory).filter(name => /^\d+$/.test(name))
  return files.map(name => parseNotes(Number(name), readFileSync(join(directory, name), 'utf8')))
}

function parseNotes(pid: number, text: string): Notes {
  const notes: Notes = { pid, read: [], released: [], sent: [], pauses: [] }
  for (const line of text.split('\n')) {
    const [kind, first, second, third] = line.split(' ')
    if (kind === 'a') notes.read.push({ at: Number(first), path: second! })
    if (kind === 'r') notes.released.push({ at: Number(first), path: second! })
    if (kind === 's') notes.sent.push({ at: Number(first), path: second! })
    if (kind === 'p') notes.pauses.push({ from: Number(first), to: Number(second), cpu: Number(third) })
  }
  return notes
}

/** Starts instances with the same configuration. */
export async function startInstances(count: number, config: object, args: readonly string[] = []): Promise<Instance[]> {
  const instances = Array.from({ length: count }, () => new Instance(config, args))
  try {
    await Promise.all(instances.map(instance => instance.ready()))
  } catch (error) {
    await Promise.all(instances.map(instance => instance.close()))
    throw error
  }
  return instances
}
