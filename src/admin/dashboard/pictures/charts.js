/** The last minute of a bucket as rates, and the last seconds of one instance as single events. */
import { count, perSecond } from '../format.js'
import { SPAN } from '../history.js'
import { begin, line, write } from './canvas.js'

/** The next round number. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find(step => step * power >= value * 0.999) * power
}

/** The number at the top of the axis. */
function topOf(bins, rate = 0) {
  const most = Math.max(rate * 1.2, ...bins.map(({ offered, released }) => Math.max(offered, released)))
  return roundUp(most === 0 ? 1 : most)
}

/**
 * Draws arrivals as one bar per second with rejections on top, and releases as a line.
 *
 * @param rate of the only key. Undefined: there are several, and the rate is of each of them.
 */
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
    const mark = [
      [box.left, y(value)],
      [box.right, y(value)],
    ]
    line(context, mark, { colour: colours.line, width: 1 })
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
  const points = [
    [left, y],
    [right, y],
  ]
  line(context, points, { colour: colours.ink, width: 1.25, dash: [5, 4] })
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
