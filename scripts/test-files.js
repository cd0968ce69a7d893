// Runs test files in this process, one after the other: `node scripts/test-files.js FILE...`.
//
// Properties have the same runs each time, so that a change fails for what it changes: the first one has the seed 1, the next one 2 and so
// on. With SHAPER_SEED=random or SHAPER_DEEP=1 (nightly) they have fresh ones, and with SHAPER_SEED=N those of a failure that was printed.
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import fc from 'fast-check'

const paths = process.argv.slice(2)
// tap names folders of tests by the main script. It reads this when it is loaded.
process.argv.splice(1, Infinity, paths[0])
const { SHAPER_DEEP, SHAPER_SEED = SHAPER_DEEP === '1' ? 'random' : undefined } = process.env
let asked = 0
if (SHAPER_SEED === undefined)
  fc.configureGlobal({
    get seed() {
      asked += 1
      return asked
    },
  })
else if (SHAPER_SEED !== 'random') fc.configureGlobal({ seed: Number(SHAPER_SEED) })
const { default: t } = await import('tap')
const { teardown } = t
const teardowns = []
// With a teardown tap ends as soon as all tests are done, even if a file still awaits something and has more of them.
t.teardown = run => teardowns.push(run)
for (const path of paths) await import(pathToFileURL(resolve(path)).href)
t.teardown = teardown
for (const run of teardowns) t.teardown(run)
