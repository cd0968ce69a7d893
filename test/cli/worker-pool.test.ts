/** The pool of workers with workers that are no processes, on mocked timers. */
import cluster, { type Worker } from 'node:cluster'
import { EventEmitter } from 'node:events'
import { duplexPair } from 'node:stream'
import { mock } from 'node:test'
import pino from 'pino'
import t from 'tap'
import { handOverStore, type Predecessor, type ToSuccessor } from '../../src/cli/serving/succession.js'
import { Workers } from '../../src/cli/serving/worker-pool.js'
import type { Order, WorkerReport } from '../../src/cli/serving/worker-protocol.js'
import type { Settings } from '../../src/config/settings.js'
import { PARTS_FORM } from '../../src/stores/memory/store.js'
import { createPrimary } from '../../src/stores/workers/primary.js'
import { least, parse } from '../config/sample.js'

type OrderOf<Verb extends Order['verb']> = Extract<Order, { verb: Verb }>

/** A worker that obeys at once, as long as it is told to. */
class FakeWorker extends EventEmitter {
  readonly orders: Order[] = []
  readonly signals: string[] = []
  obeys = true
  readonly process = Object.assign(new EventEmitter(), {
    pid: 1 as number | undefined,
    kill: (signal: string) => this.#kill(signal),
  })

  send(order: Order): boolean {
    this.orders.push(order)
    if (!this.obeys) return true
    if (order.verb === 'start') this.report({ verb: 'ready', urls: ['http://127.0.0.1:8080'] })
    if (order.verb === 'reload') this.report({ verb: 'reloaded', id: order.id, expired: new Map() })
    if (order.verb === 'ask') this.report({ verb: 'answered', id: order.id, answer: [] })
    if (order.verb === 'drain') this.end(0, null)
    return true
  }

  report(report: WorkerReport): void {
    this.emit('message', report)
  }

  end(code: number | null, signal: string | null): void {
    this.emit('exit', code, signal)
  }

  order<Verb extends Order['verb']>(verb: Verb): OrderOf<Verb> | undefined {
    return this.orders.find((order): order is OrderOf<Verb> => order.verb === verb)
  }

  #kill(signal: string): void {
    this.signals.push(signal)
    if (signal === 'SIGKILL') this.end(null, signal)
  }
}

const up = (worker: FakeWorker): void => worker.report({ verb: 'up' })

type Tap = Pick<typeof t, 'teardown'>

/** Mocked timers and forks. `forks` does what comes with each fork: by default the worker comes up. */
function rig(t: Tap, forks: ((worker: FakeWorker) => void)[] = []) {
  mock.timers.enable({ apis: ['setTimeout'] })
  const workers: FakeWorker[] = []
  const fork = mock.method(cluster, 'fork', () => {
    const worker = new FakeWorker()
    const begin = forks[workers.length] ?? up
    workers.push(worker)
    queueMicrotask(() => begin(worker))
    return worker as unknown as Worker
  })
  t.teardown(() => {
    fork.mock.restore()
    mock.timers.reset()
  })
  const lines: { msg: string; level: number; worker?: number }[] = []
  const log = pino({ base: null }, { write: (line: string) => void lines.push(JSON.parse(line)) })
  return {
    workers,
    lines,
    start: (count: number, settings: Settings, predecessor?: Predecessor) =>
      Workers.start(count, settings, { log, id: 'a', predecessor }),
  }
}

const settings = (more: object = {}): Settings => parse({ ...least(), ...more })

/** After what is due now in promises. */
const turn = (): Promise<void> => new Promise(resolve => setImmediate(resolve))

t.test('a new worker keeps the admin and accessLog of the start, whatever a reload says', async t => {
  const { workers, start } = rig(t)
  const first = settings({ admin: { listen: '127.0.0.1:9090' }, accessLog: true })
  const pool = await start(1, first)
  await pool.reload(settings({ accessLog: false, headers: false }))
  workers[0]!.end(null, 'SIGKILL')
  mock.timers.tick(100)
  await turn()
  t.equal(workers.length, 2)
  const { settings: given } = workers[1]!.order('start')!
  t.same(given.admin, first.admin)
  t.equal(given.accessLog, true)
  t.equal(given.headers, false, 'all else is the latest')
  await pool.reload(settings())
  workers[1]!.end(0, null)
  mock.timers.tick(200)
  await turn()
  t.same(workers[2]!.order('start')!.settings.admin, first.admin)
  await pool.drain(1_000, 0)
})

t.test('a new worker has no admin that a reload has added', async t => {
  const { workers, start } = rig(t)
  const pool = await start(1, settings())
  await pool.reload(settings({ admin: { listen: '127.0.0.1:9090' } }))
  workers[0]!.end(null, 'SIGKILL')
  mock.timers.tick(100)
  await turn()
  t.equal(workers[1]!.order('start')!.settings.admin, undefined)
  await pool.drain(1_000, 0)
})

/** What a failed spawn does: an error and no exit. */
const noProcess = (worker: FakeWorker): void => {
  worker.process.pid = undefined
  worker.emit('error', new Error('spawn node EAGAIN'))
}

