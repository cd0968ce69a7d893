/** Where servers listen, and whom they believe about addresses of clients. */
import { isIP } from 'node:net'
import type { Directive, ImportNote, Place } from './directives.js'
import { settingOf } from './scopes.js'

export type ImportedListen =
  | string
  | { readonly address: string; readonly tls: { readonly cert: string; readonly key: string } }

export function listensOnIpv6(servers: readonly Directive[]): boolean {
  return servers.some(({ block = [] }) => block.some(({ name, args }) => name === 'listen' && args[0]?.startsWith('[')))
}

interface WrittenListen {
  readonly server: Directive
  readonly place: Place
  readonly address: string
  readonly isTls: boolean
}

/** The first address with a certificate, or else the first. */
export function listenOf(
  servers: readonly Directive[],
  http: readonly Directive[],
  notes: ImportNote[],
): ImportedListen {
  const all = servers.flatMap(server => listensOf(server, notes))
  const chosen = all.find(({ isTls }) => isTls) ?? all[0]
  if (chosen === undefined) return '0.0.0.0:80'
  const isChosen = (each: WrittenListen): boolean =>
    portOf(each.address) === portOf(chosen.address) && each.isTls === chosen.isTls
  // On all addresses of IPv6 is on those of IPv4, too.
  const { address } = all.find(each => isChosen(each) && each.address.startsWith('[::]')) ?? chosen
  for (const { place } of all.filter(each => !isChosen(each))) {
    const message = `shaper listens on one address, here ${address}: run another one for this, or keep nginx there`
    notes.push({ place, message })
  }
  if (!chosen.isTls) return address
  const scopes = [chosen.server.block ?? [], http]
  const [cert, key] = ['ssl_certificate', 'ssl_certificate_key'].map(name => settingOf(scopes, name))
  const certificates = all.map(
    ({ server: { block = [] }, isTls }) => isTls && settingOf([block, http], 'ssl_certificate'),
  )
  if (new Set(certificates.filter(Boolean)).size > 1) {
    notes.push({ place: chosen.place, message: 'shaper serves one certificate: it has to have all names' })
  }
  if (cert !== undefined && key !== undefined) return { address, tls: { cert, key } }
  notes.push({ place: chosen.place, message: 'there is no ssl_certificate with its key: add "tls" to "listen"' })
  return address
}

function listensOf(server: Directive, notes: ImportNote[]): WrittenListen[] {
  const listens = (server.block ?? []).filter(({ name }) => name === 'listen')
  return listens.flatMap(({ args, place }) => {
    const address = addressOf(args[0] ?? '')
    if (address !== undefined) return [{ server, place, address, isTls: args.includes('ssl') }]
    notes.push({ place, message: 'shaper listens on TCP only: left out' })
    return []
  })
}

/** Undefined: a socket of Unix. */
function addressOf(text: string): string | undefined {
  if (text.startsWith('unix:')) return undefined
  if (/^\d+$/.test(text)) return `0.0.0.0:${text}`
  const [, host = '', port = '80'] = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(text) ?? []
  return `${host === '*' || host === '' ? '0.0.0.0' : host}:${port}`
}

function portOf(address: string): string {
  return /\d+$/.exec(address)![0]
}

/** The hops of `set_real_ip_from`. */
export function trustedOf(blocks: readonly (readonly Directive[])[], notes: ImportNote[]): string[] {
  const all = blocks.flatMap(block => block.filter(({ name }) => name === 'set_real_ip_from'))
  const header = blocks.flatMap(block => block.filter(({ name }) => name === 'real_ip_header'))[0]
  if (all.length === 0) return []
  if (header?.args[0]?.toLowerCase() !== 'x-forwarded-for') {
    const { place } = header ?? all[0]!
    const name = header?.args[0] ?? 'X-Real-IP'
    const message = `shaper takes addresses of clients from X-Forwarded-For, not from ${name}: let the proxy before it send that, and add "trustProxy"`
    notes.push({ place, message })
    return []
  }
  return all.flatMap(({ args: [address = ''], place }) => {
    if (isIP(address.replace(/\/\d+$/, '')) !== 0) return [address]
    notes.push({ place, message: `${address} is no address or CIDR; left out of trustProxy` })
    return []
  })
}
