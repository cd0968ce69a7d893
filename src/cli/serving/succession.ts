/**
 * Restarts without losing who waits (contract 15.6). The process starts its successor from disk and hands over, in this order:
 * the sockets that it listens on, the levels of its buckets unless a store has them, and its queues
 * (proxy/succession/departing.ts). What workers ask of their store goes to that of the successor
 * (stores/workers/primary.ts), and the queue of each to one of the new workers, by way of their primaries. The successor listens on the same sockets then, and this process ends with its last answer.
 *
 * Up to the handover a successor that fails leaves this process as it was. One that ends later, before this process has, gives it
 * back its queues, or its store.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect, Server, Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import type { Logger } from 'pino'
import { formatListen, type ListenAddress } from '../../config/schema/address.js'
import type { Settings } from '../../config/settings.js'
import { handleOf, type ListenHandle, leaveListening } from '../../http/listening.js'
import type { ProxyContext } from '../../proxy/context.js'
import type { RunningProxy } from '../../proxy/server/server.js'
import type { GuestNews, GuestOrder } from '../../proxy/succession/departing.js'
import { Houses } from '../../proxy/succession/guests.js'
import { type Levels, moved, type SavedLevel } from '../../stores/memory/levels-file.js'
import { PARTS_FORM, type StorePart } from '../../stores/memory/store.js'
import type { Primary } from '../../stores/workers/primary.js'
import { MACHINE } from '../../stores/workers/protocol.js'
import { CommandError } from '../command.js'
import type { Notifier } from './notifier.js'
import { ownLevels } from './own-levels.js'
import { PIPE } from './worker-protocol.js'

/** The environment variable of a successor. */
const PREDECESSOR = 'SHAPER_PREDECESSOR'
/** The socket on which the first process hears which one serves. */
const FIRST = 'SHAPER_FIRST'
/** ms. How long a successor may take to serve. */
const PATIENCE = 30_000
/** Levels in one message. */
const BATCH = 2_000

export type ToSuccessor =
  | { readonly verb: 'listener'; readonly use: 'listen' | 'admin'; readonly place: string }
  | { readonly verb: 'meet'; readonly id: string; readonly secret: string | undefined }
  | { readonly verb: 'levels'; readonly levels: readonly SavedLevel[] }
  | { readonly verb: 'parts'; readonly parts: readonly StorePart[] }
  /** The store of workers is complete. */
  | { readonly verb: 'stored' }
  /** `from`: the number of the worker. Absent: the process has none. */
  | { readonly verb: 'order'; readonly order: GuestOrder; readonly from?: number }
  /** All is handed over. */
  | { readonly verb: 'go' }

type ToPredecessor =
  /** `parts`: their form in the store of its workers. Absent: it has none. */
  | { readonly verb: 'ready'; readonly parts?: number }
  | { readonly verb: 'serves' }
  | { readonly verb: 'failed'; readonly message: string }
  | { readonly verb: 'news'; readonly news: GuestNews; readonly from: number }
  /** The guests of this worker are lost. */
  | { readonly verb: 'lost'; readonly from: number }

interface Listening {
  readonly use: 'listen' | 'admin'
  readonly handle: ListenHandle
  readonly place: ListenAddress
}

/** To whom is handed over. */
export interface Heir {
  send(message: ToSuccessor): void
  /** The form of parts that it takes. Undefined: it has no store of workers. */
  readonly parts: number | undefined
  /** To its store of workers. */
  readonly pipe: Duplex
}

/** What is handed over. */
export interface Estate {
  /** One for each `listen`. */
  readonly sockets: readonly ListenHandle[]
  /** What signs the tickets of workers. */
  readonly secret?: string | undefined
  /** In one turn of the event loop. Undefined: no queues go over. */
  handOver(heir: Heir): Handed | undefined
}

/** Of one worker, or of all. */
export interface Handed {
  readonly complete: Promise<void>
  told(news: GuestNews, from: number): void
  end(from?: number): void
}

export function estateOf(proxy: RunningProxy): Estate {
  const { context, servers } = proxy
  return {
    sockets: servers.map(handleOf),
    handOver({ send }) {
      const handed = proxy.handOver({ send: order => send({ verb: 'order', order }), machine: MACHINE })
      // Nothing passes here any more. A store has its own levels.
      if (context.sharing === undefined) sendLevels(ownLevels(context), send)
      return handed
    },
  }
}

/** Hands the store of workers over. Its workers ask that of the successor from now on. */
export function handOverStore({ store, follow }: Primary, { parts: form, send, pipe }: Heir): void {
  if (form === undefined) return
  if (form === PARTS_FORM) for (const parts of batches(store.parts())) send({ verb: 'parts', parts })
  else sendLevels(store.levels, send)
  send({ verb: 'stored' })
  follow(pipe)
}

