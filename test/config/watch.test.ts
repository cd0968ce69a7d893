import { renameSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'
import t from 'tap'
import { watchFile } from '../../src/config/watch.js'

/** Resolves at the next change. */
function nextChange(file: string, t: { teardown(end: () => void): void }): () => Promise<void> {
  let seen = 0
  let told = 0
  let resolve = (): void => undefined
  // Watching alone does not keep a process.
  const alive = setInterval(() => undefined, 1_000)
  t.teardown(() => clearInterval(alive))
  t.teardown(
    watchFile(file, () => {
      seen += 1
      resolve()
    }),
  )
  return async () => {
    told += 1
    if (seen >= told) return
    await new Promise<void>(done => {
      resolve = done
    })
  }
}

t.test('written in place, replaced, and turned as a link', async t => {
  const dir = t.testdir({ a: 'one', other: 'x' })
  const changed = nextChange(`${dir}/a`, t)
  writeFileSync(`${dir}/a`, 'two')
  await changed()
  writeFileSync(`${dir}/new`, 'three')
  renameSync(`${dir}/new`, `${dir}/a`)
  await changed()
  unlinkSync(`${dir}/a`)
  symlinkSync('other', `${dir}/a`)
  await changed()
  t.pass('each was told')
})

t.test('the same contents written again are no change', async t => {
  const dir = t.testdir({ a: 'one' })
  let count = 0
  t.teardown(
    watchFile(`${dir}/a`, () => {
      count += 1
    }),
  )
  const changed = nextChange(`${dir}/a`, t)
  writeFileSync(`${dir}/a`, 'one')
  writeFileSync(`${dir}/other`, 'x')
  writeFileSync(`${dir}/a`, 'two')
  await changed()
  t.equal(count, 1)
})
