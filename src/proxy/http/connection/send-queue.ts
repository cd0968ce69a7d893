/**
 * How much the kernel keeps of what was written to a connection, because the other side has not confirmed it. Node does not
 * say. Linux tells it of all connections at once, so questions of one moment are answered together.
 */
import { readFile } from 'node:fs/promises'
import type { Socket } from 'node:net'
import ipaddr from 'ipaddr.js'

const TABLES = ['/proc/net/tcp', '/proc/net/tcp6']

/** An IPv4 address in IPv6, as the second table writes it. */
const MAPPED = '0000000000000000FFFF0000'

let reading: Promise<string> | undefined

/** @returns bytes; undefined: unknown, as on macOS or after the connection has ended */
export async function unconfirmedBytes({ localPort, remotePort, remoteAddress }: Socket): Promise<number | undefined> {
  if (localPort === undefined || remotePort === undefined || remoteAddress === undefined) return undefined
  reading ??= readTables().finally(() => {
    reading = undefined
  })
  const tables = await reading
  const address = inTable(remoteAddress)
  for (const written of address.length === 8 ? [address, MAPPED + address] : [address]) {
    const line = `:${hex(localPort, 4)} ${written}:${hex(remotePort, 4)} `
    const at = tables.indexOf(line)
    // Behind it: the state in two digits, and the bytes in eight.
    const bytes = at < 0 ? '' : tables.slice(at + line.length + 3, at + line.length + 11)
    if (/^[0-9A-F]{8}$/.test(bytes)) return Number.parseInt(bytes, 16)
  }
  return undefined
}

async function readTables(): Promise<string> {
  const texts = await Promise.all(TABLES.map(path => readFile(path, 'latin1').catch(() => '')))
  return texts.join('')
}

/** The bytes of each 32-bit word are in reverse. */
function inTable(address: string): string {
  const bytes = ipaddr.process(address).toByteArray()
  const words: string[] = []
  for (let at = 0; at < bytes.length; at += 4) {
    const word = bytes.slice(at, at + 4).reverse()
    words.push(word.map(byte => hex(byte, 2)).join(''))
  }
  return words.join('')
}

function hex(value: number, digits: number): string {
  return value.toString(16).toUpperCase().padStart(digits, '0')
}