interface Program {
  readonly estate: Estate
  readonly admin: Server | undefined
  readonly settings: Settings
  readonly id: string
  readonly log: Logger
}

interface Neighbours {
  readonly predecessor: Predecessor | undefined
  readonly notifier: Notifier | undefined
}

/** ms: the longest that a timer takes. */
export const FOREVER = 2 ** 31 - 1

/** Restarts of this process, one at a time. */
export class Succession {
  /** Resolves when a successor serves. */
  readonly begun: Promise<'restart'>
  successor: ChildProcess | undefined
  readonly #program: Program
  #resolve: (what: 'restart') => void = () => undefined
  #running: Promise<ChildProcess> | undefined
  /** Whether this process ends without one. */
  readonly #ending = new AbortController()
  #first: FirstProcess | undefined

  constructor(program: Program) {
    this.#program = program
    this.begun = new Promise(resolve => {
      this.#resolve = resolve
    })
  }

  /**
   * The successor serves. A shell, npm or a container that waits for this process waits for the successor, too: the first process stays
   * until the last one ends. Only systemd is told which one serves, and lets this one go.
   *
   * @returns to be called when the last request has been answered
   */
  makeWay({ predecessor, notifier }: Neighbours): () => Promise<void> {
    const successor = this.successor!
    notifier?.succeeded(successor.pid!)
    if (predecessor === undefined && notifier === undefined) {
      const status = standBy(successor, () => this.#first!.serving)
      return async () => {
        // It need not wait for requests of this process any more.
        successor.disconnect()
        process.exitCode = await status
      }
    }
    const { shutdownTimeout } = this.#program.settings.limits
    process.once('SIGTERM', () => setTimeout(() => process.exit(0), shutdownTimeout).unref())
    // The channel to the successor would keep this process alive.
    return async () => process.exit(0)
  }

  /** This process ends, and a successor that does not serve yet as well. @returns when that is gone */
  async giveUp(): Promise<void> {
    this.#ending.abort()
    await this.#running?.catch(() => undefined)
  }

  /** @returns the process that serves from now on @throws CommandError: this one goes on as it was */
  async ask(): Promise<number> {
    if (process.env[FIRST] === undefined && process.env.NOTIFY_SOCKET === undefined)
      this.#first ??= await FirstProcess.open()
    this.#running ??= startSuccessor(this.#program, this.#first?.path, this.#ending.signal)
    try {
      this.successor = await this.#running
      this.#resolve('restart')
      return this.successor.pid!
    } catch (error) {
      this.#running = undefined
      this.#program.log.error(`no restart, this process goes on: ${(error as Error).message}`)
      throw error
    }
  }
}

/**
 * Resolves when the successor serves. From then on this process is to drain.
 *
 * @throws CommandError when it does not. Then it is gone, and nothing has changed
 */
async function startSuccessor(
  { estate, admin, settings, id, log }: Program,
  first: string | undefined,
  ending: AbortSignal,
): Promise<ChildProcess> {
  if (ending.aborted) throw new CommandError(ENDS)
  const { sockets, secret } = estate
  if (sockets.length < settings.listen.length)
    throw new CommandError('this version of Node does not tell on which sockets its workers listen')
  const listening: Listening[] = sockets.map((handle, at) => ({ use: 'listen', handle, place: settings.listen[at]! }))
  if (admin !== undefined) listening.push({ use: 'admin', handle: handleOf(admin), place: settings.admin!.listen })
  const child = spawn(process.execPath, [...process.execArgv, ...process.argv.slice(1)], {
    stdio: ['inherit', 'inherit', 'inherit', 'ipc', 'pipe'],
    serialization: 'advanced',
    // The watchdog of systemd watches the process that serves.
    env: {
      ...process.env,
      WATCHDOG_PID: undefined,
      [PREDECESSOR]: String(process.pid),
      ...(first !== undefined && { [FIRST]: first }),
    },
  })
  const send = (message: ToSuccessor, handle?: ListenHandle): void => {
    if (child.connected) child.send(message, handle as never, {}, () => undefined)
  }
  const pipe = (child.stdio as readonly unknown[])[PIPE] as Duplex
  pipe.on('error', () => undefined)
  let handed: Handed | undefined
  const handOver = async (parts: number | undefined): Promise<void> => {
    handed = estate.handOver({ send, parts, pipe })
    await handed?.complete
    send({ verb: 'go' })
  }
  let reason: string | undefined
  const kill = (why: string): void => {
    reason ??= why
    child.kill('SIGKILL')
  }
  const end = (): void => kill(ENDS)
  ending.addEventListener('abort', end)
  const timer = setTimeout(() => kill(`it does not serve within ${PATIENCE / 1_000} s`), PATIENCE)
  const serves = new Promise<void>((resolve, reject) => {
    child.on('message', (message: ToPredecessor) => {
      if (message.verb === 'ready') handOver(message.parts).catch((error: Error) => kill(error.message))
      else if (message.verb === 'news') handed?.told(message.news, message.from)
      else if (message.verb === 'lost') handed?.end(message.from)
      else if (message.verb === 'serves') resolve()
      // It may hold sockets and queues still.
      else if (message.verb === 'failed') kill(message.message)
    })
    child.once('error', error => reject(new CommandError(`the successor cannot be started (${error.message})`)))
    child.once('exit', (code, signal) => {
      const how = signal === null ? `it ended with exit status ${code}` : `it was ended by ${signal}`
      reject(new CommandError(reason ?? how))
      handed?.end()
      handed = undefined
    })
  })
  for (const { use, handle, place } of listening) send({ verb: 'listener', use, place: formatListen(place) }, handle)
  send({ verb: 'meet', id, secret })
  await serves.finally(() => {
    clearTimeout(timer)
    ending.removeEventListener('abort', end)
  })
  for (const { handle, place } of listening) leaveListening(handle, place)
  log.info({ pid: child.pid }, 'the successor serves; this process ends with its last answer')
  return child
}

const ENDS = 'this process ends'

function sendLevels(levels: Levels, send: Heir['send']): void {
  const by = -levels.now() + MACHINE.now()
  for (const some of batches(levels.saved())) send({ verb: 'levels', levels: some.map(saved => moved(saved, by)) })
}

function* batches<Item>(items: Iterable<Item | undefined>): Generator<Item[]> {
  let batch: Item[] = []
  for (const item of items) {
    if (item === undefined) continue
    if (batch.push(item) < BATCH) continue
    yield batch
    batch = []
  }
  yield batch
}

function addTo(handles: Map<string, ListenHandle[]>, key: string, handle: ListenHandle): void {
  handles.set(key, [...(handles.get(key) ?? []), handle])
}

function socketKey(use: Listening['use'], place: string): string {
  return `${use} ${place}`
}

type HearOrder = (order: GuestOrder, from?: number) => void

type Meeting = Extract<ToSuccessor, { verb: 'meet' }>

/** The process before this one, while it has requests. */
export class Predecessor {
  readonly pid: number
  readonly id: string
  readonly secret: string | undefined
  /** By use and place. Several on port 0 have the same place. */
  readonly #handles: ReadonlyMap<string, readonly ListenHandle[]>

