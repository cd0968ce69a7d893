/** An upstream that fails 30 % and pauses, for some minutes: what became of each delivery, against the rules. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { shaper } from '../cli/command.js'
import type { PostgresServer } from '../servers/postgres.js'
import { deliver, type Got, keyOf, ledger, worstExcess } from './stage.js'

const RATE = 20
const ATTEMPTS = 4
/** ms that the proxy waits for an answer. */
const TIMEOUT = 1_000
/** Each is a key. Those of `o` are ordered. */
const LANES = [...Array(8).keys()].flatMap(at => [`o${at}`, `u${at}`])
/** ms between two of one lane. */
const EVERY = 1_500

/** 10 % each of 500, a reset and no answer in time, and one in 300 pauses all. */
function answerBadly(pauses: { from: number; until: number }[]): Parameters<typeof ledger>[0] {
  return (got, res) => {
    const dice = Math.random() * 300
    got.end = dice < 30 ? '500' : dice < 60 ? 'reset' : dice < 90 ? 'late' : dice < 91 ? '429' : '200'
    const after = 1 + Math.floor(Math.random() * 3)
    setTimeout(
      () => {
        if (got.end === 'reset') return res.socket?.destroy()
        if (got.end === 'late') return
        if (got.end === '429') {
          // Some ms until it is read.
          pauses.push({ from: performance.now() + 100, until: performance.now() + after * 1_000 })
          res.setHeader('Retry-After', after)
        }
        res.writeHead(Number(got.end)).end('ok')
      },
      5 + Math.random() * 20,
    )
  }
}

interface Row {
  readonly id: string
  readonly state: string
  readonly attempts: number
}

export async function playFailures(server: PostgresServer, folder: string, minutes: number) {
  const pauses: { from: number; until: number }[] = []
  const upstream = await ledger(answerBadly(pauses))
  const route = (name: string, more: object) => ({
    ...{ name, match: { path: `/${name}` }, buckets: ['client', 'all'] },
    deliver: { url: server.url, attempts: ATTEMPTS, backoff: '200ms', maxBackoff: '2s', ...more },
  })
  const config = {
    listen: '127.0.0.1:0',
    upstream: { url: upstream.url, responseTimeout: `${TIMEOUT}ms` },
    buckets: {
      client: { key: 'header:x-client', rate: '10/s', capacity: 100 },
      all: { key: 'all', rate: `${RATE}/s`, capacity: 400 },
    },
    routes: [route('o', { ordered: true }), route('u', {})],
  }
  const file = join(folder, 'failing.json')
  writeFileSync(file, JSON.stringify(config))
  const command = shaper(['start', '-c', file, '--log', 'json'])
  const url = await command.url
  const ids = new Map<string, string>()
  const memory: number[] = []
  const end = performance.now() + minutes * 60_000
  const lane = async (name: string): Promise<void> => {
    for (let number = 0; performance.now() < end; number += 1) {
      ids.set(await deliver([url], name, number), `${name} ${number}`)
      await sleep(EVERY * (0.5 + Math.random()))
    }
  }
  const watch = async (): Promise<void> => {
    while (performance.now() < end) {
      memory.push(memoryOf(command.child.pid!))
      process.stderr.write(`${ids.size} accepted, ${upstream.got.length} attempts, ${memory.at(-1)} MB\n`)
      await sleep(Math.min(60_000, Math.max(0, end - performance.now())))
    }
  }
  await Promise.all([watch(), ...LANES.map(lane)])
  const waiting = async () =>
    (await server.query<{ n: number }>(`SELECT count(*)::int n FROM shaper_deliveries WHERE state = 'waiting'`))[0]!.n
  for (let left = 600; left > 0 && (await waiting()) > 0; left -= 1) await sleep(500)
  const rows = await server.query<Row>('SELECT id, state, attempts FROM shaper_deliveries')
  command.child.kill('SIGKILL')
  upstream.close()
  return { ...account(ids, rows, upstream.got, pauses), pauses: pauses.length, memory }
}

function memoryOf(pid: number): number {
  return Math.round(Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]) / 1_024)
}

/** What broke a rule, and how many there were of what. */
function account(
  ids: ReadonlyMap<string, string>,
  rows: readonly Row[],
  got: readonly Got[],
  pauses: readonly { readonly from: number; readonly until: number }[],
) {
  const counts: Record<string, number> = { accepted: ids.size, attempts: got.length }
  for (const what of [...got.map(({ end }) => end), ...rows.map(({ state }) => state)])
    counts[what] = (counts[what] ?? 0) + 1
  const sent = new Map<string, Got[]>()
  for (const each of got) {
    const name = nameOf(each)
    sent.set(name, [...(sent.get(name) ?? []), each])
  }
  const faults = [
    ...(rows.length === ids.size ? [] : [`${ids.size} were accepted, ${rows.length} are stored`]),
    ...got
      .filter(({ lane, number, key }) => key !== keyOf(lane, number))
      .map(each => `${nameOf(each)} has another key`),
    ...rows.flatMap(row => faultOf(row, sent.get(ids.get(row.id) ?? '') ?? [])),
    ...outOfOrder(got),
    ...got
      .filter(({ at }) => pauses.some(({ from, until }) => at > from && at < until))
      .map(each => `${nameOf(each)} came in a pause`),
  ]
  const times = got.map(({ at }) => at)
  return { faults, counts, worstExcess: worstExcess(times, RATE / 1_000) }
}

function nameOf({ lane, number }: Got): string {
  return `${lane} ${number}`
}

function faultOf({ id, state, attempts }: Row, sent: readonly Got[]): string[] {
  const ends = sent.map(({ end }) => end)
  const isDone = ends.indexOf('200') === ends.length - 1 && ends.length > 0
  const isRight = state === 'done' ? isDone : state === 'dead' && ends.length === ATTEMPTS && !ends.includes('200')
  if (isRight && attempts === ends.length && attempts <= ATTEMPTS) return []
  return [`${id} is ${state} after ${attempts}: ${sent.map(nameOf)[0]} ${ends.join(', ')}`]
}

/** What came of an ordered lane although a later one had. */
function outOfOrder(got: readonly Got[]): string[] {
  const latest = new Map<string, number>()
  return got.flatMap(({ lane, number }) => {
    const before = latest.get(lane) ?? 0
    latest.set(lane, Math.max(before, number))
    return lane.startsWith('o') && number < before ? [`${lane} ${number} came after ${before}`] : []
  })
}
