// @ts-check
/** Writes results as text and as Markdown. */

/**
 * @typedef {{ title: string, columns: string[], rows: string[][] }} Table
 * @typedef {{ figure: string, value: string, target: string, met: boolean }} Check
 * @typedef {{ tables: Table[], checks: Check[], raw: object }} Outcome
 * @typedef {{
 *   date: string, quick: boolean, machine: Record<string, string>, versions: Record<string, string>,
 *   missing: string[], suites: Record<string, Outcome>, failures: Record<string, string>,
 *   foreign: Record<string, number>
 * }} Report
 */

/** @param {number} value @param {number} digits */
export function fixed(value, digits) {
  return Number.isNaN(value) ? '-' : value.toFixed(digits)
}

/** @param {number} value */
export function ratio(value) {
  return `${fixed(value, 2)}x`
}

/** @param {number} part */
export function percent(part) {
  return Number.isNaN(part) ? '-' : `${(part * 100).toFixed(0)} %`
}

/** @param {Check[]} checks @returns {Table} */
function targets(checks) {
  return {
    title: 'Targets',
    columns: ['figure', 'value', 'target', 'met'],
    rows: checks.map(({ figure, value, target, met }) => [figure, value, target, met ? 'yes' : 'NO']),
  }
}

/** @param {Outcome} outcome @returns {Table[]} */
function tablesOf({ tables, checks }) {
  return checks.length > 0 ? [...tables, targets(checks)] : tables
}

/** @param {Table} table */
function text({ title, columns, rows }) {
  const widths = columns.map((column, at) => Math.max(column.length, ...rows.map(row => row[at].length)))
  /** @param {string[]} cells */
  const line = cells => `  ${cells.map((cell, at) => cell.padEnd(widths[at])).join('  ')}`.trimEnd()
  return [title, line(columns), line(widths.map(width => '-'.repeat(width))), ...rows.map(line)].join('\n')
}

/** @param {Table} table */
function markdown({ title, columns, rows }) {
  /** @param {string[]} cells */
  const line = cells => `| ${cells.join(' | ')} |`
  return [`${title}:`, '', line(columns), line(columns.map(() => '---')), ...rows.map(line)].join('\n')
}

/** Parts of a core that other processes may use while the figures are still to be trusted. */
export const QUIET = 0.05

/** @param {number} foreign parts of a core */
function foreignText(foreign) {
  const verdict = foreign > QUIET ? ' The machine was not quiet: do not judge by these figures.' : ''
  return `Other processes used ${percent(foreign)} of a core.${verdict}`
}

/** @param {string} name @param {Outcome} outcome @param {number} foreign parts of a core that other processes used */
export function suiteText(name, outcome, foreign) {
  return `\n== ${name} ==\n\n${tablesOf(outcome).map(text).join('\n\n')}\n\n${foreignText(foreign)}\n`
}

/** @param {Report} report */
export function reportMarkdown({ date, quick, machine, versions, missing, suites, failures, foreign }) {
  const facts = [
    `Run of ${date}${quick ? ' (--quick: too short to judge by)' : ''}.`,
    `${machine.cpu}, ${machine.cores} cores, ${machine.system}.${machine.state === undefined ? '' : ` At its start ${machine.state}`}`,
    `${Object.entries(versions)
      .map(([name, version]) => `${name} ${version}`)
      .join(', ')}.`,
    missing.length > 0 ? `Missing: ${missing.join(', ')}.` : 'No peer was missing.',
  ]
  const parts = [facts.join('\n')]
  for (const [name, outcome] of Object.entries(suites)) {
    parts.push(`### ${name}`, ...tablesOf(outcome).map(markdown), foreignText(foreign[name] ?? NaN))
  }
  for (const [name, why] of Object.entries(failures)) parts.push(`### ${name}`, `Failed: ${why}`)
  return parts.join('\n\n')
}
