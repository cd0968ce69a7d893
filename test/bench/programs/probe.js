// @ts-check
/**
 * Loaded into shaper (`node --import`). It records when each request is written to the connection of the upstream, by the
 * main thread or by the pacing thread, to distinguish delays of the proxy from later ones.
 */
import { realpathSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

const modules = new URL('../dist/proxy/', pathToFileURL(realpathSync(process.argv[1])))
const { UpstreamConnection } = await import(new URL('upstream/http1-connection.js', modules).href)
const { ArmedRequest } = await import(new URL('exchange/armed-request.js', modules).href)

/** Where the servers of `fleet.js` are checked. */
const HEALTH_PATH = '/healthz'
const times = new Float64Array(1 << 20)
let count = 0
let recording = false

const { send } = UpstreamConnection.prototype
/** @type {typeof send} */
UpstreamConnection.prototype.send = function (request, handler) {
  // Checks of servers are no requests of clients.
  if (recording && request.target !== HEALTH_PATH) times[count++] = performance.now()
  return send.call(this, request, handler)
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
