/** Detects the format of a log by its first lines. */
import type { FieldNames } from '../field-names.js'
import type { FormatName } from '../format-names.js'
import { readJsonObject } from '../json-object.js'
import type { LineParser } from '../line-parser.js'
import { prefixLength } from '../syslog-prefix.js'
import { AlbParser } from './aws-alb.js'
import { CommonLogParser, durationAfter } from './common-log.js'
import { EnvoyParser } from './envoy.js'
import { HaproxyParser } from './haproxy.js'
import { JsonParser } from './json-lines.js'
import { isShaperRequest, ShaperParser } from './shaper-log.js'
import { W3cParser } from './w3c.js'

/** How many lines to look at. */
const SAMPLE = 200

export interface FormatOptions {
  /** Undefined: detect it. */
  readonly format?: FormatName
  /** Names of JSON fields, or of W3C columns; of combined lines only the client's address has one. */
  readonly fields?: FieldNames
}

/** The parser for a log with this beginning; undefined: no line has a known format. */
export function detectFormat(head: Uint8Array, { format, fields = {} }: FormatOptions): LineParser | undefined {
  const lines = linesOf(head)
  const known = format ?? mostFrequent(lines.map(formatOf))
  switch (known) {
    case undefined:
      return undefined
    case 'json':
      return format === undefined && lines.some(isOfShaper) ? new ShaperParser() : new JsonParser(fields, lines)
    case 'shaper':
      return new ShaperParser()
    case 'alb':
      return new AlbParser()
    case 'envoy':
      return lines.some(isJson) ? new JsonParser(fields, lines) : new EnvoyParser()
    case 'haproxy':
      return new HaproxyParser()
    case 'w3c':
    case 'cloudfront':
      return new W3cParser(known, fields, lines)
    case 'common':
      return format === undefined && lines.some(line => line.split('"').length > 3)
        ? combinedParser(lines, fields)
        : new CommonLogParser('common')
    case 'combined':
      return combinedParser(lines, fields)
  }
}

/** What nginx and others call the field with `X-Forwarded-For`. */
const FORWARDED_NAME = /^(?:http[-_])?x[-_]forwarded[-_]for$/i

/** The combined format: with request times if most lines end with one, with `X-Forwarded-For` if any line has that. */
function combinedParser(lines: readonly string[], { ip = '' }: FieldNames): CommonLogParser {
  const parser = new CommonLogParser('combined')
  let timed = 0
  let good = 0
  let isForwarded = false
  for (const line of lines) {
    const bytes = Buffer.from(line, 'latin1')
    if (parser.parse(bytes, 0, bytes.length) !== undefined || parser.agentTo === 0) continue
    good += 1
    isForwarded ||= parser.forwardedFor() !== undefined
    if (durationAfter(bytes, parser.agentTo + 1, bytes.length) !== undefined) timed += 1
  }
  const forwarded = !isForwarded ? 'absent' : FORWARDED_NAME.test(ip) ? 'client' : 'header'
  return new CommonLogParser(timed > good / 2 ? 'timed' : 'combined', forwarded)
}

/** What lines of each format look like. Those of W3C are known by the directive before them. */
const LOOKS: readonly (readonly [FormatName, RegExp])[] = [
  ['cloudfront', /^#Fields:.* x-edge-location /],
  ['w3c', /^#Fields:/],
  ['alb', /^(?:https?|h2|grpcs|wss?) \d{4}-\d\d-\d\dT\S+ \S+ \S+:\d+ /],
  ['envoy', /^\[\d{4}-\d\d-\d\dT[^\]\s]{1,30}\] "/],
  ['haproxy', /^\S+:\d{1,5} \[\d\d\/[A-Z][a-z]{2}\/\d{4}:[\d:.]{8,18}\] /],
  ['common', /^\S+ [^[]*\[[^\]]{8,40}\] "/],
]

function formatOf(line: string): FormatName | undefined {
  if (isJson(line)) return 'json'
  return LOOKS.find(([, look]) => look.test(line))?.[0]
}

/** The first of those that occur most often. */
function mostFrequent(formats: readonly (FormatName | undefined)[]): FormatName | undefined {
  const counts = new Map<FormatName, number>()
  for (const format of formats) if (format !== undefined) counts.set(format, (counts.get(format) ?? 0) + 1)
  const most = Math.max(...counts.values())
  return [...counts].find(([, count]) => count === most)?.[0]
}

function isJson(line: string): boolean {
  return /^\s*\{/.test(line)
}

function isOfShaper(line: string): boolean {
  const record = readJsonObject(line)
  return record !== undefined && isShaperRequest(record)
}

/** The first lines, without prefixes of syslog. */
function linesOf(head: Uint8Array): string[] {
  const lines = Buffer.from(head).toString('latin1').split('\n')
  // The last line may be incomplete.
  if (lines.length > 1) lines.pop()
  return lines.slice(0, SAMPLE).flatMap(line => {
    const length = prefixLength(line)
    return length < 0 ? [] : [line.slice(length).trimEnd()]
  })
}