  private constructor(pid: number, { id, secret }: Meeting, handles: ReadonlyMap<string, readonly ListenHandle[]>) {
    this.pid = pid
    this.id = id
    this.secret = secret
    this.#handles = handles
  }

  /** Undefined: there is none. */
  static async meet(): Promise<Predecessor | undefined> {
    const { [PREDECESSOR]: pid } = process.env
    delete process.env[PREDECESSOR]
    if (pid === undefined || process.send === undefined) return undefined
    if (!process.connected) endWithPredecessor()
    process.once('disconnect', endWithPredecessor)
    const handles = new Map<string, ListenHandle[]>()
    return new Promise(resolve => {
      const hear = (message: ToSuccessor, handle?: unknown): void => {
        if (message.verb === 'listener' && handle !== undefined)
          addTo(handles, socketKey(message.use, message.place), handle as ListenHandle)
        if (message.verb !== 'meet') return
        process.off('message', hear)
        // One that cannot start ends by itself.
        process.channel?.unref()
        resolve(new Predecessor(Number(pid), message, handles))
      }
      process.on('message', hear)
    })
  }

  /** Its sockets for these places. */
  socketsOf(listen: readonly ListenAddress[]): readonly (ListenHandle | undefined)[] {
    const places = listen.map(formatListen)
    return places.map((place, at) => {
      const before = places.slice(0, at).filter(each => each === place).length
      return this.#handles.get(socketKey('listen', place))?.[before]
    })
  }

  /** Whether it listens there, for whatever. */
  listensOn(place: ListenAddress): boolean {
    const text = formatListen(place)
    return this.#handles.has(socketKey('listen', text)) || this.#handles.has(socketKey('admin', text))
  }

  adminSocketOf(place: ListenAddress): ListenHandle | undefined {
    return this.#handles.get(socketKey('admin', formatListen(place)))?.[0]
  }

