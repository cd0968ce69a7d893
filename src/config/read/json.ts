import { quote, withoutPasswords } from '../messages.js'
import type { Finding } from '../problems.js'

const TOKEN =
  /[ \t\r\n]*(?:("(?:[ !#-[\]-\uffff]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)|([{}[\]:,]))/y
const SPACE = /[ \t\r\n]*/y
const LONGEST_LINE = 100

/** Where the text stops being JSON, and what should have been there. */
class Fault {
  constructor(
    readonly index: number,
    readonly expected: string,
  ) {}
}

/** Reads JSON, tolerating a byte order mark. Either it is JSON, or there is one finding that says where it is not. */
export function readJson(text: string, file: string): { value: unknown; findings: Finding[] } {
  const json = text.replace(/^\uFEFF/, '')
  const findings: Finding[] = []
  try {
    scan(json, path => findings.push({ path, message: 'given twice; remove one' }))
    return { value: JSON.parse(json), findings }
  } catch (error) {
    if (!(error instanceof Fault)) throw error
    return { value: undefined, findings: [{ path: [], message: describe(json, error, file) }] }
  }
}

function describe(json: string, { index, expected }: Fault, file: string): string {
  const before = json.slice(0, index).split('\n')
  const line = (json.split('\n')[before.length - 1] ?? '').trim()
  const shown = masked(line.length > LONGEST_LINE ? `${line.slice(0, LONGEST_LINE)}...` : line)
  const where = `line ${before.length}, column ${before.at(-1)!.length + 1}`
  return `${file} is not JSON: ${where}: ${expected}${shown ? `; the line reads: ${shown}` : ''}`
}

function masked(line: string): string {
  return withoutPasswords(line.replace(/:\/\/[^"]*@/g, '://***@')).replace(
    /("token"\s*:\s*)"(?:[^"\\]|\\.)*"?/g,
    '$1"***"',
  )
}

/** Walks the text by the grammar of JSON. @throws Fault */
function scan(json: string, onDuplicate: (path: PropertyKey[]) => void): void {
  let at = 0

  const fault = (expected: string): Fault => {
    SPACE.lastIndex = at
    SPACE.exec(json)
    const index = SPACE.lastIndex
    const rest = json.slice(index)
    if (rest === '') return new Fault(index, `expected ${expected}, but the text ends`)
    if (/^\/[/*]/.test(rest)) return new Fault(index, 'comments are not allowed in JSON; remove it')
    if (rest.startsWith("'")) return new Fault(index, 'strings take double quotes')
    if (rest.startsWith('"') && !peek())
      return new Fault(index, 'this string does not end on its line, or has a bad escape')
    if (rest.startsWith('"')) return new Fault(index, `expected ${expected}, found a string`)
    return new Fault(index, `expected ${expected}, found ${quote(/^[\w$.-]+|^./su.exec(rest)?.[0])}`)
  }
  const peek = (): string | undefined => {
    TOKEN.lastIndex = at
    const [, string, atom, mark] = TOKEN.exec(json) ?? []
    return string ?? atom ?? mark
  }
  const take = (): void => {
    at = TOKEN.lastIndex
  }
  const accept = (mark: string): boolean => {
    const found = peek() === mark
    if (found) take()
    return found
  }

  const value = (path: PropertyKey[]): void => {
    if (accept('{')) members(path)
    else if (accept('[')) elements(path)
    else scalar()
  }
  const scalar = (): void => {
    const token = peek()
    if (token === undefined || /^[}\]:,]/.test(token)) throw fault('a value')
    take()
  }
  const members = (path: PropertyKey[]): void => {
    const keys = new Set<string>()
    if (accept('}')) return
    do {
      const token = peek()
      if (token === '}') throw fault('another key (a comma after the last one is not allowed)')
      if (!token?.startsWith('"')) throw fault('a key in double quotes')
      take()
      const key = JSON.parse(token) as string
      if (keys.has(key)) onDuplicate([...path, key])
      keys.add(key)
      if (!accept(':')) throw fault('":"')
      value([...path, key])
    } while (accept(','))
    if (!accept('}')) throw fault('"," or "}"')
  }
  const elements = (path: PropertyKey[]): void => {
    if (accept(']')) return
    let index = 0
    do {
      if (peek() === ']') throw fault('another value (a comma after the last one is not allowed)')
      value([...path, index++])
    } while (accept(','))
    if (!accept(']')) throw fault('"," or "]"')
  }

  value([])
  SPACE.lastIndex = at
  SPACE.exec(json)
  if (SPACE.lastIndex < json.length) throw fault('the end of the text')
}
