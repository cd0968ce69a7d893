/** What instances leave for each other in Redis. All of it has one tag, so it lives on one server. */
import { readFileSync } from 'node:fs'
import { type Board, MOST_OVERRIDES, type Override, VIEW_LIFE, type View, type ViewKind } from '../../sharing/board.js'
import { StoreError } from '../../sharing/store.js'
import { fillConstants } from '../constants.js'
import { KIND, keptParts } from '../news.js'
import { inTime } from '../timing.js'
import { BOARD, boardKey } from './keys.js'
import { type Router, whenKnown } from './link.js'
import { reasonOf } from './wire.js'

/** Texts that are asked for at once. More would delay decisions on the same connection. */
const CHUNK = 8

export interface RedisBoardOptions {
  readonly router: Router
  readonly prefix: string
  /** ms */
  readonly timeout: number
  readonly channel: string
}

export function createRedisBoard({ router, prefix, timeout, channel }: RedisBoardOptions): Board {
  const script = fillConstants(readFileSync(new URL('./scripts/overrides.lua', import.meta.url), 'utf8'))
  const overrides = boardKey(prefix, 'overrides')
  const viewKey = (kind: ViewKind, id: string): string => boardKey(prefix, `view:${kind}:${id}`)

  /** Sends one command. It is not sent again. */
  function ask(command: string, ...args: (string | number)[]): Promise<unknown> {
    const partition = router.partitionOfTag(BOARD)
    const late = (): StoreError => new StoreError('Redis did not answer in time')
    return inTime(timeout, late, async check => {
      let node = router.find(partition)
      while (!node?.ready) {
        await whenKnown(node ?? router)
        check()
        node = router.find(partition)
      }
      try {
        return await node.redis.callBuffer(command, args)
      } catch (error) {
        router.redirect(error as Error, partition, node)
        throw new StoreError(`Redis: ${reasonOf(error as Error)}`)
      }
    })
  }

  const onOverrides = (...args: (string | number)[]): Promise<unknown> =>
    ask('eval', script, 1, overrides, channel, ...args)
  const nameOf = (bucket: string, key: string): string => JSON.stringify([bucket, key])

  return {
    async setOverride({ endsIn, ...override }) {
      const { bucket, key } = override
      const name = nameOf(bucket, key)
      return (await onOverrides('set', name, endsIn, JSON.stringify(override), MOST_OVERRIDES)) === 1
    },

    async endOverride(bucket, key) {
      return (await onOverrides('end', nameOf(bucket, key), JSON.stringify({ bucket, key }))) === 1
    },

    async overrides() {
      const list = (await onOverrides('list')) as Buffer[]
      const found: Override[] = []
      for (let place = 0; place < list.length; place += 2) {
        found.push({ ...JSON.parse(list[place + 1]!.toString()), endsIn: Number(list[place]) })
      }
      return found
    },

    async show(kind, id, text) {
      const [ids, life] = [boardKey(prefix, `views:${kind}`), VIEW_LIFE[kind]]
      // The text first: an id without a text is nothing.
      await Promise.all([
        ask('set', viewKey(kind, id), text, 'PX', life),
        ask('sadd', ids, id),
        ask('pexpire', ids, life * 2),
      ])
    },

    async views(kind) {
      const [views, life] = [boardKey(prefix, `views:${kind}`), VIEW_LIFE[kind]]
      const ids = ((await ask('smembers', views)) as Buffer[]).map(String)
      const found: View[] = []
      const gone: string[] = []
      for (let first = 0; first < ids.length; first += CHUNK) {
        const some = ids.slice(first, first + CHUNK)
        const texts = (await ask('mget', ...some.map(id => viewKey(kind, id)))) as (Buffer | null)[]
        const lives = (await Promise.all(some.map(id => ask('pttl', viewKey(kind, id))))) as number[]
        for (const [place, id] of some.entries()) {
          const text = texts[place]
          const left = lives[place]!
          if (text == null || left < 0) gone.push(id)
          else found.push({ id, text: text.toString(), age: life - left })
        }
      }
      if (gone.length > 0) await ask('srem', views, ...gone)
      return found
    },

    async tell(news) {
      await ask('publish', channel, `${KIND.kept}${JSON.stringify(keptParts(news))}`)
    },

    async agreeOnSecret(proposed) {
      const key = boardKey(prefix, 'secret')
      await ask('set', key, proposed, 'NX')
      // Without it the server has lost its data just now.
      return String((await ask('get', key)) ?? proposed)
    },
  }
}
