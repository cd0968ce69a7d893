/** The scripts take their tolerances and lives from stores/constants.ts, and from nowhere else. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { LEVEL_TOLERANCE } from '../../src/core/bucket/meter.js'
import { BEAT_LIFE, fillConstants, SAME_SLOT } from '../../src/stores/constants.js'
import { describeSchema } from '../../src/stores/postgres/schema.js'
import { readScript } from '../../src/stores/redis/wire.js'

const FILES = [
  'redis/scripts/decide.lua',
  'redis/scripts/exchange.lua',
  'redis/scripts/lease.lua',
  'redis/scripts/overrides.lua',
  'postgres/decide.sql',
  'postgres/lease.sql',
  'postgres/prune.sql',
  'postgres/table.sql',
  'postgres/table-leases.sql',
]

t.test('no script has a tolerance or a life of its own', async t => {
  for (const file of FILES) {
    const source = readFileSync(new URL(`../../src/stores/${file}`, import.meta.url), 'utf8')
    const code = source.replaceAll(/--.*$/gm, '')
    t.notMatch(code, /\de-\d|\b3000\b|[+-] 1000\b|SAME_PAUSE = \d|blocks\[i\]\) \+ \d|1735689600/, file)
  }
})

t.test('a script has the values of the constants', async t => {
  const { text } = readScript()
  t.match(text, `local LEVEL_TOLERANCE, SAME_WAIT, SAME_SLOT = ${LEVEL_TOLERANCE}, 0.000001, ${SAME_SLOT}`)
  t.match(text, `local BEAT_LIFE, BEAT_AHEAD, KEEP_MARGIN = ${BEAT_LIFE}, 1000, 1000`)
  t.match(text, 'local SAME_PAUSE = 10\n')
  const { create: createWith, prune, probe } = describeSchema('shaper_buckets')
  const create = createWith(false)
  t.match(create, `cost > capacity + ${LEVEL_TOLERANCE}`)
  t.match(create, 'blocks[i]) + 10 OR')
  t.match(probe, 'to_timestamp(1735689600)')
  for (const script of [text, create, prune, probe]) t.notMatch(script.replaceAll(/--.*$/gm, ''), /@\w+@/)
})

t.test('a name that is no constant is refused when the script is loaded', async t => {
  t.equal(fillConstants('x <= @LEVEL_TOLERANCE@ AND @table@'), `x <= ${LEVEL_TOLERANCE} AND @table@`)
  t.throws(() => fillConstants('@LEVEL_TOLERENCE@'), /LEVEL_TOLERENCE/)
})
