/**
 * Templates of waiting pages: HTML with placeholders. `{{script}}` becomes what makes the page wait and come back. `{{wait}}` and
 * `{{position}}` become elements whose text is kept up to date.
 */
import { hint, quote } from './messages.js'

export const PLACEHOLDERS = ['script', 'wait', 'position'] as const

export type Placeholder = (typeof PLACEHOLDERS)[number]

/** Bytes. Each rejected browser gets the page, also in a flood. */
const MOST = 65_536

const PLACEHOLDER = /\{\{\s*([^{}]*?)\s*\}\}/

/** Text, placeholder, text, and so on. */
export interface Template {
  readonly texts: readonly string[]
  /** One fewer than there are texts. */
  readonly placeholders: readonly Placeholder[]
}

/** What is wrong with a template, and what to do. Undefined: nothing. */
export function faultOfTemplate(content: Buffer): string | undefined {
  if (content.length > MOST) {
    return `has ${content.length} bytes, and every rejected browser gets them; keep it below ${MOST + 1}`
  }
  const names = split(content.toString()).filter((_, at) => at % 2 === 1)
  const unknown = names.find(name => !isPlaceholder(name))
  if (unknown !== undefined) {
    return `has an unknown placeholder ${quote(`{{${unknown}}}`)}; ${hint(unknown, PLACEHOLDERS, 'placeholders')}`
  }
  const scripts = names.filter(name => name === 'script').length
  if (scripts === 1) return undefined
  return scripts === 0
    ? 'has no {{script}}, by which the page waits and comes back; add it before </head>'
    : 'has {{script}} more than once; keep one, before </head>'
}

/** @param content without a fault */
export function parseTemplate(content: string): Template {
  const parts = split(content)
  return {
    texts: parts.filter((_, at) => at % 2 === 0),
    placeholders: parts.filter((part, at): part is Placeholder => at % 2 === 1 && isPlaceholder(part)),
  }
}

/** Texts and what stands in placeholders, in turn. */
function split(content: string): string[] {
  return content.split(PLACEHOLDER)
}

function isPlaceholder(name: string): name is Placeholder {
  return (PLACEHOLDERS as readonly string[]).includes(name)
}
