import { readFileSync } from 'node:fs'
import { resolve as resolvePath } from 'node:path'
import {
  adaptFaults,
  adminAddressFaults,
  egressFaults,
  gateFaults,
  listenFaults,
  loopFaults,
  tokenFaults,
} from './checks/as-written.js'
import { crossCheck } from './checks/checks.js'
import { isObject, readPartialConfig } from './checks/partial-config.js'
import { digestOf, fileFaults } from './checks/readable-files.js'
import { workerCount, workerCountFaults, workerFaults } from './checks/workers.js'
import { fitOpenFiles } from './derived/open-files.js'
import { type Flags, fileOfFlags, mergeFlags, type Origin } from './flags.js'
import { quoteFile } from './messages.js'
import { type Finding, findingsOf, formatPath, isWithin } from './problems.js'
import { type Environment, substitute } from './read/environment.js'
import { expandProfiles } from './read/expand-profiles.js'
import { readJson } from './read/json.js'
import { resolve } from './read/resolve.js'
import { file as fileSchema } from './schema/schema.js'
import type { Settings } from './settings.js'

export type { Flags } from './flags.js'

export const DEFAULT_FILE = 'shaper.config.json'
/** Checks that read nothing but the configuration. */
const CHECKS = [listenFaults, loopFaults, adminAddressFaults, adaptFaults, gateFaults, tokenFaults]

export interface ConfigSources {
  readonly file?: string
  readonly flags: Flags
  readonly env: NodeJS.ProcessEnv
  readonly cwd: string
  readonly workers?: string | undefined
  /** How many files each process may open. The default of `limits.maxConnections` fits into it. Undefined: any number. */
  readonly openFiles?: number | undefined
}

/** An error in the configuration. `path` is its place in the file, a flag such as `--rate`, or "" for the whole file. */
export interface Problem {
  path: string
  message: string
}

/** All errors of a configuration at once. The message has one line for each. */
export class ConfigError extends Error {
  readonly code = 'SHAPER_CONFIG'
  readonly problems: readonly Problem[]

  constructor(problems: readonly Problem[]) {
    super(problems.map(({ path, message }) => (path ? `${path}: ${message}` : message)).join('\n'))
    this.name = 'ConfigError'
    this.problems = problems
  }
}

/**
 * Reads a configuration from its text.
 *
 * @param options `env` for `${NAME}` (default: that of the process), `flags` that override the text, `file` for messages
 * @throws ConfigError with every problem
 */
export function parseConfig(text: string, options: { env?: Environment; flags?: Flags; file?: string } = {}): Settings {
  const { env = process.env, flags = {}, file = DEFAULT_FILE } = options
  return readText(text, { env, flags, file, checks: CHECKS })
}

/**
 * Finds and reads the configuration: the given file, else `./shaper.config.json`, else the flags alone.
 *
 * @returns the settings, the absolute path of the file they came from, if any, and the digest of what was read of it
 * @throws ConfigError with every problem
 */
export function loadConfig(options: ConfigSources): { settings: Settings; file: string | undefined; digest: string } {
  const { flags, env, cwd, workers, openFiles, file: given = DEFAULT_FILE } = options
  const file = resolvePath(cwd, given)
  const checks = [...CHECKS, fileFaults, (raw: Record<string, unknown>) => workerFaults(workers, raw)]
  const reading: ReadOptions = { env, flags, checks, workers, openFiles }
  const content = contentOf(file, options.file)
  if (content !== undefined && 'path' in content)
    throw new ConfigError(problemsOf([content, ...flagFaults(reading)], []))
  if (content !== undefined) {
    const settings = readText(content.toString(), { ...reading, file: given })
    return { settings, file, digest: digestOf(content) }
  }
  if (flags.egress) {
    const message = `there is no ./${DEFAULT_FILE} here, and --egress needs a file that says what is allowed; name one with -c FILE, with "egress": { "allow": ["api.example.com:443"] }`
    throw new ConfigError(problemsOf([{ path: [], message }, ...flagFaults(reading)], []))
  }
  const missing = [flags.upstream === undefined && '--upstream URL', flags.rate === undefined && '--rate R'].filter(
    Boolean,
  )
  if (missing.length > 0) {
    const example = 'shaper start --upstream http://127.0.0.1:9000 --rate 5/s'
    const message = `there is no ./${DEFAULT_FILE} here, and without a file ${missing.join(' and ')} must be given; type e.g. ${example}, or name a file with -c FILE`
    throw new ConfigError(problemsOf([{ path: [], message }, ...flagFaults(reading)], []))
  }
  return { settings: settingsOf(fileOfFlags(), [], reading), file: undefined, digest: '' }
}

