/** Figures in readable form, and helpers that change the document. Text enters it as text only, never as HTML. */

/** 0.25, 7.2, 38, 1.2k, 3.4M */
export function count(value) {
  if (value === 0) return '0'
  const steps = ['', 'k', 'M', 'G']
  let step = 0
  let rest = value
  while (Math.abs(rest) >= 999.5 && step < steps.length - 1) {
    rest /= 1_000
    step++
  }
  const size = Math.abs(rest)
  return `${Number(rest.toFixed(size < 0.995 ? 2 : size < 99.95 ? 1 : 0))}${steps[step]}`
}

/** null: it bounds requests in flight only. */
export const perSecond = rate => (rate === null ? 'any rate' : `${count(rate)}/s`)

/** The rate of a bucket or a key, or until when a quota counts. */
export const rateText = ({ rate, quotaEnds }) =>
  quotaEnds === undefined ? perSecond(rate) : `until ${moment(quotaEnds)}`

export const percent = share => `${Math.round(share * 100)} %`

/** How full a bucket is. One that holds any amount has a capacity of null and is never full. */
export const fullness = ({ level, capacity }) => (capacity === null ? 0 : level / capacity)
export const amount = capacity => (capacity === null ? 'any amount' : count(capacity))

/** What a bucket holds, of what it holds at most if there is such a bound. */
export const levelText = (level, capacity, between = '/') => {
  const held = count(Number(level.toFixed(1)))
  return capacity === null ? held : `${held} ${between} ${count(capacity)}`
}

/** How full a bucket is: a part of its capacity, or what it holds if it has none. */
export const fullnessText = instance =>
  instance.capacity === null ? levelText(instance.level, null) : percent(fullness(instance))

/** From ms: 0 ms, 1.2 ms, 250 ms, 1.8 s, 4.5 min, 3 h, 12 d */
export function duration(ms) {
  if (ms < 999.5) return `${Number(ms.toFixed(ms < 9.95 ? 1 : 0))} ms`
  const units = [
    [60_000, 1_000, 's'],
    [3_600_000, 60_000, 'min'],
    [86_400_000, 3_600_000, 'h'],
    [Infinity, 86_400_000, 'd'],
  ]
  const [, size, name] = units.find(([below]) => ms < below)
  return `${Number((ms / size).toFixed(1))} ${name}`
}

/** How long a newcomer waits. What else holds it does so for an unknown time. */
export const newcomerText = ({ predictedWaitMs, heldBy }) =>
  `${heldBy === undefined ? '' : 'at least '}${duration(predictedWaitMs)}`

/** The local time of day. */
export const timeOfDay = at => new Date(at).toLocaleTimeString([], { hour12: false })

/** The local time, with the date if it is not within a day. */
export const moment = at =>
  Math.abs(new Date(at) - Date.now()) < 86_400_000 ? timeOfDay(at) : new Date(at).toLocaleString([], { hour12: false })

/** The key as shown. A dry run lists requests without the key of its bucket under the empty key. */
export const keyName = key => (key === '' ? '(no key)' : key)
export const byId = id => document.getElementById(id)

export function make(tag, className, text) {
  const element = document.createElement(tag)
  if (className) element.className = className
  if (text !== undefined) element.textContent = text
  return element
}

/** Sets a text where it differs. An unchanged text stays selected and causes no layout. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/** Gives a figure the colour of its state: `good`, `warn` or `bad`. False: none. */
export function colour(element, tone) {
  for (const each of ['good', 'warn', 'bad']) element.classList.toggle(each, each === tone)
}

/**
 * Shows one child for each item, in the order of the items. A child is created once per name and filled every time.
 * While the pointer or the keyboard's focus is in the list, children keep their places.
 */
export function list(parent, unordered, { nameOf, create, fill }) {
  parent.kept ??= new Map()
  const kept = parent.kept
  const names = new Set(unordered.map(nameOf))
  for (const [name, child] of kept) {
    if (names.has(name)) continue
    child.remove()
    kept.delete(name)
  }
  const isInUse = parent.matches(':hover') || parent.contains(document.activeElement)
  const place = item => {
    const at = [...parent.children].indexOf(kept.get(nameOf(item)))
    return at < 0 ? kept.size : at
  }
  const items = isInUse ? unordered.toSorted((a, b) => place(a) - place(b)) : unordered
  items.forEach((item, index) => {
    const name = nameOf(item)
    let child = kept.get(name)
    if (child === undefined) {
      child = create(item)
      kept.set(name, child)
    }
    fill(child, item)
    // A child that is moved loses the keyboard's focus, so only children out of place are moved.
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null)
  })
}

export function setShare(fill, share) {
  fill.style.setProperty('inline-size', `${(Math.min(1, Math.max(0, share)) * 100).toFixed(1)}%`)
}
