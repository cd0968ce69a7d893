/** The scripts take their numbers from stores/constants.ts. */
import t from 'tap'
import { LEVEL_TOLERANCE } from '../../src/core/bucket/meter.js'
import { fillConstants } from '../../src/stores/constants.js'
import { describeSchema } from '../../src/stores/postgres/schema.js'
import { readScript } from '../../src/stores/redis/wire.js'

t.test('no name of a constant is left in a script that is loaded', async t => {
  const { create, prune, probe } = describeSchema('shaper_buckets')
  for (const script of [readScript().text, create(false), prune, probe]) {
    t.notMatch(script.replaceAll(/--.*$/gm, ''), /@\w+@/)
  }
})

t.test('a name that is no constant is refused when the script is loaded', async t => {
  t.equal(fillConstants('x <= @LEVEL_TOLERANCE@ AND @table@'), `x <= ${LEVEL_TOLERANCE} AND @table@`)
  t.throws(() => fillConstants('@LEVEL_TOLERENCE@'), /LEVEL_TOLERENCE/)
})
