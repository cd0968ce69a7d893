// @ts-check
/**
 * Loaded into shaper (`node --import`). It records when each request is written to the connection of the upstream, by the
 * main thread or by the pacing thread, to distinguish delays of the proxy from later ones.
 */
import { realpathSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

const modules = new URL('../dist/proxy/', pathToFileURL(realpathSync(process.argv[1])))
const { UpstreamConnection } = await import(new URL('http1/upstream-connection.js', modules).href)
const { ArmedRequest } = await import(new URL('exchange/armed-request.js', modules).href)

const times = new Float64Array(1 << 20)
let count = 0
let recording = false

const { send } = UpstreamConnection.prototype
/** @type {typeof send} */
UpstreamConnection.prototype.send = function (...args) {
  if (recording) times[count++] = performance.now()
  return send.apply(this, args)
}

const { adopt } = ArmedRequest.prototype
/** @type {typeof adopt} */
ArmedRequest.prototype.adopt = function (...args) {
  if (recording) times[count++] = this.sentAt
  return adopt.apply(this, args)
}

process.on('message', message => {
  if (message !== 'record' && message !== 'stop') return
  if (message === 'record') count = 0
  recording = message === 'record'
  process.send?.(recording ? 'recording' : times.slice(0, count).sort())
})
// The probe must not keep the proxy alive.
process.channel?.unref()
