/** Answers that many watchers share. */
import t from 'tap'
import { rememberedByKey } from '../../src/admin/fleet/fleet.js'

t.test('watchers of one key share an answer, those of another key have their own', async t => {
  const taken: string[] = []
  const watch = rememberedByKey(async (bucket, key) => {
    taken.push(`${bucket} ${key}`)
    return taken.length
  })
  t.same(await Promise.all([watch('b', 'k'), watch('b', 'k'), watch('b', 'other'), watch('c', 'k')]), [1, 1, 2, 3])
  t.same(taken, ['b k', 'b other', 'c k'])
})
