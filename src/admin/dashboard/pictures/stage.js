/** The three pictures. They are drawn every frame while they are visible and moving, else when a snapshot arrives. */
import { byId, levelText, put } from '../format.js'
import { scope } from '../stream.js'
import { drawBucket, FALL } from './bucket.js'
import { onScheme } from './canvas.js'
import { drawRates, drawStrip } from './charts.js'

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
/** The latest scene. While paused it is not the one on show. */
let latest
let isHalted = false
let isPaused = false
let isScheduled = false
/** The time of the picture on show. */
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

/** Draws the same moment again. */
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
