/**
 * The PROXY protocol, versions 1 and 2: a balancer says who its client is before the first byte of a connection, also before TLS.
 * https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
 */
import { isIPv4, isIPv6, type Server, type Socket } from 'node:net'
import ipaddr from 'ipaddr.js'
import type { Clock } from '../../core/clock.js'
import { Deadlines, Watched } from '../deadlines.js'
import { createTrust, nameClient, peerOf } from '../http/client-address.js'
import { ProtocolError } from '../http/fields.js'
import type { Observer } from '../observe/observer.js'

const V1 = Buffer.from('PROXY ')
const V2 = Buffer.from('\r\n\r\n\0\r\nQUIT\n')
const LONGEST_V1 = 107
const V2_HEAD = 16
/** Bytes behind the head of version 2: addresses, and fields that are skipped. Balancers send some hundred. */
const MOST_V2 = 4_096
/** By family and transport: how many bytes the addresses have, and the first one of them. Of others there is no address to use. */
const FAMILIES: ReadonlyMap<number, readonly [length: number, address: number]> = new Map([
  [0x00, [0, 0]],
  [0x11, [12, 4]],
  [0x12, [12, 4]],
  [0x21, [36, 16]],
  [0x22, [36, 16]],
  [0x31, [216, 0]],
  [0x32, [216, 0]],
])

export interface ProxyHeader {
  readonly length: number
  /** Undefined: the balancer's own connection, or its client has no IP address. */
  readonly address: string | undefined
}

/** @param bytes all that has come so far @returns undefined: more has to come @throws ProtocolError */
export function readProxyHeader(bytes: Buffer): ProxyHeader | undefined {
  const signature = bytes[0] === V2[0] ? V2 : V1
  const seen = Math.min(bytes.length, signature.length)
  if (signature.compare(bytes, 0, seen, 0, seen) !== 0) throw new ProtocolError('there is no PROXY header')
  if (seen < signature.length) return undefined
  return signature === V1 ? readV1(bytes) : readV2(bytes)
}

function readV1(bytes: Buffer): ProxyHeader | undefined {
  const text = bytes.toString('latin1', 0, LONGEST_V1)
  const length = text.indexOf('\n') + 1
  if (length === 0 && bytes.length < LONGEST_V1) return undefined
  const line = /^PROXY (?:UNKNOWN(?: [^\r\n]*)?|(TCP[46]) ([^ \r\n]+) ([^ \r\n]+) (\d{1,5}) (\d{1,5}))\r\n$/
  const [whole, family, from = '', to = '', ...ports] = line.exec(text.slice(0, length)) ?? []
  if (whole === undefined) throw new ProtocolError('the PROXY header is malformed')
  if (family === undefined) return { length, address: undefined }
  const isAddress = family === 'TCP4' ? isIPv4 : (address: string) => isIPv6(address) && !address.includes('%')
  const isPort = (port: string) => Number(port) <= 65_535 && String(Number(port)) === port
  if (!isAddress(from) || !isAddress(to) || !ports.every(isPort))
    throw new ProtocolError('the PROXY header has a bad address or port')
  return { length, address: from }
}

function readV2(bytes: Buffer): ProxyHeader | undefined {
  if (bytes.length < V2_HEAD) return undefined
  const [command, family, more] = [bytes[12]!, bytes[13]!, bytes.readUInt16BE(14)]
  const isLocal = command === 0x20
  if (!isLocal && command !== 0x21) throw new ProtocolError('the PROXY header has an unknown version or command')
  // The family of the balancer's own connection means nothing.
  const [needed, size] = isLocal ? [0, 0] : (FAMILIES.get(family) ?? [Infinity, 0])
  if (more < needed) throw new ProtocolError('the PROXY header has an unknown family, or is too short for it')
  if (more > MOST_V2) throw new ProtocolError(`the PROXY header has more than ${MOST_V2} bytes`)
  const length = V2_HEAD + more
  if (bytes.length < length) return undefined
  const address = bytes.subarray(V2_HEAD, V2_HEAD + size)
  return { length, address: size === 0 ? undefined : ipaddr.fromByteArray([...address]).toString() }
}

/** The connections of balancers whose header has not come yet. */
export class ProxyHeaders {
  readonly #isBalancer: (address: string) => boolean
  readonly #deadlines: Deadlines<Header>
  readonly #awaited = new Set<Header>()

  /** @param timeout ms for a header */
  constructor(balancers: readonly string[], clock: Clock, timeout: number) {
    const trust = createTrust(balancers)
    this.#isBalancer = address => trust(address, 0)
    this.#deadlines = new Deadlines(clock, timeout)
  }

  /** Holds connections of balancers back from the listeners that a server has now, until their headers have been read. */
  guard(server: Server, observer: Observer): void {
    const listeners = server.listeners('connection')
    const goOn = (socket: Socket): void => {
      for (const listener of listeners) listener.call(server, socket)
    }
    server.removeAllListeners('connection').on('connection', (socket: Socket) => {
      const from = peerOf(socket)?.peer
      if (from === undefined || !this.#isBalancer(from)) return goOn(socket)
      const header = new Header(socket, why => {
        this.#deadlines.unwatch(header)
        this.#awaited.delete(header)
        if (why === undefined) return goOn(socket)
        socket.destroy()
        if (why !== '') observer.unannounced?.(from, why)
      })
      this.#awaited.add(header)
      this.#deadlines.watch(header)
    })
  }

  /** Ends those that are still awaited. */
  close(): void {
    for (const header of this.#awaited) header.over('')
    this.#deadlines.close()
  }
}

class Header extends Watched {
  readonly #socket: Socket
  readonly #done: (why?: string) => void
  #bytes: Buffer = Buffer.alloc(0)

  /** @param done called once. `why`: there is no header; '' if nobody has to know. Undefined: the socket has what comes behind it */
  constructor(socket: Socket, done: (why?: string) => void) {
    super()
    this.#socket = socket
    this.#done = done
    socket.on('readable', this.#read).on('end', this.#gone).on('close', this.#gone).on('error', ignore)
  }

  readonly #read = (): void => {
    const came = this.#socket.read() as Buffer | null
    if (came === null) return
    this.#bytes = Buffer.concat([this.#bytes, came])
    try {
      const header = readProxyHeader(this.#bytes)
      if (header === undefined) return
      if (header.address !== undefined) nameClient(this.#socket, header.address)
      const behind = this.#bytes.subarray(header.length)
      this.#leave()
      if (behind.length > 0) this.#socket.unshift(behind)
      this.#done()
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error
      this.over(error.message)
    }
  }

  /** Balancers look whether a port answers, and send nothing. */
  readonly #gone = (): void => this.over(this.#bytes.length === 0 ? '' : 'the connection ended inside the PROXY header')

  expired(): void {
    this.over('the PROXY header did not come in time')
  }

  over(why: string): void {
    this.#leave()
    this.#done(why)
  }

  #leave(): void {
    this.#socket.off('readable', this.#read).off('end', this.#gone).off('close', this.#gone)
  }
}

function ignore(): void {}
