import t from 'tap'
import { changedKeys, LimitTable, LimitTableBuilder, type OwnLimits } from '../../src/core/structures/limit-table.js'
import { runs } from '../runs.js'
import { random as seeded } from './run.js'

const NONE = Number.NaN
const own = (rate: number, capacity = NONE): OwnLimits => [rate, capacity, NONE, NONE, NONE]

function tableOf(entries: Iterable<readonly [string, OwnLimits]>, before?: LimitTable): LimitTable {
  const builder = new LimitTableBuilder(before)
  for (const [key, limits] of entries) builder.set(key, builder.setOf(limits))
  return builder.build()
}

/** Prefixes of each other, two bytes a character, none, the same last byte: what could be mixed up. */
const ALPHABET = ['a', 'b', 'é', 'ÿ', 'Ā', '\u0161', '中', '\ud83d\ude00', '\0', '\n', '']

function textOf(random: () => number): string {
  return Array.from({ length: random() * 5 }, () => ALPHABET[Math.floor(random() * ALPHABET.length)]).join('')
}

t.test('keys come back after a source had none', async t => {
  const empty = tableOf([], tableOf([['a', own(1)]]))
  t.equal(empty.size, 0)
  const again = tableOf([['a', own(2)]], empty)
  t.equal(again.size, 1)
  t.equal(again.own(again.find('a'))[0], 2)
})

t.test('property: a table has what a Map has', async t => {
  const random = seeded(1)
  for (let run = 0; run < runs(300); run += 1) {
    const text = (): string => textOf(random)
    const map = new Map<string, OwnLimits>()
    const builder = new LimitTableBuilder()
    for (let count = random() * 400; count > 0; count -= 1) {
      const key = count % 2 < 1 ? text() : `${text()}-${Math.floor(random() * 300)}`
      const limits = own(Math.floor(random() * 5), [NONE, random()][Math.floor(random() * 2)])
      t.equal(builder.set(key, builder.setOf(limits)), map.has(key) ? 'again' : 'new')
      map.set(key, limits)
      t.ok(builder.has(key))
    }
    const table = new LimitTable(structuredClone(builder.build().memory))
    t.equal(table.size, map.size)
    t.same(
      Array.from(table.all(), entry => table.keyOf(entry)),
      [...map.keys()],
      'in their order',
    )
    for (const [key, limits] of map) t.same(table.own(table.find(key)), limits)
    for (let miss = 0; miss < 50; miss += 1) {
      const key = text()
      t.equal(table.find(key) >= 0, map.has(key), JSON.stringify(key))
    }
  }
})

/** Some keys, and what may become of them: a few change, go or come, mostly in the same order. */
function randomChange(random: () => number): { before: Map<string, OwnLimits>; after: Map<string, OwnLimits> } {
  const before = new Map(Array.from({ length: 150 }, (_, key) => [`k${key}`, own(Math.floor(random() * 3))]))
  const gone = random() * 0.05
  const kept = [...before].filter(() => random() >= gone)
  if (random() < 0.3) kept.sort(() => random() - 0.5)
  const after = new Map(kept.map(([key, limits]) => [key, random() < 0.05 ? own(7, random()) : limits] as const))
  for (let count = Math.floor(random() * 3); count > 0; count -= 1) after.set(`new ${random()}`, own(1))
  return { before, after }
}

t.test('property: what has changed between two tables', async t => {
  const random = seeded(2)
  for (let run = 0; run < runs(300); run += 1) {
    const { before, after } = randomChange(random)
    const names = new Set([...before.keys(), ...after.keys()])
    const wanted = [...names].filter(key => `${before.get(key)}` !== `${after.get(key)}`)
    const first = tableOf(before)
    const second = tableOf(after, run % 3 === 0 ? undefined : first)
    t.same(
      Array.from(second.all(), entry => [second.keyOf(entry), `${second.own(second.setOf(entry))}`]),
      [...after].map(([key, limits]) => [key, `${limits}`]),
    )
    for (const key of names) t.equal(second.find(key) >= 0, after.has(key))
    t.same(changedKeys(first, second, 1_000)?.sort(), wanted.sort())
    t.same(changedKeys(first, second, wanted.length)?.length, wanted.length)
    if (wanted.length > 0) t.equal(changedKeys(first, second, wanted.length - 1), undefined, 'too many to tell')
  }
})

t.test('a table is small', async t => {
  const count = 100_000
  const table = tableOf(Array.from({ length: count }, (_, at) => [`customer-${at}`, own(at % 3)] as const))
  const text = `customer-${count - 1}`.length
  t.ok(table.bytes / count < 64 + text, `${table.bytes / count} bytes a key with the same limits as others`)
  const each = tableOf(Array.from({ length: count }, (_, at) => [`customer-${at}`, own(at)] as const))
  t.ok(each.bytes / count < 80 + text, `${each.bytes / count} bytes a key with its own`)
})
