import t from 'tap'
import { urgencyOf } from '../../src/http/priority-field.js'

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
