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
}

const TYPE = { request: 1, response: 2 }

/** The libraries that TypeScript is told of here do not have it. */
const { WebAssembly } = globalThis as unknown as {
  WebAssembly: {
    Module: new (bytes: Buffer) => object
    Instance: new (module: object, imports: object) => { exports: unknown }
  }
}

const require = createRequire(import.meta.url)
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

  headersComplete(status: number): number {
    this.#flush()
    this.events.push(`head ${status} ${JSON.stringify(this.#fields)}`)
    this.#fields = []
    const bodiless = this.#methods[this.#answered] === 'HEAD' || status === 204 || status === 304
    return bodiless || status < 200 ? 1 : 0
  }

  messageComplete(status: number): number {
    this.#flush()
    if (status >= 200) {
      this.#answered += 1
      this.events.push(`body ${JSON.stringify(this.#body)} ${JSON.stringify(this.#fields)}`)
    }
    this.#body = ''
    this.#fields = []
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
