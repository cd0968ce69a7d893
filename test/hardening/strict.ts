/** Reads requests like the strictest upstream: every deviation is an error. */

export interface StrictRequest {
  readonly method: string
  readonly target: string
  readonly fields: readonly (readonly [name: string, value: string])[]
  readonly body: string
}

const REQUEST_LINE = /^([A-Z-]+) (\/[\x21-\x7e]*) HTTP\/1\.1$/
const FIELD =
  /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):(?: ([\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?)?$/
const HOP_BY_HOP = /^(?:keep-alive|proxy-.*|te|trailer|http2-settings|expect)$/
const CHUNK_SIZE = /^(?:0|[1-9a-f][0-9a-f]{0,7})$/

/**
 * Reads the bytes of a connection.
 *
 * @param text latin1
 * @returns all complete requests, and the rest of the text
 * @throws at any deviation
 */
export function readStrictly(text: string): { requests: StrictRequest[]; rest: string } {
  const requests: StrictRequest[] = []
  let at = 0
  for (;;) {
    const end = text.indexOf('\r\n\r\n', at)
    if (end < 0) return { requests, rest: text.slice(at) }
    const [line = '', ...lines] = text.slice(at, end).split('\r\n')
    const [, method, target] = REQUEST_LINE.exec(line) ?? fail('a request line', line)
    const fields = lines.map(each => {
      const [, name, value = ''] = FIELD.exec(each) ?? fail('a field', each)
      return [name!, value] as const
    })
    const framed = readBody(text, end + 4, fields)
    if (framed === undefined) return { requests, rest: text.slice(at) }
    requests.push({ method: method!, target: target!, fields, body: framed.body })
    at = framed.end
  }
}

function readBody(
  text: string,
  start: number,
  fields: StrictRequest['fields'],
): { body: string; end: number } | undefined {
  checkFields(fields)
  const lengths = valuesOf(fields, 'content-length')
  const codings = valuesOf(fields, 'transfer-encoding')
  if (lengths.length + codings.length > 1) fail('one framing', fields)
  if (codings.length > 0) return codings[0] === 'chunked' ? readChunks(text, start) : fail('chunked', codings)
  if (lengths.length > 0 && !/^(?:0|[1-9]\d{0,8})$/.test(lengths[0]!)) fail('a length', lengths)
  const end = start + Number(lengths[0] ?? 0)
  return text.length < end ? undefined : { body: text.slice(start, end), end }
}

function valuesOf(fields: StrictRequest['fields'], name: string): string[] {
  return fields.filter(([each]) => each.toLowerCase() === name).map(([, value]) => value)
}

function checkFields(fields: StrictRequest['fields']): void {
  const all = (name: string): string[] => valuesOf(fields, name)
  if (fields[0]?.[0].toLowerCase() !== 'host' || all('host').length !== 1) fail('one Host, and first', fields)
  for (const [name] of fields) if (HOP_BY_HOP.test(name.toLowerCase())) fail('end-to-end headers only', name)
  if (all('upgrade').join() !== '' && all('upgrade').join() !== 'websocket') fail('no such upgrade', all('upgrade'))
  const connection = all('upgrade').length > 0 ? 'Upgrade' : ''
  if (all('connection').join() !== connection) fail(`Connection: ${connection}`, all('connection'))
  if (all('via').length === 0 || all('x-forwarded-for').length === 0) fail('Via and X-Forwarded-For', fields)
}

function readChunks(text: string, start: number): { body: string; end: number } | undefined {
  let body = ''
  for (let at = start; ; ) {
    const lineEnd = text.indexOf('\r\n', at)
    if (lineEnd < 0) return undefined
    const line = text.slice(at, lineEnd)
    if (!CHUNK_SIZE.test(line)) fail('a chunk size', line)
    const data = lineEnd + 2
    const end = data + Number.parseInt(line, 16)
    if (text.length < end + 2) return undefined
    if (text.slice(end, end + 2) !== '\r\n') fail('CRLF, and no trailers', text.slice(end))
    if (end === data) return { body, end: end + 2 }
    body += text.slice(data, end)
    at = end + 2
  }
}

function fail(wanted: string, found: unknown): never {
  throw new Error(`not ${wanted}: ${JSON.stringify(found)}`)
}
