/** Finds keys by a text, and lists the keys whose limits are overridden. */
import { byId, count, keyName, levelText, list, moment, newcomerText, perSecond, put } from '../format.js'
import { ask } from '../stream.js'
import { askKey } from './key-panel.js'
import { keyButton, onKey, rowOf } from './tables.js'

/** How often overrides are asked for, in ms. */
const OVERRIDES_EVERY = 5_000

/** Fills a table whose rows belong to keys: `cellsOf` gives the texts after the key. */
function fillKeyTable(id, labels, items, cellsOf) {
  const create = () => {
    const parts = rowOf('key', labels)
    parts.row.parts = { ...parts, button: keyButton(parts) }
    return parts.row
  }
  const fill = ({ parts }, item) => {
    put(parts.name, keyName(item.key))
    parts.key.title = item.key
    onKey(parts.button, item.key, () => askKey(item.bucket, item.key))
    for (const [index, text] of cellsOf(item).entries()) put(parts.cells[index], text)
  }
  byId(id).hidden = items.length === 0
  list(byId(id).tBodies[0], items, { nameOf: ({ bucket, key }) => `${bucket}\n${key}`, create, fill })
}

function showFound({ buckets }) {
  const found = buckets.flatMap(({ name, fullest }) => fullest.map(instance => ({ ...instance, bucket: name })))
  const labels = [['bucket'], ['level', 'n'], ['waiting', 'n'], ['a newcomer waits', 'n']]
  fillKeyTable('found', labels, found, found => [
    found.bucket,
    levelText(found.level, found.capacity),
    count(found.waiting),
    newcomerText(found),
  ])
  const more = buckets.filter(({ hasMore }) => hasMore).map(({ name }) => name)
  const rest = more.length > 0 ? `There are more in ${more.join(', ')}: write more of the key.` : ''
  put(byId('found-note'), found.length === 0 ? 'No key has this text or this hash.' : rest)
}

function fillOverrides(overrides) {
  byId('overrides-card').hidden = overrides.length === 0
  put(byId('overrides-count'), count(overrides.length))
  const labels = [['bucket'], ['rate', 'n'], ['capacity', 'n'], ['until', 'n']]
  fillKeyTable('overrides', labels, overrides, ({ bucket, rate, capacity, until }) => [
    bucket,
    rate === undefined ? '–' : perSecond(rate),
    capacity === undefined ? '–' : count(capacity),
    moment(until),
  ])
}

let overridesAskedAt = -Infinity

/** Asks for the overrides, unless that was just done. Without an answer the list stays as it is. */
export async function askOverrides() {
  if (performance.now() - overridesAskedAt < OVERRIDES_EVERY) return
  overridesAskedAt = performance.now()
  try {
    const answer = await ask('overrides')
    if (answer.ok) fillOverrides((await answer.json()).overrides)
  } catch {
    // Asked again later.
  }
}

byId('find').addEventListener('submit', async event => {
  event.preventDefault()
  const sought = byId('find-text').value.trim()
  if (sought === '') return
  put(byId('found-note'), 'Looking …')
  try {
    const answer = await ask(`buckets?q=${encodeURIComponent(sought)}`)
    if (answer.ok) showFound(await answer.json())
    else put(byId('found-note'), `No answer: status ${answer.status}`)
  } catch {
    put(byId('found-note'), 'No answer')
  }
})

byId('find').addEventListener('reset', () => {
  byId('found').hidden = true
  put(byId('found-note'), '')
})
