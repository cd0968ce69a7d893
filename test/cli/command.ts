/** The command: in a process of its own, or in this one. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { once } from 'node:events'
import { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import type { Terminal } from '../../src/cli/command.js'
import { run } from '../../src/cli/main.js'

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

interface Place {
  readonly cwd?: string
  readonly env?: Record<string, string>
  /** A program that starts the command behind it, with its arguments. */
  readonly by?: readonly string[]
  /** One that has Node in it, with no more than these variables. */
  readonly executable?: string
}

/** Runs `shaper` with these arguments in a process of its own. */
export function shaper(args: readonly string[], options: Place = {}): Command {
  const own = options.executable
  const [program, ...before] = [
    ...(options.by ?? []),
    ...(own === undefined ? [process.execPath, `${ROOT}/bin/shaper.js`] : [own]),
  ]
  const child = spawn(program!, [...before, ...args], {
    cwd: options.cwd ?? ROOT,
    env: { ...(own === undefined && { ...process.env, NODE_V8_COVERAGE: '' }), ...options.env },
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

/** Runs `shaper` with these arguments in this process: for commands that end by themselves. `input`: its standard input. */
export async function shaperHere(
  args: readonly string[],
  { cwd = ROOT, env = {}, input = '' }: Place & { readonly input?: string | Buffer } = {},
): Promise<Finished> {
  const [stdout, stderr] = [collector(), collector()]
  const terminal = {
    stdin: Readable.from([Buffer.from(input)]),
    stdout: stdout.stream,
    stderr: stderr.stream,
    env: { ...process.env, ...env },
    cwd: () => cwd,
  } as unknown as Terminal
  const code = await run([process.execPath, 'shaper', ...args], terminal)
  return { code, stdout: stdout.text(), stderr: stderr.text() }
}

function collector(): { stream: Writable; text: () => string } {
  const chunks: Buffer[] = []
  const stream = new Writable({
    write(chunk: Buffer, _encoding, done) {
      chunks.push(chunk)
      done()
    },
  })
  return { stream, text: () => Buffer.concat(chunks).toString() }
}
