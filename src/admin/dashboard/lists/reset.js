/** Resets one instance of a bucket after the user has confirmed. */
import { byId, count, duration, keyName, put } from '../format.js'
import { ask } from '../stream.js'

/** How long the outcome is shown, in ms. */
const SHOWN = 5_000

let timer
let resetting

export function askReset(bucket, key) {
  resetting = { bucket, key }
  put(byId('reset-key'), keyName(key))
  put(byId('reset-bucket'), bucket)
  byId('reset').showModal()
}

function toast(text) {
  put(byId('toast'), text)
  clearTimeout(timer)
  timer = setTimeout(() => put(byId('toast'), ''), SHOWN)
}

/** The answer of the server in words; `forgotten` and `level` are in cost units. */
function outcome(key, { forgotten, waiting, level, lastWaitMs }) {
  const whole = cost => count(Number(cost.toFixed(1)))
  const wait = waiting === 0 ? 'nobody waits' : `${count(waiting)} waiting, the last for ${duration(lastWaitMs)}`
  return `${keyName(key)}: ${whole(forgotten)} forgotten, level ${whole(level)}, ${wait}`
}

async function reset({ bucket, key }) {
  try {
    const path = `buckets/${encodeURIComponent(bucket)}/${encodeURIComponent(key)}`
    const answer = await ask(path, { method: 'DELETE' })
    toast(answer.ok ? outcome(key, await answer.json()) : `${keyName(key)} could not be reset: status ${answer.status}`)
  } catch {
    toast(`${keyName(key)} could not be reset: no answer`)
  }
}

byId('reset-no').addEventListener('click', () => byId('reset').close())
byId('reset-yes').addEventListener('click', () => {
  byId('reset').close()
  reset(resetting)
})
