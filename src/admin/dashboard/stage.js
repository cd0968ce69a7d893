/** The three pictures. They are drawn every frame while they are visible and moving, else when a snapshot arrives. */
import { begin, drawRates, drawStrip, line, onScheme, straight, write } from './charts.js'
import { byId, count, levelText, put } from './format.js'
import { scope } from './stream.js'

/**
 * How far the pictures are behind the server, in ms: by then the events that they show have arrived. Those of other instances
 * come once a second to the store, and once a second from there.
 */
const behind = () => scope.interval * (scope.isOfOthers ? 2.2 : 1.2) + 50 + FALL
const stillness = matchMedia('(prefers-reduced-motion: reduce)')
const visible = new Set()
export const canvases = { bucket: byId('bucket'), rates: byId('rates'), strip: byId('strip') }
/** { bucket, history, clock, isTapShut }; undefined while there is nothing to draw. */
let scene
let latest
let isHalted = false
let isPaused = false
let isScheduled = false
let drawnAt
/** Whether to draw the rates: they change with each snapshot only. */
let areRatesDue = false

/** Sets the scene to draw from now on. */
export function stage(next) {
  latest = next
  isHalted = false
  byId('pause').hidden = next === undefined || stillness.matches
  if (isPaused && scene !== undefined && !byId('pause').hidden) return
  scene = next
  areRatesDue = true
  if (stillness.matches) draw()
  else schedule()
}

/** Stops the pictures until the next `stage`, as when the server is silent. */
export function halt() {
  isHalted = true
}

function draw(time = scene?.clock.now() - behind()) {
  if (scene === undefined) return
  const { bucket, history, isTapShut } = scene
  drawnAt = time
  const { capacity: most, rate, blockedMs } = history.focus ?? bucket
  // One that holds any amount is drawn as holding what passes in a second, or what is in it.
  const capacity = most ?? Math.max(rate, history.levelAt(time))
  // The figure shows the moment of the picture, not the latest.
  put(byId('focus-level'), levelText(history.levelAt(time), most))
  const isBlocked = blockedMs !== undefined
  drawBucket(canvases.bucket, history, { capacity, rate, isBlocked, isTapShut, time, isStill: stillness.matches })
  drawStrip(canvases.strip, history, { rate }, time)
  if (areRatesDue) drawRates(canvases.rates, history, bucket.keys > 1 ? undefined : bucket.rate, time)
  areRatesDue = false
}

function redraw() {
  areRatesDue = true
  draw(drawnAt)
}

function schedule() {
  const isIdle = scene === undefined || visible.size === 0 || document.hidden
  if (isScheduled || isPaused || isHalted || isIdle || stillness.matches) return
  isScheduled = true
  requestAnimationFrame(() => {
    isScheduled = false
    if (isPaused || isHalted) return
    draw()
    schedule()
  })
}

byId('pause').addEventListener('click', () => {
  isPaused = !isPaused
  byId('pause').setAttribute('aria-pressed', String(isPaused))
  put(byId('pause'), isPaused ? 'Go on' : 'Pause')
  if (isPaused) {
    // A copy: later snapshots must not change the picture.
    scene = scene && { ...scene, history: scene.history?.still() }
    redraw()
  } else stage(latest)
})
onScheme(redraw)
stillness.addEventListener('change', () => stage(latest))
document.addEventListener('visibilitychange', schedule)
const sight = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) visible[isIntersecting ? 'add' : 'delete'](target)
  schedule()
})
// A new size clears a canvas, so it is drawn again even when nothing moves.
const resized = new ResizeObserver(redraw)
for (const canvas of Object.values(canvases)) {
  sight.observe(canvas)
  resized.observe(canvas)
}

/** How long an arrival falls, in ms. */
const FALL = 280
/** How long a release is visible below the bucket, in ms. */
const SEEN = 1_000
/** How long a rejected request is visible, in ms. */
const SPILL = 700
/** Over how many ms the arrivals of one instant are spread, so that they look like poured water. */
const SPREAD = 100
const PI2 = Math.PI * 2

/**
 * Draws an instance of a bucket, for a moment of the server's time that is a little in the past, so that everything around that moment
 * is known. An arrival falls before its time and lands at it. A release leaves the tap at exactly its time. Drops leave at a constant
 * speed: what is even in time looks even.
 *
 * @param history what is known of it; undefined: nothing
 * @param view `capacity` and `rate` of the instance, `isBlocked`, `isTapShut` (the upstream is paused), `time` in ms of
 *   the server, `isStill` to leave out drops and waves
 */
