// @ts-check
/** The processes of the benchmark. It stops those that it has started, and no others. */
import { fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { accessSync, constants, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

/** @typedef {import('node:child_process').ChildProcess} ChildProcess */

/** How long a process may take to become ready or to answer, in ms. */
const PATIENCE = 20_000

/** How long it may take to end by itself, in ms. */
const GRACE = 3_000

/** @type {Set<ChildProcess>} */
const running = new Set()

/** The first processes of groups of their own. @type {Set<ChildProcess>} */
const groups = new Set()

/** @type {string | undefined} */
let scratch

/** A directory that is deleted at the end. */
export function scratchDirectory() {
  scratch ??= mkdtempSync(join(tmpdir(), 'shaper-bench-'))
  return scratch
}

/** @param {string} name @returns {boolean} whether a program of that name is in the PATH */
export function hasProgram(name) {
  return [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', '/sbin', '/usr/local/sbin'].some(directory => {
    try {
      accessSync(join(directory, name), constants.X_OK)
      return true
    } catch {
      return false
    }
  })
}

/** @param {string} name @returns {boolean} whether a package can be imported */
export function hasPackage(name) {
  try {
    import.meta.resolve(name)
    return true
  } catch {
    return false
  }
}

export async function freePort() {
  const server = createServer()
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = /** @type {import('node:net').AddressInfo} */ (server.address())
  server.close()
  await once(server, 'close')
  return port
}

/** One process of the benchmark. */
export class Program {
  /** @param {ChildProcess} child @param {string} name */
  constructor(child, name) {
    this.child = child
    this.name = name
    this.errors = ''
    running.add(child)
    child.stderr?.on('data', chunk => {
      this.errors = (this.errors + chunk).slice(-2_000)
    })
    child.once('exit', () => running.delete(child))
    child.once('error', () => running.delete(child))
  }

  get pid() {
    return /** @type {number} */ (this.child.pid)
  }

  /** Its port, once known. */
  port = 0

  /** @param {string} why @returns {Error} */
  failure(why) {
    return new Error(`${this.name} ${why}${this.errors === '' ? '' : `:\n${this.errors}`}`)
  }

  /** The next message of a forked program. @param {number} [patience] ms @returns {Promise<any>} */
  async message(patience = PATIENCE) {
    return await this.#first(resolve => this.child.once('message', resolve), patience, 'did not answer')
  }

  /** Sends a message to a forked program, and waits for its answer. @param {object | string} message @param {number} [patience] */
  async ask(message, patience) {
    this.child.send(message)
    return this.message(patience)
  }

  /** The first line on standard output that matches. @param {RegExp} pattern @returns {Promise<RegExpMatchArray>} */
  async line(pattern) {
    let text = ''
    return await this.#first(
      resolve =>
        this.child.stdout?.on('data', chunk => {
          text += chunk
          const match = text.match(pattern)
          if (match !== null) resolve(match)
        }),
      PATIENCE,
      'did not become ready',
    )
  }

  /** Waits until something listens on its port. */
  async listening() {
    const last = Date.now() + PATIENCE
    for (;;) {
      if (this.child.exitCode !== null) throw this.failure(`has ended with ${this.child.exitCode}`)
      if (await canConnect(this.port)) return
      if (Date.now() > last) throw this.failure('does not listen')
      await sleep(20)
    }
  }

  /** CPU time used so far, in seconds, with that of its children (nginx's workers). */
  cpu() {
    let ticks = 0
    for (const pid of family(this.pid)) {
      const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ')
      ticks += Number(fields[11]) + Number(fields[12])
    }
    return ticks / 100
  }

  /** Resident memory in bytes, with that of its children. */
  rss() {
    let kilobytes = 0
    for (const pid of family(this.pid)) {
      kilobytes += Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0)
    }
    return kilobytes * 1024
  }

  async stop() {
    const { child } = this
    if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return
    const ended = once(child, 'exit')
    child.kill('SIGTERM')
    const timer = setTimeout(() => child.kill('SIGKILL'), GRACE)
    await ended
    clearTimeout(timer)
  }

  /**
   * @template T
   * @param {(resolve: (value: T) => void) => void} subscribe @param {number} patience @param {string} otherwise
   * @returns {Promise<T>}
   */
  #first(subscribe, patience, otherwise) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(this.failure(`${otherwise} for ${patience / 1000} s`)), patience)
      /** @param {number | null} code */
      const ended = code => {
        clearTimeout(timer)
        reject(this.failure(`has ended with ${code}`))
      }
      this.child.once('exit', ended)
      this.child.once('error', reject)
      subscribe(value => {
        clearTimeout(timer)
        this.child.off('exit', ended)
        this.child.off('error', reject)
        resolve(value)
      })
    })
  }
}

