/** Patterns of paths, hosts and headers, and ranges of addresses, compared with oracles that are plain and slow. */

import fc from 'fast-check'
import t from 'tap'
import { AddressRanges, networkKey, parseKeyRange, parseRange } from '../../src/http/matching/address-ranges.js'
import { pathWithoutParameters } from '../../src/http/matching/matching-path.js'
import { createPathMatcher, expressionFault, type Normalisation } from '../../src/http/matching/path-pattern.js'
import { coversWildcard, createWildcard } from '../../src/http/matching/wildcard.js'
import { cpuTime } from '../cpu-time.js'
import { often, runs } from '../runs.js'

const RUNS = { numRuns: runs(3_000) }

/** Tries every length for every `*`. */
function naive(pattern: string, text: string): boolean {
  if (pattern === '') return text === ''
  if (pattern[0] !== '*') return pattern[0] === text[0] && naive(pattern.slice(1), text.slice(1))
  for (let length = 0; length <= text.length; length += 1) {
    if (naive(pattern.slice(1), text.slice(length))) return true
  }
  return false
}

const few = fc.constantFrom('a', 'b', '/', 'a', 'b')
const texts = fc.string({ unit: few, maxLength: 9 })
const patterns = fc.string({ unit: fc.constantFrom('a', 'b', '/', '*', '*'), maxLength: 7 })

t.test('property: wildcards match as an oracle says', async t => {
  let matched = 0
  fc.assert(
    fc.property(patterns, texts, (pattern, text) => {
      const is = createWildcard(pattern)(text)
      if (is) matched += 1
      return is === naive(pattern, text)
    }),
    RUNS,
  )
  t.ok(matched > often(50), `${matched} matched`)
})

t.test('property: a wildcard covers another only if it matches all its texts', async t => {
  let covered = 0
  fc.assert(
    fc.property(patterns, patterns, fc.array(texts, { minLength: 8, maxLength: 8 }), (wide, narrow, fillings) => {
      if (!coversWildcard(wide, narrow)) return true
      covered += 1
      let text = ''
      for (const [at, piece] of narrow.split('*').entries()) text += at === 0 ? piece : `${fillings[at]}${piece}`
      return naive(narrow, text) && naive(wide, text)
    }),
    RUNS,
  )
  t.ok(covered > often(50), `${covered} covered`)
  t.equal(coversWildcard('a*', '*'), false)
  t.equal(coversWildcard('*b', 'ab*'), false)
  t.equal(coversWildcard('a*c', 'a*b*c'), true)
})

t.test('paths: *, regular expressions, and what is ignored', async t => {
  const cases: [pattern: string, normalise: Normalisation[], yes: string[], no: string[]][] = [
    ['/login', [], ['/login', '/login?x=/'], ['/login/', '/Login', '/login;a=b', '/login/x']],
    ['/login', ['slash'], ['/login', '/login/'], ['/login/x', '/logi']],
    ['/login/', ['slash'], ['/login', '/login/'], ['/login/x']],
    ['/', ['slash'], ['/'], ['/a']],
    ['/admin/*', ['slash'], ['/admin', '/admin/', '/admin/a/'], ['/administer']],
    ['/LOGIN', ['case'], ['/login', '/LoGiN'], ['/login/']],
    ['/a%2fB', ['case'], ['/A%2Fb', '/a%2fb'], ['/a/b']],
    ['/login', ['params'], ['/login', '/login;a=b', '/;x/login;'], ['/login%3Ba', '/Login']],
    ['/admin/*', ['params'], ['/x/..;/admin/a', '/admin;a/b', '/%61dmin/b'], ['/admin/..;a/b']],
    ['/Admin', ['case', 'slash', 'params'], ['/ADMIN;a=1/', '/admin'], ['/admin/x']],
    ['/v*/users/*/edit', [], ['/v1/users/7/edit', '/v/users//x/edit', '/v1/a/users/b/c/edit'], ['/v1/users/edit']],
    ['*.php', [], ['/a.php', '/a/b.php?c=d.html'], ['/a.php/', '/a.PHP']],
    ['*/.git/*', [], ['/.git/config', '/a/.git/'], ['/.git', '/.gitx/a']],
    ['/a/../%62*', [], ['/b', '/bc'], ['/a/b']],
    ['*', [], ['/', '/a'], []],
    ['~ ^/v[0-9]+/users$', [], ['/v1/users', '/v22/users?x'], ['/v/users', '/V1/users', '/v1/users/']],
    ['~ ^/v[0-9]+/users$', ['slash', 'case'], ['/v1/users/', '/V1/USERS'], ['/v1/users/x']],
    ['~ b', [], ['/abc'], ['/ac', '/a?b']],
    ['~ \\.(png|jpg)$', ['params'], ['/a.png;v=1', '/a.jpg'], ['/a.gif']],
  ]
  for (const [pattern, normalise, yes, no] of cases) {
    const matches = createPathMatcher(pattern, normalise)
    // The path of a request is in one spelling when it is compared.
    const asked = (target: string) => {
      const path = target.replace(/\?.*/, '').replace(/%2f/g, '%2F').replace('%61', 'a').replace(/\/+/g, '/')
      return matches({ path, target })
    }
    for (const target of yes) t.equal(asked(target), true, `${pattern} ${normalise} ${target}`)
    for (const target of no) t.equal(asked(target), false, `${pattern} ${normalise} not ${target}`)
  }
})