function drawBucket(canvas, history, view) {
  const surface = begin(canvas)
  if (surface === undefined) return
  const { capacity, rate, isBlocked, isTapShut, time, isStill } = view
  const { width, height } = surface
  const shape = vessel(width, height)
  const level = history === undefined ? 0 : history.levelAt(time)
  const share = Math.min(1, Math.max(0, level / capacity))
  const top = shape.base - share * (shape.base - shape.brim)
  const picture = { ...surface, shape, time, level, share, top }
  const events = isStill ? undefined : history?.events

  pipe(picture, { y: 0, width: 22, length: shape.inlet })
  pipe(picture, { y: shape.inlet - 7, width: 32, length: 7 })
  if (events !== undefined) {
    drawReleases(picture, events.releases, rate)
    drawArrivals(picture, events)
  }
  const stirred = recent(events?.arrivals ?? [], time - 700, time)
  drawWater(picture, isStill ? 0 : Math.min(5, 0.8 + stirred * 0.35))
  drawGlass(picture)
  const tap = { y: shape.base + 1, width: 16, length: shape.tap - shape.base - 1 }
  pipe(picture, tap)
  if (isTapShut) shutTap(picture, tap)
  if (events !== undefined) drawSpill(picture, events.rejections)
  if (isBlocked) drawLid(picture)
  drawScale(picture, capacity)
}

function vessel(width, height) {
  const wide = Math.min(width * 0.32, height * 0.37, 180)
  const base = height * 0.73
  return { middle: width / 2, wide, narrow: wide * 0.86, inlet: 22, brim: height * 0.24, base, tap: base + 15 }
}

/** Half of the bucket's width at a height. */
function half({ wide, narrow, brim, base }, y) {
  return narrow + ((wide - narrow) * (base - y)) / (base - brim)
}

/** A number of 0..1 that is always the same for an event, made of its time and its place among those of that time. */
function scatter(time, nth) {
  const x = Math.sin(time * 12.9898 + nth * 78.233) * 43758.5453
  return x - Math.floor(x)
}

function recent(times, from, to) {
  let found = 0
  for (let i = times.length - 1; i >= 0 && times[i] > from; i--) if (times[i] <= to) found++
  return found
}

/** Calls `visit(time, nth)` for events between two moments; `nth` counts those of one time. */
function between(times, from, to, visit) {
  let nth = 0
  let start = times.length
  while (start > 0 && times[start - 1] >= from) start--
  for (let i = start; i < times.length && times[i] <= to; i++) {
    nth = times[i] === times[i - 1] ? nth + 1 : 0
    visit(times[i], nth)
  }
}

function dot(context, x, y, radius) {
  context.moveTo(x + radius, y)
  context.arc(x, y, radius, 0, PI2)
}

function drawArrivals({ context, shape, time, top, colours }, { admitted, rejections }) {
  for (const [times, ground, colour] of [
    [admitted, top, colours.arrivals],
    [rejections, shape.brim - 4, colours.rejected],
  ]) {
    context.fillStyle = colour
    context.beginPath()
    between(times, time - SPREAD, time + FALL, (each, nth) => {
      const due = each + scatter(each, nth) * SPREAD
      const done = (time - due + FALL) / FALL
      if (done < 0 || done >= 1) return
      const x = shape.middle + (scatter(nth, each) - 0.5) * (18 + done * shape.wide * 0.7)
      dot(context, x, shape.inlet + (ground - shape.inlet) * done * done, 3.4)
    })
    context.fill()
  }
}

/** Rejected requests run over the right side and down. */
function drawSpill({ context, height, shape, time, colours }, rejections) {
  context.fillStyle = colours.rejected
  between(rejections, time - SPILL - SPREAD, time, (each, nth) => {
    const seed = scatter(each, nth)
    const done = (time - each - seed * SPREAD) / SPILL
    if (done < 0 || done >= 1) return
    const drift = Math.min(shape.middle - shape.wide - 12, 46)
    const x = shape.middle + shape.wide * (0.55 + 0.45 * Math.min(1, done * 4)) + drift * done * (0.35 + 0.65 * seed)
    const y = shape.brim - 5 - Math.sin(Math.min(1, done * 3) * Math.PI) * 9 + (height - shape.brim) * done * done
    context.globalAlpha = Math.min(1, (1 - done) * 2.5)
    context.beginPath()
    dot(context, x, y, 3.4)
    context.fill()
  })
  context.globalAlpha = 1
}

