// @ts-check
/**
 * Loaded into a proxy that forwards by undici (`node --import`). It records when each request is written to the connection
 * of the upstream, to distinguish delays of the proxy from later ones.
 */
import { subscribe } from 'node:diagnostics_channel'

const times = new Float64Array(1 << 20)
let count = 0
let recording = false

subscribe('undici:client:sendHeaders', () => {
  if (recording) times[count++] = performance.now()
})

process.on('message', message => {
  if (message !== 'record' && message !== 'stop') return
  if (message === 'record') count = 0
  recording = message === 'record'
  process.send?.(recording ? 'recording' : times.slice(0, count))
})
// The probe must not keep the proxy alive.
process.channel?.unref()
