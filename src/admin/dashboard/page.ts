/** The dashboard as one page that loads nothing else. Its policy allows only the style and the script inside, by hash. */
import { readFileSync } from 'node:fs'
import { policyHash } from '../../http/policy-hash.js'

/** The modules of the script, each after those that it imports. */
const MODULES = ['format', 'history', 'stream', 'charts', 'stage', 'focus', 'lists', 'deliveries', 'main']
let page: ReturnType<typeof build> | undefined

export function dashboardPage() {
  page ??= build()
  return page
}

function build() {
  const style = `\n${read('style.css')}`
  // The modules become one script with one scope, so imports and exports are removed.
  const script = `\n${MODULES.map(name => read(`${name}.js`))
    .join('\n')
    .replace(/^import [^;]*? from '\.\/.*'\n/gm, '')
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