  /** Takes over levels and queues. To be called before this process listens. */
  async takeOver(context: ProxyContext): Promise<void> {
    const houses = new Houses(context, MACHINE, (news, from) => this.tell(news, from))
    process.once('disconnect', () => houses.close())
    await this.#receive(ownLevels(context), message => {
      if (message.verb === 'order') houses.obey(message.order, message.from)
    })
  }

  /**
   * @param primary takes over the store of workers, and answers those of the process before. Undefined: the levels are in a store
   * @param hear what is said of guests
   * @returns when the workers before have ended
   */
  async takeOverStore(primary: Primary | undefined, hear: HearOrder): Promise<{ readonly ended: Promise<unknown> }> {
    const pipe = primary && new Socket({ fd: PIPE })
    const ended = new Promise(resolve => pipe?.once('close', resolve))
    await this.#receive(
      primary?.store.levels,
      message => {
        if (message.verb === 'parts') for (const part of message.parts) primary?.store.add(part)
        else if (message.verb === 'stored') primary?.serve(pipe!)
        else if (message.verb === 'order') hear(message.order, message.from)
      },
      primary && PARTS_FORM,
    )
    return { ended }
  }

  tell(news: GuestNews, from: number): void {
    this.#send({ verb: 'news', news, from })
  }

  /** A worker here has ended that had the guests of this one. */
  lost(from: number): void {
    this.#send({ verb: 'lost', from })
  }

  async #receive(levels: Levels | undefined, hear: (message: ToSuccessor) => void, parts?: number): Promise<void> {
    process.channel?.ref()
    await new Promise<void>(resolve => {
      process.on('message', (message: ToSuccessor) => {
        if (message.verb === 'go') resolve()
        else if (message.verb !== 'levels') hear(message)
        else if (levels !== undefined) {
          const by = -MACHINE.now() + levels.now()
          for (const saved of message.levels) levels.restore(moved(saved, by))
        }
      })
      this.#send({ verb: 'ready', ...(parts !== undefined && { parts }) })
    })
  }

  serves(): void {
    process.off('disconnect', endWithPredecessor)
    this.#send({ verb: 'serves' })
    const { [FIRST]: first } = process.env
    // It may have been killed.
    if (first !== undefined)
      connect(first)
        .on('error', () => undefined)
        .end(String(process.pid))
    // The channel shall not keep this process alive.
    process.channel?.unref()
  }

  /** While this process drains it waits for the one before, which may have requests here. */
  hold(): void {
    process.channel?.ref()
  }

  release(): void {
    process.channel?.unref()
  }

  /** This process cannot serve. */
  async failed(message: string): Promise<void> {
    await new Promise<void>(resolve => {
      if (!process.connected) return resolve()
      process.send!({ verb: 'failed', message } satisfies ToPredecessor, undefined, undefined, () => resolve())
    })
  }

  #send(message: ToPredecessor): void {
    if (process.connected) process.send!(message, undefined, undefined, () => undefined)
  }
}

/** It was killed before this process serves. Who asked for the restart is told that it has failed. */
function endWithPredecessor(): void {
  process.exit(1)
}

/** Signals that are meant for the process that serves. Those of a terminal reach it by themselves. */
const PASSED_ON = ['SIGTERM', 'SIGUSR2', ...(process.stdin.isTTY ? [] : (['SIGINT', 'SIGHUP'] as const))] as const
/** ms */
const LOOK = 500

/** The process that others wait for. It hears which of its successors serves, in a folder of its own. */
class FirstProcess {
  readonly path: string
  serving: number | undefined

  private constructor(folder: string) {
    this.path = join(folder, 'first')
    process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  }

  static async open(): Promise<FirstProcess> {
    const first = new FirstProcess(mkdtempSync(join(tmpdir(), 'shaper-')))
    // Sockets of createServer may be taken for those of workers (worker-pool.ts).
    const server = new Server(socket => {
      socket
        .on('error', () => undefined)
        .on('data', (text: Buffer) => {
          const pid = text.toString()
          if (/^[1-9]\d{0,9}$/.test(pid)) first.serving = Number(pid)
        })
    })
    server.unref().listen(first.path)
    await once(server, 'listening')
    return first
  }
}

/** Passes signals on until the last successor ends. @returns the exit status of the first */
async function standBy(child: ChildProcess, serving: () => number | undefined): Promise<number> {
  const current = (): number => serving() ?? child.pid!
  const ofChild = once(child, 'exit') as Promise<[number | null]>
  for (const signal of PASSED_ON) {
    const former = process.listeners(signal)
    process.on(signal, () => {
      if (isAlive(current())) process.kill(current(), signal)
    })
    // Not before: a signal that has come and has not been told yet would be lost with the last listener.
    for (const listener of former) process.off(signal, listener)
  }
  const [code] = await ofChild
  if (current() === child.pid) return code ?? 1
  while (isAlive(current())) await new Promise(resolve => setTimeout(resolve, LOOK))
  return 0
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}
