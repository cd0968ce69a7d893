// @ts-check
/** The library and its peers: against an API with a hard limit, and the cost of a call. Each run has its own process. */
import { DIST } from '../participants.js'
import { hasPackage, result, startOwn } from '../processes.js'
import { entry, median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

/** As in programs/outbound.js. */
const RATE = 100
const CALLS = 500

/** How early the API still accepts a request, in ms. */
const SLACK = 1

const IDEAL = ((CALLS - 1) / RATE) * 1_000

const PEERS = ['Bottleneck', 'p-throttle', 'limiter']

const TARGETS = { longer: 1.01, faster: 5 }

/** @param {import('../main.js').Context} context */
export async function outbound({ quick, rounds: wanted, missing, progress }) {
  const peers = PEERS.filter(name => {
    const isThere = hasPackage(name.toLowerCase())
    if (!isThere) missing.add(name)
    return isThere
  })
  const rounds = wanted ?? (quick ? 1 : 5)
  /** @type {Record<string, { rejected: number, took: number }[]>} */
  const calls = {}
  /** @type {Record<string, number[]>} */
  const costs = {}
  for (let round = 0; round < rounds; round += 1) {
    for (const who of ['shape', ...peers]) {
      progress(`outbound: ${who}, ${CALLS} calls, round ${round + 1} of ${rounds}`)
      const server = startOwn('../../outbound/strict-server.js', [String(RATE), String(SLACK)])
      const { port } = await server.message()
      const outcome = await result('outbound.js', [DIST, 'calls', who, `http://127.0.0.1:${port}/`])
      entry(calls, who, () => []).push(outcome)
      await server.stop()
    }
    for (const who of ['run', ...peers, 'nothing']) {
      progress(`outbound: ${who}, cost of a call, round ${round + 1} of ${rounds}`)
      entry(costs, who, () => []).push(await result('outbound.js', [DIST, 'overhead', who]))
    }
  }
  /** @param {string} who */
  const took = who => median((calls[who] ?? []).map(outcome => outcome.took))
  /** @param {string} who */
  const rejected = who => median((calls[who] ?? []).map(outcome => outcome.rejected))
  const cost = (/** @type {string} */ who) => median(costs[who] ?? [])
  const longer = took('shape') / IDEAL
  const faster = cost('Bottleneck') / cost('run')
  return {
    checks: [
      {
        figure: `rejected of ${CALLS} at once by an API that takes ${RATE}/s`,
        value: fixed(rejected('shape'), 0),
        target: '0',
        met: rejected('shape') === 0,
      },
      {
        figure: `time of these against ${(IDEAL / 1_000).toFixed(2)} s`,
        value: ratio(longer),
        target: `<= ${TARGETS.longer}x`,
        met: longer <= TARGETS.longer,
      },
      ...(costs.Bottleneck === undefined
        ? []
        : [
            {
              figure: 'cost of a call, run() against Bottleneck',
              value: `${ratio(faster)} less`,
              target: `>= ${TARGETS.faster}x`,
              met: faster >= TARGETS.faster,
            },
          ]),
    ],
    tables: [
      {
        title: `${CALLS} calls at once to an API that rejects what comes sooner than 1/${RATE} s less ${SLACK} ms`,
        columns: ['peer', 'rejected', 's'],
        rows: Object.keys(calls).map(who => [who, fixed(rejected(who), 0), fixed(took(who) / 1_000, 2)]),
      },
      {
        title: 'ns per call that need not wait (an async function that returns at once)',
        columns: ['peer', 'ns'],
        rows: Object.keys(costs).map(who => [who, fixed(cost(who), 0)]),
      },
    ],
    raw: { calls, costs },
  }
}
