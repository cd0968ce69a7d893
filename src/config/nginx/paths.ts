/** Paths as shaper compares them. nginx decodes all of a path before, here only letters, digits and `-._~` are decoded. */
import { expressionOf, partsOf } from '../../http/matching/path-pattern.js'
import { percentEncoded } from '../schema/routes.js'
import { Inexpressible } from './conditions.js'

/** The path of a decoded text. @throws Inexpressible */
export function encodedPath(text: string): string {
  if (text.includes('*')) throw new Inexpressible('"*" stands for any text in paths')
  return text.replace(/[^\x21-\x7e]+|[?#%"<>^`{|}]/g, percentEncoded)
}

/** The same of an expression. @throws Inexpressible */
export function encodedExpression(source: string): string {
  if (/\[[^\]]*[^\x21-\x7e][^\]]*\]/.test(source))
    throw new Inexpressible('paths have "%20" for a space, which is no character')
  // The "<" and ">" of a group's name stay.
  return source.replace(/\(\?P?<\w+>|(?:\\(?= ))?[^\x21-\x7e]|(?<!\\)[%"<>]/gu, character => {
    if (character.startsWith('(')) return character
    const code = percentEncoded(character.slice(-1) === ' ' ? ' ' : character)
    return `(?:${code})`
  })
}

/** Whether a character that may be escaped tells whether a path matches: `/api%2Fx` is no `/api/x` here. */
export function dependsOnEscapes(pattern: string): boolean {
  return partsOf(pattern).some(partDependsOnEscapes)
}

function partDependsOnEscapes(pattern: string): boolean {
  const expression = expressionOf(pattern)
  if (expression === undefined) return /[/:@!$&'()+,;=%[\]\\]/.test(pattern.slice(1))
  const inner = expression.replace(/^\^?\//, '').replace(/\\[.~_-]|\(\?\w*:?/g, '')
  return /[/:@!&',;=.%]|\\(?:[SDWsx]|\W)|\[\^/.test(inner)
}
