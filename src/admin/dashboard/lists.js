/** The lists below the picture, the panel of one key, and the search for keys. */
import {
  byId,
  colour,
  count,
  duration,
  fullness,
  keyName,
  levelText,
  list,
  make,
  moment,
  newcomerText,
  percent,
  perSecond,
  put,
  rateText,
  setShare,
  timeOfDay,
} from './format.js'
import { load, scope } from './stream.js'

const OUTCOMES = ['forwarded', 'rejected', 'cancelled', 'expired', 'failed', 'refused', 'accepted']

function cell(row, label, className = '') {
  const element = row.appendChild(make('td', className))
  element.setAttribute('role', 'cell')
  if (label) element.dataset.label = label
  return element
}

/** A row of a table, as its head has columns. On a phone cells have labels, unless the title of a column is an element of its own. */
function rowOf(id) {
  const row = make('tr')
  row.setAttribute('role', 'row')
  const key = cell(row, '', 'key')
  key.append(make('bdi'))
  const columns = [...byId(id).tHead.rows[0].cells].slice(1)
  const cells = columns.map(head => cell(row, head.firstElementChild ? '' : head.textContent, head.className))
  return { row, name: key.firstChild, key, cells }
}

/** Whether a URL path can hold the key. It cannot hold nothing, `.`, `..` or half a surrogate pair. */
const isInPath = key => key !== '' && key !== '.' && key !== '..' && key.isWellFormed()

function keyButton({ key, name }) {
  const button = make('button', 'link')
  button.type = 'button'
  name.replaceWith(button)
  button.append(name)
  key.prepend(button)
  return button
}

/** `textOf` is the first cell of a row, `cellsOf` the others. With `finish` the first is a button, unless `isText`. */
export function fillTable(id, items, { nameOf, textOf, cellsOf, finish, isText = false }) {
  const create = () => {
    const parts = rowOf(id)
    parts.row.parts = finish === undefined || isText ? parts : { ...parts, button: keyButton(parts) }
    return parts.row
  }
  const fill = ({ parts }, item) => {
    put(parts.name, textOf(item))
    for (const [index, text] of cellsOf(item).entries()) put(parts.cells[index], text)
    finish?.(parts, item)
  }
  byId(id).hidden = items.length === 0
  list(byId(id).tBodies[0], items, { nameOf, create, fill })
}

const opening =
  open =>
  ({ key: cell, button }, { bucket, key }) => {
    cell.title = key
    onKey(button, key, () => open(bucket, key))
  }

/** Gives the button of a key its action. It is disabled if no URL can hold the key. */
function onKey(button, key, run) {
  button.disabled = !isInPath(key)
  button.onclick = run
}

/** `open` shows a key, `reset` asks for a reset of it. `shown`: the key in the picture, if the user has chosen it. */
export function fillKeys(bucket, { open, reset, shown: chosen }) {
  const shown = bucket.fullest
  put(byId('keys-count'), `${count(bucket.keys)} known to ${bucket.name}, ${shown.length} shown`)
  byId('keys').hidden = shown.length === 0
  byId('keys-none').hidden = shown.length > 0
  const create = () => {
    const parts = rowOf('keys')
    const tier = parts.key.appendChild(make('span', 'tier'))
    const level = parts.cells[0].appendChild(make('div', 'level'))
    const bar = level.appendChild(make('span', 'bar')).appendChild(make('i'))
    const text = level.appendChild(make('span', 'n'))
    const button = parts.cells[5].appendChild(make('button', '', 'Reset'))
    button.type = 'button'
    parts.row.parts = { ...parts, opener: keyButton(parts), tier, bar, text, button }
    return parts.row
  }
  const nameOf = ({ key }) => `${bucket.name}\n${key}`
  const fill = ({ parts }, instance) => {
    const { key, tier, level, capacity, waiting, oldestMs, blockedMs, overriddenUntil } = instance
    put(parts.name, keyName(key))
    parts.key.title = key
    put(parts.tier, `${tier === undefined ? '' : ` · ${tier}`}${overriddenUntil === undefined ? '' : ' · overridden'}`)
    setShare(parts.bar, fullness(instance))
    parts.bar.className = fullness(instance) > 0.9 ? 'full' : ''
    put(parts.text, levelText(level, capacity))
    put(parts.cells[1], count(waiting))
    put(parts.cells[2], oldestMs === undefined ? '–' : duration(oldestMs))
    put(parts.cells[3], newcomerText(instance))
    put(parts.cells[4], blockedMs === undefined ? '–' : blockedMs < 0 ? 'until empty' : duration(blockedMs))
    colour(parts.cells[4], blockedMs !== undefined && 'bad')
    parts.button.setAttribute('aria-label', `Reset ${keyName(key)}`)
    onKey(parts.button, key, () => reset(bucket.name, key))
    onKey(parts.opener, key, () => open(bucket.name, key))
    parts.opener.setAttribute('aria-pressed', String(key === chosen))
  }
  list(byId('keys').tBodies[0], shown, { nameOf, create, fill })
}