/** Drops are smaller the closer they follow each other. */
function drawReleases({ context, height, shape, time, colours }, releases, rate) {
  const radius = Math.min(4.5, Math.max(1.3, (0.3 * (height - shape.tap) * 1_000) / (SEEN * rate)))
  context.fillStyle = colours.released
  context.beginPath()
  between(releases, time - SEEN, time, each => {
    dot(context, shape.middle, shape.tap + ((time - each) / SEEN) * (height - shape.tap), radius)
  })
  context.fill()
}

function drawLid({ context, shape, colours }) {
  context.fillStyle = colours.rejected
  context.beginPath()
  context.roundRect(shape.middle - shape.wide - 8, shape.brim - 9, shape.wide * 2 + 16, 6, 3)
  context.fill()
}

function outline(context, shape, inset) {
  const { middle, wide, narrow, brim, base } = shape
  const corner = 12
  context.beginPath()
  context.moveTo(middle - wide + inset, brim)
  context.lineTo(middle - narrow - (wide - narrow) * 0.06 + inset, base - corner)
  context.quadraticCurveTo(middle - narrow + inset, base - inset, middle - narrow + corner, base - inset)
  context.lineTo(middle + narrow - corner, base - inset)
  context.quadraticCurveTo(
    middle + narrow - inset,
    base - inset,
    middle + narrow + (wide - narrow) * 0.06 - inset,
    base - corner,
  )
  context.lineTo(middle + wide - inset, brim)
}

/** @param swell the height of the waves in CSS pixels */
function drawWater({ context, shape, share, top, time, colours }, swell) {
  outline(context, shape, 3)
  context.closePath()
  context.fillStyle = colours.glass
  context.fill()
  if (share <= 0) return
  context.save()
  context.clip()
  const halfWidth = half(shape, top)
  const wave = x => top + Math.sin(x / 17 + time / 260) * swell * 0.6 + Math.sin(x / 9 - time / 410) * swell * 0.4
  const points = []
  for (let x = -halfWidth; x <= halfWidth + 4; x += 4) points.push([shape.middle + x, wave(x)])
  const shade = context.createLinearGradient(0, shape.brim, 0, shape.base)
  shade.addColorStop(0, colours.water)
  shade.addColorStop(1, colours.deep)
  context.beginPath()
  for (const [x, y] of points) context.lineTo(x, y)
  context.lineTo(shape.middle + halfWidth, shape.base)
  context.lineTo(shape.middle - halfWidth, shape.base)
  context.fillStyle = shade
  context.fill()
  context.globalAlpha = 0.55
  line(context, points, { colour: '#fff', width: 1.5 })
  context.restore()
}

function drawGlass({ context, shape, colours }) {
  outline(context, shape, 0)
  context.strokeStyle = colours.muted
  context.lineWidth = 3
  context.lineJoin = 'round'
  context.lineCap = 'round'
  context.stroke()
  context.lineCap = 'butt'
}

function pipe({ context, shape, colours }, { y, width, length }) {
  context.fillStyle = colours.muted
  context.beginPath()
  context.roundRect(shape.middle - width / 2, y, width, length, [2, 2, 3, 3])
  context.fill()
}

function shutTap({ context, shape, colours }, { y, width, length }) {
  context.fillStyle = colours.rejected
  context.fillRect(shape.middle - width / 2 - 6, y + length - 4, width + 12, 4)
}

function drawScale({ context, shape, level, top, colours }, capacity) {
  const at = share => shape.base - share * (shape.base - shape.brim)
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const x = shape.middle + half(shape, at(share)) - 5
    straight(context, [x, at(share)], [x - (share % 0.5 === 0 ? 9 : 5), at(share)], { colour: colours.muted, width: 1 })
  }
  const left = y => shape.middle - half(shape, y) - 10
  const isClear = y => Math.abs(y - top) > 17
  for (const share of [0, 1]) {
    const y = at(share)
    if (isClear(y)) write(context, count(capacity * share), [left(y), y], { colour: colours.muted, align: 'right' })
  }
  write(context, count(Number(level.toFixed(level < 99.95 ? 1 : 0))), [left(top), top], {
    colour: colours.ink,
    align: 'right',
    size: 17,
    weight: 650,
  })
}
