/** A report as one page that loads nothing: its style, its script and the report itself stand in it. */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { ReplayReport } from './report.js'

/** The script's modules, each after those that it imports. */
const MODULES = ['plots-svg.js', 'plots-charts.js', 'plots.js']

export function replayPage(report: ReplayReport): string {
  const style = `\n${read('plots.css')}`
  // One scope in place of several: their imports name what stands above.
  const script = `\n${MODULES.map(read)
    .join('\n')
    .replace(/^import [^;]*? from '\.\/.*'\n/gm, '')
    .replace(/^export /gm, '')}`
  const policy = `default-src 'none'; script-src '${hash(script)}'; style-src '${hash(style)}'; base-uri 'none'; form-action 'none'`
  return read('plots.html')
    .replace('<!-- policy -->', () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`)
    .replace('<!-- style -->', () => `<style>${style}</style>`)
    .replace('<!-- data -->', () => `<script type="application/json" id="report">${embedded(report)}</script>`)
    .replace('<!-- script -->', () => `<script type="module">${script}</script>`)
}

/** JSON in which nothing can end the element that it stands in: keys and paths are what clients have sent. */
function embedded(report: ReplayReport): string {
  return JSON.stringify(report).replaceAll('<', '\\u003c')
}

function read(name: string): string {
  return readFileSync(new URL(name, import.meta.url), 'utf8')
}

/** As a source of a Content-Security-Policy (CSP3, 2.3.1). */
function hash(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`
}
