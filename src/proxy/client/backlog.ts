import { readFile } from 'node:fs/promises'
import type { Socket } from 'node:net'
import ipaddr from 'ipaddr.js'
import { Watched } from '../deadlines.js'
import { type ByteBudget, HeldBytes } from '../http/byte-budget.js'
import type { LeastRate } from '../http/pace.js'

export interface BackloggedWriter {
  readonly waiting: number
  readonly taken: number
  /** Bytes by which that may be too few. */
  readonly grain: number
  readonly destroyed: boolean
  /** Runs once when all that waits now has been taken, or never will be. */
  onceTaken(run: (error?: Error | null) => void): void
  /** What the kernel keeps of what it has taken. Undefined: unknown. */
  unconfirmed(): Promise<number | undefined>
}

/** The socket of a connection that carries one answer at a time. */
export class SocketWriter implements BackloggedWriter {
  readonly grain = 0
  readonly #socket: Socket

  constructor(socket: Socket) {
    this.#socket = socket
  }

  get waiting(): number {
    return this.#socket.writableLength
  }

  get taken(): number {
    return bytesTaken(this.#socket)
  }

  get destroyed(): boolean {
    return this.#socket.destroyed
  }

  onceTaken(run: (error?: Error | null) => void): void {
    this.#socket.write('', 'latin1', run)
  }

  unconfirmed(): Promise<number | undefined> {
    return unconfirmedBytes(this.#socket)
  }
}

interface BacklogOptions {
  readonly writer: BackloggedWriter
  /** How often what waits is kept. Over TLS twice, as it is and encrypted. */
  readonly copies: number
  readonly budget: ByteBudget
  readonly client: string
  readonly most: number
  readonly leastRate: LeastRate | undefined
  onTooSlow(): void
}

/**
 * The bytes of an answer that its client has not taken. They are read ahead of it, so that the upstream is free sooner. A
 * client that takes too few of them is reported. The kernel takes megabytes at a time and then nothing for minutes,
 * so what it still keeps is not taken.
 */
export class Backlog extends Watched {
  /** Called once, when the client has taken all that waits now. */
  onDrained: (() => void) | undefined
  readonly #options: BacklogOptions
  readonly #held: HeldBytes
  /** Bytes that the kernel had taken when the rate was measured last. */
  #measured = 0
  #kept: number | undefined
  /** What the client has taken of that, seen at the end of measurements. */
  #confirmed = 0
  #measurements = 0
  #isWaiting = false
  #ended = false

  constructor(options: BacklogOptions) {
    super()
    this.#options = options
    this.#held = new HeldBytes(options.budget, options.client)
  }

  /** More has been written to the socket. @returns whether more may follow */
  grown(): boolean {
    const { writer, most } = this.#options
    const { waiting } = writer
    this.#count(waiting)
    if (waiting > 0 && !this.#isWaiting) {
      this.#isWaiting = true
      this.#watch()
      writer.onceTaken(this.#taken)
    }
    return waiting === 0 || (waiting < most && this.#held.hasRoom)
  }

  #count(waiting: number): void {
    this.#held.hold(this.#options.copies * waiting)
  }

  readonly #taken = (error?: Error | null): void => {
    this.#isWaiting = false
    if (error || this.#ended) return
    this.grown()
    if (!this.#isWaiting) this.#options.leastRate?.windows.unwatch(this)
    const { onDrained } = this
    this.onDrained = undefined
    onDrained?.()
  }

  get taken(): number {
    return this.#options.writer.taken + this.#confirmed
  }

  #watch(): void {
    const { writer, leastRate } = this.#options
    this.#measured = writer.taken
    this.#kept = undefined
    this.#measurements += 1
    if (leastRate === undefined) return
    leastRate.windows.watch(this)
    const measurement = this.#measurements
    void writer.unconfirmed().then(kept => {
      if (this.#measurements === measurement) this.#kept = kept
    })
  }

  end(): void {
    this.#ended = true
    this.#held.hold(0)
    this.#options.leastRate?.windows.unwatch(this)
  }

  expired(): void {
    const { writer, leastRate } = this.#options
    const { waiting } = writer
    this.#count(waiting)
    if (waiting === 0) return
    const taken = writer.taken + writer.grain - this.#measured
    if (taken >= leastRate!.bytes) this.#watch()
    else void this.#look(taken)
  }

  /** Reports the client, unless it has taken enough of what the kernel kept. */
  async #look(taken: number): Promise<void> {
    const { writer, leastRate, onTooSlow } = this.#options
    const before = this.#kept
    const after = before === undefined ? undefined : await writer.unconfirmed()
    // It has been measured anew, or has taken all, in the meantime.
    if (this.#ended || !this.#isWaiting || this.#kept !== before || writer.destroyed) return
    const confirmed = before === undefined || after === undefined ? 0 : before - after
    if (taken + confirmed < leastRate!.bytes) return onTooSlow()
    this.#confirmed += confirmed
    this.#watch()
  }
}

const TABLES = ['/proc/net/tcp', '/proc/net/tcp6']
/** An IPv4 address in IPv6, as the second table writes it. */
const MAPPED = '0000000000000000FFFF0000'

let reading: Promise<string> | undefined

/**
 * How much the kernel keeps of what was written to a connection, because the other side has not confirmed it. Node does not
 * say. Linux tells it of all connections at once, so questions of one moment are answered together.
 *
 * @returns bytes; undefined: unknown, as on macOS or after the connection has ended
 */
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

/** Fields that Node does not declare. They are the same in Node 20, 22 and 24. */
interface Handle {
  readonly bytesWritten?: number
  readonly writeQueueSize?: number
  /** The TCP connection below TLS. */
  readonly _parent?: Handle
}

/** How many bytes the kernel has taken from a socket, encrypted ones over TLS. */
function bytesTaken(socket: Socket): number {
  const { _handle: handle } = socket as { readonly _handle?: Handle | null }
  // TLS knows only of whole writes.
  const { bytesWritten = 0, writeQueueSize = 0 } = handle?._parent ?? handle ?? {}
  return bytesWritten - writeQueueSize
}
