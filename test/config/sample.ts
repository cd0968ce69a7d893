import { ConfigError, parseConfig } from '../../src/config/load.js'

type Options = Parameters<typeof parseConfig>[1]

/** A configuration without faults, with a route of each mode. */
export function exampleConfig() {
  return {
    $schema: './shaper.schema.json',
    listen: '0.0.0.0:8080',
    upstream: 'http://127.0.0.1:9000',
    trustProxy: ['loopback'],
    store: 'memory',
    buckets: {
      client: { key: 'ip', rate: '5/s', capacity: 10 },
      everyone: { key: 'all', rate: '100/s', capacity: 200 },
      login: { key: ['ip', 'route'], rate: '6/30s', capacity: 6, blockFor: '30s' },
    },
    routes: [
      { name: 'health', match: { path: '/healthz' }, mode: 'off' },
      { name: 'login', match: { path: '/login', method: 'POST' }, mode: 'meter', buckets: ['login'] },
      { name: 'api', mode: 'shape', buckets: ['client', 'everyone'], cost: { POST: 5 }, maxWait: '10s' },
    ],
    admin: { listen: '127.0.0.1:9090' },
  }
}

/** The smallest valid file. */
export function least() {
  return { upstream: 'echo:', buckets: { client: { rate: '5/s' } } }
}

export function parse(file: unknown, options: Options = {}) {
  return parseConfig(typeof file === 'string' ? file : JSON.stringify(file), { env: {}, ...options })
}

/** The lines of the error; none for a valid file. */
export function faults(file: unknown, options: Options = {}): string[] {
  return linesOf(() => parse(file, options))
}

export function linesOf(run: () => unknown): string[] {
  try {
    run()
    return []
  } catch (error) {
    if (error instanceof ConfigError) return error.message.split('\n')
    throw error
  }
}
