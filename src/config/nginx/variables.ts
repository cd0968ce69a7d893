/** Variables of `geo` and `map` as cases. The first case whose condition holds counts, and the last one has none. */
import { METHODS } from 'node:http'
import { ownValue } from '../../core/structures/own-value.js'
import { type AddressRange, networkKey, parseRange } from '../../http/matching/address-ranges.js'
import { createExpression, expressionFault } from '../../http/matching/path-pattern.js'
import { quote } from '../messages.js'
import type { MatchSettings } from '../settings.js'
import { both, Inexpressible, reachable } from './conditions.js'
import type { Directive, ImportNote, SourcePlace } from './directives.js'
import { encodedExpression, encodedPath } from './paths.js'

export interface Case {
  readonly when: MatchSettings
  /** What is the same for all requests. */
  readonly text: string
  /** What tells them apart: parts of a key as `key` has them, and `path`. */
  readonly parts: readonly string[]
}

interface Entry {
  readonly key: string
  readonly value: string
  readonly place: SourcePlace
}

interface Table {
  readonly source: string
  readonly entries: readonly Entry[]
  readonly fallback: string
  readonly hasHostNames: boolean
  readonly place: SourcePlace
}

/** More cases would make a configuration that nobody can read. */
const MOST_CASES = 64

const REQUEST_VARIABLES: Readonly<Record<string, string>> = {
  remote_addr: 'ip',
  binary_remote_addr: 'ip',
  host: 'host',
  http_host: 'host',
  request_method: 'method',
  uri: 'path',
  document_uri: 'path',
  request_uri: 'target',
}

export class Variables {
  readonly #tables = new Map<string, Table>()
  readonly #ranges = new Map<string, Table>()
  readonly #notes: ImportNote[]
  readonly #known = new Map<string, readonly Case[]>()
  /** Names that are being read. */
  readonly #open = new Set<string>()

  constructor(http: readonly Directive[], notes: ImportNote[]) {
    this.#notes = notes
    for (const each of http) {
      if (each.name !== 'map' && each.name !== 'geo') continue
      const table = readTable(each)
      for (const { name, args, place } of (each.name === 'geo' && each.block) || []) {
        if (!name.startsWith('proxy')) continue
        const message = `"geo": ${quote([name, ...args].join(' '))} is not imported: addresses from X-Forwarded-For are those of "trustProxy", for all of shaper`
        notes.push({ place, message })
      }
      const name = each.args.at(-1)!.replace(/^\$/, '')
      if (each.name === 'map') this.#tables.set(name, table)
      else this.#ranges.set(name, table)
    }
  }

