import { randomBytes } from 'node:crypto'
import t from 'tap'
import { KeptBytes } from '../../src/proxy/client/kept-bytes.js'

/** Puts bytes in, in pieces of these sizes, as slices of a shared input are kept. */
function keep(bytes: Buffer, size: () => number): KeptBytes {
  const kept = new KeptBytes()
  for (let at = 0; at < bytes.length; ) {
    const to = Math.min(bytes.length, at + size())
    kept.add(Buffer.from(bytes.subarray(at, to)))
    at = to
  }
  return kept
}

t.test('what was kept comes out as it came, in one piece or in several', async t => {
  const bytes = randomBytes(300_000)
  const sizes = [1, 7, 255, 257, 4_095, 4_096, 30_000, 65_536, 3]
  let at = 0
  const next = (): number => sizes[at++ % sizes.length]!
  t.ok(keep(bytes, next).joined().equals(bytes))
  const kept = keep(bytes, next)
  t.equal(kept.length, bytes.length)
  const first = kept.take()!
  kept.add(Buffer.from('behind'))
  const parts = [first]
  for (let piece = kept.take(); piece !== undefined; piece = kept.take()) parts.push(piece)
  t.ok(Buffer.concat(parts).equals(Buffer.concat([bytes, Buffer.from('behind')])))
  t.equal(kept.length, 0)
  t.equal(kept.joined().length, 0)
})

for (const [name, size] of [
  ['64 kB', 65_536],
  ['1 MiB', 1_048_576],
] as const) {
  t.test(`${name} in pieces of one byte: each is copied a few times, and there are few pieces`, async t => {
    const bytes = randomBytes(size)
    let copied = 0
    const { copy } = Buffer.prototype
    t.teardown(() => {
      Buffer.prototype.copy = copy
    })
    Buffer.prototype.copy = function (this: Buffer, ...args: Parameters<typeof copy>) {
      const count = copy.apply(this, args)
      copied += count
      return count
    }
    const kept = keep(bytes, () => 1)
    t.ok(copied <= 3 * size, `${copied} bytes`)
    let room = 0
    let pieces = 0
    const parts: Buffer[] = []
    for (let piece = kept.take(); piece !== undefined; piece = kept.take()) {
      room += piece.buffer.byteLength
      pieces += 1
      parts.push(piece)
    }
    t.ok(room <= 2 * size, `${room} bytes in memory`)
    t.ok(pieces <= size / 65_536, `${pieces} pieces`)
    t.ok(Buffer.concat(parts).equals(bytes))
  })
}

t.test('a few bytes do not keep a whole pool', async t => {
  for (const count of [1, 2, 3, 100, 255, 256]) {
    const piece = keep(Buffer.alloc(count), () => 1).take()!
    t.equal(piece.length, count)
    t.ok(piece.buffer.byteLength <= 256, `${piece.buffer.byteLength} bytes for ${count}`)
  }
})
