// @ts-check
/**
 * Loaded into a proxy that forwards by undici (`node --import`): notes when each request is written to the upstream's
 * connection, so that what the proxy does can be told from what its upstream and the machine do after it.
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
// The proxy ends as if this were not here.
process.channel?.unref()
