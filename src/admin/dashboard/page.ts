/** The dashboard as one page that loads nothing else: style and script stand in it, and the policy knows their hashes. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'

const STYLES = ['main.css', 'stage.css', 'lists.css']

/** The script's modules, each after those that it imports. */
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

/** Read once, from the files beside this one. */
export function dashboardPage(): DashboardPage {
  page ??= build()
  return page
}

function build(): DashboardPage {
  const style = `\n${STYLES.map(read).join('\n')}`
  // One scope in place of several: their imports name what stands above.
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

/** As a source of a Content-Security-Policy (CSP3, 2.3.1). */
function hash(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`
}
