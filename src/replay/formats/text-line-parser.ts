/** A parser that reads its lines as text and keeps what it finds as bytes. */
import { readAddress } from '../../proxy/http/client-address.js'
import { type BadLine, LineParser, readRequestLine } from './line-parser.js'
import type { Timestamp } from './timestamp.js'

/** What a line says of its request. */
export interface RequestTexts {
  /** `GET / HTTP/1.1`; the version may be missing. */
  readonly request: string
  readonly address: string
  readonly agent?: string | undefined
}

/** Collects texts as bytes. */
class TextBuffer {
  bytes = Buffer.allocUnsafeSlow(1 << 12)
  #end = 0

  clear(): void {
    this.#end = 0
  }

  /** The end of the last text, where the next one begins. */
  get end(): number {
    return this.#end
  }

  /** Appends a text. It lies between the old `end` and the new one. */
  put(text: string): void {
    const needed = this.#end + 3 * text.length
    if (needed > this.bytes.length) {
      const more = Buffer.allocUnsafeSlow(2 * needed)
      more.set(this.bytes.subarray(0, this.#end))
      this.bytes = more
    }
    this.#end += this.bytes.write(text, this.#end)
  }
}

export abstract class TextLineParser extends LineParser {
  readonly #texts = new TextBuffer()
  /** The authority, where it is part of the line. */
  protected authority: string | undefined
  /** How long the answer took, in ms. Undefined: the line does not tell. */
  protected took: number | undefined

  override get serviceTime(): number | undefined {
    return this.took
  }

  host(): string | undefined {
    return this.authority
  }

  /** Fills the fields of the parser. */
  protected keep({ second, fraction }: Timestamp, { request, address, agent = '' }: RequestTexts): BadLine | undefined {
    this.second = second
    this.fraction = fraction
    this.countClient(readAddress(address) === undefined ? address : undefined)
    const texts = this.#texts
    texts.clear()
    texts.put(request)
    this.addressFrom = texts.end
    texts.put(address)
    this.addressTo = texts.end
    texts.put(agent === '-' ? '' : agent)
    this.agentFrom = this.addressTo
    this.agentTo = texts.end
    this.bytes = texts.bytes
    return readRequestLine(this, texts.bytes, 0, this.addressFrom) ? undefined : 'not an HTTP request'
  }

  /** The user agent is the only header, unless a format says otherwise. */
  header(name: string): string | undefined {
    if (name !== 'user-agent' || this.agentFrom === this.agentTo) return undefined
    return Buffer.from(this.bytes.subarray(this.agentFrom, this.agentTo)).toString()
  }
}

/** The text of a line. */
export function lineText(bytes: Uint8Array, from: number, to: number): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString()
}

/** A part of a line; undefined where the log has `-` or nothing. */
export function unlessMissing(text: string | undefined): string | undefined {
  return text === '-' || text === '' ? undefined : text
}

/** The first of the addresses in `X-Forwarded-For`: the client. */
export function firstAddress(list: string): string | undefined {
  return unlessMissing(list.split(',', 1)[0]!.trim())
}

const ABSOLUTE = /^(\S+) [a-z]+:\/\/([^/?\s]*)(\S*)/

/** A request line with its target in origin form, and the authority that the target had. */
export function inOriginForm(request: string): { request: string; host: string | undefined } {
  const absolute = ABSOLUTE.exec(request)
  if (absolute === null) return { request, host: undefined }
  const [, method, authority, rest = ''] = absolute
  return { request: `${method} ${rest.startsWith('/') ? rest : `/${rest}`}`, host: unlessMissing(authority) }
}
