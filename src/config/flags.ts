import { ownValue } from '../core/structures/own-value.js'
import { isObject } from './checks/partial-config.js'
import type { Finding } from './problems.js'

/** The flags of the command line. Each overrides the file. */
export interface Flags {
  listen?: string
  upstream?: string
  /** Where the admin server listens. */
  admin?: string
  dryRun?: boolean
  /** Requests go where they say, and the upstreams of the file are not used. */
  egress?: boolean
  rate?: string
  capacity?: string
  burst?: string
  /** One part of a key, or several separated by commas. */
  key?: string
  mode?: string
}

/** Where in the file a flag has put its value. A problem there is reported for the flag. */
export interface Origin {
  readonly path: readonly PropertyKey[]
  readonly flag: string
}

interface Merged {
  readonly raw: unknown
  readonly origins: readonly Origin[]
  /** Variables that the shell has left as they are. Other faults of these values follow from that. */
  readonly unexpanded: readonly Finding[]
  readonly findings: readonly Finding[]
}

type FileObject = Record<string, unknown>
type Put = (flag: string, path: readonly PropertyKey[], value: unknown) => void

/** The file that flags alone stand for: one bucket. */
export function fileOfFlags(): FileObject {
  return { buckets: { client: { key: 'ip' } } }
}

/** Writes the flags into the contents of a file. Flags on buckets and routes need a file with one of each. */
export function mergeFlags(file: unknown, flags: Flags): Merged {
  if (!isObject(file)) return { raw: file, origins: [], unexpanded: [], findings: [] }
  const raw = structuredClone(file)
  const origins: Origin[] = []
  const unexpanded: Finding[] = []
  const put: Put = (flag, path, value) => {
    set(raw, path, value)
    origins.push({ path, flag })
    const [, name] = /(?<!query:|cookie:)\$\{?([A-Z]\w*)/.exec(JSON.stringify(value).replace(/^.*@/, '')) ?? []
    if (name === undefined) return
    const message = `"$${name}" is not replaced in a flag; let the shell expand it: use double quotes, and set the variable`
    unexpanded.push({ path, message })
  }
  if (flags.listen !== undefined)
    put('--listen', isObject(raw.listen) ? ['listen', 'address'] : ['listen'], flags.listen)
  if (flags.upstream !== undefined) {
    put('--upstream', isObject(raw.upstream) ? ['upstream', 'url'] : ['upstream'], flags.upstream)
  }
  if (flags.admin !== undefined) {
    if (isObject(raw.admin)) put('--admin', ['admin', 'listen'], flags.admin)
    else put('--admin', ['admin'], { listen: flags.admin })
  }
  if (flags.dryRun === true) put('--dry-run', ['dryRun'], true)
  return {
    raw,
    origins,
    unexpanded,
    findings: [...egressFaults(flags), ...idleUpstream(raw, flags), ...mergeLimits(raw, flags, put)],
  }
}

function egressFaults({ egress, upstream }: Flags): Finding[] {
  if (!egress || upstream === undefined) return []
  const message = 'no effect with --egress, where requests go to what "egress" allows; remove one of the flags'
  return [{ path: ['--upstream'], message }]
}

function idleUpstream({ routes }: FileObject, { upstream }: Flags): Finding[] {
  if (upstream === undefined || !Array.isArray(routes) || routes.length === 0) return []
  if (!routes.every(route => isObject(route) && 'upstream' in route)) return []
  const message = 'no effect: every route of the file names its own upstream; change the file instead'
  return [{ path: ['--upstream'], message }]
}

function mergeLimits(raw: FileObject, { rate, capacity, burst, key, mode }: Flags, put: Put): Finding[] {
  const given = Object.entries({ rate, capacity, burst, key, mode }).filter(([, value]) => value !== undefined)
  if (given.length === 0) return []
  const buckets = isObject(raw.buckets) ? Object.keys(raw.buckets) : []
  const routes = Array.isArray(raw.routes) ? raw.routes.length : 1
  const [bucket] = buckets
  if (buckets.length !== 1 || routes !== 1 || bucket === undefined) {
    const has = `${counted(buckets.length, 'bucket')} and ${counted(routes, 'route')}`
    const message = `ambiguous: the file has ${has}, and this flag needs one of each; change the file instead`
    return given.map(([name]) => ({ path: [`--${name}`], message }))
  }
  const at = ['buckets', bucket]
  if (rate !== undefined) put('--rate', [...at, 'rate'], numeric(rate))
  if (capacity !== undefined) {
    const target = ownValue(raw.buckets as FileObject, bucket)
    if (isObject(target)) delete target.maxDelay
    put('--capacity', [...at, 'capacity'], numeric(capacity))
  }
  if (burst !== undefined) put('--burst', [...at, 'burst'], numeric(burst))
  if (key !== undefined) put('--key', [...at, 'key'], key.includes(',') ? key.split(',').map(part => part.trim()) : key)
  if (mode !== undefined) {
    raw.routes ??= [{ name: 'default', buckets: [bucket] }]
    put('--mode', ['routes', 0, 'mode'], mode)
  }
  return []
}

function set(file: FileObject, path: readonly PropertyKey[], value: unknown): void {
  const parent = path
    .slice(0, -1)
    .reduce<unknown>((node, step) => ownValue(node as FileObject | undefined, String(step)), file)
  if (typeof parent === 'object' && parent !== null) Object.assign(parent, { [path.at(-1)!]: value })
}

/** A text that is a number as that number, because flags are always text. */
function numeric(text: string): string | number {
  return /^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i.test(text) ? Number(text) : text
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}
