/** A pool of processes that serve one port. It starts them, replaces crashed ones, and sends them orders. */
import cluster, { type Worker } from 'node:cluster'
import { randomBytes } from 'node:crypto'
import net from 'node:net'
import { Duplex } from 'node:stream'
import { isDeepStrictEqual } from 'node:util'
import type { Logger } from 'pino'
import { adaptedUpstreams } from '../../config/derived/adapted-upstreams.js'
import { workerShare } from '../../config/derived/worker-share.js'
import type { Settings } from '../../config/settings.js'
import { handleOf, type ListenHandle, removeOnClose } from '../../http/listening.js'
import { createTimerClock } from '../../pacing/timer.js'
import type { Drained } from '../../proxy/server/server.js'
import type { GuestOrder } from '../../proxy/succession/departing.js'
import { type Levels, LevelsFile } from '../../stores/memory/levels-file.js'
import { createPrimary, type Primary } from '../../stores/workers/primary.js'
import { CommandError } from '../command.js'
import { type Estate, FOREVER, type Handed, type Heir, handOverStore, type Predecessor } from './succession.js'
import { type Order, PIPE, type Question, type Status, WORKER, type WorkerReport } from './worker-protocol.js'

/** The first and the longest pause before a crashed worker is replaced, in ms. It doubles each time. */
const BACKOFF = { least: 100, most: 10_000 }
/** A worker that has served this long, in ms, starts with the first pause again. */
const STEADY = 10_000
/** The longest time for an answer of a worker, in ms. */
const SILENCE = 1_000
/** The longest time for a reload, in ms. */
const RELOAD = 10_000
/** How long a worker may go on after its time to drain, in ms. */
const PATIENCE = 10_000

interface End {
  readonly code: number | null
  readonly signal: string | null
  /** Why it could not start, as it said itself. */
  readonly reason: string | undefined
}

interface Place {
  /** Counts from 1. */
  readonly number: number
  process: Worker | undefined
  timer: NodeJS.Timeout | undefined
  crashes: number
  isUp: boolean
  /** Undefined: not ready. */
  readyAt: number | undefined
  /** Connections that were given to it, and that it has not taken. */
  untaken: ReadonlyMap<number, Handle>
}

interface PoolProgram {
  readonly log: Logger
  /** The pseudonym of all workers in `Via`. */
  readonly id: string
  readonly predecessor?: Predecessor | undefined
}

/** Undefined: the worker has ended. */
type Answer = Extract<WorkerReport, { id: number }> | { readonly verb: 'silent' } | undefined

export class Workers implements Estate {
  urls: readonly string[] = []
  readonly #places: Place[]
  readonly sockets = socketsOfCluster()
  readonly secret: string | undefined
  readonly #log: Logger
  readonly #id: string
  /** The file descriptors of those of the process before. */
  #given: readonly (number | undefined)[]
  readonly #predecessor: Predecessor | undefined
  /** Who has the guests of a worker before, by its number. Undefined: it has ended. */
  readonly #housed = new Map<number, Worker | undefined>()
  /** The workers before them have ended. */
  #before: Promise<unknown> | undefined
  #successor: Duplex | undefined
  #unprepared: number
  #mayListen: Promise<void> = Promise.resolve()
  #allPrepared: () => void = () => undefined
  readonly #first: Settings
  /** The buckets of all workers. Undefined: they have a store. */
  readonly #primary: Primary | undefined
  readonly #levels: LevelsFile | undefined
  #current: Settings
  /** With port 0 the operating system chooses one, the same for all running workers. */
  #listen: Settings['listen']
  #started = false
  #draining = false
  #drained = { answered: 0, cut: 0 }
  /** The message about a worker that ended before it had drained. */
  #unclean: string | undefined
  #failed: (error: CommandError) => void = () => undefined
  #allReady: () => void = () => undefined
  #allGone: () => void = () => undefined
  readonly #answers = new Map<number, (worker: Worker, answer: Answer) => void>()
  #lastId = 0
  /** How many questions went to one worker alone. */
  #askedAlone = 0