t.test('parameters are left out before dot segments are resolved', async t => {
  t.equal(pathWithoutParameters('/x/..;/../y?z;a'), '/y')
  t.equal(pathWithoutParameters('/a;v=1/b;c'), '/a/b')
  t.equal(pathWithoutParameters('/%2e%2e;a/b'), '/b')
})

t.test('expressions that cannot be matched in linear time are refused', async t => {
  t.equal(expressionFault('^/v[0-9]+'), undefined)
  for (const bad of ['(', '(?=a)', '(?<=a)b', '(a)\\1', 'a{2000}', '((a{100}){100}){100}', '[b-a]'])
    t.ok(expressionFault(bad), bad)
})

t.test('the time to match is linear in the path', async t => {
  const hard: [pattern: string, path: (length: number) => string][] = [
    ['~ ^/(a+)+$', length => `/${'a'.repeat(length)}b`],
    ['~ (x+x+)+y$', length => `/${'x'.repeat(length)}yz`],
    ['~ ^/(.*)a(.*)a(.*)a(.*)z$', length => `/${'a'.repeat(length)}zy`],
    ['~ [ab]*a[ab]{12}c.*d$', length => `/${'ab'.repeat(length / 2)}cx`],
    ['~ (?:a?){30}a{30}z.$', length => `/${'a'.repeat(length)}zyx`],
    ['/*a*a*a*a*a*b', length => `/${'a'.repeat(length)}`],
    ['/*ab*ab*ab*ac', length => `/${'ab'.repeat(length / 2)}`],
  ]
  for (const [pattern, pathOf] of hard) {
    const matches = createPathMatcher(pattern)
    const time = (length: number): number => {
      const path = pathOf(length)
      let best = Infinity
      for (let run = 0; run < 5; run += 1) {
        const took = cpuTime(() => t.equal(matches({ path, target: path }), false))
        best = Math.min(best, took)
      }
      return best
    }
    time(2_000)
    const [short, long] = [time(8_000), time(64_000)]
    // Quadratic time would be 64 times as long.
    t.ok(long < 24 * Math.max(short, 0.05), `${pattern}: ${short} and ${long} ms`)
  }
})

/** All bits of an address. */
function bitsOf(address: string): string {
  if (!address.includes(':')) {
    return address
      .split('.')
      .map(part => Number(part).toString(2).padStart(8, '0'))
      .join('')
  }
  const [head = '', tail = ''] = address.split('::')
  const groups = (text: string) => (text === '' ? [] : text.split(':'))
  const zeros = Array<string>(8 - groups(head).length - groups(tail).length).fill('0')
  const all = address.includes('::') ? [...groups(head), ...zeros, ...groups(tail)] : groups(address)
  return all.map(group => Number.parseInt(group, 16).toString(2).padStart(16, '0')).join('')
}

const v4 = fc
  .array(fc.constantFrom(0, 1, 10, 127, 128, 255), { minLength: 4, maxLength: 4 })
  .map(bytes => bytes.join('.'))