interface ReadOptions {
  readonly env: Environment
  readonly flags: Flags
  readonly checks: readonly ((file: Record<string, unknown>) => Finding[])[]
  readonly workers?: string | undefined
  readonly openFiles?: number | undefined
}

function readText(text: string, options: ReadOptions & { readonly file: string }): Settings {
  const { value, findings } = readJson(text, options.file)
  if (value === undefined) throw new ConfigError(problemsOf([...findings, ...flagFaults(options)], []))
  return settingsOf(value, findings, options)
}

/** What a file holds; undefined: there is no default file. A fault, if the file cannot be read. */
function contentOf(file: string, given: string | undefined): Buffer | Finding | undefined {
  try {
    return readFileSync(file)
  } catch (error) {
    const { code = String(error) } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' && given === undefined) return undefined
    const fault = code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`
    const remedy = `name a file that ${code === 'ENOENT' ? 'exists' : 'can be read'}, e.g. -c ${DEFAULT_FILE}`
    return { path: given === undefined ? [] : ['-c'], message: `${quoteFile(given ?? file)} ${fault}; ${remedy}` }
  }
}

/** Faults of the flags that no contents of a file could mend, for a file that cannot be used. */
function flagFaults({ flags, workers }: ReadOptions): Finding[] {
  // With an "admin" in the file, --admin sets its address alone. The token may be in the file.
  const { raw, origins, unexpanded } = mergeFlags({ ...fileOfFlags(), admin: {} }, flags)
  const parsed = fileSchema.safeParse(raw)
  const isOther = ({ path }: Finding) => !unexpanded.some(({ path: root }) => isWithin(path, root))
  const found = [...unexpanded, ...(parsed.success ? [] : findingsOf(parsed.error).filter(isOther))]
  const ofFlags = found.flatMap(({ path, message }) => {
    const origin = origins.find(({ path: root }) => isWithin(path, root))
    return origin === undefined ? [] : [{ path: [origin.flag], message }]
  })
  return [...ofFlags, ...workerCountFaults(workers)]
}

function settingsOf(file: unknown, earlier: readonly Finding[], options: ReadOptions): Settings {
  const { env, flags, checks, workers, openFiles } = options
  const substituted = substitute(file, env)
  const merged = mergeFlags(substituted.value, flags)
  const overridden = (finding: Finding) => merged.origins.some(({ path }) => isWithin(finding.path, path))
  const unset = [...substituted.findings.filter(finding => !overridden(finding)), ...merged.unexpanded]
  const isJudged = (finding: Finding) => !unset.some(({ path }) => isWithin(finding.path, path))

  const mode = flags.egress ? 'egress' : 'proxy'
  // With egress no upstream of the file is used.
  const raw = mode === 'egress' ? merged.raw : expandProfiles(merged.raw)
  const parsed = fileSchema.safeParse(raw)
  const found = [...earlier, ...unset, ...(parsed.success ? [] : findingsOf(parsed.error).filter(isJudged))]
  const ofMode = mode === 'egress' ? egressFaults : () => []
  const crossed = isObject(raw)
    ? [...crossCheck(readPartialConfig(raw, mode)), ...[...checks, ofMode].flatMap(check => check(raw))]
    : []
  const ofFlags = isObject(raw) ? [...merged.findings, ...workerCountFaults(workers)] : flagFaults(options)
  const problems = problemsOf([...found, ...crossed.filter(isJudged), ...ofFlags], merged.origins)
  if (!parsed.success || problems.length > 0) throw new ConfigError(problems)
  const notReplaced = substituted.warnings.filter(finding => !overridden(finding))
  const settings = { ...resolve(parsed.data, mode), ...(notReplaced.length > 0 && { notReplaced }) }
  if (isObject(raw) && isObject(raw.limits) && raw.limits.maxConnections !== undefined) return settings
  return fitOpenFiles(settings, openFiles, workerCount(workers ?? '1'))
}

function problemsOf(findings: readonly Finding[], origins: readonly Origin[]): Problem[] {
  const problems = findings.map(({ path, message }) => {
    const origin = origins.find(({ path: root }) => isWithin(path, root))
    return { path: origin?.flag ?? formatPath(path), message }
  })
  return problems.filter(
    ({ path, message }, index) =>
      problems.findIndex(other => other.path === path && other.message === message) === index,
  )
}
