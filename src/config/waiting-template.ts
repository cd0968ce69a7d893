/** HTML of waiting pages: `{{script}}` waits and comes back, `{{wait}}` and `{{position}}` are kept up to date. */
import { hint, quote } from './messages.js'

export const PLACEHOLDERS = ['script', 'wait', 'position'] as const
export type Placeholder = (typeof PLACEHOLDERS)[number]
/** Bytes. Each rejected browser gets the page, also in a flood. */
const MOST = 65_536
/** To split a template by: texts and what stands in placeholders, in turn. */
const PLACEHOLDER = /\{\{\s*([^{}]*?)\s*\}\}/

/** Text, placeholder, text, and so on. */
export interface Template {
  readonly texts: readonly string[]
  /** One fewer than there are texts. */
  readonly placeholders: readonly Placeholder[]
}

/** What is wrong with a template, and what to do. Undefined: nothing. */
export function faultOfTemplate(content: Buffer): string | undefined {
  if (content.length > MOST)
    return `has ${content.length} bytes, and every rejected browser gets them; keep it below ${MOST + 1}`
  const names = content
    .toString()
    .split(PLACEHOLDER)
    .filter((_, at) => at % 2 === 1)
  const unknown = names.find(name => !isPlaceholder(name))
  if (unknown !== undefined)
    return `has an unknown placeholder ${quote(`{{${unknown}}}`)}; ${hint(unknown, PLACEHOLDERS, 'placeholders')}`
  const scripts = names.filter(name => name === 'script').length
  if (scripts === 1) return undefined
  return scripts === 0
    ? 'has no {{script}}, by which the page waits and comes back; add it before </head>'
    : 'has {{script}} more than once; keep one, before </head>'
}

export function parseTemplate(content: string): Template {
  const parts = content.split(PLACEHOLDER)
  return {
    texts: parts.filter((_, at) => at % 2 === 0),
    placeholders: parts.filter((part, at): part is Placeholder => at % 2 === 1 && isPlaceholder(part)),
  }
}

function isPlaceholder(name: string): name is Placeholder {
  return (PLACEHOLDERS as readonly string[]).includes(name)
}
