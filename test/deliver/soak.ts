/**
 * Long runs of deliveries: `node build/test/deliver/soak.js failing MINUTES`, and `... kills ROUNDS PAIRS`, that is rounds of each pair.
 * What they print is JSON. The exit status is 1 if a rule was broken.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startPostgres } from '../servers/postgres.js'
import { startRedis } from '../servers/redis.js'
import { playFailures } from './failing.js'
import { playKills } from './kills.js'

const [what, amount = '1', pairs = '1'] = process.argv.slice(2)
const server = await startPostgres()
const redis = await startRedis()
const folder = mkdtempSync(join(tmpdir(), 'shaper-soak-'))

async function killed(name: string) {
  await server.query(`CREATE DATABASE ${name}`)
  const url = server.url.replace(/postgres$/, name)
  return playKills({ url, store: redis.url, folder, name, rounds: Number(amount), work: 5_000 })
}

try {
  const runs = {
    failing: () => [playFailures(server, folder, Number(amount))],
    kills: () => Array.from({ length: Number(pairs) }, (_, at) => killed(`pair${at}`)),
  }
  if (what !== 'failing' && what !== 'kills') throw new Error(`no run is called ${what}`)
  for (const found of await Promise.all<{ readonly faults: readonly string[] }>(runs[what]())) {
    process.stdout.write(`${JSON.stringify(found)}\n`)
    if (found.faults.length > 0) process.exitCode = 1
  }
} finally {
  await server.close()
  await redis.stop()
  rmSync(folder, { recursive: true })
}
