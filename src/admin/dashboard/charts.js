/** A canvas as sharp as the screen, and the colours of the style sheet. */
import { byId, count, make, percent, perSecond, put, timeOfDay } from './format.js'
import { SPAN } from './history.js'
import { load, scope } from './stream.js'

const COLOURS = ['card', 'ink', 'muted', 'line', 'glass', 'arrivals', 'water', 'deep', 'released', 'rejected', 'bad']
let colours

/** The colours by name, and `font`, of the scheme in use (light or dark). A canvas does not know the variables of the style sheet. */
function palette() {
  if (colours === undefined) {
    const probe = document.body.appendChild(make('i'))
    const style = getComputedStyle(probe)
    colours = { font: style.fontFamily }
    for (const name of COLOURS) {
      probe.style.setProperty('color', `var(--${name})`)
      colours[name] = style.color
    }
    probe.remove()
  }
  return colours
}

/** Calls `again` when the scheme has changed. */
export function onScheme(again) {
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    colours = undefined
    again()
  })
}

/** Clears a canvas. Returns its context, scaled to CSS pixels, its size and the palette; undefined while it has no size. */
export function begin(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas
  if (width === 0 || height === 0) return undefined
  const density = Math.min(3, devicePixelRatio || 1)
  const [w, h] = [Math.round(width * density), Math.round(height * density)]
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w
    canvas.height = h
  }
  const context = canvas.getContext('2d')
  context.setTransform(density, 0, 0, density, 0, 0)
  context.clearRect(0, 0, width, height)
  return { context, width, height, colours: palette() }
}

/** Writes text on a canvas; `align` and `baseline` are those of the canvas API. */
export function write(context, text, [x, y], { colour, align = 'left', baseline = 'middle', size = 12, weight = 400 }) {
  context.font = `${weight} ${size}px ${palette().font}`
  context.fillStyle = colour
  context.textAlign = align
  context.textBaseline = baseline
  context.fillText(text, x, y)
}

export function straight(context, from, to, style) {
  line(context, [from, to], style)
}

export function line(context, points, { colour, width, dash = [] }) {
  context.beginPath()
  points.forEach(([x, y], index) => {
    if (index === 0) context.moveTo(x, y)
    else context.lineTo(x, y)
  })
  context.strokeStyle = colour
  context.lineWidth = width
  context.lineJoin = 'round'
  context.setLineDash(dash)
  context.stroke()
  context.setLineDash([])
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find(step => step * power >= value * 0.999) * power
}

function topOf(bins, rate = 0) {
  const most = Math.max(rate * 1.2, ...bins.map(({ offered, released }) => Math.max(offered, released)))
  return roundUp(most === 0 ? 1 : most)
}

/** Arrivals are a bar per second with rejections on top, releases a line. `rate`: undefined if there are several keys. */
export function drawRates(canvas, history, rate, time) {
  const surface = begin(canvas)
  if (surface === undefined) return
  const { context, width, height, colours } = surface
  const bins = history?.bins(time) ?? []
  const box = { left: 34, right: width - 4, top: 12, bottom: height - 20 }
  const most = topOf(bins, rate)
  const y = value => box.bottom - (value / most) * (box.bottom - box.top)
  const x = at => box.right - ((time - at) / SPAN) * (box.right - box.left)

  for (const share of [0, 0.5, 1]) {
    const value = most * share
    straight(context, [box.left, y(value)], [box.right, y(value)], { colour: colours.line, width: 1 })
    write(context, count(value), [box.left - 6, y(value)], { colour: colours.muted, align: 'right', size: 11 })
  }
  const ages = width < 420 ? [60, 30, 0] : [60, 45, 30, 15, 0]
  for (const age of ages) {
    const align = age === 0 ? 'right' : age === 60 ? 'left' : 'center'
    const label = age === 0 ? 'now' : `−${age} s`
    write(context, label, [x(time - age * 1_000), height - 7], { colour: colours.muted, align, size: 11 })
  }

  context.save()
  context.beginPath()
  context.rect(box.left, 0, box.right - box.left, box.bottom)
  context.clip()
  const wide = (box.right - box.left) / (SPAN / 1_000)
  const gap = wide > 6 ? 2 : 1
  for (const { end, offered, rejected } of bins) {
    const turned = Math.min(offered, rejected)
    context.fillStyle = colours.arrivals
    context.fillRect(x(end) - wide + gap, y(offered - turned), wide - gap, box.bottom - y(offered - turned))
    context.fillStyle = colours.rejected
    context.fillRect(x(end) - wide + gap, y(offered), wide - gap, y(offered - turned) - y(offered))
  }
  const limit = rate === undefined ? undefined : { rate, y: y(rate), ...box }
  drawLimit({ context, colours }, limit)
  const points = bins.map(({ end, released }) => [x(end - 500), y(released)])
  // The outline keeps the line visible on the bars.
  line(context, points, { colour: colours.card, width: 5 })
  line(context, points, { colour: colours.released, width: 2.5 })
  labelLimit({ context, colours }, limit)
  context.restore()
}

function drawLimit({ context, colours }, limit) {
  if (limit === undefined) return
  const { left, right, y } = limit
  straight(context, [left, y], [right, y], { colour: colours.ink, width: 1.25, dash: [5, 4] })
}

