/** The lists below the picture: keys, routes, upstreams and dry runs. */
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
  newcomerText,
  percent,
  perSecond,
  put,
  setShare,
  timeOfDay,
} from '../format.js'

const OUTCOMES = ['forwarded', 'rejected', 'cancelled', 'expired', 'failed', 'refused']

function cell(row, label, className = '') {
  const element = row.appendChild(make('td', className))
  element.setAttribute('role', 'cell')
  if (label) element.dataset.label = label
  return element
}

export function rowOf(className, labels) {
  const row = make('tr')
  row.setAttribute('role', 'row')
  const key = cell(row, '', className)
  key.append(make('bdi'))
  const cells = labels.map(([label, kind]) => cell(row, label, kind))
  return { row, name: key.firstChild, key, cells }
}

/** Whether a URL path can hold the key. It cannot hold nothing, `.`, `..` or half a surrogate pair. */
const isInPath = key => key !== '' && key !== '.' && key !== '..' && key.isWellFormed()

/** Makes the name of a row's key a button. */
export function keyButton({ key, name }) {
  const button = make('button', 'link')
  button.type = 'button'
  name.replaceWith(button)
  button.append(name)
  key.prepend(button)
  return button
}

/** Gives the button of a key its action. It is disabled if no URL can hold the key. */
export function onKey(button, key, run) {
  button.disabled = !isInPath(key)
  button.onclick = run
}

/**
 * @param actions what to do with a bucket and a key: `open` shows it, `reset` asks for a reset. `shown`: the key in the picture, if the
 *   user has chosen it
 */
export function fillKeys(bucket, { open, reset, shown: chosen }) {
  const shown = bucket.fullest
  put(byId('keys-count'), `${count(bucket.keys)} known to ${bucket.name}, ${shown.length} shown`)
  byId('keys').hidden = shown.length === 0
  byId('keys-none').hidden = shown.length > 0
  const create = () => {
    const parts = rowOf('key', [
      ['', 'level-cell'],
      ['waiting', 'n'],
      ['the oldest for', 'n'],
      ['a newcomer waits', 'n'],
      ['blocked', 'n'],
      ['', ''],
    ])
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

/**
 * The instances of the store, with what passed since an earlier snapshot.
 *
 * @param onChoice called with the member that the user clicks
 */
export function fillMembers({ members = [], shown, at }, earlier, onChoice) {
  const seconds = (at - earlier.at) / 1_000
  byId('members-card').hidden = members.length === 0
  const labels = [
    ['queued', 'n'],
    ['in flight', 'n'],
    ['forwarded', 'n'],
    ['rejected', 'n'],
    ['errors', 'n'],
    ['wait p99', 'n'],
    ['CPU', 'n'],
    ['state', ''],
  ]
  const create = () => {
    const parts = rowOf('key', labels)
    const button = make('button', 'link')
    button.type = 'button'
    button.append(parts.name)
    parts.key.append(button)
    parts.row.parts = { ...parts, button }
    return parts.row
  }
  const fill = ({ parts }, member) => {
    const { name, isHere, age, draining, storeReady, queued, inFlight, waitP99 } = member
    const old = earlier.members.find(each => each.name === name)
    const growth = figure => Math.max(0, member[figure] - old[figure]) / seconds
    const rate = (figure, write = perSecond) => (old === undefined || seconds === 0 ? '–' : write(growth(figure)))
    const silent = age > 2_500 && `silent for ${duration(age)}`
    const state = (draining && 'shutting down') || (!storeReady && 'without the store') || silent || 'serves'
    put(parts.name, isHere ? `${name} (here)` : name)
    const passed = ['forwarded', 'rejected', 'errors'].map(figure => rate(figure))
    const texts = [count(queued), count(inFlight), ...passed, duration(waitP99), rate('cpu', percent), state]
    for (const [index, text] of texts.entries()) put(parts.cells[index], text)
    colour(parts.cells.at(-1), state !== 'serves' && 'bad')
    parts.button.setAttribute('aria-pressed', String(name === shown))
    parts.button.title = name === shown ? 'Shows all instances again' : 'Shows this instance alone'
    parts.button.onclick = () => onChoice(member)
  }
  list(byId('members').tBodies[0], members, { nameOf: ({ name }) => name, create, fill })
}

export function fillUpstreams(upstreams) {
  const create = () => {
    const row = entry()
    row.parts.state = row.appendChild(make('div', 'counts'))
    return row
  }
  list(byId('upstreams'), upstreams, {
    nameOf: upstream => upstream.url,
    create,
    fill({ parts }, { url, inFlight, trouble, probeMs, silent, allows }) {
      put(parts.name, url)
      put(parts.note, `${count(inFlight)} in flight`)
      put(parts.state, (trouble ?? 'ready') + (allows === undefined ? '' : `; allows ${perSecond(allows)}`))
      const isBad = probeMs !== undefined || silent !== undefined
      colour(parts.state, isBad ? 'bad' : trouble === undefined ? 'good' : 'warn')
    },
  })
}

/** @param open shows the key of a bucket */
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
  byId('dry-keys').hidden = dryRun.keys.length === 0
  byId('dry-none').hidden = dryRun.keys.length > 0
  const labels = [['route'], ['bucket'], ['agent'], ['rejected', 'n'], ['delayed', 'n'], ['longest wait', 'n']]
  const create = () => {
    const parts = rowOf('key', labels)
    parts.row.parts = { ...parts, opener: keyButton(parts) }
    return parts.row
  }
  const nameOf = each => JSON.stringify([each.route, each.bucket, each.key, each.agent])
  const fill = ({ parts }, each) => {
    put(parts.name, keyName(each.key))
    parts.key.title = each.key
    const { route, bucket, agent, wouldReject, wouldDelay, longestWait } = each
    onKey(parts.opener, each.key, () => open(bucket, each.key))
    const texts = [route, bucket, agent, count(wouldReject), count(wouldDelay), duration(longestWait)]
    texts.forEach((text, index) => {
      put(parts.cells[index], text)
    })
  }
  list(byId('dry-keys').tBodies[0], dryRun.keys, { nameOf, create, fill })
}
