/** Reads configurations of nginx: its words, quotes, blocks and included files. */

import { dirname, isAbsolute, join } from 'node:path'
import { orElse } from '../../core/structures/or-else.js'
import { ownValue } from '../../core/structures/own-value.js'

export interface SourcePlace {
  readonly file: string
  readonly line: number
}

export interface Directive {
  readonly name: string
  readonly args: readonly string[]
  /** Absent: it ends with a semicolon. */
  readonly block?: readonly Directive[]
  readonly place: SourcePlace
}

/** Something that shaper cannot do, or does differently. */
export interface ImportNote {
  readonly place: SourcePlace
  readonly message: string
  /** It is about requests that nginx refuses and shaper does not. */
  readonly isFirst?: boolean
}

export interface NginxFiles {
  /** @throws Error with a code, if there is no such file */
  read(file: string): string
  /** The names in a folder; none if there is no such folder. */
  list(folder: string): readonly string[]
}

export class NginxSyntaxError extends Error {
  constructor(
    readonly place: SourcePlace,
    message: string,
  ) {
    super(message)
  }
}

/** More nested includes than this are a circle. */
const MOST_INCLUDES = 20
/** More nested blocks than this are no configuration. */
const MOST_BLOCKS = 100

/**
 * Reads a file of nginx and all that it includes. Names of included files start at the folder of the first file.
 *
 * @returns also the names of all files, in the order of reading
 * @throws NginxSyntaxError
 */
export function readDirectives(
  file: string,
  files: NginxFiles,
): { directives: Directive[]; notes: ImportNote[]; names: string[] } {
  const notes: ImportNote[] = []
  const names: string[] = []
  const folder = dirname(file)
  const ofFile = (name: string, depth: number): Directive[] => {
    const text = files.read(name).replace(/^\uFEFF/, '')
    names.push(name)
    return expand(new BlockReader(text, name).all(), depth)
  }
  const expand = (list: readonly Directive[], depth: number): Directive[] =>
    list.flatMap(each => {
      if (each.name === 'include' && each.args.length === 1) return included(each, depth + 1)
      return each.block === undefined ? [each] : [{ ...each, block: expand(each.block, depth) }]
    })
  const included = ({ args, place }: Directive, depth: number): Directive[] => {
    const [pattern = ''] = args
    if (depth > MOST_INCLUDES) throw new NginxSyntaxError(place, `includes itself: ${pattern}`)
    const found = matchingFiles(pathFrom(folder, pattern), files)
    if (found.length === 0) notes.push({ place, message: `include "${pattern}" names no file here` })
    return found.flatMap(name => {
      try {
        return ofFile(name, depth)
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException
        if (code === undefined) throw error
        notes.push({ place, message: `"${name}" cannot be read (${code}), so nothing in it is imported` })
        return []
      }
    })
  }
  return { directives: ofFile(file, 0), notes, names }
}

/** A file that a directive names. Relative names start at the folder of the first file. */
export function pathFrom(folder: string, name: string): string {
  return isAbsolute(name) ? name : join(folder, name)
}

