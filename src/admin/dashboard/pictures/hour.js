/** The last hour at ten seconds a step: of all requests, and of the bucket in focus. */
import { byId, count, percent, perSecond, put, timeOfDay } from '../format.js'
import { ask, scope } from '../stream.js'
import { begin, line, onScheme, write } from './canvas.js'
import { roundUp } from './charts.js'

const HOUR = 3_600_000
/** How often the hour is asked for, in ms. */
const ASK_EVERY = 10_000
/** Where the picture is in its canvas, in CSS pixels; the strip of those that wait is below it. */
const FRAME = { left: 38, right: 6, top: 8, bottom: 20, strip: 46, between: 14 }

const PICTURES = {
  all: {
    canvas: byId('hour-all'),
    now: byId('hour-all-now'),
    what: 'all requests',
    lists: ({ figures }) => figures,
    bars: [
      ['forwarded', 'released', 'forwarded'],
      ['rejected', 'rejected', 'rejected'],
    ],
    line: ['errors', 'bad', 'errors'],
  },
  bucket: {
    canvas: byId('hour-bucket'),
    now: byId('hour-bucket-now'),
    what: 'a bucket',
    lists: ({ buckets }) => (Object.hasOwn(buckets, named) ? buckets[named] : undefined),
    bars: [
      ['inside', 'arrivals', 'let in'],
      ['rejected', 'rejected', 'turned away'],
    ],
    line: ['released', 'released', 'released'],
  },
}

let hour
/** The bucket in focus. */
let named
let hourAsked = { at: -Infinity, query: undefined }

/** Shows the hour of a bucket beside that of all requests, and asks for a newer one when it is time. */
export function showHour(bucket) {
  const isOther = bucket !== named
  named = bucket
  const query = scope.instance === undefined ? '' : `?instance=${encodeURIComponent(scope.instance)}`
  if (query !== hourAsked.query || performance.now() - hourAsked.at > ASK_EVERY) loadHour(query)
  else if (isOther) drawHour()
}

async function loadHour(query) {
  if (query !== hourAsked.query) hour = undefined
  hourAsked = { at: performance.now(), query }
  try {
    const answer = await ask(`history${query}`)
    if (!answer.ok || hourAsked.query !== query) return
    hour = await answer.json()
  } catch {
    // The connection is lost, and the page says so.
  }
  drawHour()
}

function drawHour() {
  for (const picture of Object.values(PICTURES)) drawHourPicture(picture)
}

/** The lists to draw, by figure. Undefined: nothing is known. */
function listsOf({ lists }) {
  const found = hour && lists(hour)
  if (found === undefined || found.rejected.length === 0) return undefined
  const inside = found.offered?.map((offered, at) => offered && Math.max(0, offered - found.rejected[at]))
  return { ...found, inside }
}

function drawHourPicture(picture) {
  const lists = listsOf(picture)
  sayHour(picture, lists)
  const surface = begin(picture.canvas)
  if (surface === undefined) return
  const { width, height } = surface
  const strip = { top: height - FRAME.bottom - FRAME.strip, bottom: height - FRAME.bottom }
  const box = {
    ...{ left: FRAME.left, right: width - FRAME.right, top: FRAME.top, bottom: strip.top - FRAME.between },
    strip,
  }
  const scene = { ...surface, box, lists, marked: picture.marked, ...timesOf(box) }
  drawAxes(scene)
  if (lists === undefined) return
  drawRatesOfHour(scene, picture)
  drawWaiting(scene)
  drawMark(scene)
}

/** When the last step ended, and where a time is. */
function timesOf({ left, right }) {
  const end = hour === undefined ? Date.now() : hour.from + hour.step * hour.figures.forwarded.length
  return { end, x: at => right - ((end - at) / HOUR) * (right - left) }
}

/** A mark at each quarter of an hour. */
function drawAxes({ context, width, height, box, end, x, colours }) {
  const every = (width < 420 ? 30 : 15) * 60_000
  for (let at = Math.floor(end / every) * every; at > end - HOUR; at -= every) {
    for (const { top, bottom } of [box, box.strip]) {
      const mark = [
        [x(at), top],
        [x(at), bottom],
      ]
      line(context, mark, { colour: colours.line, width: 1 })
    }
    const half = 18
    const place = Math.min(box.right - half, Math.max(box.left + half, x(at)))
    write(context, timeOfDay(at).slice(0, 5), [place, height - 8], { colour: colours.muted, align: 'center', size: 11 })
  }
}

/** Draws the two ends of an axis. Returns where a value is. */
function scale({ context, box, colours }, { top, bottom }, { most, unit }) {
  for (const share of [0, 1]) {
    const y = bottom - share * (bottom - top)
    const mark = [
      [box.left, y],
      [box.right, y],
    ]
    line(context, mark, { colour: colours.line, width: 1 })
    const label = count(most * share) + (share === 0 ? '' : unit)
    write(context, label, [box.left - 6, y], { colour: colours.muted, align: 'right', size: 11 })
  }
  return value => bottom - (value / most) * (bottom - top)
}

