/** What the checks know of patterns, compared with what the proxy does with them. */

import fc from 'fast-check'
import t from 'tap'
import { covers } from '../../src/config/checks/match-coverage.js'
import { misplacedAnchor, requiredText } from '../../src/config/checks/required-text.js'
import type { MatchSettings } from '../../src/config/settings.js'
import { createExpression, expressionFault } from '../../src/http/matching/path-pattern.js'
import { createRule } from '../../src/proxy/routing/route.js'
import { often, runs } from '../runs.js'
import { parse } from './sample.js'

const RUNS = { numRuns: runs(4_000) }

/** The rule of a route with this match, as the proxy has it. */
function ruleOf(match: object) {
  const file = { upstream: 'echo:', buckets: { a: { rate: 1 } }, routes: [{ match }] }
  return createRule(parse(file).routes[0]!)
}

function request(target: string, host: string, address: string, header: string) {
  // No target here has an escape, a dot segment or an empty segment.
  const facts = { target, path: target, host, method: 'GET', rawHeaders: ['x-a', header] }
  return { facts: facts as never, address }
}

const word = fc.string({ unit: fc.constantFrom('a', 'b', 'A'), minLength: 1, maxLength: 2 })
const segment = fc.oneof(
  word,
  word,
  fc.tuple(word, word).map(([a, b]) => `${a};${b}`),
)
const target = fc
  .tuple(fc.array(segment, { maxLength: 3 }), fc.boolean())
  .map(([list, slash]) => (list.length === 0 ? '/' : `/${list.join('/')}${slash ? '/' : ''}`))
const glob = fc.array(fc.oneof(word, fc.constantFrom('*', '*', 'a*', '*b')), { maxLength: 3 })
const path = fc.oneof(
  fc
    .tuple(glob, fc.constantFrom('', '/', '*'))
    .map(([list, end]) => (list.length === 0 ? '/' : `/${list.join('/')}${end}`)),
  fc.constantFrom('*', '*a', '*/', '~ ^/a', '~ a/b$', '~ ^/(a|b)', '~ A', '~ ^/a+b', '~ /$', '~ ^/a/b*', '~ b;a'),
)
const normalise = fc.subarray(['case', 'slash', 'params'] as const)
const host = fc.constantFrom('a.b', '*.b', 'a.*', '*', 'a.b:80', '*:80', 'c.b')
const ip = fc.subarray(['10.0.0.0/8', '10.1.0.0/16', '10.1.1.1', '2001:db8::/32', '2001:db8::1'], { minLength: 1 })
const value = fc.constantFrom('a', '*', 'a*', '*b', 'ab', '*a*')
const byPath = fc.record({ path, normalise }, { requiredKeys: ['path'] })
const byClient = fc.record({ host, ip, header: value.map(a => ({ 'x-a': a })) }, { requiredKeys: [] })
const pair = fc.oneof(fc.tuple(byPath, byPath), fc.tuple(byClient, byClient))

t.test('property: a route that covers another matches all its requests', async t => {
  let covered = 0
  const asked = fc.record({
    target,
    host: fc.constantFrom('a.b', 'A.b:80', 'c.b', 'a.c', 'a.b.'),
    address: fc.constantFrom('10.0.0.1', '10.1.1.1', '2001:db8::1', '2001:db9::1'),
    header: fc.constantFrom('a', 'ab', 'b', 'cab'),
  })
  fc.assert(
    fc.property(pair, fc.array(asked, { minLength: 20, maxLength: 20 }), ([wide, narrow], list) => {
      // A ";" in a pattern beside "params" is an error.
      const isCovered = covers(wide as MatchSettings, narrow as MatchSettings)
      if (!isCovered) return true
      const [first, second] = [ruleOf(wide), ruleOf(narrow)]
      for (const { target, host, address, header } of list) {
        const one = request(target, host, address, header)
        if (!second.matches(one)) continue
        covered += 1
        if (!first.matches(one)) return false
      }
      return true
    }),
    RUNS,
  )
  t.ok(covered > often(300), `${covered} requests`)
})

const atom: fc.Arbitrary<string> = fc.constantFrom(
  'a',
  'b',
  '/',
  '.',
  '\\.',
  '[ab]',
  '[^a]',
  '\\w',
  '(a)',
  '(a|b)',
  '(?:ab)',
)
const piece = fc
  .tuple(atom, fc.constantFrom('', '', '', '?', '*', '+', '{2}', '{0,1}', '{1,2}', '+?'))
  .map(parts => parts.join(''))
const expression = fc
  .tuple(fc.constantFrom('', '^'), fc.array(piece, { maxLength: 6 }), fc.constantFrom('', '$', '|b'))
  .map(([start, list, end]) => `${start}${list.join('')}${end}`)

t.test('property: what an expression requires is in all that it matches', async t => {
  let required = 0
  const text = fc.string({ unit: fc.constantFrom('a', 'b', '/', '.'), maxLength: 8 })
  fc.assert(
    fc.property(expression, fc.array(text, { minLength: 20, maxLength: 20 }), (pattern, list) => {
      if (expressionFault(pattern) !== undefined) return true
      const { texts, isAtStart } = requiredText(pattern)
      const compiled = new RegExp(pattern)
      return list.every(each => {
        if (texts.length === 0 || !compiled.test(each)) return true
        required += 1
        let at = 0
        const isInOrder = texts.every(part => {
          const found = each.indexOf(part, at)
          at = found + part.length
          return found >= 0
        })
        return isInOrder && (!isAtStart || each.startsWith(texts[0]!))
      })
    }),
    RUNS,
  )
  t.ok(required > often(300), `${required} matches`)
  t.same(requiredText('^/api/v[0-9]+/us?e'), { texts: ['/api/v', '/u', 'e'], isAtStart: true })
  t.same(requiredText('a\\.b$'), { texts: ['a.b'], isAtStart: false })
  t.same(requiredText('^x?a'), { texts: ['a'], isAtStart: false })
  for (const unsure of ['a|b', '(?i)a', '\\x41', '\\Qa\\E', '(?i:a)b', '\\pL', '\u{1f600}?']) {
    t.same(requiredText(unsure).texts, [], unsure)
  }
})

t.test('property: an expression with a misplaced anchor matches nothing', async t => {
  let misplaced = 0
  const anchored = fc.array(fc.oneof(piece, piece, fc.constantFrom('^', '$', '^?', '$*', '|')), { maxLength: 5 })
  const text = fc.string({ unit: fc.constantFrom('a', 'b', '/', '.'), maxLength: 6 })
  fc.assert(
    fc.property(anchored, fc.array(text, { minLength: 20, maxLength: 20 }), (pieces, list) => {
      const pattern = pieces.join('')
      if (expressionFault(pattern) !== undefined || misplacedAnchor(pattern) === undefined) return true
      misplaced += 1
      const matches = createExpression(pattern, 'exact')
      return !list.some(matches)
    }),
    RUNS,
  )
  t.ok(misplaced > often(30), `${misplaced} expressions`)
})
