#!/usr/bin/env node
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

const built = await import('../dist/cli/main.js').catch(error => {
  if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error
  const directory = dirname(dirname(fileURLToPath(import.meta.url)))
  process.stderr.write(`shaper is not built; run npm ci in ${directory}\n`)
  process.exitCode = 1
})
await built?.main(process.argv)
