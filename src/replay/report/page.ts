/** A report as one page that loads nothing else: style, script and data are inside. */
import { readFileSync } from 'node:fs'
import { policyHash } from '../../http/policy-hash.js'
import type { ReplayReport } from './report.js'

/** The modules of the script, each after those that it imports. */
const MODULES = ['plots-svg.js', 'plots-charts.js', 'plots.js']

export function replayPage(report: ReplayReport): string {
  const style = `\n${read('plots.css')}`
  // The modules become one script with one scope, so imports and exports are removed.
  const script = `\n${MODULES.map(read)
    .join('\n')
    .replace(/^import [^;]*? from '\.\/.*'\n/gm, '')
    .replace(/^export /gm, '')}`
  const policy = `default-src 'none'; script-src ${policyHash(script)}; style-src ${policyHash(style)}; base-uri 'none'; form-action 'none'`
  return read('plots.html')
    .replace('<!-- policy -->', () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`)
    .replace('<!-- style -->', () => `<style>${style}</style>`)
    .replace('<!-- data -->', () => `<script type="application/json" id="report">${embedded(report)}</script>`)
    .replace('<!-- script -->', () => `<script type="module">${script}</script>`)
}

/** JSON that cannot end its script element. Keys and paths come from clients. */
function embedded(report: ReplayReport): string {
  return JSON.stringify(report).replaceAll('<', '\\u003c')
}

function read(name: string): string {
  return readFileSync(new URL(name, import.meta.url), 'utf8')
}