/**
 * @param {string} command @param {string[]} args
 * @param {{ name?: string, cwd?: string, ipc?: boolean, uid?: number, gid?: number, group?: boolean }} [options]
 *   `ipc`: a Node program that answers to messages. `group`: of processes, of its own
 */
export function start(command, args, { name = command, cwd, ipc = false, uid, gid, group = false } = {}) {
  const PATH = `${process.env.PATH}${delimiter}/usr/sbin${delimiter}/sbin${delimiter}/usr/local/sbin`
  const child = spawn(command, args, {
    cwd,
    uid,
    gid,
    detached: group,
    stdio: ['ignore', 'pipe', 'pipe', ...(ipc ? [/** @type {const} */ ('ipc')] : [])],
    serialization: 'advanced',
    env: { ...process.env, PATH },
  })
  if (group) {
    groups.add(child)
    child.once('exit', () => groups.delete(child))
  }
  return new Program(child, name)
}

/** @param {number} pid of its first process */
function endGroup(pid) {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // It has ended.
  }
}

/**
 * Starts one of programs/. It communicates by messages, and ends with this process.
 *
 * @param {string} file @param {string[]} [args] @param {{ name?: string, execArgv?: string[] }} [options]
 */
export function startOwn(file, args = [], { name = file, execArgv = [] } = {}) {
  const path = fileURLToPath(new URL(`./programs/${file}`, import.meta.url))
  const stdio = /** @type {const} */ (['ignore', 'ignore', 'pipe', 'ipc'])
  return new Program(fork(path, args, { execArgv, serialization: 'advanced', stdio: [...stdio] }), name)
}

/** Runs one of programs/ and returns its only message. @param {string} file @param {string[]} args @param {string[]} [execArgv] */
export async function result(file, args, execArgv = []) {
  const program = startOwn(file, args, { execArgv })
  const value = await program.message(300_000)
  await program.stop()
  return value
}

/** @param {string} command @param {string[]} args @param {number} patience ms @returns {Promise<string>} its output */
export async function output(command, args, patience) {
  const program = start(command, args)
  let text = ''
  program.child.stdout?.on('data', chunk => {
    text += chunk
  })
  const timer = setTimeout(() => program.child.kill('SIGKILL'), patience)
  const [code] = await once(program.child, 'close')
  clearTimeout(timer)
  if (code !== 0) throw program.failure(`has ended with ${code}`)
  return text
}

/** Ends everything that is still running. */
export function killAll() {
  for (const child of running) child.kill('SIGKILL')
  for (const { pid } of groups) if (pid !== undefined) endGroup(pid)
  if (scratch !== undefined) rmSync(scratch, { recursive: true, force: true })
}

/**
 * CPU time in seconds since the machine and this process started.
 *
 * @returns {{ all: number, own: number }} `all`: of all processes, and what the host took from this machine. `own`: of this
 *   process and of all that it has started
 */
export function cpuTimes() {
  const [user, nice, system, , , , , steal] = readFileSync('/proc/stat', 'utf8')
    .split('\n', 1)[0]
    .split(/ +/)
    .slice(1)
    .map(Number)
  return { all: (user + nice + system + steal) / 100, own: treeTicks(process.pid) / 100 }
}

/** Of a process, those of its descendants that run, and those that have ended. @param {number} pid @returns {number} */
function treeTicks(pid) {
  const [, ...children] = family(pid)
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ')
  const own = [11, 12, 13, 14].reduce((sum, at) => sum + Number(fields[at]), 0)
  return children.reduce((sum, child) => sum + treeTicks(child), own)
}

/** @param {number} pid @returns {number[]} */
function family(pid) {
  const children = readdirSync(`/proc/${pid}/task`).flatMap(task =>
    readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
  )
  return [pid, ...children]
}

/** @param {number} port @returns {Promise<boolean>} */
function canConnect(port) {
  return new Promise(resolve => {
    const socket = connect(port, '127.0.0.1')
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })
}
