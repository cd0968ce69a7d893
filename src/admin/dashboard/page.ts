/** The dashboard as one page that loads nothing else. Its policy allows only the style and the script inside, by hash. */
import { readFileSync } from 'node:fs'
import { policyHash } from '../../http/policy-hash.js'

const STYLES = ['main.css', 'pictures/stage.css', 'lists/lists.css', 'lists/keys.css']

/** The modules of the script, each after those that it imports. */
const MODULES = [
  ...['format.js', 'history.js', 'stream.js'],
  ...['canvas.js', 'bucket.js', 'charts.js', 'hour.js', 'stage.js', 'focus.js'].map(name => `pictures/${name}`),
  ...['tables.js', 'reset.js', 'key-panel.js', 'keys.js'].map(name => `lists/${name}`),
  'main.js',
]

export interface DashboardPage {
  readonly html: string
  readonly headers: Readonly<Record<string, string>>
}

let page: DashboardPage | undefined

/** Builds the page from the files of this folder, once. */
export function dashboardPage(): DashboardPage {
  page ??= build()
  return page
}

function build(): DashboardPage {
  const style = `\n${STYLES.map(read).join('\n')}`
  // The modules become one script with one scope, so imports and exports are removed.
  const script = `\n${MODULES.map(read)
    .join('\n')
    .replace(/^import [^;]*? from '\.{1,2}\/.*'\n/gm, '')
    .replace(/^export /gm, '')}`
  const html = read('index.html')
    .replace('<!-- style -->', () => `<style>${style}</style>`)
    .replace('<!-- script -->', () => `<script type="module">${script}</script>`)
  const policy = [
    "default-src 'none'",
    `script-src ${policyHash(script)}`,
    `style-src ${policyHash(style)}`,
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
