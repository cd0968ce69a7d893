/** The three pictures: drawn frame by frame while there is something to see that moves, else when something is new. */
import { drawBucket, FALL } from './bucket.js'
import { onScheme } from './canvas.js'
import { drawRates, drawStrip } from './charts.js'
import { byId, count, put } from './format.js'
import { INTERVAL } from './stream.js'

/** How far behind the server the pictures are, in ms: what they show has then surely been told. */
const BEHIND = INTERVAL * 1.2 + 50 + FALL

const stillness = matchMedia('(prefers-reduced-motion: reduce)')
const visible = new Set()
export const canvases = { bucket: byId('bucket'), rates: byId('rates'), strip: byId('strip') }

/** { bucket, history, clock, isTapShut }; undefined while there is nothing to draw. */
let scene
/** The scene that would be shown if it were not paused. */
let latest
let isHalted = false
let isPaused = false
let isScheduled = false
/** The time of the picture that is shown. */
let drawnAt
/** The rates change with each snapshot only. */
let areRatesDue = false

/** What is to be drawn from now on; nothing moves while the server is silent. */
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

/** Leaves the pictures as they are. */
export function halt() {
  isHalted = true
}

function draw(time = scene?.clock.now() - BEHIND) {
  if (scene === undefined) return
  const { bucket, history, isTapShut } = scene
  drawnAt = time
  const { capacity, rate, blockedMs } = history.focus ?? bucket
  // In step with the picture, not ahead of it.
  put(byId('focus-level'), `${count(Number(history.levelAt(time).toFixed(1)))} / ${count(capacity)}`)
  const view = { capacity, rate, isBlocked: blockedMs !== undefined, isTapShut }
  drawBucket(canvases.bucket, history, view, time, stillness.matches)
  drawStrip(canvases.strip, history, { rate }, time)
  if (areRatesDue) drawRates(canvases.rates, history, { rate: bucket.rate, isEach: bucket.keys > 1 }, time)
  areRatesDue = false
}

/** The same picture again: what is paused does not move. */
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
    // What is told from now on changes nothing, whenever it is drawn again.
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
// Another size empties a canvas, so it is drawn again even where nothing moves.
const resized = new ResizeObserver(redraw)
for (const canvas of Object.values(canvases)) {
  sight.observe(canvas)
  resized.observe(canvas)
}