const v6 = fc
  .array(fc.constantFrom('0', '1', '2001', 'db8', '8000', 'ffff'), { minLength: 7, maxLength: 7 })
  .map(groups => `2001:${groups.join(':')}`)
const cidr = fc.oneof(
  fc.tuple(v4, fc.nat(32)).map(([address, bits]) => ({ address, bits })),
  fc.tuple(v6, fc.nat(128)).map(([address, bits]) => ({ address, bits })),
)
const within = (address: string, range: { address: string; bits: number }) =>
  address.includes(':') === range.address.includes(':') &&
  bitsOf(address).slice(0, range.bits) === bitsOf(range.address).slice(0, range.bits)

t.test('property: ranges of addresses find the longest prefix, as an oracle says', async t => {
  let found = 0
  fc.assert(
    fc.property(fc.array(cidr, { maxLength: 12 }), fc.oneof(v4, v6), (ranges, address) => {
      const parsed = ranges.map((range, at) => [parseRange(`${range.address}/${range.bits}`)!, at] as const)
      const is = new AddressRanges(parsed).find(address)
      const fitting = ranges.filter(range => within(address, range))
      const longest = Math.max(...fitting.map(({ bits }) => bits))
      const wanted = ranges.findIndex(range => range.bits === longest && within(address, range))
      if (is !== undefined) found += 1
      return is === (wanted < 0 ? undefined : wanted)
    }),
    RUNS,
  )
  t.ok(found > often(100), `${found} found`)
  fc.assert(
    fc.property(cidr, cidr, fc.oneof(v4, v6), (wide, narrow, address) => {
      const [outer, inner] = [wide, narrow].map(each => parseRange(`${each.address}/${each.bits}`)!)
      const { bits } = outer!
      const covers = bits <= inner!.bits && networkKey(outer!, bits) === networkKey(inner!, bits)
      return !covers || !within(address, narrow) || within(address, wide)
    }),
    RUNS,
  )
})

t.test('ranges of addresses as they are written', async t => {
  const told = (text: string) => {
    const range = parseRange(text)
    return range && `${range.text}${range.hasHostBits ? ' with host bits' : ''}`
  }
  t.equal(told('10.1.2.3'), '10.1.2.3')
  t.equal(told('10.1.0.0/16'), '10.1.0.0/16')
  t.equal(told('10.1.2.3/16'), '10.1.0.0/16 with host bits')
  t.equal(told('2001:DB8:0::/32'), '2001:db8::/32')
  t.equal(told('2001:db8::1/64'), '2001:db8::/64 with host bits')
  t.equal(told('::ffff:10.0.0.0/104'), '10.0.0.0/8')
  t.equal(told('0.0.0.0/0'), '0.0.0.0/0')
  for (const bad of [
    '',
    '10',
    '10.0.0.0/33',
    '10.0.0/8',
    '::/129',
    'fe80::1%eth0',
    '::ffff:0:0/90',
    '010.0.0.1',
    'a/8',
    '1.2.3.4/',
  ]) {
    t.equal(parseRange(bad), undefined, bad)
  }
  t.equal(parseKeyRange('2001:db8::/64', 64)?.bits, 64)
  t.equal(parseKeyRange('2001:db8::/65', 64), undefined, 'it would divide a key')
  t.equal(parseKeyRange('10.0.0.1', 64), undefined, 'an address is compared as a key')
  t.equal(new AddressRanges([[parseRange('0.0.0.0/0')!, 1]]).find('a host'), undefined)
})

t.test('an address of NAT64 belongs to the longest prefix, also of the IPv4 address inside it', t => {
  const of = (...ranges: string[]) =>
    new AddressRanges(ranges.map(range => [parseRange(range)!, range] as const)).find('64:ff9b::10.1.2.3')
  t.equal(of('::/0', '10.0.0.0/8'), '10.0.0.0/8')
  t.equal(of('64:ff9b::/96', '10.0.0.0/8'), '64:ff9b::/96')
  t.equal(of('64:ff9b::a01:203', '10.1.2.3'), '64:ff9b::a01:203')
  t.equal(of('::/0', '11.0.0.0/8'), '::/0')
  t.end()
})