t.test('a worker that gets no process is tried again', async t => {
  const { workers, lines, start } = rig(t, [up, noProcess])
  const pool = await start(1, settings())
  workers[0]!.end(null, 'SIGKILL')
  mock.timers.tick(100)
  await turn()
  t.equal(workers.length, 2)
  mock.timers.tick(200)
  await turn()
  t.ok(workers[2]?.order('start'), 'another one starts')
  t.match(lines.at(-1), {
    level: 50,
    msg: 'worker 1 ended: the system starts no process (spawn node EAGAIN); another one starts in 200 ms',
  })
  await pool.drain(1_000, 0)
})

t.test('a fork that throws is tried again', async t => {
  const { workers, start } = rig(t)
  const pool = await start(1, settings())
  const fork = mock.method(cluster, 'fork', () => {
    throw new Error('spawn ENOMEM')
  })
  workers[0]!.end(null, 'SIGKILL')
  mock.timers.tick(100)
  fork.mock.restore()
  mock.timers.tick(200)
  await turn()
  t.ok(workers[1]?.order('start'))
  await pool.drain(1_000, 0)
})

t.test('at the start a worker without a process is an error, and no worker is left', async t => {
  const { workers, start } = rig(t, [up, noProcess])
  await t.rejects(start(2, settings()), { message: 'the system starts no process (spawn node EAGAIN)' })
  t.same(workers[0]!.signals, ['SIGKILL'])
})

t.test('a drain ends while a worker has no process, and nothing is killed', async t => {
  const { workers, start } = rig(t, [up, () => undefined])
  const pool = await start(1, settings())
  workers[0]!.end(null, 'SIGKILL')
  mock.timers.tick(100)
  await turn()
  workers[1]!.process.pid = undefined
  const drained = pool.drain(1_000, 0)
  noProcess(workers[1]!)
  await drained
  t.same(workers[1]!.signals, [])
})

t.test('a worker that does not answer a reload is replaced, and later reloads go on', async t => {
  const { workers, lines, start } = rig(t)
  const pool = await start(2, settings())
  workers[1]!.obeys = false
  const next = settings({ headers: false })
  const reloaded = pool.reload(next)
  mock.timers.tick(9_999)
  t.same(workers[1]!.signals, [])
  mock.timers.tick(1)
  await reloaded
  t.same(workers[1]!.signals, ['SIGKILL'])
  t.same(workers[0]!.signals, [])
  t.match(lines[0], { level: 50, worker: 2, msg: 'worker 2 has not reloaded within 10 s and is replaced' })
  mock.timers.tick(100)
  await turn()
  t.equal(workers[2]!.order('start')!.settings.headers, false, 'the new one has the new configuration')
  await pool.reload(settings())
  await pool.drain(1_000, 0)
})

t.test('questions to one worker go to all in turn, also where each comes with one to all of them', async t => {
  const { workers, start } = rig(t)
  const pool = await start(2, settings())
  for (let read = 0; read < 4; read++) {
    await pool.question({ about: 'members', given: [] })
    t.same(await pool.questionOne({ about: 'views', given: ['present'] }), [])
  }
  const asked = workers.map(
    ({ orders }) => orders.filter(order => order.verb === 'ask' && order.question.about === 'views').length,
  )
  t.same(asked, [2, 2])
  await pool.drain(1_000, 0)
})

t.test('a successor that knows another form of the store gets the levels', async t => {
  const primary = createPrimary()
  const sent: ToSuccessor[] = []
  primary.store.levels.restore({ bucket: 'a', key: 'b', level: 5, at: primary.store.levels.now(), rate: 1e-6 })
  const [pipe] = duplexPair()
  handOverStore(primary, { parts: PARTS_FORM + 1, pipe, send: message => void sent.push(message) })
  t.match(sent, [{ verb: 'levels', levels: [{ bucket: 'a', key: 'b', rate: 1e-6 }] }, { verb: 'stored' }])
  handOverStore(primary, { parts: undefined, pipe, send: message => void sent.push(message) })
  t.equal(sent.length, 2, 'one with a store of its own gets nothing')
})

t.test('no worker listens before all are prepared and the process before has handed over', async t => {
  const silent = (worker: FakeWorker): void => {
    worker.obeys = false
    up(worker)
  }
  const { workers, start } = rig(t, [silent, silent])
  let handOver: () => void = () => undefined
  let isAsked = false
  const predecessor = {
    socketsOf: () => [{ fd: 9 }],
    takeOverStore: () => {
      isAsked = true
      return new Promise(resolve => {
        handOver = () => resolve({ ended: Promise.resolve() })
      })
    },
  } as unknown as Predecessor
  const started = start(2, settings(), predecessor)
  await turn()
  t.same(workers[0]!.order('start')!.sockets, [9], 'it listens on the same socket')
  workers[0]!.report({ verb: 'prepared' })
  await turn()
  t.notOk(isAsked)
  workers[1]!.report({ verb: 'prepared' })
  await turn()
  t.ok(isAsked)
  t.notOk(workers.some(worker => worker.order('listen')))
  handOver()
  await turn()
  t.ok(workers.every(worker => worker.order('listen')))
  const urls = ['http://127.0.0.1:8080']
  for (const worker of workers) worker.report({ verb: 'ready', urls })
  const pool = await started
  for (const worker of workers) worker.end(null, 'SIGKILL')
  mock.timers.tick(100)
  await turn()
  t.same(workers[2]!.order('start')!.sockets, [], 'that has closed with the last of them')
  for (const worker of workers.slice(2)) worker.obeys = true
  await pool.drain(1_000, 0)
})
