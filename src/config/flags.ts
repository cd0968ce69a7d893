import { ownValue } from '../core/structures/own-value.js'
import { isObject } from './checks/partial-config.js'
import { counted } from './messages.js'
import type { Finding } from './problems.js'

export interface Flags {
  /** One replaces the address of an object in the file; several are a list. */
  listen?: string | readonly string[]
  upstream?: string
  admin?: string
  dryRun?: boolean
  /** Requests go where they say, and the upstreams of the file are not used. */
  egress?: boolean
  rate?: string
  capacity?: string
  burst?: string
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
  const lost = mergeAddresses(raw, flags, put)
  if (flags.upstream !== undefined)
    put('--upstream', isObject(raw.upstream) ? ['upstream', 'url'] : ['upstream'], flags.upstream)
  if (flags.dryRun === true) put('--dry-run', ['dryRun'], true)
  return {
    raw,
    origins,
    unexpanded,
    findings: [...lost, ...egressFaults(flags), ...idleUpstream(raw, flags), ...mergeLimits(raw, flags, put)],
  }
}

function mergeAddresses(raw: FileObject, { listen, admin }: Flags, put: Put): Finding[] {
  if (admin !== undefined && isObject(raw.admin))
    put('--admin', addressIn(['admin', 'listen'], raw.admin.listen), admin)
  else if (admin !== undefined) put('--admin', ['admin'], { listen: admin })
  const [one, ...others] = typeof listen === 'string' ? [listen] : (listen ?? [])
  if (one === undefined) return []
  if (others.length === 0) put('--listen', addressIn(['listen'], raw.listen), one)
  else if (isObject(raw.listen)) return [LOST]
  else put('--listen', ['listen'], listen)
  return []
}

const LOST: Finding = {
  path: ['--listen'],
  message:
    '"listen" of the file is an object, and several addresses would lose what else is in it; change the file instead',
}

function addressIn(path: readonly PropertyKey[], value: unknown): readonly PropertyKey[] {
  return isObject(value) ? [...path, 'address'] : path
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

function numeric(text: string): string | number {
  return /^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i.test(text) ? Number(text) : text
}
