// @ts-check
/** Measures bytes of heap and array buffers per metered key, with its string: `keys.js DIST COUNT`, with --expose-gc. */
import { pathToFileURL } from 'node:url'

const [dist, count] = process.argv.slice(2)

/** @param {string} path @returns {Promise<any>} */
const ours = path => import(pathToFileURL(`${dist}/${path}`).href)

const { BucketTable } = await ours('core/bucket-table.js')
const { Shaper } = await ours('core/shaper.js')
const { Gate } = await ours('core/queue/lane.js')
const { createTimerClock } = await ours('pacing/timer.js')

const clock = createTimerClock()
const shaper = new Shaper({ clock })
const bucketTable = new BucketTable(2 * Number(count))
// A slow rate, so that no key is removed meanwhile.
const limits = { name: 'client', rate: 1e-9, capacity: 10 }
const route = { name: 'route', gate: new Gate() }

function settled() {
  for (let at = 0; at < 3; at += 1) global.gc?.()
  const { heapUsed, arrayBuffers } = process.memoryUsage()
  return heapUsed + arrayBuffers
}

/** @param {number} at */
function meter(at) {
  // A flat string, as from a socket. A concatenated one costs more than twice as much.
  const key = Buffer.from(`10.${at >> 16}.${(at >> 8) & 255}.${at & 255}`).toString('latin1')
  const bucket = bucketTable.find(limits, key, clock.now())
  bucketTable.hold(bucket)
  shaper.meter({ route, stack: [bucket], cost: 1 })
  bucketTable.rest(bucket)
}

const before = settled()
for (let at = 0; at < Number(count); at += 1) meter(at)
const after = settled()
if (bucketTable.size() !== Number(count)) throw new Error(`${bucketTable.size()} keys`)
process.send?.((after - before) / Number(count), () => process.exit())
