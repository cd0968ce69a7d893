/** Resetting one instance of a bucket, after a question. */
import { byId, count, duration, keyName, put } from './format.js'
import { ask } from './stream.js'

/** How long its outcome is told, in ms. */
const TOLD = 5_000

let timer
let resetting

export function askReset(bucket, key) {
  resetting = { bucket, key }
  put(byId('reset-key'), keyName(key))
  put(byId('reset-bucket'), bucket)
  byId('reset').showModal()
}

function tell(text) {
  put(byId('toast'), text)
  clearTimeout(timer)
  timer = setTimeout(() => put(byId('toast'), ''), TOLD)
}

/** `forgotten` and `level` in cost units. */
function outcome(key, { forgotten, waiting, level, lastWaitMs }) {
  const whole = cost => count(Number(cost.toFixed(1)))
  const wait = waiting === 0 ? 'nobody waits' : `${count(waiting)} waiting, the last for ${duration(lastWaitMs)}`
  return `${keyName(key)}: ${whole(forgotten)} forgotten, level ${whole(level)}, ${wait}`
}

async function reset({ bucket, key }) {
  try {
    const path = `buckets/${encodeURIComponent(bucket)}/${encodeURIComponent(key)}`
    const answer = await ask(path, { method: 'DELETE' })
    tell(answer.ok ? outcome(key, await answer.json()) : `${keyName(key)} could not be reset: status ${answer.status}`)
  } catch {
    tell(`${keyName(key)} could not be reset: no answer`)
  }
}

byId('reset-no').addEventListener('click', () => byId('reset').close())
byId('reset-yes').addEventListener('click', () => {
  byId('reset').close()
  reset(resetting)
})