  /** The cases of a text with variables. @throws Inexpressible */
  casesOf(template: string): readonly Case[] {
    const pieces = template.split(/(\$\{\w+\}|\$\w+)/).filter(piece => piece !== '')
    return pieces.reduce<readonly Case[]>(
      (cases, piece) =>
        product(cases, piece.startsWith('$') ? this.#ofName(piece.replace(/\W/g, '')) : constant(piece)),
      constant(''),
    )
  }

  #ofName(name: string): readonly Case[] {
    const part = partOf(name)
    if (part !== undefined) return [{ when: {}, text: '', parts: [part] }]
    const known = this.#known.get(name)
    if (known !== undefined) return known
    if (this.#open.has(name)) throw new Inexpressible(`$${name} depends on itself`)
    this.#open.add(name)
    try {
      const cases = bounded(reachable(this.#defined(name), ({ when }) => when))
      this.#known.set(name, cases)
      return cases
    } finally {
      this.#open.delete(name)
    }
  }

  #defined(name: string): readonly Case[] {
    const ranges = this.#ranges.get(name)
    if (ranges !== undefined) return this.#ofRanges(ranges)
    const table = this.#tables.get(name)
    const [, claim] = /^jwt_claim_(\w+)$/.exec(name) ?? []
    if (claim !== undefined)
      throw new Inexpressible(`"jwt:${claim}" is its key, and needs "identity", which says how tokens are verified`)
    if (table === undefined) throw new Inexpressible(`shaper does not know $${name}`)
    return this.casesOf(table.source).flatMap(source => {
      if (source.parts.length === 0) return this.#under(source.when, valueFor(table, source.text))
      const [part = ''] = source.parts
      if (source.parts.length > 1 || source.text !== '') throw new Inexpressible(`"map ${table.source}"`)
      return this.#ofTable(table, part).flatMap(each => combine({ when: source.when, text: '', parts: [] }, each))
    })
  }

  #under(when: MatchSettings, value: string): Case[] {
    return product([{ when, text: '', parts: [] }], this.casesOf(value))
  }

  #ofTable(table: Table, part: string): Case[] {
    const cases = inOrder(table.entries).flatMap(entry => {
      try {
        return this.#conditionsOf(entry, table, part).flatMap(when => this.#under(when, entry.value))
      } catch (error) {
        if (!(error instanceof Inexpressible)) throw error
        const isSegment = /^(?:path|target)$/.test(part) && entry.value.includes('$')
        const instead = isSegment ? '. For a segment of the path write the key "path:N"' : ''
        const message = `"map ${table.source}": ${quote(entry.key)} cannot be matched (${error.message}), so it is left out${instead}`
        this.#notes.push({ place: entry.place, message })
        return []
      }
    })
    const empty = table.entries.find(({ key }) => key === '')
    const isOptional = /^(header|cookie|query):/.test(part)
    if (empty === undefined || !isOptional) return [...cases, ...this.casesOf(table.fallback)]
    const [kind, name = ''] = part.split(':')
    if (kind !== 'header') throw new Inexpressible(`"map ${table.source}" with an empty value`)
    // A request has the header, or it is in the last case.
    return [...cases, ...this.#under({ header: { [name]: '*' } }, table.fallback), ...this.casesOf(empty.value)]
  }

  /** The conditions under which a variable has the value of an entry: any of them. */
  #conditionsOf({ key, place }: Entry, table: Table, part: string): MatchSettings[] {
    const expression = readExpression(key)
    const text = key.replace(/^\\/, '')
    switch (part) {
      case 'method': {
        const method = METHODS.filter(name =>
          expression === undefined ? name === text.toUpperCase() : expression.test(name),
        )
        return method.length === 0 ? [] : [{ method }]
      }
      case 'path':
        // "map" ignores the case of texts.
        if (expression === undefined) return [{ path: encodedPath(text), normalise: ['case'] }]
        return [pathMatching(expression)]
      case 'target':
        return [this.#ofTarget({ text, place, expression })]
      case 'ip': {
        const range = parseRange(text)
        if (expression !== undefined || range === undefined) throw new Inexpressible('addresses are matched by "geo"')
        return [{ ip: [range.text] }]
      }
      case 'host':
        return hostsOf(text, expression, table).map(host => ({ host }))
      default:
        return this.#headersOf(text, { part, place, expression })
    }
  }

  /** A condition on a path with its query. @throws Inexpressible */
  #ofTarget({ text, place, expression }: { text: string; place: SourcePlace; expression: Expression | undefined }) {
    // With "^" and plain text it is the begin of a path, whatever the query is.
    const [, begin] = /^\^(\/[\w/%-]*)$/.exec(expression?.source ?? '') ?? []
    if (begin !== undefined) return pathMatching(expression!)
    if (expression !== undefined || text.includes('?'))
      throw new Inexpressible('it may depend on the query, and paths are matched without')
    if (text.includes('*')) throw new Inexpressible('"*" stands for any text in paths')
    const message = `${quote(text)} is matched with any query; nginx compares $request_uri with its query`
    this.#notes.push({ place, message })
    return { path: text, normalise: ['case' as const] }
  }

  #headersOf(
    text: string,
    { part, place, expression }: { part: string; place: SourcePlace; expression: Expression | undefined },
  ) {
    const [kind, name = ''] = part.split(':')
    if (kind !== 'header') throw new Inexpressible(`a ${kind} is a key, and no condition of a route`)
    if (expression === undefined && text.includes('*')) throw new Inexpressible('"*" stands for any text')
    const values = expression === undefined ? [text] : wildcardsOf(expression.source)
    if (values === undefined) throw new Inexpressible('headers have no regular expressions, only "*"')
    if (/[a-z]/i.test(text) && expression?.letters !== 'exact') {
      const shown = values.map(quote).join(', ')
      this.#notes.push({
        place,
        message: `header "${name}" is compared with ${shown} in this case; nginx ignores case here`,
      })
    }
    return values.map(value => ({ header: { [name]: value } }))
  }

  #ofRanges(table: Table): Case[] {
    if (partOf(table.source.replace('$', '')) !== 'ip') throw new Inexpressible(`"geo ${table.source}"`)
    const ranges = table.entries.flatMap(({ key, value, place }) => {
      const range = parseRange(key)
      if (range !== undefined) return [{ range, value }]
      this.#notes.push({ place, message: `"geo": ${quote(key)} is no address or CIDR, so it is left out` })
      return []
    })
    return [...grouped(ranges, table.fallback), { ip: undefined, value: table.fallback }].flatMap(({ ip, value }) =>
      this.#under(ip === undefined ? {} : { ip }, value),
    )
  }
}

