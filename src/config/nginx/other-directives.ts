/** Directives that are not imported. */
import { quote } from '../messages.js'
import type { Directive, ImportNote } from './directives.js'

/** What limits, changes or routes requests, and what shaper has nothing for. */
const OTHERS = new Set([
  ...[
    'limit_rate',
    'limit_rate_after',
    'limit_except',
    'allow',
    'deny',
    'satisfy',
    'auth_basic',
    'auth_request',
    'auth_jwt',
  ],
  ...[
    'rewrite',
    'if',
    'mirror',
    'sub_filter',
    'proxy_cache',
    'add_header',
    'client_max_body_size',
    'gzip',
    'error_page',
  ],
  ...['proxy_next_upstream', 'proxy_buffering', 'proxy_request_buffering', 'proxy_send_timeout', 'proxy_redirect'],
  ...[
    'proxy_bind',
    'proxy_hide_header',

    'proxy_intercept_errors',
    'proxy_method',
    'proxy_set_body',
  ],
  ...[
    'proxy_ssl_certificate',
    'proxy_ssl_verify',
    'proxy_ssl_trusted_certificate',
    'proxy_ssl_name',
    'ssl_client_certificate',
  ],
  ...['http2', 'http3'],
])
/** The same in a block "upstream". */
const OF_UPSTREAM = new Set(['least_conn', 'ip_hash', 'hash', 'random', 'keepalive', 'sticky'])
const OF_SERVER = /^(?:weight|max_fails|fail_timeout|max_conns|slow_start)=/
const OF_LISTEN = /^(?:http2|quic)$/

/** One note for each name: where a file has it first. */
export function notesOfOthers(directives: readonly Directive[]): ImportNote[] {
  const first = new Map<string, ImportNote>()
  const enter = (directive: Directive, outer: string): void => {
    const { name, block, place } = directive
    for (const each of namesOf(directive, outer)) {
      const id = JSON.stringify([place.file, each])
      const message = `${quote(each)} is not imported: shaper has nothing like it. Keep nginx behind shaper for it (--upstream)`
      if (!first.has(id)) first.set(id, { place, message })
    }
    if (block !== undefined && name !== 'if') for (const each of block) enter(each, name)
  }
  for (const each of directives) if (each.name !== 'map' && each.name !== 'geo') enter(each, '')
  return [...first.values()]
}

/** What of a directive is not imported. */
function namesOf({ name, args }: Directive, outer: string): string[] {
  if (name === 'listen') return args.filter(each => OF_LISTEN.test(each)).map(each => `listen ... ${each}`)
  if (outer === 'upstream') {
    if (name === 'server') return args.filter(each => OF_SERVER.test(each)).map(each => each.replace(/=.*/, ''))
    return OF_UPSTREAM.has(name) ? [name] : []
  }
  if (name === 'proxy_set_header') return args[0]?.toLowerCase() === 'host' ? [] : [name]
  return OTHERS.has(name) ? [name] : []
}

/** Tells of limits that nginx has itself where it stays behind. */
export function tellBehind(directives: readonly Directive[], notes: ImportNote[]): void {
  const find = (list: readonly Directive[]): Directive | undefined => {
    for (const each of list) {
      const found = /^limit_(?:req|conn)$/.test(each.name) ? each : find(each.block ?? [])
      if (found !== undefined) return found
    }
    return undefined
  }
  const found = find(directives)
  if (found === undefined) return
  const message =
    'remove limit_req and limit_conn from the nginx behind shaper: all its requests come from one address now, and would be limited twice'
  notes.push({ place: found.place, message })
}