function labelLimit({ context, colours }, limit) {
  if (limit === undefined) return
  const { rate, y } = limit
  const left = limit.left + 4
  const label = `limit ${perSecond(rate)}`
  context.font = `600 11px ${colours.font}`
  const size = context.measureText(label).width + 10
  context.fillStyle = colours.card
  context.globalAlpha = 0.88
  context.beginPath()
  context.roundRect(left, y - 19, size, 15, 4)
  context.fill()
  context.globalAlpha = 1
  write(context, label, [left + 5, y - 11], { colour: colours.ink, size: 11, weight: 600 })
}

/** How far back single events are shown, in ms: further for a slow bucket. */
export const stripSpan = rate => Math.min(60_000, Math.max(5_000, Math.ceil(8 / rate) * 1_000))

/** Draws arrivals above, as bars of simultaneous ones, and releases below, one tick each. */
export function drawStrip(canvas, history, { rate }, time) {
  const surface = begin(canvas)
  if (surface === undefined) return
  const { context, width, height, colours } = surface
  const span = stripSpan(rate)
  const [left, right] = [34, width - 4]
  const x = at => right - ((time - at) / span) * (right - left)
  const rows = { in: [2, (height - 20) * 0.56], out: [(height - 20) * 0.56 + 8, height - 22] }
  for (const [name, [top, bottom]] of Object.entries(rows)) {
    write(context, name, [left - 8, (top + bottom) / 2], { colour: colours.muted, align: 'right', size: 11 })
    context.fillStyle = colours.glass
    context.fillRect(left, top, right - left, bottom - top)
  }
  for (const age of [span, span / 2, 0]) {
    const align = age === 0 ? 'right' : age === span ? 'left' : 'center'
    const label = age === 0 ? 'now' : `−${age / 1_000} s`
    write(context, label, [x(time - age), height - 7], { colour: colours.muted, align, size: 11 })
  }
  if (history === undefined) return
  const { asked, releases } = history.events
  context.save()
  context.beginPath()
  context.rect(left, 0, right - left, height - 20)
  context.clip()
  drawCrowds({ context, colours }, asked, { from: time - span, to: time, x, box: rows.in })
  const thickness = Math.min(3, Math.max(1, (0.4 * (right - left) * 1_000) / (span * rate)))
  context.fillStyle = colours.released
  for (let i = releases.length - 1; i >= 0 && releases[i] > time - span; i--) {
    if (releases[i] <= time)
      context.fillRect(x(releases[i]) - thickness / 2, rows.out[0], thickness, rows.out[1] - rows.out[0])
  }
  context.restore()
}

/** Draws requests of about the same time as one bar with rejections on top, and the number beside large ones. */
function drawCrowds({ context, colours }, asked, { from, to, x, box: [top, bottom] }) {
  const width = 4
  const step = Math.max(20, ((to - from) * width) / (x(to) - x(from)))
  const crowds = crowdsOf(asked, to, step).filter(({ start }) => start > from)
  const most = Math.max(4, ...crowds.map(({ inside, turned }) => inside + turned))
  const y = value => bottom - (value / most) * (bottom - top - 3)
  let numbered = -Infinity
  for (const { start, inside, turned } of crowds) {
    const all = inside + turned
    context.fillStyle = colours.arrivals
    context.fillRect(x(start), y(inside), width - 0.5, bottom - y(inside))
    context.fillStyle = colours.rejected
    context.fillRect(x(start), y(all), width - 0.5, y(inside) - y(all))
    if (all < 4 || all < most / 2 || x(start) - numbered < 40) continue
    numbered = x(start)
    const isAtEdge = numbered > x(to) - 30
    const place = isAtEdge ? numbered - 4 : numbered + width + 4
    const align = isAtEdge ? 'right' : 'left'
    write(context, count(all), [place, top + 9], { colour: colours.ink, size: 11, weight: 600, align })
  }
}

/** The requests until `to`, in crowds: each holds what came within `step` ms of its first request. */
function crowdsOf(asked, to, step) {
  const crowds = []
  let crowd = { start: -Infinity }
  for (const { time, isTurned } of asked) {
    if (time > to) break
    if (time >= crowd.start + step) {
      crowd = { start: time, inside: 0, turned: 0 }
      crowds.push(crowd)
    }
    crowd[isTurned ? 'turned' : 'inside']++
  }
  return crowds
}

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
  const { value } = await load(`history${query}`)
  if (hourAsked.query !== query) return
  hour = value ?? hour
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

function timesOf({ left, right }) {
  const end = hour === undefined ? Date.now() : hour.from + hour.step * hour.figures.forwarded.length
  return { end, x: at => right - ((end - at) / HOUR) * (right - left) }
}

function drawAxes({ context, width, height, box, end, x, colours }) {
  const every = (width < 420 ? 30 : 15) * 60_000
  for (let at = Math.floor(end / every) * every; at > end - HOUR; at -= every) {
    for (const { top, bottom } of [box, box.strip])
      straight(context, [x(at), top], [x(at), bottom], { colour: colours.line, width: 1 })
    const half = 18
    const place = Math.min(box.right - half, Math.max(box.left + half, x(at)))
    write(context, timeOfDay(at).slice(0, 5), [place, height - 8], { colour: colours.muted, align: 'center', size: 11 })
  }
}

function scale({ context, box, colours }, { top, bottom }, { most, unit }) {
  for (const share of [0, 1]) {
    const y = bottom - share * (bottom - top)
    straight(context, [box.left, y], [box.right, y], { colour: colours.line, width: 1 })
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

function drawMark({ context, box, marked, x, colours }) {
  if (marked === undefined) return
  const at = x(startOf(marked) + hour.step / 2)
  straight(context, [at, box.top], [at, box.strip.bottom], { colour: colours.ink, width: 1 })
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
