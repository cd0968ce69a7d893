/** A DNS server of tests, on UDP and TCP. What it says can be changed at any time. */

import { createSocket } from 'node:dgram'
import { type AddressInfo, createServer, isIPv6 } from 'node:net'
import { freePort } from './free-port.js'

const TYPES = { A: 1, AAAA: 28, SRV: 33 } as const
type Type = keyof typeof TYPES
const RCODES = { ok: 0, servfail: 2, nxdomain: 3 } as const
/** Bytes. A longer answer is cut off, and asked for again over TCP. */
const MOST_UDP = 512

export interface DnsRecord {
  /** An address, or `PRIORITY WEIGHT PORT TARGET`. */
  readonly data: string
  /** s */
  readonly ttl: number
}

export interface DnsServer {
  /** For `resolver`. */
  readonly address: string
  /** By `TYPE name`. A name that no record has does not exist. */
  readonly zone: Map<string, readonly DnsRecord[]>
  /** `wrong-id`: the answers are those of somebody who guesses. */
  mode: 'usual' | 'silent' | 'servfail' | 'wrong-id'
  /** `TYPE name`, in order; over TCP with ` tcp` behind it. */
  readonly questions: string[]
  /** Sets all records of a name and a type. */
  set(type: Type, name: string, data: readonly string[], ttl?: number): void
}

export async function startDns(t: { teardown(run: () => unknown): void }): Promise<DnsServer> {
  const socket = createSocket('udp4')
  // For UDP and TCP alike.
  const port = await freePort()
  await new Promise<void>(resolve => socket.bind(port, '127.0.0.1', resolve))
  const answerTo = (query: Buffer, by: 'udp' | 'tcp'): Buffer | undefined => {
    const { name, type, end } = readQuestion(query)
    dns.questions.push(by === 'tcp' ? `${type} ${name} tcp` : `${type} ${name}`)
    if (dns.mode === 'silent') return undefined
    const { rcode, records } = look(dns, type, name)
    const id = query.readUInt16BE(0) ^ (dns.mode === 'wrong-id' ? 1 : 0)
    const whole = Buffer.concat([
      numbers(id, 0x8180 | RCODES[rcode], 1, records.length, 0, 0),
      query.subarray(12, end),
      ...records.map(record => encode(type, record)),
    ])
    if (by === 'tcp' || whole.length <= MOST_UDP) return whole
    return Buffer.concat([numbers(id, 0x8380, 1, 0, 0, 0), query.subarray(12, end)])
  }
  socket.on('message', (query, from) => {
    const answer = answerTo(query, 'udp')
    if (answer !== undefined) socket.send(answer, from.port, from.address)
  })
  const server = createServer(tcp => {
    let held = Buffer.alloc(0)
    tcp.on('error', () => undefined)
    tcp.on('data', chunk => {
      held = Buffer.concat([held, chunk])
      while (held.length >= 2 && held.length >= 2 + held.readUInt16BE(0)) {
        const length = held.readUInt16BE(0)
        const answer = answerTo(held.subarray(2, 2 + length), 'tcp')
        held = held.subarray(2 + length)
        if (answer === undefined) continue
        tcp.write(Buffer.concat([numbers(answer.length), answer]))
      }
    })
    t.teardown(() => tcp.destroy())
  })
  await new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve))
  const dns: DnsServer = {
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    zone: new Map(),
    mode: 'usual',
    questions: [],
    set: (type, name, data, ttl = 60) =>
      void dns.zone.set(
        `${type} ${name}`,
        data.map(each => ({ data: each, ttl })),
      ),
  }
  t.teardown(() => {
    socket.close()
    server.close()
  })
  return dns
}

function look({ zone, mode }: DnsServer, type: Type, name: string) {
  if (mode === 'servfail') return { rcode: mode, records: [] } as const
  const isKnown = [...zone.keys()].some(each => each.endsWith(` ${name}`))
  return { rcode: isKnown ? 'ok' : 'nxdomain', records: zone.get(`${type} ${name}`) ?? [] } as const
}

function readQuestion(query: Buffer): { name: string; type: Type; end: number } {
  const labels: string[] = []
  let at = 12
  for (let length = query[at]!; length > 0; length = query[at]!) {
    labels.push(query.toString('latin1', at + 1, at + 1 + length))
    at += 1 + length
  }
  const code = query.readUInt16BE(at + 1)
  const [type] = Object.entries(TYPES).find(([, each]) => each === code) ?? [String(code)]
  return { name: labels.join('.').toLowerCase(), type: type as Type, end: at + 5 }
}

/** Of 16 bits each. */
function numbers(...all: number[]): Buffer {
  const bytes = Buffer.alloc(2 * all.length)
  for (const [at, number] of all.entries()) bytes.writeUInt16BE(number, 2 * at)
  return bytes
}

function encode(type: Type, { data, ttl }: DnsRecord): Buffer {
  const value = dataOf(type, data)
  // 0xc00c: the name of the question.
  return Buffer.concat([numbers(0xc00c, TYPES[type], 1, ttl >>> 16, ttl & 0xffff, value.length), value])
}

function dataOf(type: Type, data: string): Buffer {
  if (type === 'A') return Buffer.from(data.split('.').map(Number))
  if (type === 'AAAA') return ipv6(data)
  const [priority, weight, port, target] = data.split(' ')
  const labels = target!.split('.').filter(label => label !== '')
  const name = labels.flatMap(label => [Buffer.from([label.length]), Buffer.from(label)])
  return Buffer.concat([numbers(Number(priority), Number(weight), Number(port)), ...name, Buffer.from([0])])
}

function ipv6(address: string): Buffer {
  if (!isIPv6(address)) throw new RangeError(address)
  const [before, after] = address.split('::') as [string, string | undefined]
  const groups = (text = ''): number[] => (text === '' ? [] : text.split(':').map(each => Number.parseInt(each, 16)))
  const [first, last] = [groups(before), groups(after)]
  const all =
    after === undefined ? first : [...first, ...Array<number>(8 - first.length - last.length).fill(0), ...last]
  return numbers(...all)
}
