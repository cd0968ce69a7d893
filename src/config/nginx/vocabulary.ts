/** A directive is imported, harmless (it tunes nginx itself), or told, as is one that is in no list here. */
import { ownValue } from '../../core/structures/own-value.js'
import { quote } from '../messages.js'
import type { Directive, ImportNote } from './directives.js'
import { refusalOf } from './upstreams.js'

const IMPORTED = words(`
  http server location listen server_name ssl ssl_certificate ssl_certificate_key internal try_files return upstream
  limit_req_zone limit_req limit_req_status limit_req_dry_run limit_conn_zone limit_conn limit_conn_status limit_conn_dry_run
  limit_zone geo map set_real_ip_from real_ip_header real_ip_recursive proxy_pass proxy_connect_timeout proxy_read_timeout
  proxy_ssl_certificate proxy_ssl_certificate_key proxy_ssl_trusted_certificate proxy_ssl_verify proxy_ssl_name
  http2 fastcgi_pass uwsgi_pass scgi_pass grpc_pass memcached_pass root alias index stub_status empty_gif`)

/** What has no effect on which requests get through, on how they are forwarded, or on their answers. */
const HARMLESS = words(`
  user pid daemon master_process events error_log env lock_file pcre_jit thread_pool timer_resolution working_directory
  load_module worker_processes worker_priority worker_cpu_affinity worker_rlimit_nofile worker_rlimit_core
  worker_shutdown_timeout worker_aio_requests debug_points debug_connection ssl_engine quic_bpf
  access_log log_format log_not_found log_subrequest rewrite_log open_log_file_cache uninitialized_variable_warn
  limit_req_log_level limit_conn_log_level
  sendfile sendfile_max_chunk tcp_nopush tcp_nodelay aio aio_write directio directio_alignment output_buffers postpone_output
  read_ahead send_lowat open_file_cache open_file_cache_valid open_file_cache_min_uses open_file_cache_errors disable_symlinks
  types types_hash_max_size types_hash_bucket_size default_type charset_types
  server_names_hash_max_size server_names_hash_bucket_size variables_hash_max_size variables_hash_bucket_size
  map_hash_max_size map_hash_bucket_size proxy_headers_hash_max_size proxy_headers_hash_bucket_size
  connection_pool_size request_pool_size subrequest_output_buffer_size client_header_buffer_size client_body_buffer_size
  client_body_temp_path client_body_in_file_only client_body_in_single_buffer
  keepalive_timeout keepalive_time keepalive_disable reset_timedout_connection lingering_close lingering_time lingering_timeout
  resolver resolver_timeout etag if_modified_since msie_padding msie_refresh server_tokens server_name_in_redirect
  port_in_redirect absolute_redirect chunked_transfer_encoding
  proxy_http_version proxy_temp_path proxy_buffer_size proxy_buffers proxy_busy_buffers_size proxy_max_temp_file_size
  proxy_temp_file_write_size proxy_socket_keepalive proxy_ssl_session_reuse proxy_ssl_server_name
  ssl_session_cache ssl_session_timeout ssl_session_tickets ssl_session_ticket_key ssl_buffer_size ssl_dhparam ssl_ecdh_curve
  ssl_prefer_server_ciphers ssl_stapling ssl_stapling_verify ssl_stapling_file ssl_early_data
  gzip_types gzip_vary gzip_min_length gzip_comp_level gzip_buffers gzip_http_version gzip_disable gzip_proxied autoindex
  autoindex_exact_size autoindex_format autoindex_localtime`)

/** What decides whose requests get through. A name that begins so belongs to a module that does. */
const GUARDS =
  /^(?:allow|deny|satisfy|limit_except|auth_|secure_link|valid_referers|referer_|modsecurity|sec_rule|naxsi|SecRules|BasicRule|CheckRule|access_by_lua|rewrite_by_lua|js_access|perl$|oidc_|ssl_(?:verify|client_certificate|trusted_certificate|crl|ocsp|protocols|ciphers|conf_command|reject_handshake)|proxy_ssl_(?:verify|trusted|crl|certificate|name)|proxy_pass_request_|merge_slashes|underscores_in_headers|ignore_invalid_headers|geoip)/

