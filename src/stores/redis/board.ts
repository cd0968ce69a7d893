/** What instances leave for each other in Redis. All of it has one tag, so it lives on one server. */
import { readFileSync } from 'node:fs'
import { type Board, MOST_OVERRIDES, type Override, VIEW_LIFE, type View } from '../../core/board.js'
import { StoreError } from '../../core/store.js'
import { fillConstants } from '../constants.js'
import { inTime } from '../in-time.js'
import { BOARD, overridesKey, secretKey, viewKey, viewsKey } from './keys.js'
import type { Router } from './router.js'
import { withoutScript } from './wire.js'

/** Texts that are asked for at once. More would delay decisions on the same connection. */
const CHUNK = 8

export interface RedisBoardOptions {
  readonly router: Router
  readonly prefix: string
  /** ms */
  readonly timeout: number
  /** The channel for news. */
  readonly channel: string
}

export function createRedisBoard({ router, prefix, timeout, channel }: RedisBoardOptions): Board {
  const script = fillConstants(readFileSync(new URL('./scripts/overrides.lua', import.meta.url), 'utf8'))
  const overrides = overridesKey(prefix)

  /** Sends one command. It is not sent again. */
  function ask(command: string, ...args: (string | number)[]): Promise<unknown> {
    const partition = router.partitionOfTag(BOARD)
    const late = (): StoreError => new StoreError('Redis did not answer in time')
    return inTime(timeout, late, async check => {
      let node = router.find(partition)
      while (!node?.ready) {
        const source = node ?? router
        if (source.pending === undefined) throw source.error
        await source.pending
        check()
        node = router.find(partition)
      }
      try {
        return await node.redis.callBuffer(command, args)
      } catch (error) {
        router.redirect(error as Error, partition, node)
        throw new StoreError(`Redis: ${withoutScript(error as Error)}`)
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
      const [ids, life] = [viewsKey(prefix, kind), VIEW_LIFE[kind]]
      // The text first: an id without a text is nothing.
      await Promise.all([
        ask('set', viewKey(prefix, kind, id), text, 'PX', life),
        ask('sadd', ids, id),
        ask('pexpire', ids, life * 2),
      ])
    },

    async views(kind) {
      const [views, life] = [viewsKey(prefix, kind), VIEW_LIFE[kind]]
      const ids = ((await ask('smembers', views)) as Buffer[]).map(String)
      const found: View[] = []
      const gone: string[] = []
      for (let first = 0; first < ids.length; first += CHUNK) {
        const some = ids.slice(first, first + CHUNK)
        const texts = (await ask('mget', ...some.map(id => viewKey(prefix, kind, id)))) as (Buffer | null)[]
        const lives = (await Promise.all(some.map(id => ask('pttl', viewKey(prefix, kind, id))))) as number[]
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

    async agreeOnSecret(proposed) {
      const key = secretKey(prefix)
      await ask('set', key, proposed, 'NX')
      // Without it the server has lost its data just now.
      return String((await ask('get', key)) ?? proposed)
    },
  }
}
