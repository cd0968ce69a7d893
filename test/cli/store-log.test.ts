/** What the log says of outages of a store. */
import pino from 'pino'
import t from 'tap'
import { createStoreLog } from '../../src/cli/logging/store-log.js'

t.test('one request that was decided without the store is "1 request"', async t => {
  for (const [decidedAlone, said] of [
    [1, /with 1 request decided without it/],
    [2, /with 2 requests decided without it/],
  ] as const) {
    const lines: { msg: string }[] = []
    const log = pino({ base: null }, { write: (line: string) => void lines.push(JSON.parse(line)) })
    const { shared } = createStoreLog({ type: 'redis', onOutage: 'local' }, log)
    const news = { shard: '', instances: 1, decidedAlone }
    shared({ ...news, state: 'alone' } as Parameters<typeof shared>[0])
    shared({ ...news, state: 'shared' } as Parameters<typeof shared>[0])
    t.match(lines.at(-1)!.msg, said)
  }
})

t.test('a store that answers and refuses is not called silent', async t => {
  for (const [reason, said] of [
    [
      'Redis: NOPERM this user has no permissions to access one of the keys used as arguments',
      /^the store refuses: going on alone/,
    ],
    ['Redis at 127.0.0.1:6379: connect ECONNREFUSED', /^the store does not answer: going on alone/],
  ] as const) {
    const lines: { msg: string; reason: string }[] = []
    const log = pino({ base: null }, { write: (line: string) => void lines.push(JSON.parse(line)) })
    const { shared } = createStoreLog({ type: 'redis', onOutage: 'local' }, log)
    shared({ shard: '', instances: 1, decidedAlone: 0, state: 'alone', reason })
    t.match(lines, [{ msg: said, reason }])
  }
})