  private constructor(
    count: number,
    settings: Settings,
    { log, id, predecessor }: PoolProgram,
    levels: LevelsFile | undefined,
  ) {
    this.#first = settings
    this.#current = settings
    this.#primary = settings.store === 'memory' ? createPrimary() : undefined
    this.secret = this.#primary?.store.board.agreeOnSecret(predecessor?.secret ?? randomBytes(32).toString('base64url'))
    this.#given = predecessor?.socketsOf(settings.listen).map(handle => handle?.fd) ?? []
    this.#predecessor = predecessor
    this.#unprepared = count
    this.#id = id
    this.#levels = levels
    this.#listen = settings.listen
    this.#log = log
    this.#places = Array.from({ length: count }, (_, index) => ({
      number: index + 1,
      process: undefined,
      timer: undefined,
      crashes: 0,
      isUp: false,
      readyAt: undefined,
      untaken: new Map(),
    }))
  }

  /** Resolves when all are ready. @throws CommandError when one of them cannot start; then none is left running */
  static async start(count: number, settings: Settings, program: PoolProgram): Promise<Workers> {
    if (!cluster.isPrimary) {
      throw new CommandError('this process is a worker of another cluster already; leave --workers out')
    }
    // The primary accepts connections and deals them out in turn, as each worker has a part of the machine's bounds. The
    // policy counts at the first call of setupPrimary.
    cluster.schedulingPolicy = cluster.SCHED_RR
    cluster.setupPrimary({ serialization: 'advanced', stdio: ['inherit', 'inherit', 'inherit', 'ipc', 'pipe'] })
    const { levelsFile: file } = settings
    const { log, predecessor } = program
    const levels = file === undefined ? undefined : new LevelsFile({ file, clock: createTimerClock(), log })
    const workers = new Workers(count, settings, program, levels)
    if (predecessor === undefined) await levels?.restore(levelsOf(workers.#primary!, settings))
    else workers.#mayListen = workers.#takeOver(predecessor)
    const ready = new Promise<void>((resolve, reject) => {
      workers.#allReady = resolve
      workers.#failed = reject
    })
    for (const place of workers.#places) workers.#fork(place)
    await ready.catch((error: CommandError) => {
      workers.#draining = true
      workers.kill()
      throw error
    })
    levels?.begin(workers.#primary!.store.levels)
    return workers
  }

  /** Once all are about to listen. */
  async #takeOver(predecessor: Predecessor): Promise<void> {
    await new Promise<void>(resolve => {
      this.#allPrepared = resolve
    })
    process.once('disconnect', () => {
      for (const from of this.#housed.keys()) this.#house({ verb: 'gone' }, from)
    })
    this.#before = (await predecessor.takeOverStore(this.#primary, (order, from) => this.#house(order, from))).ended
  }

  /** A worker here has the guests of each worker before. If that ends, they are their own worker's again. */
  #house(order: GuestOrder, from = 0): void {
    if (!this.#housed.has(from))
      this.#housed.set(from, this.#places[Math.max(0, from - 1) % this.#places.length]!.process)
    const worker = this.#housed.get(from)
    if (worker !== undefined) send(worker, { verb: 'guest', order, from })
  }

  /** Tells the process before what becomes of its guests in a worker here. */
  #answerFor(worker: Worker, predecessor: Predecessor): void {
    worker.on('message', (report: WorkerReport) => {
      if (report.verb === 'news') predecessor.tell(report.news, report.from)
    })
    worker.once('exit', () => {
      for (const [from, host] of this.#housed) {
        if (host !== worker) continue
        this.#housed.set(from, undefined)
        predecessor.lost(from)
      }
    })
  }

  handOver(heir: Heir): Handed | undefined {
    // From now on the successor writes it.
    this.#levels?.stop()
    if (this.#primary === undefined) return this.#handOverQueues(heir)
    this.#successor = heir.pipe
    handOverStore(this.#primary, heir)
    const { levels } = this.#primary.store
    heir.pipe.once('close', () => {
      if (!this.#draining) this.#levels?.begin(levels)
    })
    // Without a store of workers it has buckets of its own.
    return heir.parts === undefined ? undefined : this.#handOverQueues(heir)
  }

  #handOverQueues({ send: tell }: Heir): Handed {
    const departing = new Map<number, Worker>()
    const all = this.#places.flatMap(({ number, process: worker, readyAt }) => {
      if (worker === undefined || readyAt === undefined) return []
      departing.set(number, worker)
      send(worker, { verb: 'hand-over' })
      return new Promise<void>(resolve => {
        worker.on('message', (report: WorkerReport) => {
          if (report.verb === 'handed-over') resolve()
          else if (report.verb === 'order' && departing.has(number))
            tell({ verb: 'order', order: report.order, from: number })
        })
        worker.once('exit', () => {
          resolve()
          if (departing.delete(number)) tell({ verb: 'order', order: { verb: 'gone' }, from: number })
        })
      })
    })
    // One that is stopped does not hold up the others.
    const silence = new Promise<void>(resolve => void setTimeout(resolve, SILENCE).unref())
    return {
      complete: Promise.race([Promise.all(all).then(() => undefined), silence]),
      told(news, from) {
        const worker = departing.get(from)
        if (worker !== undefined) send(worker, { verb: 'news', news })
      },
      end(only) {
        for (const [number, worker] of departing) {
          if (only !== undefined && only !== number) continue
          departing.delete(number)
          send(worker, { verb: 'go-on' })
        }
      },
    }
  }

  /**
   * Puts another configuration into effect in all workers. A worker that refuses it, or does not answer, is replaced.
   *
   * @returns the number of expired waiters by route
   * @throws when all of them refuse it
   */
  async reload(settings: Settings): Promise<ReadonlyMap<string, number>> {
    const before = this.#current
    this.#current = settings
    const expired = new Map<string, number>()
    const refusals = new Map<Worker, string>()
    let done = 0
    // Workers that are not up yet start with the new configuration.
    for (const [worker, answer] of await this.#ask(
      this.#places,
      (id, place) => ({ verb: 'reload', id, settings: this.#shareOf(place, settings) }),
      RELOAD,
    )) {
      if (answer?.verb === 'silent') this.#replaceSilent(worker)
      if (answer?.verb === 'refused') refusals.set(worker, answer.message)
      if (answer?.verb !== 'reloaded') continue
      done += 1
      for (const [route, count] of answer.expired) expired.set(route, (expired.get(route) ?? 0) + count)
    }
    const [reason] = refusals.values()
    if (reason !== undefined && done === 0) {
      this.#current = before
      throw new Error(reason)
    }
    for (const [worker, message] of refusals) {
      this.#log.error(`a worker could not reload and is replaced: ${message}`)
      kill(worker, 'SIGTERM')
    }
    return expired
  }

  /** Kills a worker that has not answered a reload, such as a stopped one. It would hold up all later reloads. */
  #replaceSilent(worker: Worker): void {
    const number = this.#places.find(place => place.process === worker)?.number
    this.#log.error({ worker: number }, `worker ${number} has not reloaded within ${RELOAD / 1_000} s and is replaced`)
    kill(worker, 'SIGKILL')
  }

  /** The answer of one ready worker, each time of another one. Undefined: it did not answer. */
  async questionOne<Reply>(question: Question): Promise<Reply | undefined> {
    const ready = this.#places.filter(({ readyAt }) => readyAt !== undefined)
    const one = ready[this.#askedAlone++ % ready.length]
    if (one === undefined) return undefined
    const [answer] = (await this.#ask([one], id => ({ verb: 'ask', id, question }), SILENCE)).values()
    return answer?.verb === 'answered' ? (answer.answer as Reply) : undefined
  }

  async question<Reply>(question: Question): Promise<ReadonlyMap<Worker, Reply | undefined>> {
    const answers = await this.#ask(this.#places, id => ({ verb: 'ask', id, question }), SILENCE)
    const replies = new Map<Worker, Reply | undefined>()
    for (const { process, readyAt } of this.#places) {
      if (process === undefined || readyAt === undefined) continue
      const answer = answers.get(process)
      replies.set(process, answer?.verb === 'answered' ? (answer.answer as Reply) : undefined)
    }
    return replies
  }

  /** That of all workers together. Undefined: one does not answer. */
  async status(): Promise<Status | undefined> {
    const parts = [...(await this.question<Status>({ about: 'status' })).values()]
    if (parts.length === 0 || parts.includes(undefined)) return undefined
    return {
      waiting: parts.reduce((sum, part) => sum + part!.waiting, 0),
      failing: [...new Set(parts.flatMap(part => part!.failing))],
    }
  }

  /** Orders the workers of places that are up, and waits for all. One that takes more than `patience` ms is silent. */
  async #ask(
    places: readonly Place[],
    orderOf: (id: number, place: Place) => Order,
    patience: number,
  ): Promise<Map<Worker, Answer>> {
    const id = ++this.#lastId
    const asked = places.flatMap(place => (place.isUp && place.process ? [{ place, worker: place.process }] : []))
    const waiting = new Set(asked.map(({ worker }) => worker))
    const answers = new Map<Worker, Answer>()
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>(resolve => {
      this.#answers.set(id, (worker, answer) => {
        if (!waiting.delete(worker)) return
        answers.set(worker, answer)
        if (waiting.size === 0) resolve()
      })
      if (waiting.size === 0) resolve()
      timer = setTimeout(resolve, patience)
      for (const { place, worker } of asked) send(worker, orderOf(id, place))
    })
    clearTimeout(timer)
    this.#answers.delete(id)
    for (const worker of waiting) answers.set(worker, { verb: 'silent' })
    return answers
  }

  /**
   * Drains all workers for up to `timeout` ms. Resolves when all have ended.
   *
   * @param delay ms for which they go on accepting first
   * @throws CommandError when one ended before it had drained
   */
  async drain(timeout: number, delay: number): Promise<Drained> {
    this.#draining = true
    this.#drained = { answered: 0, cut: 0 }
    // After a restart.
    if (timeout === FOREVER) await this.#deal()
    const gone = new Promise<void>(resolve => {
      this.#allGone = resolve
    })
    for (const place of this.#places) {
      clearTimeout(place.timer)
      if (place.isUp && place.process !== undefined) send(place.process, { verb: 'drain', timeout, delay })
      else kill(place.process, 'SIGKILL')
    }
    if (!this.#isEmpty()) {
      const cut = setTimeout(() => this.kill(), Math.min(FOREVER, delay + timeout + PATIENCE))
      await gone
      clearTimeout(cut)
    }
    // They ask the successor through this process.
    if (this.#successor !== undefined) await this.#before
    this.#successor?.destroy()
    await this.#levels?.close()
    if (this.#unclean !== undefined) throw new CommandError(this.#unclean)
    return this.#drained
  }

  /** What was accepted goes to the workers before they stop: Node would close it. */
  async #deal(): Promise<void> {
    const until = performance.now() + SILENCE
    while (this.#places.some(({ untaken }) => untaken.size > 0) && performance.now() < until)
      await new Promise(resolve => setImmediate(resolve))
  }

  kill(): void {
    for (const place of this.#places) {
      clearTimeout(place.timer)
      kill(place.process, 'SIGKILL')
    }
  }

  #isEmpty(): boolean {
    return this.#places.every(place => place.process === undefined)
  }

  #fork(place: Place): void {
    const worker = this.#spawn(place)
    if (worker === undefined) return
    place.process = worker
    place.untaken = rescueHandovers(worker, () =>
      this.#places.some(other => other !== place && other.readyAt !== undefined),
    )
    // Without a process there may be none, whatever the types say.
    const pipe = (worker.process.stdio as readonly unknown[] | undefined)?.[PIPE]
    if (pipe instanceof Duplex) this.#primary?.serve(pipe)
    let reason: string | undefined
    worker.on('error', error => {
      // Without a process there is no exit event.
      if (worker.process.pid === undefined) this.#gone(place, worker, noProcess(error))
      else this.#log.error({ worker: place.number }, error.message)
    })
    worker.on('message', (report: WorkerReport) => {
      if (report.verb === 'up') this.#up(place, worker)
      else if (report.verb === 'prepared') {
        this.#unprepared -= 1
        if (this.#unprepared === 0) this.#allPrepared()
        void this.#mayListen.then(() => send(worker, { verb: 'listen' }))
      } else if (report.verb === 'failed') reason = report.message
      else if (report.verb === 'ready') this.#ready(place, report.urls)
      else if (report.verb === 'drained') {
        this.#drained.answered += report.answered
        this.#drained.cut += report.cut
      } else if ('id' in report) this.#answers.get(report.id)?.(worker, report)
    })
    if (this.#predecessor !== undefined) this.#answerFor(worker, this.#predecessor)
    worker.on('exit', (code, signal) => this.#gone(place, worker, { code, signal, reason }))
  }

  #up(place: Place, worker: Worker): void {
    // It has been killed, as it was not up.
    if (this.#draining) return
    place.isUp = true
    const program = { id: this.#id, workers: this.#places.length }
    const settings = this.#shareOf(place, this.#settings())
    send(worker, { verb: 'start', settings, program, sockets: this.#given })
  }

  /** Undefined: the system has no process for it, and it has been reported as gone. */
  #spawn(place: Place): Worker | undefined {
    try {
      return cluster.fork({ [WORKER]: String(place.number) })
    } catch (error) {
      this.#gone(place, undefined, noProcess(error as Error))
      return undefined
    }
  }

  #shareOf({ number }: Place, settings: Settings): Settings {
    return workerShare(settings, number, this.#places.length)
  }

  /** The settings for a new worker: the latest, with those of the start where changes take effect at start only. */
  #settings(): Settings {
    const { store, pacing, admin, accessLog, limits } = this.#first
    const { maxHeaderSize, maxHeaders } = limits
    const { admin: _, ...current } = this.#current
    return {
      ...current,
      listen: this.#listen,
      store,
      pacing,
      ...(admin && { admin }),
      accessLog,
      limits: { ...current.limits, maxHeaderSize, maxHeaders },
    }
  }

  /** Where workers have listened: with the ports that the system has chosen. */
  #listenAgain(): Settings['listen'] {
    return this.#first.listen.map((each, index) =>
      'port' in each ? { ...each, port: each.port || Number(new URL(this.urls[index]!).port) } : each,
    )
  }

  #ready(place: Place, urls: readonly string[]): void {
    place.readyAt = performance.now()
    if (this.urls.length === 0) this.urls = urls
    // All other workers had ended before this one listened, so the system has freed their port and chosen another.
    if (!isDeepStrictEqual(urls, this.urls)) {
      this.#listen = this.#listenAgain()
      kill(place.process, 'SIGKILL')
    } else if (this.#places.every(({ readyAt }) => readyAt !== undefined)) {
      this.#started = true
      for (const [at, each] of this.#first.listen.entries())
        if ('path' in each && this.#given[at] !== undefined) removeOnClose(this.sockets[at]!, each.path)
      this.#allReady()
    }
  }

  #gone(place: Place, worker: Worker | undefined, end: End): void {
    const { number, isUp, readyAt } = place
    place.process = undefined
    place.isUp = false
    place.readyAt = undefined
    if (worker !== undefined) for (const answered of this.#answers.values()) answered(worker, undefined)
    const how = describeEnd(end)
    if (this.#draining) {
      if (isUp && end.code !== 0) this.#unclean = `worker ${number} ended before it was done: ${how}`
      if (this.#isEmpty()) this.#allGone()
    } else if (this.#started) {
      if (readyAt !== undefined && performance.now() - readyAt > STEADY) place.crashes = 0
      this.#replace(place, end)
    } else this.#failed(new CommandError(end.reason ?? `worker ${number} ended before it was ready: ${how}`))
  }

  #replace(place: Place, end: End): void {
    const { number } = place
    // No process holds the port that the system has chosen, so the next worker has to ask for it.
    if (this.urls.length > 0 && this.#isEmpty()) {
      if (this.#listen.some(each => 'systemd' in each)) return this.#loseSockets()
      this.#listen = this.#listenAgain()
      this.sockets.length = 0
      this.#given = []
    }
    const delay = Math.min(BACKOFF.most, BACKOFF.least * 2 ** place.crashes)
    place.crashes += 1
    // Exit status 0: it ended by a signal that it handled, to be replaced.
    const level = end.code === 0 ? 'info' : 'error'
    const how = describeEnd(end)
    this.#log[level]({ worker: number, delay }, `worker ${number} ended: ${how}; another one starts in ${delay} ms`)
    place.timer = setTimeout(() => this.#fork(place), delay)
  }

  /** Node closes a socket when no worker listens on it. systemd still has those that it gave, and gives them to the next start. */
  #loseSockets(): void {
    this.#unclean =
      'all workers ended at once, and with them the sockets of systemd are closed here; start shaper again'
    process.kill(process.pid, 'SIGTERM')
  }
}

/** Without those of buckets that are gone: nobody would ask for them, and so nobody would sweep them. */
function levelsOf({ store: { levels } }: Primary, { buckets, routes }: Settings): Levels {
  const adapted = adaptedUpstreams(routes.map(({ upstream }) => upstream)).values()
  const known = new Set([...buckets, ...adapted].map(({ name }) => name))
  return { ...levels, restore: saved => known.has(saved.bucket) && levels.restore(saved) }
}

/** The end of a worker that never was a process. */
function noProcess({ message }: Error): End {
  return { code: null, signal: null, reason: `the system starts no process (${message})` }
}

function describeEnd({ reason, signal, code }: End): string {
  return reason ?? (signal === null ? `exit status ${code}` : signal)
}

/** Without its process a child of Node has the id 0, and a signal to that would go to this process and its whole group. */
function kill(worker: Worker | undefined, signal: NodeJS.Signals): void {
  if (worker?.process.pid !== undefined) worker.process.kill(signal)
}

/** Ignores errors: the end of a worker is reported by its exit event. */
function send(worker: Worker, order: Order): void {
  worker.send(order, () => undefined)
}

/** A message of Node's cluster that hands a connection over, or the answer to one. */
interface Message {
  readonly cmd?: string
  readonly act?: string
  readonly seq?: number
  readonly ack?: number
}

interface Handle {
  close(): void
}

/**
 * To be called before the worker listens. When it dies, connections that it has not taken go to another worker.
 *
 * Node's cluster accepts connections in the primary, sends each to a worker and keeps it until the worker answers that it has taken it.
 * If the worker dies before that, Node neither closes the connection nor gives it to another one: its client would wait for ever.
 *
 * @param othersServe whether there is another one
 * @returns those that it has not taken
 */
export function rescueHandovers({ process: child }: Worker, othersServe: () => boolean): ReadonlyMap<number, Handle> {
  const untaken = new Map<number, Handle>()
  const { send, disconnect } = child
  child.send = function (this: typeof child, ...input: Parameters<typeof send>): boolean {
    const [{ act, seq }, handle] = input as unknown as [Message, Handle | undefined]
    if (act === 'newconn' && handle !== undefined) untaken.set(seq!, handle)
    return send.apply(this, input)
  } as typeof send
  child.on('internalMessage', ({ ack }: Message) => untaken.delete(ack!))
  let isGone = false
  // Node calls this when the channel has ended.
  child.disconnect = () => {
    disconnect.call(child)
    // Node would wait for the answer to what it has sent. Until then it would go on dealing connections of other ports to the
    // worker, and lose them, as nothing can be sent any more.
    process.nextTick(() => {
      if (!isGone) child.emit('disconnect')
    })
  }
  child.once('disconnect', () => {
    isGone = true
    const others = othersServe()
    for (const [seq, handle] of untaken) {
      // As a worker answers that shuts down: Node gives it to another one then.
      if (others) child.emit('internalMessage', { cmd: 'NODE_CLUSTER', ack: seq, accepted: false })
      else handle.close()
    }
    untaken.clear()
  })
  return untaken
}

/** The sockets on which Node's cluster will listen, in the order in which the workers ask for them. It does not tell them. */
function socketsOfCluster(): ListenHandle[] {
  const sockets: ListenHandle[] = []
  const { createServer } = net
  const remembering = (...given: Parameters<typeof createServer>) => {
    const server = createServer(...given)
    return server.once('listening', () => sockets.push(handleOf(server)))
  }
  net.createServer = remembering as typeof createServer
  return sockets
}
