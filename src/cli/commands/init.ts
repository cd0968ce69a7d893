import { existsSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { ConfigError, DEFAULT_FILE } from '../../config/load.js'
import { CommandError, type Terminal } from '../command.js'
import { readUpstream } from './common-options.js'

export interface InitOptions {
  config?: string
  upstream?: string
}

/** A file that is there already stays as it is. @throws ConfigError, CommandError */
export function runInit(
  { config = DEFAULT_FILE, upstream = 'http://127.0.0.1:9000' }: InitOptions,
  terminal: Terminal,
): void {
  const file = resolve(terminal.cwd(), config)
  const text = firstConfig(readUpstream(upstream))
  if (existsSync(file))
    throw new ConfigError([{ path: '', message: `${config} is there already; name another file with -c FILE` }])
  try {
    writeFileSync(file, text, { flag: 'wx' })
  } catch (error) {
    throw new CommandError(`${config} cannot be written (${(error as NodeJS.ErrnoException).code})`)
  }
  const option = config === DEFAULT_FILE ? '' : ` -c ${config}`
  terminal.stdout.write(`wrote ${config}; edit it, then: shaper check${option} && shaper start${option}\n`)
}

function firstConfig(upstream: string): string {
  return `// docs/configuration.md explains every key. "shaper check" finds mistakes.
{
  // Where clients come in. With "127.0.0.1:8080" only this machine can reach it.
  "listen": "0.0.0.0:8080",

  // Where requests go. "echo:" is built in, for trying things.
  "upstream": ${JSON.stringify(upstream)},

  // Behind a load balancer or another proxy: who may tell the address of the client. Without it all clients of that proxy are one.
  // "trustProxy": ["loopback", "10.0.0.0/8"],

  "buckets": {
    // Each client address: its requests leave at 5 a second, and at most 10 of them wait.
    "client": { "key": "ip", "rate": "5/s", "capacity": 10 },
    // All clients together.
    "everyone": { "key": "all", "rate": "100/s", "capacity": 200 },
  },

  // The first route that matches counts.
  "routes": [
    { "name": "health", "match": { "path": "/healthz" }, "mode": "off" },
    // "shape" lets requests wait for their turn, "meter" only rejects.
    { "name": "rest", "mode": "shape", "buckets": ["client", "everyone"], "maxWait": "10s" },
  ],

  // Metrics, the state of the buckets and the dashboard, for this machine only.
  "admin": { "listen": "127.0.0.1:9090" },
}
`
}
