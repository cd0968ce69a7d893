// @ts-check
/** The clients, in their own process: mixed traffic until the order to stop. */
import { setTimeout as sleep } from 'node:timers/promises'
import * as greedy from './greedy-actions.js'
import { Ledger } from './ledger.js'
import * as plain from './plain-actions.js'
import { KEY_MARK, KEYS_PER_SECOND, randomFrom } from './plan.js'
import * as rude from './rude-actions.js'
import { Slot } from './slot.js'
import { webSocket } from './websocket-actions.js'

/** The actions of clients and their frequencies. Quick ones are more frequent. @type {[weight: number, act: (slot: Slot) => Promise<void>][]} */
const ACTIONS = [
  [60, plain.get],
  [20, plain.post],
  [2, plain.burst],
  [6, plain.expectContinue],
  [6, plain.pipeline],
  [1, plain.slowReader],
  [1, plain.slowWriter],
  [1, plain.hang],
  [4, plain.breakOff],
  [8, rude.leaveQueue],
  [4, rude.closeHalf],
  [8, rude.resetQueue],
  [8, rude.resetEarly],
  [8, rude.leaveUpload],
  [4, rude.leaveAnswer],
  [4, rude.leavePipeline],
  [1, rude.stopUpload],
  [1, rude.stopHead],
  [10, rude.nonsense],
  [2, rude.keyless],
  [1, greedy.trickle],
  [1, greedy.trickleOn],
  [2, greedy.leaveAside],
  [1, greedy.neverRead],
  [1, greedy.hoard],
  [1, greedy.flood],
  [1, greedy.uploadToFull],
  [6, webSocket],
]
const LOTS = ACTIONS.flatMap(([weight, action]) => Array.from({ length: weight }, () => action))

/** How many new keys come at a time, and on how many connections. */
const BATCH = 10
const CHURNING = 16

/** The longest pause between two actions of a client, in ms. */
const THINKING = 30

const ledger = new Ledger()
let stopping = false
let keys = 0

/** @param {Slot} slot */
async function act(slot) {
  const action = slot.pick(LOTS)
  ledger.actions[action.name] = (ledger.actions[action.name] ?? 0) + 1
  await action(slot)
}

/** @param {Slot} slot */
async function live(slot) {
  while (!stopping) {
    await act(slot).catch(error => ledger.surprise(`a client failed: ${error.stack}`))
    await slot.linger(THINKING)
  }
  slot.drop()
}

/** One new key after another, at an even pace. @param {Slot} slot */
async function churn(slot) {
  const start = performance.now()
  for (let sent = 0; !stopping; sent += BATCH) {
    const due = start + (sent / (KEYS_PER_SECOND / CHURNING)) * 1_000
    await sleep(Math.max(1, due - performance.now()))
    const peer = await slot.peer()
    const requests = Array.from({ length: BATCH }, () => {
      keys += 1
      return slot.request('churn', 'get', { headers: { 'X-Key': `${KEY_MARK}-new-${keys}` } })
    })
    peer.write(requests.map(({ text }) => text).join(''))
    for (const [place, request] of requests.entries()) {
      await slot.settle(peer, request)
      if (peer.open) continue
      for (const { route, id } of requests.slice(place + 1)) ledger.abandons(route, id)
      break
    }
  }
  slot.drop()
}

process.on('message', async message => {
  const { verb, port, plan } = /** @type {{ verb: string, port: number, plan: import('./plan.js').Plan }} */ (message)
  if (verb === 'stop') {
    stopping = true
    return
  }
  /** @param {number} number */
  const slot = number => new Slot({ ledger, port, random: randomFrom(plan.seed * 1_000 + number) })
  await Promise.all([
    ...Array.from({ length: plan.slots }, (_, number) => live(slot(number))),
    ...Array.from({ length: CHURNING }, (_, number) => churn(slot(900 + number))),
  ])
  const { entries, actions, surprises, surprised, expected } = ledger
  process.send?.({ entries, actions, surprises, surprised, expected, keys })
})
process.once('disconnect', () => process.exit())
process.send?.('ready')
