/** Records of the log as lines for people. They are made of the lines of JSON, so that both say the same. */
import { escapeControls } from '../../config/messages.js'
import { durationText } from '../../core/units.js'

/** A record. Times are in ms. */
type LogRecord = Record<string, unknown> & { readonly level: number; readonly time: number; readonly msg: string }

interface RequestLine {
  readonly route?: string
  /** Hashed. */
  readonly key?: string
  readonly outcome: string
  readonly status: number
  readonly method: string
  readonly path: string
  readonly waitMs: number
  readonly upstreamMs?: number
  readonly retries?: number
  readonly coalesced?: true
  readonly reason?: string
  readonly bucket?: string
  readonly givenUp?: string
  readonly detail?: string
  readonly cause?: string
}

type Colour = 'dim' | 'red' | 'green' | 'yellow' | 'cyan'
const CODES: Readonly<Record<Colour, number>> = { dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 }

/** By pino's numbers. `info` is the usual one. */
const LEVELS = new Map<number, readonly [name: string, colour: Colour]>([
  [20, ['debug', 'dim']],
  [40, ['warn', 'yellow']],
  [50, ['error', 'red']],
])

/** By the first digit of a status. */
const CLASSES: readonly (Colour | undefined)[] = [undefined, 'cyan', 'green', 'cyan', 'yellow', 'red']
/** Fields of a record that its line has elsewhere. */
const ELSEWHERE = new Set(['level', 'time', 'msg', 'worker'])

export function createPrettyPrinter(colours: 'ansi' | 'none'): (json: string) => string {
  const paint = (colour: Colour | undefined, text: string): string =>
    colours === 'none' || colour === undefined ? text : `\x1b[${CODES[colour]}m${text}\x1b[0m`

  function requestText(line: RequestLine): string {
    const { status, method, path, route, key } = line
    const head = `${paint(CLASSES[Math.floor(status / 100)], String(status))} ${escapeControls(method)} ${escapeControls(path)}`
    const notes = [route, key === undefined ? undefined : `key ${key}`, ...notesOf(line)]
      .filter(note => note !== undefined)
      .map(escapeControls)
    return notes.length === 0 ? head : `${head}  ${paint('dim', notes.join(', '))}`
  }

  function recordText(record: LogRecord): string {
    const [name, colour] = LEVELS.get(record.level) ?? []
    const level = name === undefined ? '' : `${paint(colour, name)} `
    if (record.msg === 'the admin server listens')
      return `${level}the dashboard is at ${escapeControls(dashboardText(String(record.url)))}`
    const entries = Object.entries(record).filter(([name]) => !ELSEWHERE.has(name))
    const lists = entries.flatMap(([, value]) => (Array.isArray(value) ? value.join('; ') : []))
    const fields = entries
      .filter(([, value]) => !Array.isArray(value))
      .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    const text = `${level}${escapeControls([record.msg, ...lists].join(': '))}`
    return fields.length === 0 ? text : `${text}  ${paint('dim', escapeControls(fields.join(' ')))}`
  }

  return json => {
    const record = JSON.parse(json) as LogRecord
    const worker = record.worker === undefined ? '' : `${paint('dim', `[${record.worker}]`)} `
    const text = record.msg === 'request' ? requestText(record as unknown as RequestLine) : recordText(record)
    return `${paint('dim', timeOfDay(record.time))} ${worker}${text}\n`
  }
}

/** A browser finds a server that listens on all addresses at each of them. */
function dashboardText(url: string): string {
  const here = url.replace(/\/\/(0\.0\.0\.0|\[::\])(?=:)/, '//127.0.0.1')
  return here === url ? `${url}/` : `${here}/, and at all other addresses of this machine`
}

function notesOf({ outcome, waitMs, upstreamMs, retries, coalesced, ...why }: RequestLine): string[] {
  const notes = outcome === 'forwarded' ? [] : [whyOf(outcome, why)]
  if (waitMs >= 1) notes.push(`held ${durationText(waitMs)}`)
  if (upstreamMs !== undefined) notes.push(`answered in ${durationText(upstreamMs)}`)
  if (retries !== undefined) notes.push(`sent again ${retries === 1 ? 'once' : `${retries} times`}`)
  if (coalesced) notes.push('answered with one like it')
  return notes
}

function whyOf(outcome: string, { reason, bucket, givenUp, detail, cause }: Partial<RequestLine>): string {
  if (reason !== undefined) return `${outcome}: ${reason}${bucket === undefined ? '' : ` of ${bucket}`}`
  if (givenUp !== undefined) return `${outcome}: its client would have left`
  return [outcome, detail, cause].filter(part => part !== undefined).join(': ')
}

/** In the time zone of this machine. */
function timeOfDay(time: number): string {
  const date = new Date(time)
  const two = (count: number): string => String(count).padStart(2, '0')
  const seconds = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
  return `${seconds}.${String(date.getMilliseconds()).padStart(3, '0')}`
}
