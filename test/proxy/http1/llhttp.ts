/** llhttp, as undici builds it, as an oracle for our parsers. */
import { createRequire } from 'node:module'

/** What a parser makes of one message after another. */
export interface Read {
  /** One line for each event: heads, bodies in one piece, ends. */
  readonly events: string[]
  /** Undefined: all bytes were taken. */
  readonly error: string | undefined
}

interface Exports {
  memory: { buffer: ArrayBuffer }
  malloc(bytes: number): number
  free(at: number): void
  llhttp_alloc(type: number): number
  llhttp_execute(parser: number, at: number, bytes: number): number
  llhttp_finish(parser: number): number
  llhttp_free(parser: number): void
  llhttp_get_error_pos(parser: number): number
  llhttp_resume_after_upgrade(parser: number): void
  llhttp_get_method(parser: number): number
  llhttp_get_http_major(parser: number): number
  llhttp_get_http_minor(parser: number): number
}

/** The parser has stopped at a request that asks for an upgrade. */
const PAUSED_UPGRADE = 22

const TYPE = { request: 1, response: 2 }

/** The libraries that TypeScript is told of here do not have it. */
const { WebAssembly } = globalThis as unknown as {
  WebAssembly: {
    Module: new (bytes: Buffer) => object
    Instance: new (module: object, imports: object) => { exports: unknown }
  }
}

const require = createRequire(import.meta.url)
const { METHODS } = require('undici/lib/llhttp/constants.js') as { METHODS: Record<string, number> }
const NAMES = new Map(Object.entries(METHODS).map(([name, number]) => [number, name]))
const compiled = new WebAssembly.Module(require('undici/lib/llhttp/llhttp-wasm.js') as Buffer)

const NOTHING = (): number => 0

/** Collects the events of one parser. */
class Reader {
  readonly events: string[] = []
  readonly #methods: readonly string[]
  #answered = 0
  #field = ''
  #value = ''
  #last = ''
  #fields: string[] = []
  #body = ''

  constructor(methods: readonly string[]) {
    this.#methods = methods
  }

  text(kind: 'field' | 'value' | 'body', piece: string): number {
    if (kind === 'body') this.#body += piece
    else if (kind === 'value') {
      this.#value += piece
      this.#last = 'value'
    } else {
      if (this.#last === 'value') this.#flush()
      this.#field += piece
      this.#last = 'field'
    }
    return 0
  }

  /** The fields since the last message, names and values in turn. */
  takeFields(): string[] {
    this.#flush()
    const fields = this.#fields
    this.#fields = []
    return fields
  }

  takeBody(): string {
    const body = this.#body
    this.#body = ''
    return body
  }

  headersComplete(status: number): number {
    this.events.push(`head ${status} ${JSON.stringify(this.takeFields())}`)
    const bodiless = this.#methods[this.#answered] === 'HEAD' || status === 204 || status === 304
    return bodiless || status < 200 ? 1 : 0
  }

  messageComplete(status: number): number {
    const body = this.takeBody()
    const trailers = this.takeFields()
    if (status < 200) return 0
    this.#answered += 1
    this.events.push(`body ${JSON.stringify(body)} ${JSON.stringify(trailers)}`)
    return 0
  }

  #flush(): void {
    if (this.#last === '') return
    this.#fields.push(this.#field, this.#value.replace(/[ \t]+$/, ''))
    this.#field = ''
    this.#value = ''
    this.#last = ''
  }
}

/**
 * Lets llhttp read the responses to requests with these methods, and then the end of the connection.
 */
export function llhttpResponses(bytes: Buffer, methods: readonly string[]): Read {
  const reader = new Reader(methods)
  let status = 0
  const at = (from: number, length: number): string => Buffer.from(wasm.memory.buffer, from, length).toString('latin1')
  const env = {
    wasm_on_url: NOTHING,
    wasm_on_status: NOTHING,
    wasm_on_message_begin: NOTHING,
    wasm_on_header_field: (_: number, from: number, length: number) => reader.text('field', at(from, length)),
    wasm_on_header_value: (_: number, from: number, length: number) => reader.text('value', at(from, length)),
    wasm_on_headers_complete: (_: number, code: number) => {
      status = code
      return reader.headersComplete(code)
    },
    wasm_on_body: (_: number, from: number, length: number) => reader.text('body', at(from, length)),
    wasm_on_message_complete: () => reader.messageComplete(status),
  }
  const wasm = new WebAssembly.Instance(compiled, { env }).exports as unknown as Exports
  const parser = wasm.llhttp_alloc(TYPE.response)
  const start = wasm.malloc(bytes.length + 1)
  new Uint8Array(wasm.memory.buffer, start, bytes.length).set(bytes)
  const code = wasm.llhttp_execute(parser, start, bytes.length) || wasm.llhttp_finish(parser)
  return { events: reader.events, error: code === 0 ? undefined : `code ${code}` }
}

/** What llhttp makes of requests. */
export interface ReadRequests extends Read {
  /** After each request: whether another may follow. */
  readonly kept: readonly boolean[]
}

/** Lets llhttp read requests, and then the end of the connection. Those that ask for an upgrade are plain requests. */
export function llhttpRequests(bytes: Buffer): ReadRequests {
  const reader = new Reader([])
  const kept: boolean[] = []
  let url = ''
  let keep = false
  const at = (from: number, length: number): string => Buffer.from(wasm.memory.buffer, from, length).toString('latin1')
  const env = {
    wasm_on_url: (_: number, from: number, length: number) => {
      url += at(from, length)
      return 0
    },
    wasm_on_status: NOTHING,
    wasm_on_message_begin: NOTHING,
    wasm_on_header_field: (_: number, from: number, length: number) => reader.text('field', at(from, length)),
    wasm_on_header_value: (_: number, from: number, length: number) => reader.text('value', at(from, length)),
    wasm_on_headers_complete: (parser: number, _status: number, _upgrade: number, keeps: number) => {
      const method = NAMES.get(wasm.llhttp_get_method(parser))
      const version = `${wasm.llhttp_get_http_major(parser)}.${wasm.llhttp_get_http_minor(parser)}`
      reader.events.push(`head ${method} ${url} ${version} ${JSON.stringify(reader.takeFields())}`)
      url = ''
      keep = keeps !== 0
      return 0
    },
    wasm_on_body: (_: number, from: number, length: number) => reader.text('body', at(from, length)),
    wasm_on_message_complete: () => {
      reader.events.push(`body ${JSON.stringify(reader.takeBody())}`)
      reader.takeFields()
      kept.push(keep)
      return 0
    },
  }
  const wasm = new WebAssembly.Instance(compiled, { env }).exports as unknown as Exports
  const parser = wasm.llhttp_alloc(TYPE.request)
  const start = wasm.malloc(bytes.length + 1)
  new Uint8Array(wasm.memory.buffer, start, bytes.length).set(bytes)
  let code = wasm.llhttp_execute(parser, start, bytes.length)
  while (code === PAUSED_UPGRADE) {
    const behind = wasm.llhttp_get_error_pos(parser)
    wasm.llhttp_resume_after_upgrade(parser)
    code = wasm.llhttp_execute(parser, behind, start + bytes.length - behind)
  }
  code ||= wasm.llhttp_finish(parser)
  return { events: reader.events, error: code === 0 ? undefined : `code ${code}`, kept }
}
