// @ts-check
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { hasProgram, output, scratchDirectory } from './processes.js'

/** The headers of a browser: ten with Host. */
export const BROWSER_HEADERS = [
  'User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0',
  'Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8',
  'Accept-Language: en-GB,en;q=0.5',
  'Accept-Encoding: gzip, deflate, br, zstd',
  'Referer: http://bench/things',
  'Cookie: session=0123456789abcdef0123456789abcdef',
  'Sec-Fetch-Dest: document',
  'Sec-Fetch-Mode: navigate',
  'Sec-Fetch-Site: same-origin',
]

export function hasWrk() {
  return hasProgram('wrk')
}

/** @param {number} bytes @returns {string[]} */
function posting(bytes) {
  if (bytes === 0) return []
  const file = join(scratchDirectory(), `post-${bytes}.lua`)
  writeFileSync(file, `wrk.method = "POST"\nwrk.body = string.rep("x", ${bytes})\n`)
  return ['-s', file]
}

/**
 * Loads a server with 64 connections from one thread.
 *
 * @param {number} port @param {string} path @param {number} seconds @param {{ headers?: string[], body?: number }} [options] with so many
 * bytes of a body a request is a POST
 * @returns {Promise<{ rate: number, requests: number, bad: number }>} answers per second; how many; how many not 2xx or 3xx
 */
export async function wrk(port, path, seconds, { headers = [], body = 0 } = {}) {
  const url = `http://127.0.0.1:${port}${path}`
  const fields = headers.flatMap(header => ['-H', header])
  const args = ['-t1', '-c64', `-d${seconds}s`, '--timeout', '5s', ...fields, ...posting(body), url]
  const text = await output('wrk', args, (seconds + 10) * 1000)
  const number = (/** @type {RegExp} */ pattern) => Number(pattern.exec(text)?.[1] ?? 0)
  const errors = /Socket errors: .*/.exec(text)?.[0]
  if (errors !== undefined) throw new Error(`wrk ${url}: ${errors}`)
  return {
    rate: number(/Requests\/sec:\s+([\d.]+)/),
    requests: number(/(\d+) requests in/),
    bad: number(/Non-2xx or 3xx responses: (\d+)/),
  }
}
