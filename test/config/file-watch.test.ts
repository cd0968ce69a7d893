import { renameSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'
import t from 'tap'
import { digestOfFile } from '../../src/config/checks/readable-files.js'
import { type FileWatch, type ReadFile, watchFiles } from '../../src/config/read/file-watch.js'

function asRead(file: string): ReadFile {
  return { file, digest: digestOfFile(file) ?? '' }
}

function watching(t: { teardown(end: () => void): void }, files: string[], changed: () => void): FileWatch {
  const watch = watchFiles(changed, {
    unwatched: (_directory, error) => {
      throw error
    },
    missing: file => {
      throw new Error(file)
    },
  })
  t.teardown(() => watch.close())
  watch.watch(files.map(asRead))
  return watch
}

/** Resolves at the next change. */
function nextChange(file: string, t: { teardown(end: () => void): void }): () => Promise<void> {
  let seen = 0
  let told = 0
  let resolve = (): void => undefined
  // A watch does not keep the process alive, so a timer does.
  const alive = setInterval(() => undefined, 1_000)
  t.teardown(() => clearInterval(alive))
  watching(t, [file], () => {
    seen += 1
    resolve()
  })
  return async () => {
    told += 1
    if (seen >= told) return
    await new Promise<void>(done => {
      resolve = done
    })
  }
}

t.test('files that are written in place, files that are replaced, and links with a new target', async t => {
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

t.test('files behind links: a replaced directory, and a file written in place', async t => {
  const dir = t.testdir({ first: { a: 'one' }, second: { a: 'two' }, far: { b: 'one' } })
  symlinkSync('first', `${dir}/current`)
  const turned = nextChange(`${dir}/current/a`, t)
  symlinkSync('second', `${dir}/next`)
  renameSync(`${dir}/next`, `${dir}/current`)
  await turned()
  symlinkSync('far/b', `${dir}/b`)
  const written = nextChange(`${dir}/b`, t)
  writeFileSync(`${dir}/far/b`, 'two')
  await written()
  t.pass('each was told')
})

t.test('writing the same contents again is no change', async t => {
  const dir = t.testdir({ a: 'one' })
  let count = 0
  watching(t, [`${dir}/a`], () => {
    count += 1
  })
  const changed = nextChange(`${dir}/a`, t)
  writeFileSync(`${dir}/a`, 'one')
  writeFileSync(`${dir}/other`, 'x')
  writeFileSync(`${dir}/a`, 'two')
  await changed()
  t.equal(count, 1)
})

t.test('several files: simultaneous changes make one call, and the list of files can change', async t => {
  const dir = t.testdir({ a: 'one', b: 'one', sub: { c: 'one' } })
  const calls: string[] = []
  let called = (): void => undefined
  const alive = setInterval(() => undefined, 1_000)
  t.teardown(() => clearInterval(alive))
  const watch = watching(t, [`${dir}/a`, `${dir}/b`], () => {
    calls.push('changed')
    called()
  })
  const next = () =>
    new Promise<void>(resolve => {
      called = resolve
    })
  let changed = next()
  writeFileSync(`${dir}/a`, 'two')
  writeFileSync(`${dir}/b`, 'two')
  await changed
  t.equal(calls.length, 1)
  // A change that is not reported yet is not lost.
  changed = next()
  writeFileSync(`${dir}/a`, 'three')
  watch.watch([`${dir}/a`, `${dir}/sub/c`].map(asRead))
  await changed
  changed = next()
  writeFileSync(`${dir}/b`, 'three')
  writeFileSync(`${dir}/sub/c`, 'two')
  await changed
  t.equal(calls.length, 3, 'the one that is not watched any more is not told')
})

t.test('a directory that cannot be watched is reported', t => {
  const directories: string[] = []
  const watch = watchFiles(() => undefined, {
    unwatched: directory => directories.push(directory),
    missing: () => undefined,
  })
  watch.watch(['/nowhere/at/all/a'].map(asRead))
  t.same(directories, ['/nowhere/at/all'])
  watch.close()
  t.end()
})

t.test('long: a file that is gone is reported once, and again after it has been back', async t => {
  const dir = t.testdir({ a: 'one', b: 'one', c: 'one' })
  const missing: string[] = []
  let told = (): void => undefined
  const alive = setInterval(() => undefined, 1_000)
  t.teardown(() => clearInterval(alive))
  const watch = watchFiles(() => told(), {
    unwatched: (_directory, error) => {
      throw error
    },
    missing: file => {
      missing.push(file.slice(-1))
      told()
    },
  })
  t.teardown(() => watch.close())
  watch.watch(['a', 'b', 'c'].map(name => asRead(`${dir}/${name}`)))
  const next = (): Promise<void> =>
    new Promise(resolve => {
      told = resolve
    })
  for (const name of ['a', 'b']) {
    unlinkSync(`${dir}/${name}`)
    await next()
  }
  t.same(missing, ['a', 'b'])
  const back = next()
  writeFileSync(`${dir}/a`, 'two')
  await back
  for (const name of ['c', 'a']) {
    // What has changed is told at once. It is seen at a poll only once another file has been missed.
    unlinkSync(`${dir}/${name}`)
    await next()
  }
  t.same(missing, ['a', 'b', 'c', 'a'])
})

t.test('a file that has changed between its reading and the watch is told once', async t => {
  const dir = t.testdir({ a: 'one', b: 'one' })
  const read = [asRead(`${dir}/a`), asRead(`${dir}/b`)]
  writeFileSync(`${dir}/a`, 'two')
  const alive = setInterval(() => undefined, 1_000)
  t.teardown(() => clearInterval(alive))
  let count = 0
  let told = (): void => undefined
  const changed = () =>
    new Promise<void>(resolve => {
      told = resolve
    })
  const watch = watchFiles(
    () => {
      count += 1
      told()
    },
    { unwatched: () => undefined, missing: () => undefined },
  )
  t.teardown(() => watch.close())
  watch.watch(read)
  await changed()
  writeFileSync(`${dir}/b`, 'two')
  await changed()
  t.equal(count, 2)
})
