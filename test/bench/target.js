// @ts-check
/**
 * How evenly any proxy lets requests through. It has to forward to the sink here, and to keep a queue for each `X-Key`, or one
 * for all: `--clients 1`.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { startLoad, startSink } from './participants.js'
import { gapErrors, quantile } from './statistics.js'
import { arrivals } from './suites/smoothness.js'

/**
 * @param {object} setup
 * @param {URL} setup.target where the proxy listens
 * @param {number} setup.sinkPort where it forwards to
 * @param {number} setup.rate requests per second of each client
 * @param {number} setup.clients at most 10
 * @param {number} setup.seconds
 */
export async function paceOf({ target, sinkPort, rate, clients, seconds }) {
  if (target.protocol !== 'http:' || target.hostname !== '127.0.0.1')
    throw new TypeError('--target wants http://127.0.0.1:PORT')
  const [sink, load] = [await startSink(sinkPort), await startLoad()]
  console.log(
    `the sink listens on 127.0.0.1:${sink.port}; ${target.href} has to forward to it, ${rate}/s for each of ${clients}`,
  )
  const proxy = /** @type {any} */ ({ name: target.host, port: Number(target.port || 80), cpu: () => 0 })
  await sleep(500)
  const { series } = await arrivals({ sink, load, proxy, rate, clients, seconds })
  const errors = series.flatMap(times => [...gapErrors(times, 1000 / rate)])
  if (errors.length === 0) throw new Error('nothing arrived at the sink: does the proxy forward to it?')
  const passed = series.reduce((sum, times) => sum + (times.length - 1) / ((times.at(-1) - times[0]) / 1000), 0)
  const figures = [0.5, 0.9, 0.99, 0.999].map(q => `p${100 * q} ${quantile(errors, q).toFixed(3)} ms`)
  console.log(
    `${errors.length} gaps; off 1/r by ${figures.join(', ')}; ${((100 * passed) / (rate * clients)).toFixed(2)} % of the rate`,
  )
}
