/** The dashboard as one page that loads nothing else. Its policy allows only the style and the script inside, by hash. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'

const STYLES = ['main.css', 'stage.css', 'lists.css']

/** The modules of the script, each after those that it imports. */
const MODULES = [
  ...['format', 'history', 'stream', 'canvas', 'bucket', 'charts', 'stage', 'focus', 'tables', 'reset', 'main'].map(
    name => `${name}.js`,
  ),
]

export interface DashboardPage {
  readonly html: string
  readonly headers: Readonly<Record<string, string>>
}

let page: DashboardPage | undefined

/** Builds the page from the files beside this one, once. */
export function dashboardPage(): DashboardPage {
  page ??= build()
  return page
}

function build(): DashboardPage {
  const style = `\n${STYLES.map(read).join('\n')}`
  // The modules become one script with one scope, so imports and exports are removed.
  const script = `\n${MODULES.map(read)
    .join('\n')
    .replace(/^import [^;]*? from '\.\/.*'\n/gm, '')
    .replace(/^export /gm, '')}`
  const html = read('index.html')
    .replace('<!-- style -->', () => `<style>${style}</style>`)
    .replace('<!-- script -->', () => `<script type="module">${script}</script>`)
  const policy = [
    "default-src 'none'",
    `script-src '${hash(script)}'`,
    `style-src '${hash(style)}'`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ]
  return {
    html,
    headers: {
      'Content-Type': 'text/html; charset=utf-8',
      'Content-Security-Policy': policy.join('; '),
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'no-referrer',
      'Cache-Control': 'no-store',
    },
  }
}

function read(name: string): string {
  return readFileSync(new URL(name, import.meta.url), 'utf8')
}

/** A hash source of a Content-Security-Policy (CSP3, 2.3.1). */
function hash(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`
}
