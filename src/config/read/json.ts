import { quote } from '../messages.js'
import type { Finding } from '../problems.js'

const TOKEN =
  /[ \t\r\n]*(?:("(?:[ !#-[\]-\uffff]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)|([{}[\]:,]))/y
const SPACE = /[ \t\r\n]*/y

/** Where the text stops being JSON, and what should be there instead. */
class SyntaxFault {
  constructor(
    readonly index: number,
    readonly expected: string,
  ) {}
}

/**
 * Reads JSON. A byte order mark is allowed.
 *
 * @returns the value, and a finding for each key that is given twice; for a text that is not JSON, no value and one
 * finding that says where the error is
 */
export function readJson(text: string, file: string): { value: unknown; findings: Finding[] } {
  const json = text.replace(/^\uFEFF/, '')
  const findings: Finding[] = []
  try {
    new JsonChecker(json, path => findings.push({ path, message: 'given twice; remove one' })).check()
    return { value: JSON.parse(json), findings }
  } catch (error) {
    if (!(error instanceof SyntaxFault)) throw error
    return { value: undefined, findings: [{ path: [], message: describe(json, error, file) }] }
  }
}

/** Names the place and quotes nothing of the line: without its quotes a key or a token looks like anything else. */
function describe(json: string, { index, expected }: SyntaxFault, file: string): string {
  const before = json.slice(0, index).split('\n')
  return `${file} is not JSON: line ${before.length}, column ${before.at(-1)!.length + 1}: ${expected}`
}

/** Walks a text by the grammar of JSON: for messages better than those of JSON.parse, and for duplicate keys. */
class JsonChecker {
  readonly #json: string
  readonly #onDuplicate: (path: PropertyKey[]) => void
  /** The end of the last token taken. */
  #at = 0

  constructor(json: string, onDuplicate: (path: PropertyKey[]) => void) {
    this.#json = json
    this.#onDuplicate = onDuplicate
  }

  /** @throws SyntaxFault */
  check(): void {
    this.#value([])
    if (this.#afterSpace() < this.#json.length) throw this.#fault('the end of the text')
  }

  #value(path: PropertyKey[]): void {
    if (this.#accept('{')) this.#members(path)
    else if (this.#accept('[')) this.#elements(path)
    else this.#scalar()
  }

  #scalar(): void {
    const token = this.#peek()
    if (token === undefined || /^[}\]:,]/.test(token)) throw this.#fault('a value')
    this.#take()
  }

  #members(path: PropertyKey[]): void {
    const keys = new Set<string>()
    if (this.#accept('}')) return
    do {
      const key = this.#key()
      if (keys.has(key)) this.#onDuplicate([...path, key])
      keys.add(key)
      if (!this.#accept(':')) throw this.#fault('":"')
      this.#value([...path, key])
    } while (this.#accept(','))
    if (!this.#accept('}')) throw this.#fault('"," or "}"')
  }

  #key(): string {
    const token = this.#peek()
    if (token === '}') throw this.#fault('another key (a comma after the last one is not allowed)')
    if (!token?.startsWith('"')) throw this.#fault('a key in double quotes')
    this.#take()
    return JSON.parse(token) as string
  }

  #elements(path: PropertyKey[]): void {
    if (this.#accept(']')) return
    let index = 0
    do {
      if (this.#peek() === ']') throw this.#fault('another value (a comma after the last one is not allowed)')
      this.#value([...path, index++])
    } while (this.#accept(','))
    if (!this.#accept(']')) throw this.#fault('"," or "]"')
  }

  #accept(mark: string): boolean {
    const isThere = this.#peek() === mark
    if (isThere) this.#take()
    return isThere
  }

  /** The next token; undefined: there is no token of JSON here. */
  #peek(): string | undefined {
    TOKEN.lastIndex = this.#at
    const [, string, atom, mark] = TOKEN.exec(this.#json) ?? []
    return string ?? atom ?? mark
  }

  /** Moves behind the token that `#peek` has just found. */
  #take(): void {
    this.#at = TOKEN.lastIndex
  }

  #afterSpace(): number {
    SPACE.lastIndex = this.#at
    SPACE.exec(this.#json)
    return SPACE.lastIndex
  }

  #fault(expected: string): SyntaxFault {
    const index = this.#afterSpace()
    const rest = this.#json.slice(index)
    if (rest === '') return new SyntaxFault(index, `expected ${expected}, but the text ends`)
    if (/^\/[/*]/.test(rest)) return new SyntaxFault(index, 'comments are not allowed in JSON; remove it')
    if (rest.startsWith("'")) return new SyntaxFault(index, 'strings take double quotes')
    if (rest.startsWith('"')) {
      const isString = this.#peek() !== undefined
      const message = isString
        ? `expected ${expected}, found a string`
        : 'this string does not end on its line, or has a bad escape'
      return new SyntaxFault(index, message)
    }
    return new SyntaxFault(index, `expected ${expected}, found ${kindOf(rest)}`)
  }
}

/** What a text begins with: a mark as it is, anything longer only by its kind. */
function kindOf(rest: string): string {
  if (/^-?\d/.test(rest)) return 'a number'
  const mark = /^[^\p{L}\p{N}_]/u.exec(rest)?.[0]
  return mark === undefined ? 'a word without quotes' : quote(mark)
}