/** Where a step begins and how wide it is, in whole pixels, so that there is no gap between two. */
function edges({ x }, step) {
  const from = Math.round(x(startOf(step)))
  return [from, Math.max(1, Math.round(x(startOf(step + 1))) - from)]
}

/** The line through the steps of a list. It breaks where nothing is known. */
function stepPoints({ x }, list, y) {
  const parts = [[]]
  list.forEach((value, at) => {
    if (value === null) parts.push([])
    else parts.at(-1).push([x(startOf(at) + hour.step / 2), y(value)])
  })
  return parts
}

/** Bars on top of each other, and a line in front of them, per second. */
function drawRatesOfHour(scene, { bars, line: [figure, colour] }) {
  const { context, lists, colours, box } = scene
  const seconds = hour.step / 1_000
  const tops = bars.map(([name]) => lists[name]).reduce((sums, list) => sums.map((sum, at) => sum + list[at]))
  const y = scale(scene, box, { most: roundUp(Math.max(1, ...tops, ...lists[figure]) / seconds), unit: '/s' })
  const below = tops.map(() => 0)
  for (const [name, fill] of bars) {
    context.fillStyle = colours[fill]
    lists[name].forEach((value, at) => {
      if (!value) return
      const [from, wide] = edges(scene, at)
      const [low, high] = [y(below[at] / seconds), y((below[at] + value) / seconds)]
      below[at] += value
      context.fillRect(from, high, wide, low - high)
    })
  }
  const parts = stepPoints(scene, lists[figure], value => y(value / seconds))
  for (const part of parts) line(context, part, { colour: colours.card, width: 3.5 })
  for (const part of parts) line(context, part, { colour: colours[colour], width: 1.75 })
}

const startOf = step => hour.from + step * hour.step

/** How many waited at the end of each step. */
function drawWaiting(scene) {
  const { context, lists, colours, box } = scene
  const y = scale(scene, box.strip, { most: roundUp(Math.max(1, ...lists.waiting)), unit: '' })
  context.fillStyle = colours.water
  lists.waiting.forEach((value, at) => {
    if (!value) return
    const [from, wide] = edges(scene, at)
    context.fillRect(from, y(value), wide, box.strip.bottom - y(value))
  })
  write(context, 'waiting', [box.left + 6, box.strip.top + 8], { colour: colours.ink, size: 11 })
}

/** The step under the pointer. */
function drawMark({ context, box, marked, x, colours }) {
  if (marked === undefined) return
  const at = x(startOf(marked) + hour.step / 2)
  const mark = [
    [at, box.top],
    [at, box.strip.bottom],
  ]
  line(context, mark, { colour: colours.ink, width: 1 })
}

/** Says what the step under the pointer holds, or else how many waited at most. */
function sayHour(picture, lists) {
  const { now, canvas, marked, what, bars, line: front } = picture
  if (lists === undefined) {
    put(now, 'nothing known yet')
    canvas.setAttribute('aria-label', `The last hour of ${what}: nothing known yet`)
    return
  }
  const most = lists.waiting.reduce((best, value, at) => (value > lists.waiting[best] ? at : best), 0)
  const rate = ([name, , label], at) => `${perSecond(lists[name][at] / (hour.step / 1_000))} ${label}`
  const stepText = at => {
    const parts = [...bars, front].map(each => rate(each, at))
    const busy = lists.cpu === undefined ? [] : [`CPU ${percent(lists.cpu[at] / (hour.step / 1_000))}`]
    return [`${timeOfDay(startOf(at))}: ${parts.join(', ')}`, `${count(lists.waiting[at])} waiting`, ...busy].join(', ')
  }
  const peak =
    lists.waiting[most] > 0
      ? `at most ${count(lists.waiting[most])} waiting, at ${timeOfDay(startOf(most) + hour.step)}`
      : 'nobody waited'
  const isKnown = marked !== undefined && lists.waiting[marked] !== null && lists.waiting[marked] !== undefined
  put(now, isKnown ? stepText(marked) : peak)
  canvas.setAttribute('aria-label', `The last hour of ${what}: ${peak}; ${stepText(lists.waiting.length - 1)}`)
}

/** Marks the step under the pointer. */
function watchPointer(picture) {
  const { canvas } = picture
  const mark = step => {
    if (step === picture.marked) return
    picture.marked = step
    drawHourPicture(picture)
  }
  canvas.addEventListener('pointermove', ({ offsetX }) => {
    if (hour === undefined) return
    const [left, right] = [FRAME.left, canvas.clientWidth - FRAME.right]
    const ago = Math.floor(((right - offsetX) / (right - left)) * (HOUR / hour.step))
    const step = hour.figures.forwarded.length - 1 - ago
    mark(ago >= 0 && step >= 0 ? step : undefined)
  })
  canvas.addEventListener('pointerleave', () => mark(undefined))
}

onScheme(drawHour)
const hourResized = new ResizeObserver(drawHour)
for (const picture of Object.values(PICTURES)) {
  watchPointer(picture)
  hourResized.observe(picture.canvas)
}
