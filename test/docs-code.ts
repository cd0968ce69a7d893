/** The examples of the docs. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import ts from 'typescript'
import { ROOT } from './cli/command.js'

/** The blocks of a page in a language. */
export function blocks(page: string, language: string): string[] {
  const text = readFileSync(`${ROOT}/${page}`, 'utf8')
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\n([\\s\\S]*?)^\`\`\`$`, 'gm'))].map(match => match[1]!)
}

/** Runs an example in a process of its own, with the library as it is built: what it has written, how it has ended. */
export async function runExample(example: string): Promise<{ code: number | null; output: string }> {
  const code = ts.transpile(example, { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2023 })
  // From the package's own directory its name is its own.
  const child = spawn(process.execPath, ['--input-type=module', '-e', code], {
    cwd: ROOT,
    env: { PATH: process.env.PATH, HOME: process.env.HOME },
    timeout: 30_000,
    killSignal: 'SIGKILL',
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk
    })
  }
  const [exit] = await once(child, 'close')
  return { code: exit as number | null, output }
}

export interface LoggedRequest {
  /** When it was answered. */
  readonly time: number
  readonly key?: string
  readonly waitMs: number
  readonly upstreamMs?: number
}

/** The requests of a log. */
export function requestsOf(log: string): LoggedRequest[] {
  const lines = log.split('\n').filter(line => line.includes('"msg":"request"'))
  return lines.map(line => JSON.parse(line) as LoggedRequest)
}

/** How many requests a log has, and for how many ms they came. */
export function burstOf(log: string): { count: number; spread: number } {
  const came = requestsOf(log).map(({ time, waitMs, upstreamMs = 0 }) => time - waitMs - upstreamMs)
  return { count: came.length, spread: Math.max(...came) - Math.min(...came) }
}
