/** The real command in a process of its own. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

export const ROOT = fileURLToPath(new URL('../..', import.meta.url))

export interface Finished {
  code: number | null
  stdout: string
  stderr: string
}

export interface Command {
  child: ChildProcessWithoutNullStreams
  /** The first line on stdout, or what it ended with instead. */
  ready: Promise<string>
  /** Where it listens, from the ready line. */
  url: Promise<string>
  finished: Promise<Finished>
  /** What it has written so far. */
  stderr(): string
}

/** Runs `shaper` with these arguments. */
export function shaper(args: readonly string[], options: { cwd?: string; env?: Record<string, string> } = {}): Command {
  const child = spawn(process.execPath, [`${ROOT}/bin/shaper.js`, ...args], {
    cwd: options.cwd ?? ROOT,
    env: { ...process.env, NODE_V8_COVERAGE: '', ...options.env },
  })
  let stdout = ''
  let stderr = ''
  const ready = new Promise<string>(resolve => {
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk
      if (stdout.includes('\n')) resolve(stdout.slice(0, stdout.indexOf('\n')))
    })
    child.once('close', () => resolve(stderr))
  })
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk
  })
  const finished = once(child, 'close').then(([code]) => ({ code: code as number | null, stdout, stderr }))
  return {
    child,
    ready,
    url: ready.then(line => /(http\S+) ->/.exec(line)?.[1] ?? line),
    finished,
    stderr: () => stderr,
  }
}
