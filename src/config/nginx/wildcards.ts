/** Expands `^(Google|bing)bot` to `Googlebot*`, `bingbot*`: what headers of `match` can say of a regular expression. */

const MOST = 32
const PIECE = /\((?:\?:)?([^()]*)\)|\.[*+]\??|\\([^\w\s])|([^\\()[\]{}.*+?^$|])/y

/** Undefined: it takes more than texts, alternatives and `.*`. */
export function wildcardsOf(expression: string): string[] | undefined {
  const alternatives = splitAlternatives(expression)
  const found = alternatives.map(one => ofAlternative(one))
  const all = found.some(each => each === undefined) ? undefined : found.flatMap(each => each!)
  return all === undefined || all.length > MOST ? undefined : [...new Set(all)]
}

/** At each `|` outside of groups. */
function splitAlternatives(expression: string): string[] {
  return expression.match(/(?:\\.|\([^()]*\)|[^|\\(])+/gs) ?? ['']
}

function ofAlternative(text: string): string[] | undefined {
  const isAtStart = text.startsWith('^')
  const isAtEnd = /(?<!\\)\$$/.test(text)
  const inner = sequence(text.slice(isAtStart ? 1 : 0, isAtEnd ? -1 : undefined))
  return inner?.map(each => `${isAtStart ? '' : '*'}${each}${isAtEnd ? '' : '*'}`.replace(/\*+/g, '*'))
}

/** The texts of pieces one after the other. */
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
    if (found.length > MOST) return undefined
  }
  return found
}

/** A text without anything special in it. */
function plainText(text: string): string | undefined {
  const plain = text.replace(/\\([^\w\s*])/g, '$1')
  return /[()[\]{}*+?^$|\\]/.test(plain) || /(?<!\\)\./.test(text) ? undefined : plain
}
