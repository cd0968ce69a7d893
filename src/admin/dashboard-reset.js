/** Emptying one instance of a bucket, after a question. */
import { byId, keyName, put } from './dashboard-format.js'
import { ask } from './dashboard-stream.js'

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

async function reset({ bucket, key }) {
  try {
    const path = `buckets/${encodeURIComponent(bucket)}/${encodeURIComponent(key)}`
    const { ok, status } = await ask(path, { method: 'DELETE' })
    tell(ok ? `${keyName(key)} starts again at 0` : `${keyName(key)} could not be emptied: status ${status}`)
  } catch {
    tell(`${keyName(key)} could not be emptied: no answer`)
  }
}

byId('reset-no').addEventListener('click', () => byId('reset').close())
byId('reset-yes').addEventListener('click', () => {
  byId('reset').close()
  reset(resetting)
})
