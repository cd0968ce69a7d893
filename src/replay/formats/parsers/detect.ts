import type { FieldNames, FormatName } from '../format-names.js'
import { type LineParser, readJsonObject } from '../line-parser.js'
import { prefixLength } from '../line-prefix.js'
import { CommonLogParser } from './common-log.js'
import { JsonParser } from './json-lines.js'
import { isShaperRequest, ShaperParser } from './shaper-log.js'
import { TextFormatParser } from './text-formats.js'
import { W3cParser } from './w3c.js'

const SAMPLE = 200

export interface FormatOptions {
  readonly format?: FormatName
  /** Names of JSON fields, or of W3C columns; of combined lines only the client's address has one. */
  readonly fields?: FieldNames
}

/** The parser for a log with this beginning; undefined: no line has a known format. */
export function detectFormat(head: Uint8Array, { format, fields = {} }: FormatOptions): LineParser | undefined {
  const lines = linesOf(head)
  const known = format ?? mostFrequent(lines.map(line => LOOKS.find(([, look]) => look.test(line))?.[0]))
  switch (known) {
    case undefined:
      return undefined
    case 'json':
      return format === undefined && lines.some(line => isShaperRequest(readJsonObject(line) ?? {}))
        ? new ShaperParser()
        : new JsonParser(fields, lines)
    case 'shaper':
      return new ShaperParser()
    case 'envoy':
      return lines.some(line => JSON_LINE.test(line)) ? new JsonParser(fields, lines) : new TextFormatParser('envoy')
    case 'alb':
    case 'haproxy':
    case 'npm':
      return new TextFormatParser(known)
    case 'w3c':
    case 'cloudfront':
      return new W3cParser(known, fields, lines)
    case 'common':
    case 'combined':
    case 'vhost':
      return commonParser(lines, fields, format === undefined ? undefined : known)
  }
}

/** What nginx and others call the field with `X-Forwarded-For`. */
const FORWARDED_NAME = /^(?:http[-_])?x[-_]forwarded[-_]for$/i

/** The common format, or one with more fields: virtual hosts or request times if most lines have them, `X-Forwarded-For` if any has. */
function commonParser(
  lines: readonly string[],
  { ip = '' }: FieldNames,
  given: CommonLogParser['format'] | undefined,
): CommonLogParser {
  const parser = new CommonLogParser('combined')
  const seen = lines.flatMap(line => {
    const bytes = Buffer.from(line, 'latin1')
    if (parser.parse(bytes, 0, bytes.length) !== undefined) return []
    return { host: parser.host(), agent: parser.agentTo, time: parser.requestTime(), forwarded: parser.forwardedFor() }
  })
  const has = (field: keyof (typeof seen)[number]): number => seen.filter(line => line[field]).length
  const usual = lines.some(line => line.split('"').length > 3) ? 'combined' : 'common'
  return new CommonLogParser(given ?? (2 * has('host') > seen.length ? 'vhost' : usual), {
    timed: 2 * has('time') > has('agent'),
    forwarded: has('forwarded') === 0 ? 'absent' : FORWARDED_NAME.test(ip) ? 'client' : 'header',
  })
}

const JSON_LINE = /^\s*\{/
/** What lines of each format look like. Those of W3C are known by the directive before them. */
const LOOKS: readonly (readonly [FormatName, RegExp])[] = [
  ['json', JSON_LINE],
  ['cloudfront', /^#Fields:.* x-edge-location /],
  ['w3c', /^#Fields:/],
  ['alb', /^(?:https?|h2|grpcs|wss?) \d{4}-\d\d-\d\dT\S+ \S+ \S+:\d+ /],
  ['envoy', /^\[\d{4}-\d\d-\d\dT[^\]\s]{1,30}\] "/],
  ['haproxy', /^\S+:\d{1,5} \[\d\d\/[A-Z][a-z]{2}\/\d{4}:[\d:.]{8,18}\] /],
  ['npm', /^\[[^\]]{8,40}\] [^"]{1,300} "[^"]*" \[Client /],
  ['common', /^\S+ .{0,500}?\[\d[^\]]{7,40}\] "/],
]

function mostFrequent(formats: readonly (FormatName | undefined)[]): FormatName | undefined {
  const counts = new Map<FormatName, number>()
  for (const format of formats) if (format !== undefined) counts.set(format, (counts.get(format) ?? 0) + 1)
  const most = Math.max(...counts.values())
  return [...counts].find(([, count]) => count === most)?.[0]
}

function linesOf(head: Uint8Array): string[] {
  const lines = Buffer.from(head).toString('latin1').split('\n')
  // The last line may be incomplete.
  if (lines.length > 1) lines.pop()
  return lines.slice(0, SAMPLE).flatMap(whole => {
    const line = whole.replace(/^(?:\xef\xbb\xbf)?[ \t]+|^\xef\xbb\xbf/, '')
    const length = prefixLength(line)
    return length < 0 ? [] : [line.slice(length).trimEnd()]
  })
}
