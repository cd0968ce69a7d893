// @ts-check
/** Helpers for drawing, and formats of figures. */

const SVG = 'http://www.w3.org/2000/svg'

/** @param {string} name @param {Record<string, string | number>} attributes @param {(Node | string)[]} children */
export function svg(name, attributes = {}, children = []) {
  return filled(document.createElementNS(SVG, name), attributes, children)
}

/** @param {string} name @param {Record<string, string | number>} attributes @param {(Node | string)[]} children */
export function html(name, attributes = {}, children = []) {
  return filled(document.createElement(name), attributes, children)
}

/**
 * @template {Element} T
 * @param {T} element @param {Record<string, string | number>} attributes @param {(Node | string)[]} children
 */
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value))
  element.append(...children)
  return element
}

/** @param {string} id */
export const byId = id => /** @type {HTMLElement} */ (document.getElementById(id))

/** @param {number} value */
export const whole = value => Math.round(value).toLocaleString('en')

/** @param {number} value */
export const short = value => (value >= 100 ? whole(value) : String(Number(value.toPrecision(value >= 10 ? 3 : 2))))

/** @param {number} part @param {number} all */
export function share(part, all) {
  if (part === 0 || all === 0) return '0 %'
  const percent = (100 * part) / all
  return percent < 0.001 ? '<0.001 %' : `${Number(percent.toPrecision(percent >= 10 ? 3 : 2))} %`
}

/** @param {number} ms */
export function time(ms) {
  if (ms < 1_000) return `${Number(ms.toPrecision(3))} ms`
  const seconds = ms / 1_000
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`
  return seconds < 7_200
    ? `${Number((seconds / 60).toPrecision(3))} min`
    : `${Number((seconds / 3_600).toPrecision(3))} h`
}

/** A time, `seconds` after another. @param {string | undefined} iso @param {number} seconds */
export function moment(iso, seconds = 0) {
  if (iso === undefined) return ''
  return new Date(Date.parse(iso) + seconds * 1_000)
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, '')
}

/** Round numbers from 0 to at least `most`. @param {number} most @param {number} count */
export function ticks(most, count) {
  const rough = most / count
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = ([1, 2, 5, 10].find(each => each * power >= rough) ?? 10) * power
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, at) => Number((at * step).toPrecision(6)))
}

/** Shows a text beside the pointer over an element. @param {Element} element @param {(event: PointerEvent) => string} say */
export function tipped(element, say) {
  const tip = byId('tip')
  element.addEventListener('pointermove', event => {
    const { clientX, clientY } = /** @type {PointerEvent} */ (event)
    tip.textContent = say(/** @type {PointerEvent} */ (event))
    tip.hidden = false
    const x = Math.min(clientX + 14, innerWidth - tip.offsetWidth - 8)
    tip.style.setProperty('left', `${Math.max(8, x)}px`)
    tip.style.setProperty('top', `${Math.max(8, clientY - tip.offsetHeight - 10)}px`)
  })
  element.addEventListener('pointerleave', () => {
    tip.hidden = true
  })
}
