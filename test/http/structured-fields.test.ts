import t from 'tap'
import { dictionaryOf, listOf, urgencyOf } from '../../src/http/structured-fields.js'

t.test('the urgency of Priority, as RFC 9218 and RFC 9651 say', async t => {
  for (const [field, urgency] of [
    ['u=0', 0],
    ['u=7', 7],
    ['u=1, i', 1],
    ['i, u=2', 2],
    ['i=?0 ,\tu=5;a="b";c', 5],
    [' u=4 ', 4],
    ['x="a, u=2", l=(1 2);q, u=6', 6],
    ['u=1, u=5', 5],
  ] as const) {
    t.equal(urgencyOf(field), urgency, field)
  }
})

t.test('what does not parse or is no urgency counts as absent', async t => {
  const none = ['', 'i', 'u', 'u=8', 'u=-1', 'u=1.5', 'u="1"', 'U=1', 'u=1,', 'u=1,,i', 'u =1', 'u=1 i', 'u=1, "a"']
  for (const field of none) t.equal(urgencyOf(field), undefined, field)
})

t.test('a field that is longer than any of its kind is not read', async t => {
  const long = (length: number) => `x="${'a'.repeat(length)}", u=1`
  t.equal(urgencyOf(long(200)), 1)
  t.equal(urgencyOf(long(300)), undefined)
  t.equal(dictionaryOf(long(300)).size, 2)
  t.equal(dictionaryOf(long(9_000)).size, 0)
  t.same(listOf(`1${' '.repeat(9_000)}`), [])
})

t.test('space before a semicolon is passed over, but not in a string', async t => {
  const [first, second] = listOf('"a ;\\" ;b" \t; q=7;w=2 ,c ;d')
  t.equal(first?.[0], 'a ;" ;b')
  t.same(
    [...first![1]],
    [
      ['q', 7],
      ['w', 2],
    ],
  )
  t.same([...second![1]], [['d', true]])
})
