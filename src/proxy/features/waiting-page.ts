/**
 * The page that a rejected browser gets: how long it waits, and a script that comes back by itself. It loads nothing else. Its policy
 * allows only the styles and scripts that are in it, by hash. What is put into it are numbers of our own.
 */
import { readFileSync } from 'node:fs'
import Negotiator from 'negotiator'
import { type Placeholder, parseTemplate } from '../../config/waiting-template.js'
import type { Comeback } from '../../core/admission/comeback.js'
import { policyHash } from '../../http/policy-hash.js'
import { headerValue, type RequestFacts } from '../http/request.js'
import type { WaitingPage } from '../routing/route.js'

type Slot = (comeback: Comeback, live: 'live' | 'alone') => string

let builtIn: WaitingPage | undefined

export function readPage(template: string | undefined): WaitingPage {
  if (template !== undefined) return compile(readFileSync(template, 'utf8'), OF_SITE)
  builtIn ??= compile(read('page.html'), OF_PAGE)
  return builtIn
}

/** An empty icon: a browser asks for one where a page names none. */
const OF_PAGE: Sources = { more: ['img-src data:'] }

/** What pages of the site may load besides. */
const OF_SITE: Sources = {
  script: " 'self'",
  style: " 'self'",
  more: ["style-src-attr 'unsafe-inline'", "img-src 'self' data:", "font-src 'self' data:"],
}

interface Sources {
  readonly script?: string
  readonly style?: string
  readonly more?: readonly string[]
}

function compile(content: string, sources: Sources): WaitingPage {
  const { texts, placeholders } = parseTemplate(content)
  const script = read('page.js')
  const slots: Record<Placeholder, Slot> = {
    script: (comeback, live) => `${head(comeback, live)}<script type="module">${script}</script>`,
    wait: ({ wait }) => filled('wait', inWords(wait)),
    position: ({ position }) => filled('position', position === undefined ? '' : String(position)),
  }
  const fields = placeholders.map(name => slots[name])
  // Converted once, not for each answer.
  const bytes = texts.map(text => Buffer.from(text).toString('latin1'))
  const headers = [
    ...['Content-Type', 'text/html; charset=utf-8'],
    ...['Content-Security-Policy', policy(content, script, sources)],
    ...['X-Content-Type-Options', 'nosniff'],
    ...['Vary', 'Accept, Sec-Fetch-Mode'],
    ...['Cache-Control', 'no-store'],
  ]
  return {
    render(comeback, live) {
      let html = bytes[0]!
      for (const [place, field] of fields.entries()) html += field(comeback, live) + bytes[place + 1]!
      return { html, headers }
    },
  }
}

/** What a browser without scripts does, and what the script knows at first. */
function head({ until, wait, position }: Comeback, live: 'live' | 'alone'): string {
  const seconds = Math.max(1, Math.ceil(until / 1_000))
  const told = JSON.stringify({ ...toldOf({ until, wait, position }), ...(live === 'live' && { stream: STREAM_PATH }) })
  return `<noscript><meta http-equiv="refresh" content="${seconds}"></noscript><script type="application/json" id="shaper-told">${told}</script>`
}

/** A comeback as pages are told of it, in whole ms. */
export function toldOf({ until, wait, position }: Comeback): Comeback {
  return { until: Math.ceil(until), wait: Math.ceil(wait), position }
}

function filled(what: string, text: string): string {
  return `<span data-shaper="${what}">${text}</span>`
}

/** As in page.js, which knows the reader's clock and says on which day. */
function inWords(ms: number): string {
  const seconds = Math.max(1, Math.ceil(ms / 1_000))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7_200) return `${Math.ceil(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.ceil(seconds / 3_600)} h` : `${Math.ceil(seconds / 86_400)} d`
}

function policy(content: string, script: string, { script: scripts = '', style = '', more = [] }: Sources): string {
  return [
    "default-src 'none'",
    `script-src ${[script, ...inside(content, 'script')].map(policyHash).join(' ')}${scripts}`,
    `style-src ${inside(content, 'style').map(policyHash).join(' ')}${style}`,
    ...more,
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'self'",
  ].join('; ')
}

function inside(html: string, name: string): string[] {
  return [...html.matchAll(new RegExp(`<${name}\\b[^>]*>([^]*?)</${name}`, 'gi'))].map(([, text]) => text!)
}

function read(name: string): string {
  return readFileSync(new URL(name, import.meta.url), 'utf8')
}

/** Where pages listen for what becomes of their wait. Nothing else below `/.well-known/shaper/` is our own. */
export const STREAM_PATH = '/.well-known/shaper/wait'
/** The first one is taken where a client has no preference. */
const OFFERED = ['application/problem+json', 'application/json', 'text/html']
const HTML = 'text/html'
/** Characters of an Accept header. Browsers send less than 200. */
const LONGEST = 1_024

export function asksForPage({ method, rawHeaders }: Pick<RequestFacts, 'method' | 'rawHeaders'>): boolean {
  if (method !== 'GET') return false
  const accept = headerValue(rawHeaders, 'accept')
  if (accept === undefined || accept.length > LONGEST || !accept.toLowerCase().includes(HTML)) return false
  const fetchMode = headerValue(rawHeaders, 'sec-fetch-mode')
  if (fetchMode !== undefined && fetchMode !== 'navigate') return false
  return new Negotiator({ headers: { accept } }).mediaType(OFFERED) === HTML
}