/** A key part; undefined: the variable says something else. */
function partOf(name: string): string | undefined {
  const [, kind, rest = ''] = /^(http|cookie|arg)_(\w+)$/.exec(name) ?? []
  const known = ownValue(REQUEST_VARIABLES, name)
  if (known !== undefined) return known
  if (kind === 'http') return `header:${rest.replaceAll('_', '-').toLowerCase()}`
  if (kind === 'cookie') return `cookie:${rest}`
  return kind === 'arg' ? `query:${rest}` : undefined
}

function readTable({ name, args, block = [], place }: Directive): Table {
  const options =
    name === 'map' ? ['default', 'hostnames', 'volatile'] : ['default', 'ranges', 'delete', 'proxy', 'proxy_recursive']
  const deleted = block.flatMap(each => (name === 'geo' && each.name === 'delete' ? each.args : []))
  return {
    source: args.length > 1 ? args[0]! : '$remote_addr',
    entries: block
      .filter(each => !options.includes(each.name) && !deleted.includes(each.name))
      .map(each => ({ key: each.name, value: each.args[0] ?? '', place: each.place })),
    fallback: block.find(each => each.name === 'default')?.args[0] ?? '',
    hasHostNames: block.some(each => each.name === 'hostnames'),
    place,
  }
}

function pathMatching({ source, letters }: Expression): MatchSettings {
  return { path: `~ ${encodedExpression(source)}`, ...(letters === 'folded' && { normalise: ['case' as const] }) }
}

function constant(text: string): readonly Case[] {
  return [{ when: {}, text, parts: [] }]
}

function product(first: readonly Case[], second: readonly Case[]): Case[] {
  return bounded(
    reachable(
      first.flatMap(a => second.flatMap(b => combine(a, b))),
      ({ when }) => when,
    ),
  )
}

function combine(a: Case, b: Case): Case[] {
  const when = both(a.when, b.when)
  return when === undefined ? [] : [{ when, text: a.text + b.text, parts: [...a.parts, ...b.parts] }]
}

function bounded<T extends readonly Case[]>(cases: T): T {
  if (cases.length > MOST_CASES) throw new Inexpressible(`more than ${MOST_CASES} cases`)
  return cases
}

interface Expression {
  readonly source: string
  readonly letters: 'exact' | 'folded'
  test(text: string): boolean
}

/** `~bot` or `~*bot`; undefined: the text stands for itself. @throws Inexpressible */
function readExpression(key: string): Expression | undefined {
  const [, star, source] = /^~(\*?)(.*)$/s.exec(key) ?? []
  if (source === undefined) return undefined
  if (expressionFault(source) !== undefined) throw new Inexpressible('it takes more than linear time')
  const letters = star === '' ? 'exact' : 'folded'
  return { source, letters, test: createExpression(source, letters) }
}

/** As nginx looks: exact values, then masks of hosts, the longest first, then expressions in the order of the file. */
function inOrder(entries: readonly Entry[]): Entry[] {
  const rank = ({ key }: Entry): number => (key.startsWith('~') ? 2 : isMask(key) ? 1 : 0)
  const filled = entries.filter(({ key }) => key !== '')
  return [...filled].sort((a, b) => rank(a) - rank(b) || (rank(a) === 1 ? b.key.length - a.key.length : 0))
}

function isMask(key: string): boolean {
  return /^\*?\.|\.\*$/.test(key)
}

