/** What is certain about the paths that a regular expression matches. Where that takes more than a look, nothing is. */

/** Texts that each match has somewhere, in this order. */
export interface RequiredText {
  readonly texts: readonly string[]
  /** The first text is the start of the path, and the expression says so. */
  readonly isAtStart: boolean
}

const NOTHING: RequiredText = { texts: [], isAtStart: false }

/** @param expression a valid one of RE2 */
export function requiredText(expression: string): RequiredText {
  const atoms = atomsOf(expression)
  if (atoms === undefined) return NOTHING
  const texts: string[] = []
  let text = ''
  /** The current text is the start of the path. */
  let isFirst = atoms[0]?.text === '^' && atoms[0].quantifier === ''
  let isAtStart = false
  const end = (): void => {
    isAtStart ||= isFirst && text !== ''
    if (text !== '') texts.push(text)
    text = ''
    isFirst = false
  }
  for (const { literal, quantifier, isOptional } of isFirst ? atoms.slice(1) : atoms) {
    if (literal === undefined || isOptional) end()
    else text += literal
    if (quantifier !== '') end()
  }
  end()
  return { texts, isAtStart }
}

/** An anchor that nothing matches: "^" behind text, or "$" before text. Undefined: none, as far as that is certain. */
export function misplacedAnchor(expression: string): '^' | '$' | undefined {
  const required = atomsOf(expression)?.filter(({ isOptional }) => !isOptional) ?? []
  const isText = ({ text, literal }: QuantifiedAtom): boolean =>
    literal !== undefined || /^(?:\[|\.|\\[dDsSwW])/.test(text)
  const firstText = required.findIndex(isText)
  if (firstText >= 0 && required.findLastIndex(({ text }) => text === '^') > firstText) return '^'
  const firstEnd = required.findIndex(({ text }) => text === '$')
  return firstEnd >= 0 && required.findLastIndex(isText) > firstEnd ? '$' : undefined
}

interface QuantifiedAtom {
  readonly text: string
  /** The character that it stands for, if it is one and no other. */
  readonly literal: string | undefined
  readonly quantifier: string
  readonly isOptional: boolean
}

/** Undefined: there is an alternative, or something that is not understood here. */
function atomsOf(expression: string): QuantifiedAtom[] | undefined {
  // Half of a character that takes two is none.
  if (/[\ud800-\udfff]/.test(expression)) return undefined
  const atoms: QuantifiedAtom[] = []
  for (let at = 0; at < expression.length; ) {
    const atom = readAtom(expression, at)
    if (atom === undefined) return undefined
    const text = expression.slice(at, at + atom.length)
    at += atom.length
    const [quantifier = ''] = /^(?:[*+?]|\{\d+(?:,\d*)?\})\??/.exec(expression.slice(at)) ?? []
    at += quantifier.length
    atoms.push({ text, literal: atom.literal, quantifier, isOptional: /^(?:[*?]|\{0)/.test(quantifier) })
  }
  return atoms
}

interface Atom {
  readonly length: number
  readonly literal?: string
}

function readAtom(expression: string, at: number): Atom | undefined {
  const character = expression[at]!
  if (character === '|') return undefined
  if (character === '(') return readGroup(expression, at)
  if (character === '[') return readClass(expression, at)
  if (/[.^$]/.test(character)) return { length: 1 }
  if (character !== '\\') return { length: 1, literal: character }
  const escaped = expression[at + 1] ?? ''
  if (/[dDsSwWbBA]/.test(escaped)) return { length: 2 }
  return /[A-Za-z0-9]/.test(escaped) ? undefined : { length: 2, literal: escaped }
}

function readGroup(expression: string, at: number): Atom | undefined {
  // Flags change what follows.
  if (/^\(\?(?!:|P?<)/.test(expression.slice(at))) return undefined
  let depth = 0
  for (let next = at; next < expression.length; ) {
    const character = expression[next]!
    if (/^\(\?(?!:|P?<)|^\\Q/.test(expression.slice(next, next + 4))) return undefined
    if (character === '[') {
      next += readClass(expression, next)?.length ?? Infinity
      continue
    }
    if (character === '(') depth += 1
    if (character === ')') depth -= 1
    next += character === '\\' ? 2 : 1
    if (depth === 0) return { length: next - at }
  }
  return undefined
}

function readClass(expression: string, at: number): Atom | undefined {
  const [text] = /^\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]/s.exec(expression.slice(at)) ?? []
  return text === undefined || /\\[QE]/.test(text) ? undefined : { length: text.length }
}
