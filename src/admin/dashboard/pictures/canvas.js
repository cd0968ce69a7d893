/** A canvas as sharp as the screen, and the colours of the style sheet. */

const COLOURS = ['card', 'ink', 'muted', 'line', 'glass', 'arrivals', 'water', 'deep', 'released', 'rejected', 'bad']

let colours

/** The colours by name, and `font`, of the scheme in use (light or dark). */
function palette() {
  if (colours === undefined) {
    const style = getComputedStyle(document.documentElement)
    colours = Object.fromEntries(COLOURS.map(name => [name, style.getPropertyValue(`--${name}`).trim()]))
    colours.font = style.getPropertyValue('--font').trim()
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

/** Draws a line through points `[x, y]`. */
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
