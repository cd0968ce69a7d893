import { printParseErrorCode, visit } from 'jsonc-parser'
import { ownValue } from '../../core/structures/own-value.js'
import { isObject } from '../checks/partial-config.js'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'

/** Where the text stops being JSON, and why. Line and column count from 0. */
interface SyntaxFault {
  /** As `printParseErrorCode` names it. */
  readonly name: string
  readonly offset: number
  readonly line: number
  readonly column: number
}

/** An object or a list whose end has not come yet. */
interface Open {
  readonly value: Record<string, unknown> | unknown[]
  /** The key of the next value, or its place in the list. */
  key: string | number
}

/**
 * Reads JSON. Comments, a comma after the last value and a byte order mark are allowed.
 *
 * @returns the value, and a finding for each key that is given twice; for a text that is not JSON, no value and one
 * finding that says where the error is
 */
export function readJson(text: string, file: string): { value: unknown; findings: Finding[] } {
  const json = text.replace(/^\uFEFF/, '')
  const findings: Finding[] = []
  const open: Open[] = [{ value: [], key: 0 }]
  try {
    visit(json, visitorFor(open, findings), { allowTrailingComma: true })
  } catch (error) {
    if (!(error instanceof StoppedAt)) throw error
    const { fault } = error
    const where = `line ${fault.line + 1}, column ${fault.column + 1}`
    const message = `${file} is not JSON: ${where}: ${describe(fault, json.slice(fault.offset), open)}`
    return { value: undefined, findings: [{ path: [], message }] }
  }
  return { value: (open[0]!.value as unknown[])[0], findings }
}

/** The object in a file of JSON as `readJson` reads it; undefined for any other text. */
export function readConfigObject(text: string): Record<string, unknown> | undefined {
  const { value } = readJson(text, '')
  return isObject(value) ? value : undefined
}

/** Ends a visit at the first fault. */
class StoppedAt extends Error {
  constructor(readonly fault: SyntaxFault) {
    super()
  }
}

/** @param open its first entry takes the value of the whole text */
function visitorFor(open: Open[], findings: Finding[]): Parameters<typeof visit>[1] {
  const put = (value: unknown): void => {
    const parent = open.at(-1)!
    if (typeof parent.key === 'number') (parent.value as unknown[])[parent.key++] = value
    // "__proto__" is a key like any other here. A later check refuses it.
    else
      Object.defineProperty(parent.value, parent.key, { value, enumerable: true, configurable: true, writable: true })
  }
  const begin = (value: Open['value'], key: string | number): void => {
    put(value)
    open.push({ value, key })
  }
  const end = (): void => void open.pop()
  return {
    onObjectBegin: () => begin({}, ''),
    onObjectProperty: (key, ...[, , , , pathOf]) => {
      const parent = open.at(-1)!
      parent.key = key
      if (Object.hasOwn(parent.value, key))
        findings.push({ path: [...pathOf(), key], message: 'given twice; remove one' })
    },
    onObjectEnd: end,
    onArrayBegin: () => begin([], 0),
    onArrayEnd: end,
    onLiteralValue: put,
    onError: (code, ...[offset, , line, column]) => {
      throw new StoppedAt({ name: printParseErrorCode(code), offset, line, column })
    },
  }
}

const BAD_STRING = 'this string does not end on its line, or has a bad escape'
const WORD = 'a word without quotes'

const FAULTS: Readonly<Record<string, string>> = {
  UnexpectedEndOfString: BAD_STRING,
  InvalidEscapeCharacter: BAD_STRING,
  InvalidUnicode: BAD_STRING,
  InvalidCharacter: BAD_STRING,
  UnexpectedEndOfComment: 'this comment does not end; add "*/"',
  UnexpectedEndOfNumber: 'this number lacks digits',
}

/** What should be there instead. */
const EXPECTED: Readonly<Record<string, string>> = {
  ValueExpected: 'a value',
  PropertyNameExpected: 'a key in double quotes',
  ColonExpected: '":"',
  CloseBraceExpected: '"}"',
  CloseBracketExpected: '"]"',
  EndOfFileExpected: 'the end of the text',
}

/** Quotes nothing but single marks: without its quotes a key or a token looks like anything else. */
function describe({ name }: SyntaxFault, rest: string, open: readonly Open[]): string {
  if (name === 'InvalidSymbol') return strayText(rest)
  const end = typeof open.at(-1)!.key === 'number' ? '"]"' : '"}"'
  const found = rest === '' ? 'but the text ends' : `found ${kindOf(rest)}`
  return ownValue(FAULTS, name) ?? `expected ${ownValue(EXPECTED, name) ?? `"," or ${end}`}, ${found}`
}

function strayText(rest: string): string {
  if (rest.startsWith("'")) return 'strings take double quotes'
  const kind = kindOf(rest)
  return `${kind} does not belong here${kind === WORD ? '; keys and texts take double quotes' : ''}`
}

/** What a text begins with: a mark as it is, anything longer only by its kind. */
function kindOf(rest: string): string {
  if (rest.startsWith('"')) return 'a string'
  if (/^-?\d/.test(rest)) return 'a number'
  const mark = /^[^\p{L}\p{N}_]/u.exec(rest)?.[0]
  return mark === undefined ? WORD : quote(mark)
}