function entry() {
  const row = make('li')
  const title = row.appendChild(make('div', 'title'))
  row.parts = { name: title.appendChild(make('b')), note: title.appendChild(make('span')) }
  return row
}

/** How long clients wait for answers, and what was not sent because of that. Empty: there is nothing to tell. */
function patienceText({ learntMs, givenUp, lastMinute } = { givenUp: 0 }) {
  const parts = []
  if (learntMs !== undefined) parts.push(`clients leave after about ${duration(learntMs)}`)
  if (learntMs !== undefined || givenUp > 0) parts.push(`${count(lastMinute)} given up in the last minute`)
  return parts.join('; ')
}

export function fillRoutes(routes) {
  const create = () => {
    const row = entry()
    const bar = row.appendChild(make('div', 'bar'))
    bar.setAttribute('aria-hidden', 'true')
    row.parts.bar = OUTCOMES.map(outcome => bar.appendChild(make('i', outcome)))
    row.parts.counts = row.appendChild(make('ul', 'counts'))
    row.parts.patience = row.appendChild(make('div', 'counts patience'))
    return row
  }
  list(byId('routes'), routes, {
    nameOf: route => route.name,
    create,
    fill({ parts }, { name, mode, dryRun, queued, outcomes, coalesced, rehearsed, patience }) {
      put(parts.name, name === '' ? '(no route)' : name)
      put(parts.patience, patienceText(patience))
      put(parts.note, `${mode}${dryRun ? ', dry run' : ''} · ${count(queued)} queued`)
      const total = OUTCOMES.reduce((sum, outcome) => sum + outcomes[outcome], 0)
      OUTCOMES.forEach((outcome, index) => {
        setShare(parts.bar[index], total === 0 ? 0 : outcomes[outcome] / total)
      })
      const entries = OUTCOMES.filter(outcome => outcomes[outcome] > 0).map(kind => [kind, outcomes[kind], kind])
      if (coalesced > 0) entries.splice(1, 0, ['of these shared', coalesced, ''])
      if (dryRun) {
        entries.push(['would reject', rehearsed.would_reject, ''], ['would delay', rehearsed.would_delay, ''])
      } else if (total === 0) {
        entries.push(['forwarded', 0, 'forwarded'])
      }
      const item = ([, , kind]) => {
        const element = make('li')
        if (kind) element.append(make('i', `swatch ${kind}`))
        element.append('')
        return element
      }
      list(parts.counts, entries, {
        nameOf: ([label]) => label,
        create: item,
        fill(element, [label, value]) {
          element.lastChild.data = `${label} ${count(value)}`
        },
      })
    },
  })
}

