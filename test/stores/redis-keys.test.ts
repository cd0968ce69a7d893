import fc from 'fast-check'
import t from 'tap'
import { bucketKey, hashSlot, hashTag, REGISTRY, registryKey, upstreamKey } from '../../src/stores/redis/keys.js'
import { runs } from '../runs.js'

function key(group: string, name: string, key: string, prefix = 'shaper:'): string {
  return bucketKey(prefix, { group, key, limits: { name, rate: 1, capacity: 1 } })
}

/** The hash tag of a key, by the rule of Redis. */
function tagOf(key: string): string | undefined {
  return /^[^{]*\{([^}]+)\}/s.exec(key)?.[1]
}

t.test('plain names give plain keys', async t => {
  t.equal(key('one', 'client', '10.0.0.1'), 'shaper:{one}client:10.0.0.1')
  t.equal(key('', 'client', '::1'), 'shaper:{%}client:::1')
})

t.test('property: different names give different keys, whatever they contain', async () => {
  const part = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 5 }),
    fc
      .array(fc.constantFrom('{', '}', ':', '%', '7', 'b', 'u', '\ud800', '\udc00', '\0', 'é'), { maxLength: 5 })
      .map(parts => parts.join('')),
  )
  const place = fc.tuple(part, part, part)
  fc.assert(
    fc.property(place, place, (one, other) => {
      const same = one.every((text, index) => text === other[index])
      const [a, b] = [Buffer.from(key(...one)), Buffer.from(key(...other))]
      const upstreams = [one[0], other[0]].map(text => Buffer.from(upstreamKey('shaper:', text)))
      const others = [Buffer.from(registryKey('shaper:', REGISTRY)), ...upstreams]
      const apart = upstreams[0]!.equals(upstreams[1]!) === (one[0] === other[0])
      return a.equals(b) === same && apart && !others.some(key => a.equals(key)) && !others[0]!.equals(upstreams[0]!)
    }),
    { numRuns: runs(5_000) },
  )
})

t.test('property: the hash tag is the group, with any prefix', async () => {
  const part = fc.oneof(fc.string({ unit: 'binary', maxLength: 5 }), fc.constantFrom('{', '}', '{}', '}{', '{a}', ''))
  fc.assert(
    fc.property(
      part,
      part,
      part,
      part,
      (prefix, group, name, id) => tagOf(key(group, name, id, prefix)) === hashTag(group),
    ),
    { numRuns: runs(2_000) },
  )
})

t.test('hash slots are those of Redis', async t => {
  t.equal(hashSlot('123456789'), 0x31c3)
  t.equal(hashSlot('foo'), 12_182)
  t.equal(hashSlot('somekey'), 11_058)
})