function valueFor({ entries, fallback }: Table, text: string): string {
  const exact = entries.find(({ key }) => key.replace(/^\\/, '').toLowerCase() === text.toLowerCase())
  const found = exact ?? entries.find(({ key }) => key.startsWith('~') && readExpression(key)!.test(text))
  return found?.value ?? fallback
}

function hostsOf(text: string, expression: Expression | undefined, { hasHostNames }: Table): string[] {
  if (expression !== undefined) throw new Inexpressible('hosts have no regular expressions, only "*"')
  const host = text.toLowerCase()
  if (!hasHostNames) return [host]
  return host.startsWith('.') ? [host.slice(1), `*${host}`] : [host]
}

/** Ranges of one value together, so that the first group with an address has the value of its longest range. */
function grouped(
  ranges: readonly { range: AddressRange; value: string }[],
  fallback: string,
): { ip: string[]; value: string }[] {
  const groups: { value: string; ranges: AddressRange[] }[] = []
  const lengths = [...new Set(ranges.map(({ range }) => range.bits))]
  /** The groups that have ranges of a network. */
  const users = new Map<string, Set<number>>()
  for (const { range, value } of [...ranges].sort((a, b) => b.range.bits - a.range.bits)) {
    // Groups that come before a longer range stay before it.
    const inside = [...(users.get(networkKey(range, range.bits)) ?? [])]
    const least = Math.max(-1, ...inside.filter(index => groups[index]!.value !== value))
    const found = groups.findIndex((each, index) => index > least && each.value === value)
    const index = found < 0 ? groups.push({ value, ranges: [] }) - 1 : found
    // The last group may be that of all other addresses.
    if (index > MOST_CASES) throw new Inexpressible(`more than ${MOST_CASES} cases`)
    groups[index]!.ranges.push(range)
    for (const bits of lengths.filter(each => each <= range.bits)) {
      const key = networkKey(range, bits)
      users.set(key, (users.get(key) ?? new Set()).add(index))
    }
  }
  while (groups.at(-1)?.value === fallback) groups.pop()
  return groups.map(group => ({ value: group.value, ip: group.ranges.map(({ text }) => text) }))
}

const MOST_WILDCARDS = 32
const PIECE = /\((?:\?:)?([^()]*)\)|\.[*+]\??|\\([^\w\s])|([^\\()[\]{}.*+?^$|])/y

/**
 * Expands `^(Google|bing)bot` to `Googlebot*`, `bingbot*`: what headers of `match` can say of a regular expression.
 *
 * @returns undefined: it takes more than texts, alternatives and `.*`
 */
export function wildcardsOf(expression: string): string[] | undefined {
  // At each `|` outside of groups.
  const alternatives = expression.match(/(?:\\.|\([^()]*\)|[^|\\(])+/gs) ?? ['']
  const found = alternatives.map(ofAlternative)
  const all = found.some(each => each === undefined) ? undefined : found.flatMap(each => each!)
  return all === undefined || all.length > MOST_WILDCARDS ? undefined : [...new Set(all)]
}

function ofAlternative(text: string): string[] | undefined {
  const isAtStart = text.startsWith('^')
  const isAtEnd = /(?<!\\)\$$/.test(text)
  const inner = sequence(text.slice(isAtStart ? 1 : 0, isAtEnd ? -1 : undefined))
  return inner?.map(each => `${isAtStart ? '' : '*'}${each}${isAtEnd ? '' : '*'}`.replace(/\*+/g, '*'))
}

function sequence(text: string): string[] | undefined {
  let found = ['']
  PIECE.lastIndex = 0
  for (let at = 0; at < text.length; at = PIECE.lastIndex) {
    PIECE.lastIndex = at
    const [piece, group, escaped, plain] = PIECE.exec(text) ?? []
    if (piece === undefined) return undefined
    const here = group === undefined ? [escaped ?? plain ?? '*'] : group.split('|').map(plainText)
    if (escaped === '*' || here.some(each => each === undefined)) return undefined
    found = found.flatMap(before => here.map(each => before + each!))
    if (found.length > MOST_WILDCARDS) return undefined
  }
  return found
}

/** A text without anything special in it. */
function plainText(text: string): string | undefined {
  const plain = text.replace(/\\([^\w\s*])/g, '$1')
  return /[()[\]{}*+?^$|\\]/.test(plain) || /(?<!\\)\./.test(text) ? undefined : plain
}