/** The instances of the store, and what passed since an earlier snapshot. `onChoice` gets a clicked member. */
export function fillMembers({ members = [], shown, at }, earlier, onChoice) {
  const seconds = (at - earlier.at) / 1_000
  byId('members-card').hidden = members.length === 0
  const stateOf = ({ age, draining, storeReady }) => {
    const silent = age > 2_500 && `silent for ${duration(age)}`
    return (draining && 'shutting down') || (!storeReady && 'without the store') || silent || 'serves'
  }
  const cellsOf = member => {
    const old = earlier.members.find(each => each.name === member.name)
    const growth = figure => Math.max(0, member[figure] - old[figure]) / seconds
    const rate = (figure, write = perSecond) => (old === undefined || seconds === 0 ? '–' : write(growth(figure)))
    const passed = ['forwarded', 'rejected', 'errors'].map(figure => rate(figure))
    const { queued, inFlight, waitP99 } = member
    return [count(queued), count(inFlight), ...passed, duration(waitP99), rate('cpu', percent), stateOf(member)]
  }
  const finish = ({ cells, button }, member) => {
    const isShown = member.name === shown
    colour(cells.at(-1), stateOf(member) !== 'serves' && 'bad')
    button.setAttribute('aria-pressed', String(isShown))
    button.title = isShown ? 'Shows all instances again' : 'Shows this instance alone'
    button.onclick = () => onChoice(member)
  }
  fillTable('members', members, {
    nameOf: ({ name }) => name,
    textOf: ({ name, isHere }) => (isHere ? `${name} (here)` : name),
    cellsOf,
    finish,
  })
}

export function fillUpstreams(upstreams) {
  const create = () => {
    const row = entry()
    row.parts.state = row.appendChild(make('div', 'counts'))
    row.parts.servers = row.appendChild(make('ul', 'servers'))
    return row
  }
  list(byId('upstreams'), upstreams, {
    nameOf: upstream => upstream.url,
    create,
    fill({ parts }, { url, inFlight, trouble, probeMs, silent, allows, servers = [] }) {
      put(parts.name, servers.length < 2 ? url : `${servers.length} servers`)
      put(parts.note, `${count(inFlight)} in flight`)
      put(parts.state, (trouble ?? 'ready') + (allows === undefined ? '' : `; allows ${perSecond(allows)}`))
      const isBad = probeMs !== undefined || silent !== undefined
      colour(parts.state, isBad ? 'bad' : trouble === undefined ? 'good' : 'warn')
      parts.servers.hidden = servers.length < 2
      list(parts.servers, servers, { nameOf: server => server.url, create: entry, fill: fillServer })
    },
  })
}

function fillServer({ parts }, { url, isUp, inFlight, maxInFlight, weight, backup, part, probeMs, failure }) {
  put(parts.name, url)
  const state = isUp
    ? `up${part === undefined ? '' : `, warms up: ${percent(part)}`}`
    : `down${failure === undefined ? '' : `: ${failure}`}${probeMs > 0 ? `; tried again in ${duration(probeMs)}` : ''}`
  const facts = [
    `${count(inFlight)}${maxInFlight === undefined ? '' : ` of ${count(maxInFlight)}`} in flight`,
    ...(weight === 1 ? [] : [`weight ${weight}`]),
    ...(backup ? ['backup'] : []),
    state,
  ]
  put(parts.note, facts.join(' · '))
  colour(parts.note, isUp ? (part === undefined ? false : 'warn') : 'bad')
}

export function fillDryRun(dryRun, open) {
  byId('dry').hidden = dryRun === undefined
  if (dryRun === undefined) return
  put(byId('dry-since'), `since ${timeOfDay(dryRun.since)}`)
  const agents = Object.entries(dryRun.agents).filter(
    ([, { would_reject, would_delay }]) => would_reject + would_delay > 0,
  )
  const all = agents.reduce((sum, [, { would_reject, would_delay }]) => sum + would_reject + would_delay, 0)
  list(byId('agents'), agents, {
    nameOf: ([agent]) => agent,
    create: () => make('li'),
    fill(element, [agent, { would_reject, would_delay }]) {
      const share = percent((would_reject + would_delay) / all)
      put(element, `${agent} ${share}: ${count(would_reject)} rejected, ${count(would_delay)} delayed`)
    },
  })
  byId('dry-none').hidden = dryRun.keys.length > 0
  fillTable('dry-keys', dryRun.keys, {
    nameOf: each => JSON.stringify([each.route, each.bucket, each.key, each.agent]),
    textOf: ({ key }) => keyName(key),
    cellsOf({ route, bucket, agent, wouldReject, wouldDelay, longestWait }) {
      return [route, bucket, agent, count(wouldReject), count(wouldDelay), duration(longestWait)]
    },
    finish: opening(open),
  })
}

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

