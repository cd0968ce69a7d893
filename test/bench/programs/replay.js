// @ts-check
/**
 * Replays a log once by the command line of DIST, in its own process: `replay.js DIST FLAG... LOG`. Reports lines/s,
 * us of CPU per line, and the most memory in MB.
 */
import { pathToFileURL } from 'node:url'

const [dist, ...args] = process.argv.slice(2)
const { main } = await import(pathToFileURL(`${dist}/cli/main.js`).href)

let written = ''
process.stdout.write = /** @type {typeof process.stdout.write} */ (
  chunk => {
    written += chunk
    return true
  }
)
const began = performance.now()
const cpu = process.cpuUsage()
await main(['node', 'shaper', 'replay', ...args, '--json'])
const ms = performance.now() - began
const { user, system } = process.cpuUsage(cpu)
const { lines } = JSON.parse(written)
process.send?.(
  {
    lines,
    seconds: ms / 1_000,
    perSecond: (lines / ms) * 1_000,
    cpu: (user + system) / lines,
    memory: process.resourceUsage().maxRSS / 1_024,
  },
  () => process.exit(),
)
