import fc from 'fast-check'
import t from 'tap'
import { NameSet } from '../../../src/proxy/http/fields.js'
import { runs } from '../../runs.js'

const KNOWN = [
  'te',
  'via',
  'host',
  'expect',
  'upgrade',
  'trailer',
  'connection',
  'keep-alive',
  'x-forwarded-for',
  'a~b',
]

t.test('property: a name is found in any case, and no other name is', async () => {
  const names = new NameSet(KNOWN)
  const letter = fc.constantFrom(...'aehktuvxEHKTUVX-_1!~'.split(''))
  const known = fc.constantFrom(...KNOWN)
  const name = fc.oneof(
    fc.string({ unit: letter, maxLength: 6 }),
    known.chain(text => fc.mixedCase(fc.constant(text), { toggleCase: swapCase })),
    // One character is another one.
    fc.tuple(known, fc.nat(20), letter).map(([text, at, other]) => text.slice(0, at) + other + text.slice(at + 1)),
  )
  fc.assert(
    fc.property(name, text => {
      const lower = text.toLowerCase()
      return (
        names.find(text) === (KNOWN.includes(lower) ? lower : undefined) && names.has(text) === KNOWN.includes(lower)
      )
    }),
    { numRuns: runs(2_000) },
  )
})

t.test('only letters have a case', async t => {
  const names = new NameSet(KNOWN)
  t.equal(names.find('A~B'), 'a~b')
  // These differ from the known names in the bit that tells a letter from its capital.
  for (const name of ['a^b', 'keep\ralive']) t.equal(names.find(name), undefined, name)
})

function swapCase(letter: string): string {
  return letter === letter.toUpperCase() ? letter.toLowerCase() : letter.toUpperCase()
}
