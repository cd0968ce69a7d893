#!/usr/bin/env node
// @ts-check
/**
 * Writes a combined log: `write-log.js FILE BYTES`. About 200 bytes a line, 2,000 requests a second, addresses by
 * Zipf's law among 100,000, lines up to two seconds late. The output is always the same.
 */
import { closeSync, openSync, writeSync } from 'node:fs'

const [file = '', bytes = '0'] = process.argv.slice(2)

const ADDRESSES = 100_000
const PER_SECOND = 2_000
const AGENTS = [
  'Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36',
  'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.4 Safari/605.1.15',
  'Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0',
  'Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)',
  'python-requests/2.32.3',
]
const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']

let state = 20_150_517
function random() {
  state = (state + 0x6d2b79f5) | 0
  let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
  mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
}

/** @param {number} value */
const two = value => String(value).padStart(2, '0')

/** @param {number} second since 1970 */
function stamp(second) {
  const date = new Date(second * 1_000)
  const day = `${two(date.getUTCDate())}/${MONTHS[date.getUTCMonth()]}/${date.getUTCFullYear()}`
  return `${day}:${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())} +0000`
}

const addresses = Array.from({ length: ADDRESSES }, (_, rank) => {
  const mixed = Math.imul(rank + 1, 0x9e3779b1) >>> 0
  return `${mixed >>> 24 || 1}.${(mixed >>> 16) & 255}.${(mixed >>> 8) & 255}.${mixed & 255}`
})
// Zipf with exponent 1: the rank is the inverse of its logarithmic distribution.
const rank = () => Math.min(ADDRESSES - 1, Math.floor(ADDRESSES ** random()) - 1)

const out = openSync(file, 'w')
let left = Number(bytes)
let count = 0
const start = 1_760_000_000
/** @type {string[]} */
let stamps = []
while (left > 0) {
  const second = start + Math.floor(count / PER_SECOND)
  stamps = [stamp(second), stamp(second - 1), stamp(second - 2)]
  const lines = []
  for (let at = 0; at < PER_SECOND; at += 1) {
    const drawn = random()
    const when = stamps[drawn < 0.9 ? 0 : drawn < 0.98 ? 1 : 2]
    const path = `/products/${Math.floor(random() * 1e5)}?ref=${Math.floor(random() * 1e4)}`
    const agent = AGENTS[Math.floor(random() ** 2 * AGENTS.length)]
    lines.push(
      `${addresses[rank()]} - - [${when}] "GET ${path} HTTP/1.1" 200 ${Math.floor(random() * 5e4)} "-" "${agent}"\n`,
    )
  }
  count += PER_SECOND
  const text = Buffer.from(lines.join(''), 'latin1')
  writeSync(out, text)
  left -= text.length
}
closeSync(out)
process.send?.(count, () => process.exit())
