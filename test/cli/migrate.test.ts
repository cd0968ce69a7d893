import t from 'tap'
import { startPostgres } from '../servers/postgres.js'
import { shaper, shaperHere } from './command.js'

const file = (store: unknown) => ({
  'shaper.config.json': JSON.stringify({ upstream: 'echo:', store, buckets: { a: { rate: '5/s' } } }),
})

t.test('migrate says if a store needs no table', async t => {
  for (const [store, name] of [
    ['memory', 'memory'],
    [{ type: 'redis', url: 'redis://127.0.0.1:1' }, 'redis'],
  ]) {
    const cwd = t.testdir(file(store))
    t.same(await shaperHere(['migrate'], { cwd }), {
      code: 0,
      stdout: `store ${name}: nothing to create, start as you are\n`,
      stderr: '',
    })
  }
})

t.test('without a file, or with a bad one: exit 2', async t => {
  const none = await shaperHere(['migrate'], { cwd: t.testdir() })
  t.equal(none.code, 2)
  t.equal(none.stderr, 'shaper: there is no ./shaper.config.json here; name a file with -c FILE\n')
  const bad = await shaperHere(['migrate'], { cwd: t.testdir(file({ type: 'postgres' })) })
  t.equal(bad.code, 2)
  t.equal(bad.stderr, 'shaper: store.url: missing; use e.g. "postgres://127.0.0.1/shaper"\n')
})

t.test('a database that is not there: exit 1, one line without the password', async t => {
  const cwd = t.testdir(file({ type: 'postgres', url: 'postgres://me:s3cret@127.0.0.1:1/limits' }))
  const { code, stderr, stdout } = await shaperHere(['migrate'], { cwd })
  t.equal(code, 1)
  t.equal(stdout, '')
  t.match(stderr, /^shaper: table shaper_buckets could not be created: .*; check the database[^\n]*\n$/)
  t.notMatch(stderr, /s3cret/)
})

t.test('the table is created, and again is no error', async t => {
  const server = await startPostgres()
  t.teardown(() => server.close())
  const cwd = t.testdir(file({ type: 'postgres', url: server.url, table: 'public.limits' }))
  const told = { code: 0, stdout: 'store postgres: table public.limits is there\n', stderr: '' }
  t.same(await shaperHere(['migrate'], { cwd }), told)
  t.same(await shaper(['migrate'], { cwd }).finished, told)
})
