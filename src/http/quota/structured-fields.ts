/**
 * Lists and dictionaries of structured fields (RFC 9651), as far as rate limit fields use them. Byte sequences, dates
 * and display strings are skipped. Inner lists are refused. As the RFC demands, one fault makes the whole field void.
 */

export type Bare = number | string | boolean | undefined

export interface Member {
  /** Set in a dictionary only. */
  readonly key: string | undefined
  /** Undefined: of a kind that is skipped. */
  readonly value: Bare
  readonly params: ReadonlyMap<string, Bare>
}

/** Longer fields are not read: no answer has so many limits. */
const LONGEST_FIELD = 8_192

const SPACE = /[ \t]*/y
const COMMA = /[ \t]*,[ \t]*/y
const SEMICOLON = /[ \t]*; */y
const EQUALS = /=/y
const KEY = /[a-z*][a-z0-9_.*-]*/y

const BARE: readonly [form: RegExp, value: (text: string) => Bare][] = [
  [/-?\d{1,15}(?:\.\d{1,9})?/y, Number],
  [/"(?:[ !#-[\]-~]|\\["\\])*"/y, text => text.slice(1, -1).replace(/\\(.)/g, '$1')],
  [/[A-Za-z*][\w!#$%&'*+.^`|~:/-]*/y, text => text],
  [/\?[01]/y, text => text === '?1'],
  [/:[A-Za-z0-9+/=]*:|@-?\d{1,15}|%"[ !#-~]*"/y, () => undefined],
]

/** @returns undefined where the field is absent or void */
export function parseList(text: string | undefined): readonly Member[] | undefined {
  return parseMembers(text, ({ item }) => item(undefined))
}

/** @returns undefined where the field is absent or void */
export function parseDictionary(text: string | undefined): readonly Member[] | undefined {
  return parseMembers(text, scanner => {
    const key = scanner.take(KEY)
    if (key === undefined) return undefined
    if (scanner.take(EQUALS) !== undefined) return scanner.item(key)
    return scanner.withParams(key, true)
  })
}

function parseMembers(
  text: string | undefined,
  parse: (scanner: Scanner) => Member | undefined,
): readonly Member[] | undefined {
  if (text === undefined || text.length > LONGEST_FIELD) return undefined
  const scanner = createScanner(text)
  const members: Member[] = []
  scanner.take(SPACE)
  do {
    const member = parse(scanner)
    if (member === undefined) return undefined
    members.push(member)
  } while (scanner.take(COMMA) !== undefined)
  scanner.take(SPACE)
  return scanner.done() ? members : undefined
}

type Scanner = ReturnType<typeof createScanner>

function createScanner(text: string) {
  let at = 0

  const take = (form: RegExp): string | undefined => {
    form.lastIndex = at
    const found = form.exec(text)?.[0]
    if (found !== undefined) at += found.length
    return found
  }

  const bare = (): { readonly value: Bare } | undefined => {
    for (const [form, value] of BARE) {
      const found = take(form)
      if (found !== undefined) return { value: value(found) }
    }
    return undefined
  }

  const withParams = (key: string | undefined, value: Bare): Member | undefined => {
    const params = new Map<string, Bare>()
    while (take(SEMICOLON) !== undefined) {
      const name = take(KEY)
      if (name === undefined) return undefined
      const given = take(EQUALS) === undefined ? { value: true } : bare()
      if (given === undefined) return undefined
      params.set(name, given.value)
    }
    return { key, value, params }
  }

  const item = (key: string | undefined): Member | undefined => {
    const found = bare()
    return found === undefined ? undefined : withParams(key, found.value)
  }

  return { take, item, withParams, done: (): boolean => at === text.length }
}
