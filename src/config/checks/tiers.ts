/** Checks that need several keys of a tier: it has members, it changes a limit, and no two tiers collide. */

import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import type { PartialBucket, PartialTier } from './partial-config.js'

const MEMBERS = 'add e.g. "keys": ["customer-1"] or "header": { "x-plan": "gold" }'
const LIMITS = 'add a rate, a capacity, a burst, a maxInFlight, a weight or a priority, or remove the tier'

/** Finds every contradiction among the tiers of one bucket, in file order. */
export function tierFaults({ name, tiers }: PartialBucket): Finding[] {
  const firstPlaceOf = new Map<string, string>()
  return tiers.flatMap((tier, index) => {
    if (tier === undefined) return []
    const path = ['buckets', name, 'tiers', index]
    return [
      ...(tier.hasMembers ? [] : [{ path, message: `this tier has no members; ${MEMBERS}` }]),
      ...(tier.hasLimits ? [] : [{ path, message: `changes nothing; ${LIMITS}` }]),
      ...sameName(tier, index, tiers).map(message => ({ path: [...path, 'name'], message })),
      ...tier.keys.flatMap((key, position) =>
        sameKey(key, `tiers[${index}].keys[${position}]`, firstPlaceOf).map(message => ({
          path: [...path, 'keys', position],
          message,
        })),
      ),
    ]
  })
}

function sameName({ name }: PartialTier, index: number, tiers: PartialBucket['tiers']): string[] {
  const first = tiers.findIndex(tier => tier?.name === name)
  return name === undefined || first === index ? [] : [`${quote(name)} is already tiers[${first}]; use another name`]
}

/**
 * Names the place of the same key, not the key: it may be a credential.
 *
 * @param firstPlaceOf the first place of each key; this function adds to it
 */
function sameKey(key: unknown, place: string, firstPlaceOf: Map<string, string>): string[] {
  if (typeof key !== 'string' || key === '') return []
  const first = firstPlaceOf.get(key)
  if (first !== undefined) return [`the same key as ${first}; remove one`]
  firstPlaceOf.set(key, place)
  return []
}
