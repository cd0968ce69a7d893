import { readFileSync } from 'node:fs'
import { isObject } from '../../config/checks/partial-config.js'
import { ConfigError, type Flags, type Problem, parseConfig } from '../../config/load.js'
import { formatPath } from '../../config/problems.js'
import { readConfigObject } from '../../config/read/json.js'
import type { ReplayLimits } from './plan.js'

/** The upstream of a file that has none. A replay sends nothing. */
const NO_UPSTREAM = 'echo:'

/**
 * @param base another file, for top-level keys that this one leaves out
 * @throws ConfigError
 */
export function limitsOfFile(file: string, flags: Flags, env: NodeJS.ProcessEnv, base?: string): ReplayLimits {
  const own = readText(file)
  const ownConfig = readConfigObject(own)
  const baseConfig = base === undefined ? undefined : readConfigObject(readText(base))
  const whole = ownConfig === undefined || baseConfig === undefined ? ownConfig : { ...baseConfig, ...ownConfig }
  const text = baseConfig === undefined || whole === undefined ? own : JSON.stringify(whole)
  const { routes } = whole ?? {}
  const needsUpstream =
    whole !== undefined &&
    !('upstream' in whole) &&
    !(Array.isArray(routes) && routes.every(route => isObject(route) && 'upstream' in route))
  const settings = parseConfig(text, {
    env,
    file,
    flags: { ...flags, ...(needsUpstream && { upstream: NO_UPSTREAM }) },
  })
  return { settings, name: file, plain: false }
}

/** The same for one of several files: every problem names its file. @throws ConfigError */
export function limitsOfOneFile(file: string, env: NodeJS.ProcessEnv, base?: string): ReplayLimits {
  try {
    return limitsOfFile(file, {}, env, base)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    throw new ConfigError(error.problems.map(problem => inFile(problem, file, base)))
  }
}

function inFile({ path, message }: Problem, file: string, base: string | undefined): Problem {
  if (path === '') {
    const isNamed = [file, base].some(
      name => name && [name, JSON.stringify(name)].some(each => message.startsWith(each)),
    )
    return { path: isNamed ? '' : file, message }
  }
  const own = readConfigObject(readText(file)) ?? {}
  const inherited = Object.keys((base !== undefined && readConfigObject(readText(base))) || {}).filter(
    key => !Object.hasOwn(own, key),
  )
  const isInBase = inherited.some(key => {
    const root = formatPath([key])
    return path.startsWith(root) && ['', '.', '['].includes(path.charAt(root.length))
  })
  return { path: `${isInBase ? base : file}: ${path}`, message }
}

/** The limits of flags alone: one bucket, with the key `ip` by default. @throws ConfigError */
export function limitsOfFlags(flags: Flags, env: NodeJS.ProcessEnv): ReplayLimits {
  const file = JSON.stringify({ upstream: NO_UPSTREAM, buckets: { client: { key: 'ip' } } })
  return { settings: parseConfig(file, { env, flags }), name: 'the flags', plain: true }
}

/** The kind of a file: a configuration, the report of an earlier replay, or something else such as a log. */
export function kindOf(file: string): 'config' | 'report' | 'other' {
  try {
    const ownConfig = readConfigObject(readFileSync(file, 'utf8'))
    if (ownConfig === undefined) return 'other'
    if ('requests' in ownConfig && 'admitted' in ownConfig && 'clients' in ownConfig) return 'report'
    return 'buckets' in ownConfig || 'routes' in ownConfig ? 'config' : 'other'
  } catch {
    return 'other'
  }
}

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    const { code = String(error) } = error as NodeJS.ErrnoException
    const fault = code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`
    const message = `${JSON.stringify(file)} ${fault}; name a configuration that can be read`
    throw new ConfigError([{ path: '', message }])
  }
}
