/**
 * The picture of the leaky bucket. Everything is drawn for one moment of the server's time that is a little in the past,
 * so all that happened around it is known: an arrival is on its way before its time and lands at it, a release leaves
 * the tap at exactly its time. Drops leave at a constant speed, so that what is even in time is even to the eye.
 */
import { begin, line, write } from './canvas.js'
import { count } from './format.js'

/** How long an arrival falls, in ms. */
export const FALL = 280
/** How long a release is seen below the bucket, in ms. */
const SEEN = 1_000
/** How long what has spilled over is seen, in ms. */
const SPILL = 700
/** Arrivals of one instant are strewn over so many ms, as water that is poured. */
const STREWN = 100
const PI2 = Math.PI * 2

/** Draws `history` (of an instance of this capacity and rate) at `time`; without drops and waves where it is `still`. */
export function drawBucket(canvas, history, { capacity, rate, isBlocked, isTapShut }, time, isStill) {
  const surface = begin(canvas)
  if (surface === undefined) return
  const { context, width, height, colours } = surface
  const shape = vessel(width, height)
  const level = history === undefined ? 0 : history.levelAt(time)
  const share = Math.min(1, Math.max(0, level / capacity))
  const top = shape.base - share * (shape.base - shape.brim)

  pipe(context, shape.middle, 0, 22, shape.inlet, colours)
  pipe(context, shape.middle, shape.inlet - 7, 32, 7, colours)
  if (history !== undefined && !isStill) {
    const { events } = history
    const radius = Math.min(4.5, Math.max(1.3, (0.3 * (height - shape.tap) * 1_000) / (SEEN * rate)))
    drawReleases(context, events.releases, time, shape, height, radius, colours)
    drawArrivals(context, events, time, shape, top, colours)
  }
  const stirred = isStill ? 0 : recent(history?.events.arrivals ?? [], time - 700, time)
  drawWater(context, shape, share, top, isStill ? 0 : Math.min(5, 0.8 + stirred * 0.35), time, colours)
  drawGlass(context, shape, colours)
  pipe(context, shape.middle, shape.base + 1, 16, shape.tap - shape.base - 1, colours, isTapShut)
  if (history !== undefined && !isStill) drawSpill(context, history.events.rejections, time, shape, height, colours)
  if (isBlocked) {
    context.fillStyle = colours.rejected
    context.beginPath()
    context.roundRect(shape.middle - shape.wide - 8, shape.brim - 9, shape.wide * 2 + 16, 6, 3)
    context.fill()
  }
  drawScale(context, shape, capacity, level, top, colours)
}

/** Where things are, in CSS pixels; `wide` and `narrow` are half of the bucket's width at its brim and its base. */
function vessel(width, height) {
  const wide = Math.min(width * 0.32, height * 0.37, 180)
  const base = height * 0.73
  return { middle: width / 2, wide, narrow: wide * 0.86, inlet: 22, brim: height * 0.24, base, tap: base + 15 }
}

/** Half of the bucket's width at a height. */
function half({ wide, narrow, brim, base }, y) {
  return narrow + ((wide - narrow) * (base - y)) / (base - brim)
}

/** A number of 0..1 that is always the same for an event: by its time, and how many of that time came before it. */
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

/** What is turned away falls too, but to the brim only. */
function drawArrivals(context, { admitted, rejections }, time, shape, top, colours) {
  for (const [times, ground, colour] of [
    [admitted, top, colours.arrivals],
    [rejections, shape.brim - 4, colours.rejected],
  ]) {
    context.fillStyle = colour
    context.beginPath()
    between(times, time - STREWN, time + FALL, (each, nth) => {
      const due = each + scatter(each, nth) * STREWN
      const done = (time - due + FALL) / FALL
      if (done < 0 || done >= 1) return
      const x = shape.middle + (scatter(nth, each) - 0.5) * (18 + done * shape.wide * 0.7)
      dot(context, x, shape.inlet + (ground - shape.inlet) * done * done, 3.4)
    })
    context.fill()
  }
}

