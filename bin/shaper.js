#!/usr/bin/env node
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

const built = await load().catch(error => {
  if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error
  const directory = dirname(dirname(fileURLToPath(import.meta.url)))
  process.stderr.write(`shaper is not built; run npm ci in ${directory}\n`)
  process.exitCode = 1
})
await built?.main(process.argv)

async function load() {
  if (process.argv[2] === 'start') await import('../dist/cli/serving/hang-up.js')
  return import('../dist/cli/main.js')
}
