// @ts-check
/**
 * Loaded into shaper (`node --import`). It records when each request is written to the connection of the upstream, to
 * distinguish delays of the proxy from later ones.
 */
import { realpathSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

const module = new URL('../dist/proxy/http1/upstream-connection.js', pathToFileURL(realpathSync(process.argv[1])))
const { UpstreamConnection } = await import(module.href)

const times = new Float64Array(1 << 20)
let count = 0
let recording = false

const { send } = UpstreamConnection.prototype
/** @type {typeof send} */
UpstreamConnection.prototype.send = function (...args) {
  if (recording) times[count++] = performance.now()
  return send.apply(this, args)
}

process.on('message', message => {
  if (message !== 'record' && message !== 'stop') return
  if (message === 'record') count = 0
  recording = message === 'record'
  process.send?.(recording ? 'recording' : times.slice(0, count))
})
// The probe must not keep the proxy alive.
process.channel?.unref()
