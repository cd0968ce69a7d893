// @ts-check
/** What a program waits for when it imports the library: both packages beside undici alone, each time in a process of its own. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { DIST } from '../participants.js'
import { entry, median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

const MOST = 3

/** @param {import('../main.js').Context} context */
export async function importing({ quick, rounds: wanted, progress }) {
  /** @param {string} path */
  const file = path => pathToFileURL(join(DIST, path)).href
  const what = {
    undici: import.meta.resolve('undici'),
    'leaky-shaper': file('index.js'),
    'leaky-shaper-core': file('../dist-core/dist/index.mjs'),
  }
  const rounds = wanted ?? (quick ? 5 : 20)
  /** @type {Record<string, number[]>} */
  const raw = {}
  for (let round = 0; round < rounds; round += 1) {
    progress(`importing: round ${round + 1} of ${rounds}`)
    for (const [name, url] of Object.entries(what)) {
      const code = `const start = performance.now(); await import('${url}'); console.log(performance.now() - start)`
      const output = execFileSync(process.execPath, ['--input-type=module', '-e', code], { encoding: 'utf8' })
      entry(raw, name, () => /** @type {number[]} */ ([])).push(Number(output))
    }
  }
  /** @param {string} name */
  const against = name => median(raw[name] ?? []) / median(raw.undici ?? [])
  const ours = Object.keys(what).filter(name => name !== 'undici')
  return {
    checks: ours.map(name => ({
      figure: `import of ${name} against undici`,
      value: ratio(against(name)),
      target: `<= ${MOST}x`,
      met: against(name) <= MOST,
    })),
    tables: [
      {
        title: `Import, median of ${rounds} processes`,
        columns: ['package', 'ms', 'against undici'],
        rows: Object.keys(what).map(name => [name, fixed(median(raw[name] ?? []), 1), ratio(against(name))]),
      },
    ],
    raw,
  }
}
