import { readdirSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { ConfigError, parseConfig } from '../../config/load.js'
import { escapeControls } from '../../config/messages.js'
import { configText } from '../../config/nginx/config-text.js'
import { type NginxFiles, NginxSyntaxError } from '../../config/nginx/directives.js'
import { importNginx } from '../../config/nginx/import-nginx.js'
import { orElse } from '../../core/structures/or-else.js'
import type { Terminal } from '../command.js'
import { readUpstream } from './common-options.js'

/** What shaper cannot say is a line on stderr with its place. @throws ConfigError */
export function runImport(file: string, { upstream }: { upstream?: string }, terminal: Terminal): void {
  const { config, notes } = read(file, upstream === undefined ? undefined : readUpstream(upstream), terminal.cwd())
  const text = configText(file, config)
  terminal.stdout.write(text)
  for (const { place, message } of notes)
    terminal.stderr.write(`warning: ${escapeControls(`${place.file}:${place.line}: ${message}`)}\n`)
  for (const { path, message } of problemsOf(text))
    terminal.stderr.write(`warning: ${escapeControls(`${path}: ${message}`)}\n`)
}

function read(file: string, upstream: string | undefined, cwd: string): ReturnType<typeof importNginx> {
  const files: NginxFiles = {
    read: name => readFileSync(resolve(cwd, name), 'utf8'),
    list: folder => orElse(() => readdirSync(resolve(cwd, folder)), []),
  }
  try {
    return importNginx(file, { files, upstream })
  } catch (error) {
    if (error instanceof NginxSyntaxError) {
      const { place, message } = error
      const text = `${place.file}:${place.line}: ${message}; "nginx -t" tells more`
      throw new ConfigError([{ path: '', message: escapeControls(text) }])
    }
    const { code } = error as NodeJS.ErrnoException
    if (code === undefined) throw error
    const message = `${JSON.stringify(file)} cannot be read (${code}); name a configuration of nginx, e.g. /etc/nginx/nginx.conf`
    throw new ConfigError([{ path: '', message }])
  }
}

function problemsOf(text: string): ConfigError['problems'] {
  try {
    parseConfig(text, { env: {} })
    return []
  } catch (error) {
    if (error instanceof ConfigError) return error.problems
    throw error
  }
}