/** What shaper sends as well, by the name of the header. Host is imported. */
const SENT: Readonly<Record<string, RegExp>> = {
  host: /^/,
  connection: /^/,
  upgrade: /^/,
  'x-forwarded-for': /^\$proxy_add_x_forwarded_for$/,
  'x-forwarded-proto': /^\$scheme$/,
  'x-forwarded-host': /^\$(?:http_)?host$/,
}

const OF_UPSTREAM_SERVER = /^(?:backup|down|(?:weight|max_fails|fail_timeout|max_conns)=)/
const OF_UPSTREAM = words(
  'server least_conn ip_hash hash random zone keepalive_requests keepalive_timeout keepalive_time',
)
/** What shaper does by itself in place of a directive. */
const INSTEAD: Readonly<Record<string, string>> = {
  keepalive: 'shaper keeps idle connections for "keepAlive", 4s, and no more than it has needed',
  proxy_next_upstream:
    'a request that cannot connect goes to another server at once, and an idempotent one that failed is sent again in a slot of its own. To send requests again after an answer, add e.g. "retry": { "status": [503] }',
}
/** Blocks that hold data, or that are told as a whole. */
const CLOSED = words('map geo split_clients types match events if stream mail')

function words(text: string): ReadonlySet<string> {
  return new Set(text.trim().split(/\s+/))
}

/** One note for each name: where a file has it first, and for what refuses requests where each block has it first. */
export function notesOfOthers(directives: readonly Directive[]): ImportNote[] {
  const first = new Map<string, ImportNote>()
  const enter = (directive: Directive, outer?: Directive): void => {
    for (const note of notesOf(directive, outer?.name ?? '')) {
      const id = JSON.stringify([note.place.file, note.message, note.isFirst && outer?.place])
      if (!first.has(id)) first.set(id, note)
    }
    for (const each of insideOf(directive)) enter(each, directive)
  }
  for (const each of directives) enter(each)
  return [...first.values()]
}

function notesOf(directive: Directive, outer: string): ImportNote[] {
  const { name, place } = directive
  const isGuard = GUARDS.test(name) || isRefusal(directive)
  const why = isGuard ? 'what nginx refuses by it gets through here' : 'shaper has nothing like it'
  return namesOf(directive, outer).map(each => {
    const instead = ownValue(INSTEAD, each)
    const message = `${quote(each)} is not imported: ${instead ?? `${why}. Keep nginx behind shaper for it (--upstream)`}`
    return { place, message, ...(isGuard && { isFirst: true }) }
  })
}

/** The directives of a block, but for blocks of data and those whose requests are all refused. */
function insideOf({ name, block = [] }: Directive): readonly Directive[] {
  const isRefused = /^(?:location|server)$/.test(name) && refusalOf([block]) !== undefined
  return CLOSED.has(name) || isRefused ? [] : block
}

/** `if (...) { return 403; }` */
function isRefusal({ name, block = [] }: Directive): boolean {
  return name === 'if' && block.some(each => each.name === 'return' && /^4\d\d$/.test(each.args[0] ?? ''))
}

/** What of a directive is not imported. */
function namesOf({ name, args }: Directive, outer: string): string[] {
  if (name === 'listen') return args.includes('quic') ? ['listen ... quic'] : []
  if (outer === 'upstream') {
    if (name === 'server') {
      return args
        .slice(1)
        .filter(each => !OF_UPSTREAM_SERVER.test(each))
        .map(each => each.replace(/=.*/, ''))
    }
    return OF_UPSTREAM.has(name) ? [] : [name]
  }
  if (name === 'proxy_set_header') return namesOfHeader(args).map(each => `${name} ${each}`)
  if (name === 'location' && !/^(?:server|location)$/.test(outer)) return [`location ${args.join(' ')}`]
  // The protocols of answers that no location here gives: each such location is told.
  if (/^(?:fastcgi|uwsgi|scgi|grpc|memcached)_/.test(name)) return []
  return IMPORTED.has(name) || HARMLESS.has(name) ? [] : [name]
}

function namesOfHeader([header = '', value = '']: readonly string[]): string[] {
  const sent = ownValue(SENT, header.toLowerCase())
  if (sent === undefined) return [header]
  return sent.test(value) ? [] : [`${header} ${value === '' ? '""' : value}`]
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