/** The files that a pattern of `include` names, by name. A name without `*`, `?` and `[` is itself. */
function matchingFiles(pattern: string, files: NginxFiles): string[] {
  const at = pattern.split('/').findIndex(part => /[*?[]/.test(part))
  if (at < 0) return [pattern]
  const parts = pattern.split('/')
  const folder = parts.slice(0, at).join('/') || (isAbsolute(pattern) ? '/' : '.')
  const wanted = segmentExpression(parts[at]!)
  const names = files.list(folder).filter(name => wanted.test(name))
  return [...names].sort().flatMap(name => matchingFiles([join(folder, name), ...parts.slice(at + 1)].join('/'), files))
}

/** A name that starts with a dot has to be named with it. */
function segmentExpression(segment: string): RegExp {
  const source = segment.replace(/\[!?[^\]]*\]|[*?]|[\\^$.|+(){}[\]]/g, part => {
    if (part === '*') return '[^/]*'
    if (part === '?') return '[^/]'
    return part.length > 1 ? part.replace(/^\[!/, '[^') : `\\${part}`
  })
  // A range such as [z-a] has no characters.
  return orElse(() => new RegExp(`^${segment.startsWith('.') ? '' : '(?!\\.)'}${source}$`), /(?!)/)
}

const SPACE = /[ \t\r\n]+|#[^\n]*/y
const QUOTED = /"((?:[^"\\]|\\[\s\S])*)"|'((?:[^'\\]|\\[\s\S])*)'/y
/** Other blanks, as that without a break, are in words. */
const WORD = /(?:\\[\s\S]|\$\{|[^ \t\r\n;{\\])+/y
/** Comments and texts of Lua, in which braces do not count, or one character. */
const LUA_TOKEN = /(?:--)?\[(=*)\[[\s\S]*?\]\1\]|--[^\n]*|"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*'|[\s\S]/y
const ESCAPES: Readonly<Record<string, string>> = { t: '\t', r: '\r', n: '\n' }

class BlockReader {
  readonly #text: string
  readonly #file: string
  #at = 0
  #line = 1
  #depth = 0
  /** Up to where lines have been counted. */
  #counted = 0

  constructor(text: string, file: string) {
    this.#text = text
    this.#file = file
  }

  all(): Directive[] {
    const found = this.#directives()
    if (this.#mark() === '}') throw this.#fault('unexpected "}"')
    return found
  }

  /** Up to a `}` or the end of the text. */
  #directives(): Directive[] {
    const found: Directive[] = []
    for (let mark = this.#mark(); mark !== '' && mark !== '}'; mark = this.#mark()) {
      if (mark === ';' || mark === '{') throw this.#fault(`unexpected "${mark}"`)
      found.push(this.#directive())
    }
    return found
  }

  #directive(): Directive {
    const place = this.#place()
    const [name = '', ...args] = this.#words()
    const mark = this.#mark()
    this.#at += 1
    if (mark === ';') return { name, args, place }
    if (mark !== '{') throw new NginxSyntaxError(place, `"${name}" has no ";" at its end`)
    if (name.endsWith('_by_lua_block')) this.#skipLua(place)
    this.#depth += 1
    if (this.#depth > MOST_BLOCKS) throw new NginxSyntaxError(place, `more than ${MOST_BLOCKS} blocks in one another`)
    const block = name.endsWith('_by_lua_block') ? [] : this.#directives()
    this.#depth -= 1
    if (this.#mark() !== '}') throw new NginxSyntaxError(place, `the block of "${name}" has no "}" at its end`)
    this.#at += 1
    return { name, args, block, place }
  }

  #words(): string[] {
    const words: string[] = []
    for (let mark = this.#mark(); !['', ';', '{', '}'].includes(mark); mark = this.#mark()) words.push(this.#word(mark))
    return words
  }

  #word(mark: string): string {
    const isQuoted = mark === '"' || mark === "'"
    const pattern = isQuoted ? QUOTED : WORD
    pattern.lastIndex = this.#at
    const found = pattern.exec(this.#text)
    if (found === null) throw this.#fault(isQuoted ? 'this quote does not end' : 'unexpected "\\"')
    this.#at = pattern.lastIndex
    const raw = isQuoted ? (found[1] ?? found[2] ?? '') : found[0]
    if (raw.includes('\uFFFD'))
      throw this.#fault(`${JSON.stringify(raw)} is not in UTF-8; convert the file, e.g. with iconv`)
    return raw.replace(/\\(["'\\trn])/g, (_match, character: string) => ownValue(ESCAPES, character) ?? character)
  }

  /** The next character that is no space and in no comment; empty at the end. */
  #mark(): string {
    SPACE.lastIndex = this.#at
    // One expression for all of it would need a deep stack.
    while (SPACE.test(this.#text)) this.#at = SPACE.lastIndex
    return this.#text.charAt(this.#at)
  }

  #skipLua(place: SourcePlace): void {
    for (let open = 0; this.#at < this.#text.length; ) {
      LUA_TOKEN.lastIndex = this.#at
      const [token] = LUA_TOKEN.exec(this.#text)!
      if (token === '{') open += 1
      if (token === '}' && open === 0) return
      if (token === '}') open -= 1
      this.#at += token.length
    }
    throw new NginxSyntaxError(place, 'this block has no "}" at its end')
  }

  #place(): SourcePlace {
    for (; this.#counted < this.#at; this.#counted += 1) if (this.#text[this.#counted] === '\n') this.#line += 1
    return { file: this.#file, line: this.#line }
  }

  #fault(message: string): NginxSyntaxError {
    return new NginxSyntaxError(this.#place(), message)
  }
}