/** Over the right side and down. */
function drawSpill(context, rejections, time, shape, height, colours) {
  context.fillStyle = colours.rejected
  between(rejections, time - SPILL - STREWN, time, (each, nth) => {
    const seed = scatter(each, nth)
    const done = (time - each - seed * STREWN) / SPILL
    if (done < 0 || done >= 1) return
    const reach = Math.min(shape.middle - shape.wide - 12, 46)
    const x = shape.middle + shape.wide * (0.55 + 0.45 * Math.min(1, done * 4)) + reach * done * (0.35 + 0.65 * seed)
    const y = shape.brim - 5 - Math.sin(Math.min(1, done * 3) * Math.PI) * 9 + (height - shape.brim) * done * done
    context.globalAlpha = Math.min(1, (1 - done) * 2.5)
    context.beginPath()
    dot(context, x, y, 3.4)
    context.fill()
  })
  context.globalAlpha = 1
}

function drawReleases(context, releases, time, shape, height, radius, colours) {
  context.fillStyle = colours.released
  context.beginPath()
  between(releases, time - SEEN, time, each => {
    dot(context, shape.middle, shape.tap + ((time - each) / SEEN) * (height - shape.tap), radius)
  })
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

function drawWater(context, shape, share, top, swell, time, colours) {
  outline(context, shape, 3)
  context.closePath()
  context.fillStyle = colours.glass
  context.fill()
  if (share <= 0) return
  context.save()
  context.clip()
  const reach = half(shape, top)
  const wave = x => top + Math.sin(x / 17 + time / 260) * swell * 0.6 + Math.sin(x / 9 - time / 410) * swell * 0.4
  const points = []
  for (let x = -reach; x <= reach + 4; x += 4) points.push([shape.middle + x, wave(x)])
  const shade = context.createLinearGradient(0, shape.brim, 0, shape.base)
  shade.addColorStop(0, colours.water)
  shade.addColorStop(1, colours.deep)
  context.beginPath()
  for (const [x, y] of points) context.lineTo(x, y)
  context.lineTo(shape.middle + reach, shape.base)
  context.lineTo(shape.middle - reach, shape.base)
  context.fillStyle = shade
  context.fill()
  context.globalAlpha = 0.55
  line(context, points, '#fff', 1.5)
  context.restore()
}

function drawGlass(context, shape, colours) {
  outline(context, shape, 0)
  context.strokeStyle = colours.muted
  context.lineWidth = 3
  context.lineJoin = 'round'
  context.lineCap = 'round'
  context.stroke()
  context.lineCap = 'butt'
}

function pipe(context, middle, y, width, length, colours, isShut = false) {
  context.fillStyle = colours.muted
  context.beginPath()
  context.roundRect(middle - width / 2, y, width, length, [2, 2, 3, 3])
  context.fill()
  if (!isShut) return
  context.fillStyle = colours.rejected
  context.fillRect(middle - width / 2 - 6, y + length - 4, width + 12, 4)
}

function drawScale(context, shape, capacity, level, top, colours) {
  const at = share => shape.base - share * (shape.base - shape.brim)
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const x = shape.middle + half(shape, at(share)) - 5
    line(
      context,
      [
        [x, at(share)],
        [x - (share % 0.5 === 0 ? 9 : 5), at(share)],
      ],
      colours.muted,
      1,
    )
  }
  const left = y => shape.middle - half(shape, y) - 10
  const isClear = y => Math.abs(y - top) > 17
  const small = { colour: colours.muted, align: 'right' }
  for (const share of [0, 1]) {
    const y = at(share)
    if (isClear(y)) write(context, count(capacity * share), left(y), y, small)
  }
  write(context, count(Number(level.toFixed(level < 99.95 ? 1 : 0))), left(top), top, {
    colour: colours.ink,
    align: 'right',
    size: 17,
    weight: 650,
  })
}