export function toast(text) {
  put(byId('toast'), text)
  clearTimeout(timer)
  timer = setTimeout(() => put(byId('toast'), ''), SHOWN)
}

function outcome(key, { forgotten, waiting, level, lastWaitMs }) {
  const whole = cost => count(Number(cost.toFixed(1)))
  const wait = waiting === 0 ? 'nobody waits' : `${count(waiting)} waiting, the last for ${duration(lastWaitMs)}`
  return `${keyName(key)}: ${whole(forgotten)} forgotten, level ${whole(level)}, ${wait}`
}

async function reset({ bucket, key }) {
  const { value, fault } = await load(pathOf({ bucket, key }), { method: 'DELETE' })
  toast(value ? outcome(key, value) : `${keyName(key)} could not be reset: ${fault}`)
}

byId('reset-no').addEventListener('click', () => byId('reset').close())
byId('reset-yes').addEventListener('click', () => {
  byId('reset').close()
  reset(resetting)
})

/** How often an open panel asks for its key, in ms. */
const PANEL_EVERY = 1_000
/** The key that is shown: { bucket, key }. */
let panelKey
let panelTimer

const pathOf = ({ bucket, key }) => `buckets/${encodeURIComponent(bucket)}/${encodeURIComponent(key)}`

/** Opens the panel of a key, and lets the picture follow it. */
export function askKey(bucket, key) {
  panelKey = { bucket, key }
  scope.watch(panelKey)
  put(byId('key-title'), keyName(key))
  put(byId('key-bucket'), bucket)
  put(byId('key-note'), '')
  byId('key-facts').hidden = true
  byId('override').reset()
  if (!byId('key-panel').open) byId('key-panel').showModal()
  void refreshPanel()
}

async function refreshPanel() {
  clearTimeout(panelTimer)
  const asked = panelKey
  const { value, fault } = await load(pathOf(asked))
  if (asked !== panelKey || !byId('key-panel').open) return
  panelTimer = setTimeout(refreshPanel, PANEL_EVERY)
  if (value) fillPanel(value)
  else put(byId('key-state'), `Not known: ${fault}; trying again`)
}

function blockOf({ blockedMs }) {
  if (blockedMs === undefined) return ''
  return blockedMs < 0 ? ' · blocked until empty' : ` · blocked ${duration(blockedMs)}`
}

function fillPanel(state) {
  const { hash, tier, level, capacity, waiting, inFlight, routes, recent, override } = state
  byId('key-facts').hidden = false
  put(byId('key-state'), `${hash} in the log${tier === undefined ? '' : ` · tier ${tier}`}${blockOf(state)}`)
  const figures = {
    level: levelText(level, capacity),
    rate: rateText(state),
    waiting: count(waiting),
    'in-flight': count(inFlight),
    newcomer: newcomerText(state),
  }
  for (const [name, text] of Object.entries(figures)) put(byId(`key-${name}`), text)
  list(byId('key-routes'), Object.entries(routes), {
    nameOf: ([name]) => name,
    create: () => make('li'),
    fill: (element, [name, outlook]) => put(element, routeText(name, outlook)),
  })
  put(byId('override-state'), override === undefined ? '' : overrideText(override))
  byId('override-end').hidden = override === undefined
  fillRecent(recent)
}

function routeText(name, outlook) {
  const { heldBy, rejected, assumed } = outlook
  const idle = assumed.length === 0 ? '' : `; ${assumed.join(', ')} taken as idle`
  const held = heldBy === undefined ? '' : `; ${heldBy.join(', ')}`
  if (rejected === undefined) return `${name}: a newcomer waits ${newcomerText(outlook)}${held}${idle}`
  const { reason, bucket, retryAfterMs } = rejected
  const again = retryAfterMs === undefined ? '' : `, again in ${duration(retryAfterMs)}`
  return `${name}: a newcomer is rejected (${reason}${bucket && ` of ${bucket}`}${again})${idle}`
}

function overrideText({ rate, capacity, until }) {
  const limits = [
    rate !== undefined && `rate ${perSecond(rate)}`,
    capacity !== undefined && `capacity ${count(capacity)}`,
  ].filter(Boolean)
  return `Overridden until ${moment(until)}: ${limits.join(', ')}.`
}

function fillRecent(recent) {
  byId('recent-none').hidden = recent.length > 0
  const latest = recent.map((each, place) => ({ ...each, place })).reverse()
  fillTable('recent', latest, {
    nameOf: ({ at, place }) => `${at} ${place}`,
    textOf: ({ at }) => timeOfDay(at),
    cellsOf({ route, outcome, status, waitMs, upstreamMs, reason }) {
      const ended = `${reason === undefined ? outcome : `${outcome}: ${reason}`}, ${status}`
      return [route, ended, duration(waitMs), upstreamMs === undefined ? '–' : duration(upstreamMs)]
    },
  })
}

async function setOverride(change) {
  const asked = panelKey
  const { detail = '' } = await load(pathOf(asked), {
    method: 'PUT',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(change),
  })
  if (asked === panelKey) put(byId('key-note'), detail)
  void refreshPanel()
}

byId('override').addEventListener('submit', event => {
  event.preventDefault()
  const [rate, capacity, until] = ['rate', 'capacity', 'until'].map(name => byId(`override-${name}`).value.trim())
  setOverride({ ...(rate && { rate }), ...(capacity && { capacity: Number(capacity) }), until })
})
byId('override-end').addEventListener('click', () => setOverride({ until: 'now' }))
byId('key-picture').addEventListener('click', () => {
  byId('key-panel').close()
  byId('stage').scrollIntoView()
  byId('all-keys').focus()
})
byId('key-close').addEventListener('click', () => byId('key-panel').close())
byId('key-reset').addEventListener('click', () => askReset(panelKey.bucket, panelKey.key))
byId('key-panel').addEventListener('close', () => clearTimeout(panelTimer))

/** How often overrides are asked for, in ms. */
const OVERRIDES_EVERY = 5_000

/** Fills a table whose rows belong to keys: `cellsOf` gives the texts after the key. */
function fillKeyTable(id, items, cellsOf) {
  fillTable(id, items, {
    nameOf: ({ bucket, key }) => `${bucket}\n${key}`,
    textOf: ({ key }) => keyName(key),
    cellsOf,
    finish: opening(askKey),
  })
}

function showFound({ buckets }) {
  const found = buckets.flatMap(({ name, fullest }) => fullest.map(instance => ({ ...instance, bucket: name })))
  fillKeyTable('found', found, found => {
    return [found.bucket, levelText(found.level, found.capacity), count(found.waiting), newcomerText(found)]
  })
  const more = buckets.filter(({ hasMore }) => hasMore).map(({ name }) => name)
  const rest = more.length > 0 ? `There are more in ${more.join(', ')}: write more of the key.` : ''
  put(byId('found-note'), found.length === 0 ? 'No key has this text or this hash.' : rest)
}

function fillOverrides(overrides) {
  byId('overrides-card').hidden = overrides.length === 0
  put(byId('overrides-count'), count(overrides.length))
  fillKeyTable('overrides', overrides, ({ bucket, rate, capacity, until }) => [
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
  const { value } = await load('overrides')
  if (value) fillOverrides(value.overrides)
}

byId('find').addEventListener('submit', async event => {
  event.preventDefault()
  const sought = byId('find-text').value.trim()
  if (sought === '') return
  put(byId('found-note'), 'Looking …')
  const { value, fault } = await load(`buckets?q=${encodeURIComponent(sought)}`)
  if (value) showFound(value)
  else put(byId('found-note'), `Not known: ${fault}`)
})

byId('find').addEventListener('reset', () => {
  byId('found').hidden = true
  put(byId('found-note'), '')
})
